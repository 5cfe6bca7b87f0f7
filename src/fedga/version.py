"""The version, where the program can read it without loading torch."""

__version__ = "0.2.dev0"
