"""What the launcher does with messages that a jail has left when it ends."""

import os

from launcher.jail import reports
from launcher.jail.spawn import Jailed
from launcher.session.terminal import Listener, Terminal, _Jail


def test_last_words_are_read_and_nothing_else_happens() -> None:
    """A message that is read only after the child was reaped counts, and the launcher keeps its session."""
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ)
    reader, writer = os.pipe()
    reports.send_exited(writer, 7 << 8)
    os.close(writer)
    session = os.getsid(0)
    jail = _Jail(Jailed(child, reader), -1, Terminal(-1), Listener(), apart=True)
    try:
        jail.end()
    finally:
        os.close(reader)
    assert (jail.result(), os.getsid(0)) == (7, session)
