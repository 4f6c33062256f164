"""The HTTP headers by which a request says whose it is (contracts section 6).

They are not the protocol's: `Mcp-Session-Id` names a connection, and any client may have one. An id alone proves
nothing either, so over HTTP the session's token goes with it.
"""

SESSION_HEADER = "X-Paddock-Session"
"""The session's id: the key of its request context."""

TOKEN_HEADER = "X-Paddock-Token"
"""What was handed out for that session, and to nobody else."""
