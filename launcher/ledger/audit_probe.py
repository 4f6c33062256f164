"""Whether the kernel's audit can be read here, for `paddock doctor`."""

import _socket

from launcher.lean import os
from launcher.ledger import audit_socket

_NETLINK, _RAW, _AUDIT = 16, 3, 9


def describe() -> tuple[str, bool, bool, str, str]:
    """A row of `launcher.jail.probe.describe`: layer, present, usable, why not, what to do.

    That a session really hears its denials is proven in each one anew (`launcher.ledger.audit`).
    """
    try:
        _socket.socket(_NETLINK, _RAW | os.O_CLOEXEC, _AUDIT).close()
    except OSError as error:
        return ("audit", False, False, f"the kernel has none: {error.strerror}", "")
    known = audit_socket.status()
    if known is not None and not known.enabled:
        return ("audit", True, False, "switched off: nobody hears what Landlock refuses", "auditctl -e 1")
    listener = audit_socket.listening()
    if listener == -1:
        why = "this user may not read it: the ledger holds what the guard and the proxy refuse"
        return ("audit", True, False, why, "run as root, or with CAP_AUDIT_READ; paddock learn needs neither")
    os.close(listener)
    return ("audit", True, True, "", "")
