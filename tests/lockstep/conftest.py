"""The tests' own modules are imported by their full name, which `--import-mode=importlib` leaves to the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
