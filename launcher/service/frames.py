"""Frames of the attach stream, for both of its ends: a letter, four bytes of length (little-endian), a payload.

What each letter means is said where the service speaks it (`launcher.service.api.stream`); `launcher.jail.status` has
the same form, and takes frames apart. A module of its own, because clients start quicker without the service's models.
"""

HELLO, OUTPUT, ERRORS, OVER, REFUSED = b"H", b"O", b"R", b"X", b"E"
INPUT, END, SIGNAL, WINDOW = b"I", b"Z", b"K", b"W"

MOST_FRAME = 1 << 20
"""Bytes of a payload."""
HEADER = 5


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame."""
    return kind + len(payload).to_bytes(4, "little") + payload
