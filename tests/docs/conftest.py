"""Lets the tests of the pages use each other's modules, and the server of `tests/server`."""

import sys
from pathlib import Path

# The tests' own modules are imported by their full name, which `--import-mode=importlib` leaves to the path.
sys.path.insert(0, str(Path(__file__).parents[2]))
