"""The session's token: whoever sends it came from the session's own environment.

On a proxy inside a jail's network namespace it is a second lock; on the machine's own loopback it is the only one that
keeps other users, and other jails, out.
"""

import base64
import binascii
import hmac


def presented(header: bytes) -> str:
    """The password in a ``Proxy-Authorization`` header's value (RFC 7617); "" when there is none."""
    scheme, _, credentials = header.strip().partition(b" ")
    if scheme.lower() != b"basic":
        return ""
    try:
        user_password = base64.b64decode(credentials.strip(), validate=True)
    except binascii.Error:
        return ""
    return user_password.partition(b":")[2].decode("latin-1")


def valid(given: str, token: str) -> bool:
    """Whether `given` is the token, in a time that tells nothing about it."""
    return hmac.compare_digest(given.encode("latin-1", "replace"), token.encode("latin-1"))
