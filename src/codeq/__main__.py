"""Runs the command line: `python -m codeq` is `codeq`."""

from codeq.cli.main import app

if __name__ == "__main__":
    app(prog_name="codeq")
