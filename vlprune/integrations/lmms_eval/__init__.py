"""A model for lmms-eval: `lmms-eval --model vlprune`, over every family that vlprune prunes (docs/benchmarks.md)."""
