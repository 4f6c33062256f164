"""Whether the machine's mounts have changed: for what was made of them before, and is to be used now.

The kernel counts what happens to the mounts of a namespace, and tells of it through a mountinfo file
(proc_pid_mountinfo(5)): what is mounted, unmounted, moved or remounted, here or by propagation. What happens in other
namespaces, such as a jail's, is not counted. The lines of the file say less: numbers of mounts are used again, so that
a file system which was replaced by another can have the very same line.

Loaded by warm helpers, with the launch path's imports: see launcher/jail/syscalls.py.
"""

import select

from launcher.lean import os


class Mounts:
    """The mounts of this process's namespace, from now on. Owns a descriptor until `close`.

    The kernel tells each change once for each time the file is opened: so no two of these take it from each other, but
    a child made by fork(2) and this process would. The child must not ask.
    """

    __slots__ = ("_changed", "_descriptor", "_poll")

    def __init__(self) -> None:
        """Starts to watch.

        Raises:
            OSError: there are no descriptors left, or no /proc.
        """
        self._descriptor = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLPRI)
        self._changed = False

    def changed(self) -> bool:
        """Whether anything has changed since the beginning, but for what `wait` has told."""
        self._changed = self._changed or bool(self._poll.poll(0))
        return self._changed

    def wait(self, channel: int, seconds: float | None) -> "tuple[bool, bool]":
        """Waits until something can be read from `channel`, or something changes.

        Args:
            channel: a descriptor.
            seconds: how long; None for ever.

        Returns:
            Whether there is something to be read; whether something has changed since it was asked last.
        """
        both = select.poll()
        both.register(channel, select.POLLIN)
        both.register(self._descriptor, select.POLLPRI)
        found = [descriptor for descriptor, _ in both.poll(None if seconds is None else seconds * 1000)]
        return channel in found, self._descriptor in found

    def close(self) -> None:
        """Lets go of the descriptor. Safe to call twice."""
        if self._descriptor != -1:
            os.close(self._descriptor)
            self._descriptor = -1
