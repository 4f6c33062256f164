"""Switching the kernel's audit on (AUDIT_SET, auditctl(8) ``-e 1``), for the unit that does it at boot.

Without it Landlock's denials are recorded nowhere. It takes CAP_AUDIT_CONTROL in the initial user and PID namespaces,
which is why no service that runs agents does it for itself.
"""

import _socket
import errno
import socket
import struct

from launcher.lean import os
from launcher.ledger import audit_socket
from policy.errors import Refusal

_AUDIT = 9  # NETLINK_AUDIT
_SET = 1001
_ERROR = 2  # NLMSG_ERROR, which is also the acknowledgement
_REQUEST_AND_ACKNOWLEDGE = 1 | 4
_STATUS_ENABLED = 1 << 0
_SECONDS = 5.0


def enable() -> bool:
    """Switches it on; False when it was on already.

    Refusals: audit-unavailable: the kernel has none, does not let this process, or did not obey.
    """
    known = audit_socket.status()
    if known is None:
        raise _unavailable("this process may not ask for its state")
    if known.enabled:
        return False
    refused = _set(1)
    if refused:
        raise _unavailable(os.strerror(refused))
    known = audit_socket.status()
    if known is None or not known.enabled:
        raise _unavailable("the kernel acknowledged it and left it off")
    return True


def _set(enabled: int) -> int:
    """AUDIT_SET of `enabled`; the kernel's errno, 0 for done."""
    status = struct.pack("=11I", _STATUS_ENABLED, enabled, *[0] * 9)
    header = struct.pack("=IHHII", 16 + len(status), _SET, _REQUEST_AND_ACKNOWLEDGE, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _AUDIT) as asking:
            asking.settimeout(_SECONDS)
            asking.sendto(header + status, (0, 0))
            answer = asking.recv(8192)
    except OSError as error:
        return error.errno or errno.EIO
    kind = struct.unpack_from("=H", answer, 4)[0]
    if kind != _ERROR or len(answer) < 20:
        return errno.EPROTO
    code: int = struct.unpack_from("=i", answer, 16)[0]
    return -code


def _unavailable(why: str) -> Refusal:
    return Refusal(
        "audit-unavailable",
        "kernel audit cannot be switched on",
        context=f"{why}; it needs root (CAP_AUDIT_CONTROL), outside of containers and of other PID namespaces",
        hint="ledgers lack what Landlock alone denies, and say so; paddock learn needs no audit",
    )


# Whether the kernel's audit can be read here, for `paddock doctor`.


_NETLINK, _RAW, _PROBED_AUDIT = 16, 3, 9


def describe_audit() -> tuple[str, bool, bool, str, str]:
    """A row of `launcher.jail.probe.describe`: layer, present, usable, why not, what to do.

    That a session really hears its denials is proven in each one anew (`launcher.ledger.audit`).
    """
    try:
        _socket.socket(_NETLINK, _RAW | os.O_CLOEXEC, _PROBED_AUDIT).close()
    except OSError as error:
        return ("audit", False, False, f"the kernel has none: {error.strerror}", "")
    known = audit_socket.status()
    if known is not None and not known.enabled:
        return ("audit", True, False, "switched off: denials by Landlock are not recorded", "auditctl -e 1")
    listener = audit_socket.listening()
    if listener == -1:
        why = "this user may not read it: the ledger has only denials by the guard and the proxy"
        return ("audit", True, False, why, "run as root, or with CAP_AUDIT_READ; paddock learn needs neither")
    os.close(listener)
    return ("audit", True, True, "", "")
