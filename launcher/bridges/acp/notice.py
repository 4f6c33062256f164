"""What the launcher of a bridge's session tells the bridge, by a pipe, in lines of words.

Which process is the jail's init; that the provider was executed, or why it was not.
"""

import json
import os
import select

from policy.errors import Refusal


class Teller:
    """The launcher's end."""

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor to write to."""
        self._fd = fd

    def init(self, pid: int) -> None:
        """The jail's init is there."""
        self._write(f"init {pid}\n".encode())

    def begun(self) -> None:
        """The provider is executed: there is no more to be told."""
        self._write(b"begun\n")
        if self._fd != -1:
            os.close(self._fd)
        self._fd = -1

    def refused(self, refusal: Refusal) -> None:
        """Nothing is started. Of a Refusal whose text is too long the first words are told."""
        for most in (1000, 200):
            told = [text[:most] for text in (refusal.reference, refusal.message, refusal.context, refusal.hint)]
            line = f"refused {json.dumps([*told, refusal.exit_code])}\n".encode()
            if len(line) <= select.PIPE_BUF:
                self._write(line)
                return

    def _write(self, line: bytes) -> None:
        if self._fd != -1:
            os.write(self._fd, line)


class Listener:
    """The bridge's end.

    Attributes:
        fd: to be polled; -1 when nothing more is told.
        init: process id of the jail's init; 0 when there is none yet.
        begun: whether the provider was executed.
        refusal: why it was not.
    """

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor to read from."""
        os.set_blocking(fd, False)
        self.fd = fd
        self.init = 0
        self.begun = False
        self.refusal: Refusal | None = None
        self._rest = b""

    def read(self) -> None:
        """Takes what was told."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            what, _, rest = line.partition(b" ")
            if what == b"init":
                self.init = int(rest)
            elif what == b"begun":
                self.begun = True
            elif what == b"refused":
                reference, message, context, hint, code = json.loads(rest)
                self.refusal = Refusal(reference, message, context=context, hint=hint, exit_code=code)
        if not data:
            self.close()

    def close(self) -> None:
        """Gives it up. Safe to call twice."""
        if self.fd != -1:
            os.close(self.fd)
        self.fd = -1
