"""One denial, and the words for what was wanted. Plain data; every layer describes what it refused in this shape."""

from typing import Any, NamedTuple

LANDLOCK = "landlock"
SECCOMP = "seccomp"
GUARD = "guard"
PROXY = "proxy"
VALIDATOR = "validator"
BRIDGE = "bridge"

KEY = "key"
"""Operation of what the proxy refused about a key that stays outside."""

UNRESOLVED = "resolve"
"""Operation of an allowed host whose name leads nowhere: it failed, and no rule refused it."""


class Process(NamedTuple):
    """Who asked. `pid` is the machine's number (0: not known); `comm` and `exe` are what the layer could tell."""

    pid: int = 0
    comm: str = ""
    exe: str = ""


class Denial(NamedTuple):
    """Something that a layer refused.

    Attributes:
        time: seconds since the epoch.
        layer: one of those above.
        operation: in words: "read", "write", "connect" ...
        path: what file it was about; "" when it was about none.
        host: name or address, "" when it was about none; with `port` (0: none).
        target: what it was about in other cases: a process, a socket's name, a system call; the proxy's reason.
        rights: the kernel's own names of what was missing (``fs.read_file``), () where it has none.
        process: who asked.
        wanted: the letter of an Access (policy/plan.py) that a grant must have: "r", "w" or "x".
        seen: how often.
        hint: what the layer itself says would allow it; "" when it says nothing.
    """

    time: float
    layer: str
    operation: str
    path: str = ""
    host: str = ""
    port: int = 0
    target: str = ""
    rights: tuple[str, ...] = ()
    process: Process = Process()
    wanted: str = "r"
    seen: int = 1
    hint: str = ""

    @property
    def harmless(self) -> bool:
        """Whether nothing is to be allowed, as the layer says: who asked does as well without, or it is allowed."""
        return bool(self.hint) and (self.layer == GUARD or self.operation == UNRESOLVED)

    @property
    def key(self) -> tuple[object, ...]:
        """Denials with the same key are one line with a count: who asked is told by programme, not by number.

        What the dynamic loader looks for (ld.so(8)) is one line for all programmes, because none of them asked.
        """
        subject = (self.path, self.host, self.port, self.target)
        who = "" if _is_loaders(self.path, self.wanted) else self.process.exe or self.process.comm
        return (self.layer, self.operation, self.rights, *subject, who)


def _is_loaders(path: str, wanted: str) -> bool:
    """Whether a file is one that the dynamic loader reads in everybody's name: its settings, or a library."""
    name = path.rpartition("/")[2]
    return wanted != "w" and (name.startswith("ld.so.") or name.endswith(".so") or ".so." in name)


OPERATIONS = {
    "fs.execute": "execute",
    "fs.write_file": "write",
    "fs.read_file": "read",
    "fs.read_dir": "list",
    "fs.remove_dir": "remove a directory in",
    "fs.remove_file": "remove a file in",
    "fs.make_char": "make a device in",
    "fs.make_dir": "make a directory in",
    "fs.make_reg": "make a file in",
    "fs.make_sock": "make a socket in",
    "fs.make_fifo": "make a pipe in",
    "fs.make_block": "make a device in",
    "fs.make_sym": "make a link in",
    "fs.refer": "move or link across",
    "fs.truncate": "truncate",
    "fs.ioctl_dev": "control a device",
    "fs.resolve_unix": "connect to a socket",
    "fs.change_topology": "mount",
    "net.bind_tcp": "listen",
    "net.connect_tcp": "connect",
    "net.bind_udp": "listen",
    "net.connect_send_udp": "connect",
    "scope.abstract_unix_socket": "connect to an abstract socket",
    "scope.signal": "signal",
    "ptrace": "trace",
}
"""Landlock's blockers (landlock.rst) in words."""

_READING = {"fs.execute": "x", "fs.read_file": "r", "fs.read_dir": "r"}


_BY_GUARD = (
    ("chmod", "change the mode of"),
    ("chown", "change the owner of"),
    ("xattr", "change an attribute of"),
    ("utime", "change the times of"),
    ("futime", "change the times of"),
    ("connect", "connect to"),
    ("setpgid", "join"),
)


def of_guard(time: float, told: tuple[Any, ...]) -> Denial:
    """The denial that a guard tells of (`launcher.jail.guard.server`).

    Args:
        time: in seconds since the epoch.
        told: system call, path, wanted, host, port, target, and the process: id, name, programme.
    """
    call, path, wanted, host, port, target, *who = told
    operation = next((words for part, words in _BY_GUARD if part in call), call)
    hint = ""
    if "utime" in call and (objects := _objects_of_git(path)):
        # All of them are one: git does this for each object that is there already (freshen_file).
        path, operation, hint = objects, "freshen objects in", _FRESHENED
    return Denial(time, GUARD, operation, path, host, port, target, (call,), Process(*who), wanted, hint=hint)


_FRESHENED = "nothing needs to be allowed: git stores the object again, in the command's own git directory"


def _objects_of_git(path: str) -> str:
    """The directory of objects that a file belongs to by its name, or ""."""
    above, _, name = path.rpartition("/objects/")
    fan, _, rest = name.partition("/")
    loose = len(fan) == 2 and len(rest) in (38, 62) and not set(fan + rest) - set("0123456789abcdef")
    packed = fan == "pack" and rest.startswith("pack-") and "/" not in rest
    return f"{above}/objects" if above and (loose or packed) else ""


def of_landlock(time: float, access: dict[str, str], syscall: dict[str, str]) -> Denial:
    """The denial that a Landlock access record tells of."""
    rights = tuple(name for name in access.get("blockers", "").split(",") if name)
    words = dict.fromkeys(OPERATIONS.get(name, name) for name in rights)
    target = ""
    if "opid" in access:
        target = f"process {access['opid']} ({access.get('ocomm', '')})"
    path, abstract = access.get("path", ""), "scope.abstract_unix_socket" in rights
    return Denial(
        time,
        LANDLOCK,
        " and ".join(words) or "access",
        path="" if abstract else path,
        host=access.get("daddr", access.get("saddr", "")),
        port=_number(access.get("dest", access.get("src", ""))),
        target=f"@{path.lstrip(chr(0)).lstrip('@')}" if abstract else target,
        rights=rights,
        process=of_syscall(syscall),
        wanted=max((_READING.get(name, "w") for name in rights), key="rxw".index, default="r"),
    )


def of_seccomp(time: float, fields: dict[str, str]) -> Denial:
    """The denial that a seccomp record tells of. It names the call by its number, and tells no arguments."""
    target = f"{fields.get('syscall', '?')} of {fields.get('arch', '?')}"
    return Denial(time, SECCOMP, "system call", target=target, process=of_syscall(fields))


def of_syscall(fields: dict[str, str]) -> Process:
    """The process that a system call (or seccomp) record names."""
    return Process(_number(fields.get("pid", "")), fields.get("comm", ""), fields.get("exe", ""))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
