"""The states of a connection, how much is done for it at once, and what its client may send, leave unread or delay."""

from enum import IntEnum


class State(IntEnum):
    """In the order in which a connection passes through them; it never returns to an earlier one.

    state       parses   begins requests   sends responses
    OPEN        yes      yes               yes
    REFUSING    no       those before      yes, then the refusal, then it closes
    CLOSING     no       no                no; the client has a while to read what was sent, what it sends is dropped
    LOST        no       no                no
    """

    OPEN = 0
    REFUSING = 1
    CLOSING = 2
    LOST = 3


AHEAD_BYTES_MAX = 64 * 1024
"""Bytes that are read while a request is being processed, so that a client that leaves is noticed."""
RECEIVE_BYTES = 16 * 1024
"""Bytes that are received at once. A piece of more than 128 KB would be memory of its own from the system, whose pages
cost more than what is done with them."""
READ_BYTES_MIN = 64 * 1024
"""What a client must read of its responses in each idle timeout, to be given another: a thousand bytes a second."""
STEPS_MAX = 16
"""Pieces of one connection that are parsed, and requests that are begun, before others have their turn."""
FEW_STEPS_MAX = 4
"""The same while connections wait for their turn: enough for a request with its body, not for many in a row."""
RESET_S_MAX = 1.0
"""A client that resets the connection this soon after a response has not read it: an end without reading is a reset."""
LINGER_BYTES_MAX = 1 << 20
LINGER_S_MAX = 5.0
"""What a client may still send after the last response, and for how long. Closing on unread bytes resets the
connection, and the client may lose the response."""
