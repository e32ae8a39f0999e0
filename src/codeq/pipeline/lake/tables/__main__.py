"""Prints the page of all tables: `python -m codeq.pipeline.lake.tables > docs/reference/lake.md`."""

import sys

from codeq.pipeline.lake.tables import reference

sys.stdout.write(reference())
