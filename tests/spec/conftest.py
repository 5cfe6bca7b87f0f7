"""The store's fixtures serve these tests too."""

from tests.store.conftest import open_folder, spec, start

__all__ = ["open_folder", "spec", "start"]
