"""The version of the package, where nothing heavy loads with it."""

__version__ = "0.1.0"
