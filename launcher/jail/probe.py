"""What this machine offers, found out by trying rather than by version numbers.

`probe` answers what a launch must know; `bubblewrap` is apart because it starts a programme. `describe` gives the rows
of `paddock doctor`.

Launch path: see launcher/jail/syscalls.py.
"""

from launcher.jail import landlock, syscalls
from launcher.lean import os
from policy.errors import Refusal

ENV_NO_USERNS = "PADDOCK_NO_USERNS"

_SECCOMP_KILL_PROCESS = 0x80000000
_NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)

# Settings that close user namespaces: file, value that closes them, what that means, what opens them.
_USERNS_SETTINGS = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor denies user namespaces to programmes without a profile (apparmor_restrict_unprivileged_userns)",
        "install Paddock's .deb, whose profile /etc/apparmor.d/paddock allows it; for others: paddock help install",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "the system denies user namespaces to ordinary users (kernel.unprivileged_userns_clone)",
        "sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "the system allows no user namespaces (user.max_user_namespaces)",
        "sysctl user.max_user_namespaces=10000",
    ),
)

_NO_CGROUP2 = "this process is not in a v2 cgroup"
_CGROUP2_UNMOUNTED = "cgroup v2 is not mounted"


class Support:
    """The abilities of a machine for one user; an ability that is missing has its reason in the `*_why` beside it."""

    FIELDS = (
        "machine",  # str: uname's machine
        "release",  # str: uname's release
        "uid",  # int: effective user id that asked
        "landlock_abi",  # int: 0 when missing
        "landlock_why",  # str
        "seccomp",  # bool: filters with KILL_PROCESS
        "seccomp_why",  # str
        "userns",  # bool: user, mount, PID, network, IPC and UTS namespaces, and mounts inside
        "userns_why",  # str
        "guard",  # bool: seccomp user notification, and a parent may read its child
        "guard_why",  # str
        "fresh_proc",  # bool: /proc of the own PID namespace can be mounted
        "fresh_proc_why",  # str
        "yama",  # int: ptrace_scope; -1 without Yama
        "cgroup",  # str: the own cgroup v2 directory when delegated to this user, else ""
        "cgroup_why",  # str
        "bubblewrap",  # str: path of a bwrap that works; "" when it does not, or was not probed
        "bubblewrap_why",  # str
    )
    __slots__ = FIELDS

    machine: str
    release: str
    uid: int
    landlock_abi: int
    landlock_why: str
    seccomp: bool
    seccomp_why: str
    userns: bool
    userns_why: str
    guard: bool
    guard_why: str
    fresh_proc: bool
    fresh_proc_why: str
    yama: int
    cgroup: str
    cgroup_why: str
    bubblewrap: str
    bubblewrap_why: str

    def __init__(self, **fields: object) -> None:
        """Takes every name of `FIELDS` as a keyword, no more and no fewer (TypeError otherwise)."""
        if fields.keys() != set(self.FIELDS):
            raise TypeError(f"Support fields differ: {sorted(fields.keys() ^ set(self.FIELDS))}")
        for name in self.FIELDS:
            setattr(self, name, fields[name])

    def to_data(self) -> tuple[object, ...]:
        """The fields in order, ready for `marshal.dumps`."""
        return tuple(getattr(self, name) for name in self.FIELDS)

    @classmethod
    def from_data(cls, data: object) -> "Support | None":
        """The Support that `to_data` gave, or None when the data has another shape."""
        if not isinstance(data, tuple) or len(data) != len(cls.FIELDS):
            return None
        return cls(**dict(zip(cls.FIELDS, data, strict=True)))


