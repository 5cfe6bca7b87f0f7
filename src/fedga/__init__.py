"""Federated learning when clients hold skewed, partly missing classes."""

__version__ = "0.1.0"
