"""``python -m fedga`` is the program ``fedga``."""

from fedga.cli import main

main()
