"""How codeQ is installed: its version, its name on PyPI, and the line that installs an extra of it."""

__version__ = "0.1.0"

NAME = "codeq-queue"
"""On PyPI the name `codeq` is another project's. Module and command are called `codeq` all the same."""


def install_line(extra: str = "") -> str:
    """Returns the command that installs codeQ, with one of its extras: artifacts, redis, server or spark."""
    return f"pip install '{NAME}[{extra}]'" if extra else f"pip install {NAME}"


def missing_package(what: str, package: str | None, extra: str) -> str:
    """Returns the message that something needs a package which is not installed, and which line installs it."""
    return f"{what} needs the package {package}, which is not installed: {install_line(extra)}"
