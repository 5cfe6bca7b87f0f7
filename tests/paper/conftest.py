"""The report's fixtures serve these tests too."""

from tests.report.conftest import curves, one_seed, with_diverged, without_matplotlib

__all__ = ["curves", "one_seed", "with_diverged", "without_matplotlib"]
