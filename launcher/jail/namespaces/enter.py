"""Into the namespaces: their flags, the identity inside, the view, the loopback interface, and what all that holds.

Launch path: see launcher/jail/syscalls.py.
"""

import errno

from launcher import wire
from launcher.jail import processes, syscalls
from launcher.jail.namespaces.layout import PROTECT, Operation
from launcher.jail.namespaces.view import View
from launcher.jail.spec import Facts, JailSpec
from launcher.lean import ctypes, os
from policy.errors import Refusal

_ALWAYS = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)

_AF_INET = 2
_SOCK_DGRAM_CLOEXEC = 2 | os.O_CLOEXEC
_SOCK_STREAM_CLOEXEC = 1 | os.O_CLOEXEC
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x1 | 0x40
_IFREQ = 40


def flags(spec: JailSpec) -> int:
    """CLONE_NEW* flags: every kind, the network's unless the spec leaves it open."""
    return _ALWAYS | (0 if spec.net == "open" else syscalls.CLONE_NEWNET)


def enter(spec: JailSpec, operations: tuple[Operation, ...], *, uid: int, gid: int) -> Facts:
    """Builds the jail's view and makes it this process's root. Leaves capabilities in the user namespace in place.

    To be called once, in the first process of new namespaces (`flags`), single-threaded, before Landlock.

    Args:
        operations: from `layout.prepare` for the same spec.
        uid: effective user id of the launcher. It has to come from there: in the new namespace nobody has an id yet.
        gid: the same for the group.

    Returns:
        What is held now, for the ledger.

    Raises:
        Refusal: userns-unavailable, view-failed, worktree-missing.
    """
    mask = os.umask(0)
    identity(uid, gid)
    try:
        view = View(dict(spec.limits).get("disk"))
    except OSError as error:
        # The first mounts: AppArmor and some containers allow the namespace and forbid its use.
        if error.errno in (errno.EPERM, errno.EACCES):
            raise processes.userns_unavailable("mount", error) from None
        raise
    view.build(operations)
    leave(spec, view)
    if spec.net != "open":
        loopback_up()
    os.umask(mask)
    return facts(spec, operations, view)


def leave(spec: JailSpec, view: View) -> None:
    """Makes a view that is built this process's root.

    Raises:
        Refusal: worktree-missing.
    """
    if not view.contains(spec.worktree):
        raise Refusal("worktree-missing", f"{spec.worktree} has disappeared", hint="was it removed meanwhile?")
    view.leave_outside()


def identity(uid: int, gid: int) -> None:
    """Makes the caller's own user and group, and no other, exist inside (user_namespaces(7)).

    Raises:
        Refusal: userns-unavailable.
    """
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)
    except OSError as error:
        raise processes.userns_unavailable("uid_map", error) from None


def loopback_up() -> None:
    """Brings up the namespace's own loopback interface, which servers under test need (netdevice(7)).

    Raises:
        Refusal: loopback-down.
    """
    socket = ctypes.CDLL(None, use_errno=True)["socket"]
    fd = socket(_AF_INET, _SOCK_DGRAM_CLOEXEC, 0)
    if fd < 0:
        number = ctypes.get_errno()
        raise Refusal("loopback-down", "the jail's loopback interface stays down", context=os.strerror(number))
    try:
        request = ctypes.create_string_buffer(b"lo".ljust(16, b"\0") + _IFF_UP_RUNNING.to_bytes(2, "little"), _IFREQ)
        syscalls.ioctl(fd, _SIOCSIFFLAGS, ctypes.addressof(request))
    except OSError as error:
        raise Refusal("loopback-down", "the jail's loopback interface stays down", context=str(error)) from None
    finally:
        os.close(fd)


def hand_out(channel: int, addresses: "tuple[tuple[bytes, int], ...]", pool: int) -> None:
    """In the jail's network namespace: makes sockets for the proxy outside and passes them out; closes `channel`.

    Args:
        channel: a socket to the proxy.
        addresses: where to listen.
        pool: how many further TCP sockets, not bound.

    Raises:
        Refusal: proxy-unavailable.
    """
    try:
        for address in addresses:
            fd = syscalls.listening_tcp(*address)
            wire.send(channel, wire.frame(b"L"), (fd,))
            os.close(fd)
        for _ in range(pool):
            fd = syscalls.socket(_AF_INET, _SOCK_STREAM_CLOEXEC | os.O_NONBLOCK)
            wire.send(channel, wire.frame(b"S"), (fd,))
            os.close(fd)
    except OSError as error:
        raise Refusal("proxy-unavailable", "the network proxy has no socket in the jail", context=str(error)) from None
    os.close(channel)


def facts(spec: JailSpec, operations: tuple[Operation, ...], view: View) -> Facts:
    """What is held once the view is this process's root, for the ledger."""
    kinds = "user, mount, pid, ipc, uts, cgroup" + ("" if spec.net == "open" else ", net")
    protected = sum(operation.kind == PROTECT for operation in operations)
    found = [
        ("namespaces", "layer", f"{kinds}; {len(operations)} operations"),
        ("handoff", "held", f"{protected} path{'' if protected == 1 else 's'} read-only, parents pinned"),
        ("metadata", "held", "what is not writable is on read-only mounts"),
        ("visibility", "held", "/proc of the jail's own PID namespace"),
        ("survival", "held", "PID namespace that ends with the launcher"),
        ("unix-sockets", "held", "paths: not mounted; " + _abstract(spec)),
        ("shared-memory", "held", "private /dev/shm, IPC namespace"),
        ("terminals", "held", "private devpts"),
    ]
    if spec.net != "open":
        found.append(("network", "held", "network namespace with a loopback interface only"))
    if not view.fresh_proc:
        found[3] = ("visibility", "not held", "/proc is the outer one: parts of it are covered, so no fresh one")
    found += [("skipped", "layer", f"{path}: {reason}") for path, reason in view.skipped]
    return tuple(found)


def _abstract(spec: JailSpec) -> str:
    return "abstract names: Landlock's scope" if spec.net == "open" else "abstract names: network namespace"
