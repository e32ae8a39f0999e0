"""Makes examples/ importable, as `python -m examples.code_review` has it from the project's folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
