"""vlprune inside other people's engines."""
