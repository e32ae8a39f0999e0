"""Cursors of listings, as they come back from callers."""

from codeq.domain.errors import InvalidRequest


def from_hex(cursor: str) -> bytes:
    try:
        return bytes.fromhex(cursor)
    except ValueError:
        raise bad_cursor(cursor) from None


def bad_cursor(cursor: str) -> InvalidRequest:
    return InvalidRequest(f"{cursor[:64]!r} is not a cursor of this listing")
