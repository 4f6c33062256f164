"""An installation of the wheel that writes down which of its functions are called, in whatever process.

So a test can say what a verb, an API call or the service reaches: nothing is looked at but the installed command at
work, and nothing in the product knows of it.
"""

import os
import shutil
from pathlib import Path

from tests.support import install
from tests.support.install import Installed

_TRACER = """
import os, sys, threading

_INTO = {into!r}
_seen = set()
_file = None  # descriptor and inode; opened early, because what it writes to may be out of reach later


def _opened():
    global _file
    try:
        if _file is None or os.fstat(_file[0]).st_ino != _file[1]:  # somebody has closed it
            raise OSError
    except OSError:
        try:
            fd = os.open(_INTO + "/" + str(os.getpid()) + "-" + str(os.getuid()),
                         os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError:
            return None
        _file = (fd, os.fstat(fd).st_ino)
    return _file[0]


def _call(frame, event, argument):
    code = frame.f_code
    if event == "call" and code not in _seen:
        _seen.add(code)
        name = code.co_filename
        for package in ("launcher", "policy"):
            at = name.rfind("/" + package + "/")
            if at >= 0 and (fd := _opened()) is not None:
                module = name[at + 1 :].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                os.write(fd, (module + ":" + code.co_qualname + "\\n").encode())
                return


sys.setprofile(_call)
threading.setprofile(_call)
"""


class Traced:
    """The installation.

    Args:
        place: an empty directory that every user can enter.

    Attributes:
        installed: the command.
        into: where it writes; the jail of whatever is to be traced has to show it (`--rw`).
    """

    def __init__(self, place: Path) -> None:
        self.into = place / "trace"
        self.into.mkdir()
        self.into.chmod(0o1777)
        known = install.install()
        prefix = place / "env"
        shutil.copytree(known.prefix, prefix, symlinks=True, ignore=shutil.ignore_patterns("complete", "*.whl"))
        for script in (prefix / "bin").iterdir():
            if not script.is_symlink() and (text := script.read_bytes()).startswith(b"#!"):
                script.write_bytes(text.replace(os.fsencode(known.prefix), os.fsencode(prefix)))
        (packages,) = prefix.glob("lib/python*/site-packages")
        (packages / "traced_calls.py").write_text(_TRACER.format(into=str(self.into)))
        (packages / "traced_calls.pth").write_text("import traced_calls\n")
        self.installed = Installed(prefix, prefix / "bin/paddock", prefix / "bin/python3", packages, known.wheel)

    def calls(self) -> set[str]:
        """The functions that were called since the last time that this was asked, as ``module:name``."""
        found: set[str] = set()
        for path in self.into.iterdir():
            found |= set(path.read_text().splitlines())
            path.unlink()
        return found
