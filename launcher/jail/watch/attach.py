"""The watch: in the place of the guard, or together with it, because a process can have one listener only.

Where namespaces hold the jail, every notified call is looked at and goes on. Where the guard does, its own calls are
its own as ever, and the others are looked at.

Launch path of `paddock learn`: see launcher/jail/syscalls.py. What is needed later is imported here, because this runs
inside the jail's view, which does not hold these files.
"""

import _socket  # noqa: F401  # the observer's
import marshal

from launcher.jail import status
from launcher.jail.guard import attach, serving
from launcher.jail.watch import observer


class Watch(attach.Guard):
    """Watches a jail that namespaces hold. To be made in the process that will be the command's parent."""

    FACTS: attach.Facts = (("watch", "layer", "path system calls are looked at, and go on"),)
    GUARDS = False

    def _prepare(self) -> None:
        """Nothing: no call is performed here, so no domain is needed."""

    def _start(self, fd: int) -> None:
        look = observer.Observer(self._want).look
        serving.start(
            fd, self._plan, self._addresses, self._ledger_fd, self._fault,
            look=look, guards=self.GUARDS, makes=self._makes,
        )  # fmt: skip

    def _want(self, want: observer.Want) -> None:
        # A launcher that does not read is waited for: nothing is lost, and what waits is the command.
        status.send(self._status_fd, status.WANTED, marshal.dumps(want))


class WatchfulGuard(Watch):
    """Guards, and watches the rest."""

    FACTS = (*attach.Guard.FACTS, *Watch.FACTS)
    GUARDS = True

    def _prepare(self) -> None:
        attach.Guard._prepare(self)