def probe(*, whole: bool = False) -> Support:
    """Tries out what this machine offers to this user, in child processes where trying leaves traces.

    Args:
        whole: try the guard, too, where there are user namespaces and no Plan needs it.

    Raises:
        Refusal: one of the PADDOCK_* variables that lower abilities holds nonsense (see `landlock.abi`).
    """
    abi = landlock.abi()
    why = "" if abi else landlock.kernel_abi()[1] or "switched off by the environment"
    seccomp, seccomp_why = _seccomp()
    userns, userns_why, proc, proc_why = _namespaces()
    guard, guard_why = _guard() if whole or not userns else (False, "not probed")
    cgroup, cgroup_why = _cgroup()
    uname = os.uname()
    return Support(
        machine=uname.machine,
        release=uname.release,
        uid=os.geteuid(),
        landlock_abi=abi,
        landlock_why=why,
        seccomp=seccomp,
        seccomp_why=seccomp_why,
        userns=userns,
        userns_why=userns_why,
        guard=guard,
        guard_why=guard_why,
        fresh_proc=proc,
        fresh_proc_why=proc_why,
        yama=int(_read("/proc/sys/kernel/yama/ptrace_scope") or -1),
        cgroup=cgroup,
        cgroup_why=cgroup_why,
        bubblewrap="",
        bubblewrap_why="not probed",
    )


def bubblewrap(among: tuple[str, ...] | None = None, search: str = "") -> tuple[str, bool, str]:
    """Where bwrap is and whether it works here: (path or "", works, why not). Costs some ten milliseconds.

    Args:
        among: canonical paths to look at, none of which an agent may have put there or led to; found by `search` if
            None.
        search: directories to look in, as in PATH; the caller's PATH when empty.

    Raises:
        Refusal: PADDOCK_NO_USERNS holds nonsense.
    """
    from launcher.jail import trials

    found = trials.bubblewrap_candidates(search or os.environ.get("PATH", os.defpath)) if among is None else among
    path = trials.find_bubblewrap(found)
    if not path:
        return "", False, "bwrap is not installed"
    if landlock.switched_on(ENV_NO_USERNS):
        return path, False, f"user namespaces: switched off by {ENV_NO_USERNS}"
    why = trials.why_no_bubblewrap(path)
    return path, not why, why


def describe(support: Support, bwrap: tuple[str, bool, str]) -> tuple[tuple[str, bool, bool, str, str], ...]:
    """The rows of `paddock doctor`: (layer, present, usable, why not or what is missing, what to do)."""
    abi = support.landlock_abi
    newest = landlock.NEWEST_ABI
    userns_remedy = next((remedy for *_, why, remedy in _USERNS_SETTINGS if why in support.userns_why), "")
    return (
        (
            "landlock",
            abi > 0,
            abi > 0,
            support.landlock_why or (f"ABI {abi} of {newest}: {_missing_in(abi)}" if abi < newest else ""),
            "" if abi else "boot with landlock in the lsm= list, or use Linux 5.13 or newer",
        ),
        (
            "seccomp",
            support.seccomp,
            support.seccomp,
            support.seccomp_why,
            "" if support.seccomp else "use a kernel with CONFIG_SECCOMP_FILTER",
        ),
        (
            "namespaces",
            os.path.exists("/proc/self/ns/user"),
            support.userns,
            support.userns_why,
            "" if support.userns else userns_remedy or "allow user namespaces for this user or container",
        ),
        (
            "proc",
            support.userns,
            support.fresh_proc,
            support.fresh_proc_why,
            "" if support.fresh_proc else "start Paddock where nothing is mounted over parts of /proc",
        ),
        ("bubblewrap", bool(bwrap[0]), bwrap[1], bwrap[2], "" if bwrap[0] else "install the bubblewrap package"),
        (
            "guard",
            support.seccomp,
            support.guard,
            support.guard_why,
            ""
            if support.guard
            else "sysctl kernel.yama.ptrace_scope=1"
            if support.yama > 1
            else "use Linux 5.19 or newer, where no container's filter forbids seccomp and pidfd_getfd",
        ),
        (
            "cgroup",
            support.cgroup_why not in (_NO_CGROUP2, _CGROUP2_UNMOUNTED),
            bool(support.cgroup),
            support.cgroup_why,
            "" if support.cgroup else "run under a systemd user session or a unit with Delegate=yes",
        ),
    )


