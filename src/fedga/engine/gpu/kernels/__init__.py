"""Triton kernels for many small independent networks; imported only where they run."""
