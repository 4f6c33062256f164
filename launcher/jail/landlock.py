"""Landlock: which rights exist in which ABI, and the one call that gives up all others.

The tables are written as "previous plus new", so that a reader can hold them against the kernel's history
(Documentation/userspace-api/landlock.rst) and a test can check that each right enters exactly once.

What no ABI covers is said in `policy.promises`: metadata (chmod, chown, utime, xattr), stat, other processes' limits,
and file descriptors that were open before.

Launch path: see launcher/jail/syscalls.py.
"""

import errno
from _stat import S_ISDIR

from launcher.jail import syscalls
from launcher.lean import os
from launcher.safefs import walk
from policy.errors import Refusal

FS_EXECUTE = 1 << 0
FS_WRITE_FILE = 1 << 1
FS_READ_FILE = 1 << 2
FS_READ_DIR = 1 << 3
FS_REMOVE_DIR = 1 << 4
FS_REMOVE_FILE = 1 << 5
FS_MAKE_CHAR = 1 << 6
FS_MAKE_DIR = 1 << 7
FS_MAKE_REG = 1 << 8
FS_MAKE_SOCK = 1 << 9
FS_MAKE_FIFO = 1 << 10
FS_MAKE_BLOCK = 1 << 11
FS_MAKE_SYM = 1 << 12
FS_REFER = 1 << 13
FS_TRUNCATE = 1 << 14
FS_IOCTL_DEV = 1 << 15
FS_RESOLVE_UNIX = 1 << 16

NET_BIND_TCP = 1 << 0
NET_CONNECT_TCP = 1 << 1
NET_BIND_UDP = 1 << 2
NET_CONNECT_SEND_UDP = 1 << 3

SCOPE_ABSTRACT_UNIX = 1 << 0
SCOPE_SIGNAL = 1 << 1

LOG_SAME_EXEC_OFF = 1 << 0
LOG_NEW_EXEC_ON = 1 << 1
LOG_SUBDOMAINS_OFF = 1 << 2
TSYNC = 1 << 3

NEWEST_ABI = 10
"""The newest ABI these tables describe (Linux 7.2). A kernel that knows more is used as if it were this one."""

FS_ADDED = {
    1: FS_EXECUTE
    | FS_WRITE_FILE
    | FS_READ_FILE
    | FS_READ_DIR
    | FS_REMOVE_DIR
    | FS_REMOVE_FILE
    | FS_MAKE_CHAR
    | FS_MAKE_DIR
    | FS_MAKE_REG
    | FS_MAKE_SOCK
    | FS_MAKE_FIFO
    | FS_MAKE_BLOCK
    | FS_MAKE_SYM,
    2: FS_REFER,
    3: FS_TRUNCATE,
    5: FS_IOCTL_DEV,
    9: FS_RESOLVE_UNIX,
}
NET_ADDED = {4: NET_BIND_TCP | NET_CONNECT_TCP, 10: NET_BIND_UDP | NET_CONNECT_SEND_UDP}
SCOPES_ADDED = {6: SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL}
FLAGS_ADDED = {7: LOG_SAME_EXEC_OFF | LOG_NEW_EXEC_ON | LOG_SUBDOMAINS_OFF, 8: TSYNC}

FILE_RIGHTS = FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV | FS_RESOLVE_UNIX
"""Rights that a rule on a file may carry; the kernel answers EINVAL to the others."""

LETTERS = {
    "r": FS_READ_FILE | FS_READ_DIR,
    # Devices are never made: MAKE_CHAR and MAKE_BLOCK are in no letter. RESOLVE_UNIX is here because connect(2) to a
    # socket file asks for write permission on it: without Landlock, too, "may write" is what opens a socket.
    "w": FS_WRITE_FILE
    | FS_TRUNCATE
    | FS_REMOVE_DIR
    | FS_REMOVE_FILE
    | FS_MAKE_REG
    | FS_MAKE_DIR
    | FS_MAKE_SYM
    | FS_MAKE_SOCK
    | FS_MAKE_FIFO
    | FS_REFER
    | FS_RESOLVE_UNIX,
    "x": FS_EXECUTE,
    "i": FS_IOCTL_DEV,
    # Not in any Plan: only `enter` uses it, for a root that shows nothing but what is granted.
    "l": FS_READ_DIR,
}
"""What each letter of an Access (policy/plan.py) asks for.

With ABI 1 there is no REFER: files cannot be renamed or linked from one directory to another (EXDEV), which `mv` and
most programmes answer by copying; git and package managers that insist on a rename fail. Renaming within a directory
works on every ABI.
"""

ENV_DISABLE = "PADDOCK_NO_LANDLOCK"
ENV_ABI = "PADDOCK_LANDLOCK_ABI"

# Grants that the caller cannot reach are left out: the jail has the caller's identity or less, so nothing is lost.
_UNREACHABLE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)