def _missing_in(abi: int) -> str:
    later = (
        (2, "renames between directories"),
        (3, "truncation"),
        (4, "TCP"),
        (5, "device ioctls"),
        (6, "abstract sockets and signals"),
        (7, "audit records"),
        (9, "socket files"),
        (10, "UDP"),
    )
    return "no rules for " + ", ".join(what for introduced, what in later if introduced > abi)


def _seccomp() -> tuple[bool, str]:
    action = _SECCOMP_KILL_PROCESS.to_bytes(4, "little")
    try:
        syscalls.seccomp(syscalls.SECCOMP_GET_ACTION_AVAIL, 0, action)
    except OSError as error:
        return False, f"seccomp: {error.strerror}"
    return True, ""


def _guard() -> tuple[bool, str]:
    from launcher.jail import trials

    works, why = trials.guard_works()
    yama = _read("/proc/sys/kernel/yama/ptrace_scope")
    if not works and yama not in ("", "0", "1"):
        why += f"; Yama's ptrace_scope is {yama}: no process can intercept its children's calls"
    return works, why


def _namespaces() -> tuple[bool, str, bool, str]:
    if landlock.switched_on(ENV_NO_USERNS):
        why = f"switched off by {ENV_NO_USERNS}"
        return False, why, False, why
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        # Nothing may escape from here: this is a copy of the caller, with all that it has on its stack.
        status = 1
        try:
            os.close(reading)
            _try_namespaces(writing)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    said = b""
    while chunk := os.read(reading, 512):
        said += chunk
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    refused: dict[str, int] = {}
    for line in said.decode().splitlines():
        step, _, number = line.partition(" ")
        refused[step] = int(number)
    if "done" in refused:
        return True, "", True, ""
    if "proc" in refused:
        return True, "", False, _proc_reason(refused["proc"])
    if refused:
        why = _userns_reason(*next(iter(refused.items())))
    else:
        if status == -9:
            # Somebody killed it, or memory ran out: no answer. A guess would make a weaker plan, and keep it.
            raise Refusal(
                "probe-interrupted",
                "cannot find out what this machine offers: the process that tried was killed",
                hint="run the command again",
            )
        why = f"the process that tried ended with status {status} and no message"
    return False, why, False, why


def _try_namespaces(report: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    step = "unshare"
    try:
        syscalls.unshare(_NAMESPACES)
        step = "uid_map"
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(fd, text.encode())
            os.close(fd)
        step = "mount"
        syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("tmpfs", "/tmp", "tmpfs")
        step = "fork"
        pid = os.fork()
        if pid == 0:
            try:
                # Only the first process of the new PID namespace may mount its /proc.
                step = "proc"
                syscalls.mount("proc", "/proc", "proc")
                os.write(report, b"done 0\n")
            except OSError as error:
                os.write(report, f"{step} {error.errno}\n".encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    except OSError as error:
        os.write(report, f"{step} {error.errno}\n".encode())


def _userns_reason(step: str, number: int) -> str:
    for path, closing, why, _ in _USERNS_SETTINGS:
        if _read(path) == closing:
            return f"{step}: {os.strerror(number)}; {why}"
    return f"{step}: {os.strerror(number)}; forbidden by a container, a seccomp filter or a security module"


def _proc_reason(number: int) -> str:
    return f"mounting a fresh /proc: {os.strerror(number)}; usually something is mounted over parts of /proc here"


def _cgroup() -> tuple[str, str]:
    from launcher.jail import cgroup

    own = cgroup.groups(cgroup.content("/proc/self/cgroup")).get("")
    if not own:
        return "", _NO_CGROUP2
    mounts = cgroup.hierarchies(cgroup.content("/proc/self/mountinfo"))
    mount = next((point for kind, _, point, _ in mounts if kind == "cgroup2"), "")
    if not mount:
        return "", _CGROUP2_UNMOUNTED
    path = (mount + own).rstrip("/")
    if not os.path.isdir(path):
        return "", f"{path} does not exist"
    # Delegation (cgroup-v2.rst) means both: making directories, and writing the list of processes.
    if os.access(path, os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK):
        return path, ""
    return "", f"{path} is not delegated to this user"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        # Absent where the kernel or its configuration lacks the feature: the same as an empty answer.
        return ""
