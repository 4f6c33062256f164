"""Whether there is a bwrap to be trusted, and whether it works here: found out by making a jail with it.

Launch path: see launcher/jail/syscalls.py.
"""

from _stat import S_ISREG

from launcher.jail.bubblewrap import arguments
from launcher.jail.bubblewrap.process import Bubblewrap, own_proc
from launcher.jail.namespaces import layout
from launcher.jail.spec import JailSpec
from launcher.lean import os
from policy.errors import Refusal

_WORKS = b"\0"

# One `struct sock_filter`: return SECCOMP_RET_ALLOW.
_ALLOW_EVERYTHING = (0x06).to_bytes(4, "little") + (0x7FFF0000).to_bytes(4, "little")


def candidates(search: str) -> tuple[str, ...]:
    """The canonical paths at which a bwrap may be: in the absolute directories of `search`, a PATH."""
    return tuple(os.path.realpath(f"{place}/bwrap") for place in search.split(":") if place.startswith("/"))


def find(among: tuple[str, ...]) -> str:
    """The first bwrap that can be executed and that nobody but root and this user can have put there, or "".

    It runs outside of every jail. So the file must belong to root or this user, with nobody else allowed to write it;
    the caller leaves out what an agent may have led to.

    Args:
        among: canonical paths.
    """
    for path in among:
        try:
            found = os.stat(path)
        except OSError:
            continue
        trusted = found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o002
        if trusted and S_ISREG(found.st_mode) and os.access(path, os.X_OK):
            return path
    return ""


def why_not(path: str) -> str:
    """Why the bwrap at `path` is of no use here, "" when it is. Leaves no trace in the calling process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        # Nothing may escape from here: this is a copy of the caller, with all that it has on its stack.
        try:
            os.close(reading)
            os.write(writing, _tried(path).encode(errors="backslashreplace") or _WORKS)
        finally:
            os._exit(0)
    os.close(writing)
    said = b""
    while block := os.read(reading, 4096):
        said += block
    os.close(reading)
    os.waitpid(pid, 0)
    if said == _WORKS:
        return ""
    return said.decode() or "the process that tried it died"


def _shows_proc(running: Bubblewrap) -> str:
    """Why a command would not have its own /proc, "" when it would."""
    child = os.fork()
    if child == 0:
        try:
            running.join_user()
            own_proc()
            os._exit(0)
        finally:
            os._exit(1)
    return "" if os.waitpid(child, 0)[1] == 0 else "it lets nobody mount /proc in a PID namespace inside of its own"


def _tried(path: str) -> str:
    spec = JailSpec()
    words = arguments.argv(spec, layout.prepare(spec), uid=os.geteuid(), gid=os.getegid())
    try:
        running = Bubblewrap(path, words, _ALLOW_EVERYTHING)
        try:
            running.join()
            running.separate_first(())
            if why := _shows_proc(running):
                return why
        finally:
            running.end()
    except Refusal as refusal:
        return refusal.context.splitlines()[0]
    return ""