def kernel_abi() -> tuple[int, str]:
    """The kernel's Landlock ABI and, when it is 0, why: ``(0, "...")``."""
    try:
        return syscalls.landlock_create_ruleset((), syscalls.LANDLOCK_CREATE_RULESET_VERSION), ""
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return 0, "built into the kernel but not enabled (missing in the lsm= list)"
        if error.errno == errno.ENOSYS:
            return 0, "the kernel has no Landlock (it came with Linux 5.13)"
        return 0, f"landlock_create_ruleset: {error.strerror}"


def switched_on(name: str) -> bool:
    """Whether an environment variable that takes an ability away is set to 1 ("", 0 and absent mean no)."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise Refusal("environment-invalid", f"{name} is {value!r}", hint=f"set {name}=1 or unset it")
    return value == "1"


def abi() -> int:
    """The ABI to work with: the kernel's, capped at `NEWEST_ABI`; 0 when Landlock is missing.

    PADDOCK_NO_LANDLOCK=1 and PADDOCK_LANDLOCK_ABI=N (for tests and bug reports) can only lower it.

    Raises:
        Refusal: one of the two holds nonsense (see `switched_on`).
    """
    disabled = switched_on(ENV_DISABLE)
    cap = os.environ.get(ENV_ABI, "")
    if cap and not (cap.isascii() and cap.isdigit() and len(cap) <= 3):
        raise Refusal(
            "environment-invalid",
            f"{ENV_ABI} is {cap!r}, which is not an ABI number",
            hint=f"set {ENV_ABI} to a number from 0 to {NEWEST_ABI}, or unset it",
        )
    if disabled:
        return 0
    newest = min(kernel_abi()[0], NEWEST_ABI)
    return min(newest, int(cap)) if cap else newest


def up_to(added: dict[int, int], abi: int) -> int:
    """All bits of a table (`FS_ADDED`, `NET_ADDED`, ...) that exist in `abi`."""
    mask = 0
    for introduced, bits in added.items():
        if introduced <= abi:
            mask |= bits
    return mask


def fs_rights(access: str, abi: int, is_directory: bool) -> int:
    """The Landlock rights of an Access string.

    Args:
        access: letters out of r, w, x, i (policy/plan.py).
        abi: rights that came later are left out.
        is_directory: False leaves only what a rule on a file may carry.

    Raises:
        ValueError: an unknown letter.
    """
    mask = 0
    for letter in access:
        if letter not in LETTERS:
            raise ValueError(f"unknown access letter {letter!r} in {access!r}")
        mask |= LETTERS[letter]
    mask &= up_to(FS_ADDED, abi)
    return mask if is_directory else mask & FILE_RIGHTS


Domain = tuple[int, int, int, int, int, int, tuple[str, ...]]
"""A ruleset that is made and not entered yet: its descriptor, which any number of processes may enter, each into a
domain of its own (landlock(7)); then what will hold: (abi, rules added, filesystem rights handled, network rights
handled, scopes, skipped paths). Skipped are grants that do not exist or that the caller cannot reach."""


def made(
    grants: tuple[tuple[str, str, str], ...],
    *,
    abi: int,
    network: bool,
    connect_ports: tuple[int, ...] = (),
    scope_abstract: bool = True,
    scope_signals: bool = True,
) -> Domain:
    """The ruleset that gives up every right which is not granted. All filesystem rights of the ABI are handled.

    Args:
        grants: (canonical path, access, source); the same path may come more than once.
        abi: as `abi()` gave it, at least 1.
        network: True leaves the network alone (it is open, or the process has a network namespace of its own);
            False denies bind and connect over TCP (ABI 4) and UDP (ABI 10), whatever the address.
        connect_ports: with network False, TCP ports to which connect stays allowed, *on any host*.
        scope_abstract: abstract AF_UNIX sockets made outside are out of reach (ABI 6).
        scope_signals: processes outside cannot be signalled (ABI 6).

    Returns:
        It; the caller owns the descriptor.

    Raises:
        Refusal: a component of a granted path is a symbolic link by now, the ABI is 0, or the kernel refused a step.
    """
    if abi < 1:
        raise Refusal("landlock-missing", "Landlock is not available", context=kernel_abi()[1])
    handled_fs = up_to(FS_ADDED, abi)
    handled_net = 0 if network else up_to(NET_ADDED, abi)
    wanted = (SCOPE_ABSTRACT_UNIX if scope_abstract else 0) | (SCOPE_SIGNAL if scope_signals else 0)
    scoped = up_to(SCOPES_ADDED, abi) & wanted
    # The kernel takes a shorter structure as one whose missing fields are zero; older ABIs know fewer fields.
    fields = (handled_fs, handled_net, scoped)[: 3 if abi >= 6 else 2 if abi >= 4 else 1]
    step = "landlock_create_ruleset"
    try:
        ruleset = syscalls.landlock_create_ruleset(fields)
        try:
            step = "landlock_add_rule"
            rules, skipped = _add_paths(ruleset, _merged(grants), abi)
            if handled_net:
                for port in connect_ports:
                    rule = NET_CONNECT_TCP.to_bytes(8, "little") + port.to_bytes(8, "little")
                    syscalls.landlock_add_rule(ruleset, syscalls.LANDLOCK_RULE_NET_PORT, rule)
                    rules += 1
        except BaseException:
            os.close(ruleset)
            raise
    except OSError as error:
        raise _refused(step, error) from error
    return ruleset, abi, rules, handled_fs, handled_net, scoped, skipped


def enter(domain: Domain, *, log: bool) -> None:
    """Gives up, for this process and all that it starts, what the domain denies. Cannot be undone; closes the ruleset.

    The calling thread is restricted, so call it while there is only one; no_new_privs must be set. With `log`,
    denials after an exec go to the kernel's audit (ABI 7).

    Raises:
        Refusal: the kernel refused.
    """
    try:
        syscalls.landlock_restrict_self(domain[0], LOG_NEW_EXEC_ON & up_to(FLAGS_ADDED, domain[1]) if log else 0)
    except OSError as error:
        raise _refused("landlock_restrict_self", error) from error
    finally:
        os.close(domain[0])


def restrict(
    grants: tuple[tuple[str, str, str], ...],
    *,
    abi: int,
    network: bool,
    log: bool,
    connect_ports: tuple[int, ...] = (),
    scope_abstract: bool = True,
    scope_signals: bool = True,
) -> tuple[int, int, int, int, int, tuple[str, ...]]:
    """`made`, and `enter` at once. Returns what holds from now on: a `Domain` without its descriptor."""
    domain = made(
        grants, abi=abi, network=network, connect_ports=connect_ports, scope_abstract=scope_abstract,
        scope_signals=scope_signals,
    )  # fmt: skip
    enter(domain, log=log)
    return domain[1:]


def ruleset(grants: tuple[tuple[str, str, str], ...], *, network: bool) -> int:
    """A domain for a thread that makes things for a jail: what grants let be written, and `restrict`'s network."""
    newest = abi()
    try:
        fields = (up_to(FS_ADDED, newest), 0 if network else up_to(NET_ADDED, newest), 0)
        fd = syscalls.landlock_create_ruleset(fields)
        try:
            _add_paths(fd, _merged(tuple(grant for grant in grants if "w" in grant[1])), newest)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise _refused("landlock_add_rule", error) from error
    return fd


