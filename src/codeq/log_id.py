"""Makes ids of event logs. Stores are given it as an argument, as they are given the time."""

from uuid import uuid4


def new_log_id() -> str:
    """Returns an id that no other log has."""
    return uuid4().hex
