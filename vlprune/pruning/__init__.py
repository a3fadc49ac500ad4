"""The seam into transformers: from a call of `generate` or `forward` to a shorter prompt."""
