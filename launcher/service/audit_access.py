"""Access to the kernel's audit: joined with a capability that is given up at once, and a proof that records arrive."""

import os

from launcher.jail import capabilities, hygiene, landlock, syscalls
from launcher.ledger import audit_socket

_CAP_AUDIT_READ = 37

ABI_OF_SIGNALS = 6
"""Landlock's first version that knows signals, which `provoke` needs."""


def join() -> int:
    """Joins the audit's multicast group, then gives up every capability, as a service under its unit must.

    To be called before anything is started and while there is one thread. Root keeps what it has: its launchers hear
    for themselves, and jails of root take other capabilities to be made.

    Returns:
        The socket, owned by the caller; -1 where this process may not read the audit.

    Raises:
        Refusal: capabilities-kept.
    """
    if os.geteuid() == 0:
        return -1
    listener = -1
    if syscalls.capget()[0] >> _CAP_AUDIT_READ & 1:
        listener = audit_socket.listening()
    capabilities.drop_all()
    return listener


def provoke(abi: int) -> None:
    """Lets a child be refused something by Landlock, as each new command is: its record proves that records arrive.

    Args:
        abi: of the kernel's Landlock; 6 at least, which knows signals.
    """
    child = os.fork()
    if child == 0:
        try:
            hygiene.no_new_privs()
            landlock.restrict((), abi=abi, network=False, log=True)
            os.kill(os.getppid(), 0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
