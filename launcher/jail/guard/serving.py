"""Answering a jail's calls, and telling of those that were refused.

Launch path of the backend landlock+guard, beside the command's own start: see launcher/jail/syscalls.py.
"""

import marshal
import select

from launcher.jail import status
from launcher.jail.guard import server
from launcher.jail.guard.listener import Listener
from launcher.jail.guard.rules import Refused, Rules
from policy.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.jail.guard.call import Call

_PIPE_BUF = 4096 - 5  # with a message's header


def start(
    fd: int,
    plan: Plan,
    addresses: tuple[tuple[bytes, int], ...],
    ledger_fd: int,
    fault: "Callable[[BaseException], None]",
    *,
    look: "Callable[[Call], bool] | None" = None,
    guards: bool = True,
    makes: int = -1,
) -> None:
    """Serves a listener in threads of its own from now on.

    Args:
        fd: the listener.
        plan: bound.
        addresses: (4 or 16 bytes, port) that may be connected to over TCP.
        ledger_fd: where refused calls are told (`launcher.jail.status`, DENIED).
        fault: told about an exception that should never come; it does not come back.
        look: looks at each call first, see `server.Server`.
        guards: whether calls are performed, see `server.Server`.
        makes: a Landlock domain, in which sockets are bound (`landlock.ruleset`); without one they are not.
    """

    def refused(call: str, caller: server.Caller, why: Refused) -> None:
        _tell(ledger_fd, call, caller, why)

    server.Server(Listener(fd), Rules(plan, addresses), fault, refused, look=look, guards=guards, makes=makes).start()


def _tell(ledger_fd: int, call: str, caller: server.Caller, refused: Refused) -> None:
    """Tells the launcher, for the ledger. One that does not read is not waited for: its jail must go on."""
    path, wanted, host, port, target = refused.subject
    pid, name, program = caller
    words = (call, status.shortened(path), wanted, host, port, target, pid, name, status.shortened(program))
    payload = marshal.dumps(words)
    # A pipe with room for anything takes PIPE_BUF bytes at once (pipe(7)), and whole.
    if len(payload) < _PIPE_BUF:
        room = select.poll()  # one for each call: several threads come here, and a poll object serves one
        room.register(ledger_fd, select.POLLOUT)
        if room.poll(0):
            status.send(ledger_fd, status.DENIED, payload)
