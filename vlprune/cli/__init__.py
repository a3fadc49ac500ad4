"""The program `vlprune`."""