def _merged(grants: tuple[tuple[str, str, str], ...]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for path, access, _ in grants:
        before = merged.get(path)
        merged[path] = access if before is None or before == access else before + access
    return merged


def _add_paths(ruleset: int, grants: dict[str, str], abi: int) -> tuple[int, tuple[str, ...]]:
    rules = 0
    skipped = []
    rights: dict[tuple[str, bool], bytes] = {}
    opened, add_rule, fstat, close = walk.open_canonical, syscalls.landlock_add_rule, os.fstat, os.close
    for path, access in grants.items():
        try:
            fd = opened(path, os.O_PATH)
        except OSError as error:
            if error.errno in _UNREACHABLE:
                skipped.append(path)
                continue
            if error.errno == errno.ELOOP:
                raise Refusal(
                    "grant-changed",
                    f"a symbolic link has appeared in the granted path {path}",
                    context="the path was free of links when the plan was made; following it now could grant "
                    "something that nobody decided",
                    hint="run the command again; if it persists, grant the link's target",
                ) from error
            raise
        try:
            key = (access, S_ISDIR(fstat(fd).st_mode))
            packed = rights.get(key)
            if packed is None:
                packed = rights[key] = fs_rights(access, abi, key[1]).to_bytes(8, "little")
            # A rule without rights is ENOMSG: `i` before ABI 5, or letters that mean nothing on a file.
            if any(packed):
                add_rule(ruleset, syscalls.LANDLOCK_RULE_PATH_BENEATH, packed + fd.to_bytes(4, "little"))
                rules += 1
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            close(fd)
    return rules, tuple(skipped)


def _refused(step: str, error: OSError) -> Refusal:
    hint = ""
    if error.errno == errno.E2BIG:
        reason = "the process is already inside 16 Landlock domains, or one ruleset holds too many rules"
        hint = "start Paddock outside of the other sandboxes, or grant directories instead of their many entries"
    elif error.errno == errno.EPERM and step == "landlock_restrict_self":
        reason = "no_new_privs is not set"
    elif error.errno == errno.ENOMEM:
        reason = "the kernel has no memory for the rules"
    else:
        reason, hint = syscalls.explained(error, "")
    where = f" for {error.filename}" if error.filename else ""
    return Refusal("landlock-refused", f"the kernel refused {step}{where}", context=reason, hint=hint)
