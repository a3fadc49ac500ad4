"""The cases of `benchmarks/fuzz.py`, one file a campaign."""
