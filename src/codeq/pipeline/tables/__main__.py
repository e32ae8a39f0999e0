"""Prints the page of all tables: `python -m codeq.pipeline.tables > docs/reference/lake.md`."""

import sys

from codeq.pipeline.tables import reference

sys.stdout.write(reference())
