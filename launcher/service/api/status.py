"""The HTTP status for each Refusal. What is not listed is a request that cannot be carried out: 422."""

import json

from policy.errors import Refusal

_BY_REFERENCE = {
    "peer-refused": 403,
    "route-unknown": 404,
    "session-unknown": 404,
    "context-unknown": 404,
    "worktree-unknown": 404,
    "ticket-run-unknown": 404,
    "method-unknown": 405,
    "request-slow": 408,
    "session-exists": 409,
    "session-in-use": 409,
    "session-live": 409,
    "session-over": 409,
    "session-not-running": 409,
    "session-transition": 409,
    "session-has-writer": 409,
    "session-no-stdin": 409,
    "idempotency-mismatch": 409,
    "ticket-run-exists": 409,
    "ticket-run-live": 409,
    "session-forgotten": 410,
    "request-large": 413,
    "request-invalid": 400,
    "upgrade-needed": 426,
    "quota-sessions": 429,
    "quota-client": 429,
    "quota-followers": 429,
    "quota-ticket-runs": 429,
    "internal-error": 500,
    "connections-exhausted": 503,
    "service-stopping": 503,
    "database-unusable": 503,
    "database-busy": 503,
    "database-full": 503,
    "session-unstartable": 503,
}

OTHERWISE = 422


def status_of(refusal: Refusal) -> int:
    """The status code."""
    return _BY_REFERENCE.get(refusal.reference, OTHERWISE)


def raw(refusal: Refusal) -> bytes:
    """A whole HTTP response, behind which the connection is closed."""
    body = json.dumps(refusal.as_dict()).encode()
    code = status_of(refusal)
    head = f"HTTP/1.1 {code} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body
