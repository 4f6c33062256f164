"""What a further command gets for standard input, output and error. Never the caller's terminal itself.

What a command leaves behind lives as long as its session, and a terminal that it was given it would keep: to read what
the user types at his shell later, and to write there. So where output goes to the terminal, the command gets one of its
own (`relayed`). Where it goes elsewhere, as in ``paddock exec s -- make | less``, the keys belong to whoever else
is in front of the terminal: the command finds no input, and what it says on standard error crosses by a pipe.

Files do not cross either: see `carrier`.
"""

import os
import select

from launcher.jail import hygiene, request
from launcher.session.relayed import Relay
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.session.carrier import Carrier

_CHUNK = 65536
_ERROR = 2


class Streams:
    """The three streams of one command; owns what it makes.

    Attributes:
        kinds: for `request.Command.streams`.
        relay: between the caller's terminal and the command's, None where it has none.
        complaints: read end of the pipe for standard error, -1 where there is none.
        carrier: of files, None where there are none.
    """

    def __init__(self) -> None:
        """Looks at this process's streams, and makes pipes and a process where they are needed (OSError, Refusal)."""
        hygiene.fill_standard_fds()
        terminals = [os.isatty(fd) for fd in (0, 1, 2)]
        self.kinds = request.DIRECT * 3
        self.relay: Relay | None = None
        self.complaints = -1
        self._passed = [0, 1, 2]
        self._own: list[int] = []
        self.carrier: Carrier | None = None
        if to_carry := hygiene.streams_to_carry():
            from launcher.session import carrier

            self.carrier = carrier.Carrier(to_carry)
            self._passed = list(self.carrier.streams)
            self._own += self.carrier.ends
        if terminals[1]:
            self.kinds = "".join(request.PTY if terminal else request.DIRECT for terminal in terminals)
            self._passed = [fd for fd, terminal in zip(self._passed, terminals, strict=True) if not terminal]
            self.relay = Relay(0, 1, keys=terminals[0])
            return
        if terminals[0]:
            self._passed[0] = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            self._own.append(self._passed[0])
        if terminals[2]:
            self.complaints, self._passed[2] = os.pipe2(os.O_CLOEXEC)
            self._own.append(self._passed[2])
            os.set_blocking(self.complaints, False)

    def passed(self) -> list[int]:
        """The descriptors to send, one for each stream that is no terminal of the command's own."""
        return self._passed

    def sent(self) -> None:
        """They are on their way: closes those that were made for it, so that a pipe ends with the command."""
        for fd in self._own:
            os.close(fd)
        self._own.clear()

    def limit(self, size: int) -> None:
        """The session bounds files by this many bytes, if it is not 0: what the command writes to one counts."""
        if size and self.carrier is not None:
            self.carrier.limit((("file_size", size),))

    def wanted(self) -> list[tuple[int, int]]:
        """The descriptors to poll now, with events."""
        found = self.relay.wanted() if self.relay is not None else []
        return found if self.complaints == -1 else [*found, (self.complaints, select.POLLIN)]

    def serve(self, fd: int, events: int) -> None:
        """Moves bytes for what poll(2) has said about one of `wanted`."""
        if fd == self.complaints:
            self._pass_complaint()
        elif self.relay is not None:
            self.relay.serve(fd, events)

    def finish(self) -> Refusal | None:
        """The command has ended: shows the rest of what it has said. Returns what is to be told of a file."""
        if self.relay is not None:
            self.relay.finish()
        while self.complaints != -1 and self._pass_complaint():
            continue
        return self.carrier.finish(ended=False) if self.carrier is not None else None

    def close(self) -> None:
        """Gives the terminal back, and closes everything. Whoever still holds the pipe writes in vain."""
        self.sent()
        if self.relay is not None:
            self.relay.close()
        self._close_complaints()

    def _pass_complaint(self) -> bool:
        """Whether there was something."""
        try:
            data = os.read(self.complaints, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close_complaints()
            return False
        try:
            while data:
                data = data[os.write(_ERROR, data) :]
        except OSError:
            self._close_complaints()  # the terminal has hung up
        return True

    def _close_complaints(self) -> None:
        if self.complaints != -1:
            os.close(self.complaints)
            self.complaints = -1
