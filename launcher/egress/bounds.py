"""What one session's proxy will bear. A jail that goes beyond it harms its own network, and nothing else."""

from typing import NamedTuple


class Bounds(NamedTuple):
    """Upper bounds.

    Attributes:
        connections: clients at the same time; more are answered 503.
        head_bytes: of a request's head, and of a TLS client's first message.
        head_seconds: until a request's head must be complete.
        resolve_seconds: until a name must be resolved.
        dial_seconds: until a connection to the destination must stand.
        idle_seconds: without a byte in either direction, after which a connection is closed. Model servers may
            think for minutes before their first word.
        log_bytes: of the log; decisions beyond it are counted only.
    """

    connections: int = 2048
    head_bytes: int = 65536
    head_seconds: float = 30.0
    resolve_seconds: float = 20.0
    dial_seconds: float = 30.0
    idle_seconds: float = 3600.0
    log_bytes: int = 16 << 20
