"""The system call filter: what the kernel offers and no agent needs.

`program` composes it (pure), `hygiene.install_filter` applies it. The same bytes serve `bwrap --seccomp FD`.

What the filter cannot do decides its shape. It sees register values, not memory: so no paths, no addresses, and not
clone3's flags. What an argument check cannot judge is either harmless under the other layers or denied as a whole.
The kernel reads `int` arguments in 32 bits, so only the low word is compared (CVE-2019-10063 was the other way round);
of an address both are.

Left open on purpose
    ptrace, process_vm_*, pidfd_getfd, process_madvise: debuggers on one's own children must work. The kernel asks
    for ptrace access, which Landlock confines to the domain and a PID namespace to the jail.
    landlock_*, seccomp: they only take away.
    memfd_secret, memfd_create: no reach beyond the process.

Not on the warm launch path: a finished programme lies in the plan cache.
"""

import errno

from policy.errors import Refusal

# A small assembler for classic BPF, the language of seccomp filters (seccomp(2),
# Documentation/networking/filter.rst).
#
# Conditional jumps reach 255 instructions ahead and no further. The assembler works with labels and puts an
# unconditional jump behind a condition whose target is too far, so that who writes a filter need not count.

# BPF_LD | BPF_W | BPF_ABS, BPF_JMP | ..., BPF_ALU | BPF_AND | BPF_K, BPF_RET | BPF_K
LOAD = 0x20
AND = 0x54
RETURN = 0x06
JUMP = 0x05
JUMP_EQUAL = 0x15
JUMP_GREATER = 0x25
JUMP_ANY_BIT = 0x45

REACH = 255
LIMIT = 4096
"""The kernel takes no longer program (BPF_MAXINSNS)."""


class Program:
    """Instructions and labels in order; `assemble` turns them into the kernel's bytes.

    A target is the name of a label that comes *later*, or "" for the next instruction.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        """An empty program."""
        # (code, constant, target when true, target when false), or the name of a label.
        self._items: list[tuple[int, int, str, str] | str] = []

    def label(self, name: str) -> None:
        """Names the next instruction."""
        self._items.append(name)

    def load(self, offset: int) -> None:
        """Accumulator := the 32-bit word at `offset` of the data (`struct seccomp_data`)."""
        self._items.append((LOAD, offset, "", ""))

    def mask(self, bits: int) -> None:
        """Accumulator := accumulator & `bits`."""
        self._items.append((AND, bits, "", ""))

    def jump(self, target: str) -> None:
        """Goes to `target`."""
        self._items.append((JUMP, 0, target, ""))

    def equal(self, value: int, then: str = "", otherwise: str = "") -> None:
        """Goes to `then` when the accumulator is `value`, else to `otherwise`."""
        self._items.append((JUMP_EQUAL, value, then, otherwise))

    def greater(self, value: int, then: str = "", otherwise: str = "") -> None:
        """Goes to `then` when the accumulator is above `value` (unsigned), else to `otherwise`."""
        self._items.append((JUMP_GREATER, value, then, otherwise))

    def any_bit(self, bits: int, then: str = "", otherwise: str = "") -> None:
        """Goes to `then` when the accumulator has one of `bits`, else to `otherwise`."""
        self._items.append((JUMP_ANY_BIT, bits, then, otherwise))

    def answer(self, action: int) -> None:
        """Ends the program with `action` (SECCOMP_RET_*)."""
        self._items.append((RETURN, action, "", ""))

    def assemble(self) -> bytes:
        """The program as an array of `struct sock_filter`, little-endian.

        Raises:
            ValueError: a label is missing, defined twice or lies behind its jump, or the program is too long.
        """
        far: set[tuple[int, int]] = set()
        while True:
            positions, length = self._positions(far)
            if length > LIMIT:
                raise ValueError(f"{length} instructions; the kernel takes {LIMIT}")
            code, too_far = self._encode(positions, far)
            # Each added jump moves what follows; the set only grows, so this ends.
            if not too_far:
                return code
            far |= too_far

    def _positions(self, far: set[tuple[int, int]]) -> tuple[dict[str, int], int]:
        positions: dict[str, int] = {}
        here = 0
        for index, item in enumerate(self._items):
            if isinstance(item, str):
                if item in positions:
                    raise ValueError(f"label {item!r} is defined twice")
                positions[item] = here
            else:
                here += 1 + ((index, 0) in far) + ((index, 1) in far)
        return positions, here

    def _encode(self, positions: dict[str, int], far: set[tuple[int, int]]) -> tuple[bytes, set[tuple[int, int]]]:
        code = bytearray()
        too_far: set[tuple[int, int]] = set()
        here = 0
        for index, item in enumerate(self._items):
            if isinstance(item, str):
                continue
            operation, constant, *targets = item
            if operation == JUMP:
                code += _instruction(JUMP, 0, 0, _distance(positions, targets[0], here))
                here += 1
                continue
            long = [(index, side) in far for side in (0, 1)]
            behind = long[0] + long[1]
            offsets = [0, 0]
            for side, target in enumerate(targets):
                if long[side]:
                    offsets[side] = behind - 1 if side else 0
                elif target:
                    offsets[side] = _distance(positions, target, here)
                    if offsets[side] > REACH:
                        too_far.add((index, side))
                        offsets[side] = 0
                else:
                    offsets[side] = behind
            if operation in (LOAD, AND, RETURN):
                offsets = [0, 0]
            code += _instruction(operation, offsets[0], offsets[1], constant)
            here += 1
            for side, target in enumerate(targets):
                if long[side]:
                    code += _instruction(JUMP, 0, 0, _distance(positions, target, here))
                    here += 1
        return bytes(code), too_far


def _distance(positions: dict[str, int], target: str, here: int) -> int:
    if target not in positions:
        raise ValueError(f"no label {target!r}")
    distance = positions[target] - here - 1
    if distance < 0:
        raise ValueError(f"label {target!r} lies behind its jump")
    return distance


def _instruction(code: int, when_true: int, when_false: int, constant: int) -> bytes:
    # struct sock_filter { __u16 code; __u8 jt; __u8 jf; __u32 k; } in one little-endian number.
    return (code | when_true << 16 | when_false << 24 | constant << 32).to_bytes(8, "little")


ALLOW = 0x7FFF0000
ERRNO = 0x00050000
KILL_PROCESS = 0x80000000
USER_NOTIF = 0x7FC00000

_NUMBER = 0
_ARCH = 4


def _argument(index: int) -> int:
    """Offset of the low word of an argument; both machines are little-endian."""
    return 16 + 8 * index


NETWORKS = ("none", "proxy", "open")

# Answered as if the kernel lacked them, because callers then fall back: libuv from io_uring to its threads, glibc
# from clone3 to clone (whose flags can be read), and from openat2 to openat (whose mode can be read).
# file_setattr changes attributes by path, outside the grants too. The contexts of io_setup use up a number of requests
# that the whole machine has (fs.aio-max-nr); databases then do without.
_ABSENT = (
    "openat2",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "io_setup",
    "clone3",
    "file_setattr",
    "listns",
    "modify_ldt",
    "nfsservctl",
    "uselib",
)

_FORBIDDEN: tuple[str, ...] = (
    # programmes and probes inside the kernel
    *("bpf", "perf_event_open", "userfaultfd", "lookup_dcookie"),
    # keyrings are shared by all processes of a user and know no jail
    *("add_key", "request_key", "keyctl"),
    # mounts and namespaces; clone and unshare are judged by their flags
    *("mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig"),
    *("fsmount", "fspick", "mount_setattr", "setns"),
    # file handles walk around path-based rules; fanotify watches whole mounts
    *("name_to_handle_at", "open_by_handle_at", "fanotify_init", "fanotify_mark"),
    # the machine
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff"),
    *("acct", "quotactl", "quotactl_fd", "iopl", "ioperm", "settimeofday", "clock_settime", "adjtimex"),
    *("clock_adjtime", "syslog", "vhangup", "sethostname", "setdomainname", "kcmp"),
)

# Identifiers of System V objects are numbers that anyone may guess, so the calls that use one are closed with
# those that make one; POSIX queues are opened and removed by name.
_IPC: tuple[str, ...] = (
    *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl"),
    *("mq_open", "mq_unlink"),
)

# First argument: a process or thread id, 0 for the caller.
_BY_PID = (
    *("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
    *("migrate_pages", "move_pages"),
)

# Whoever lowers his limit of core dumps is told that it is done: at every value but its 1, at 0 too, the kernel
# may start a helper of root's on the machine, with the memory of the process for its input (fs/coredump.c).
_LIMITS = ("setrlimit", "prlimit64")
_RLIMIT_CORE = 4

# Performed by the guard on behalf of the process (launcher/jail/guard). Younger relatives are absent then: no libc
# depends on them.
MEDIATED: tuple[str, ...] = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat"),
    *("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
    *("bind", "connect"),
)
# Let go by the guard, which looks at the numbers: without a PID namespace the groups of the caller's session have some.
_LET_GO = "setpgid"
_ABSENT_WITH_GUARD = ("setxattrat", "removexattrat")

# ioctls of file systems, by the byte that names their family: ext4 and all (f, v), XFS and all (X), btrfs, F2FS. Some
# change attributes, or even make directories, through a descriptor that was opened for reading. Where no read-only
# mount is in their way, only those that read, or write what is open for writing, are left.
_FILE_SYSTEM_FAMILIES = (0x6600, 0x7600, 0x5800, 0x9400, 0xF500)
_FILE_SYSTEM_REQUESTS = (
    *(0x80086601, 0x80046601, 0x80087601, 0x80047601),  # FS_IOC_GETFLAGS, FS_IOC_GETVERSION, and 32-bit ones
    *(0xC020660B, 0x801C581F, 0x81009431),  # FS_IOC_FIEMAP, FS_IOC_FSGETXATTR, FS_IOC_GETFSLABEL
    *(0x40049409, 0x4020940D, 0xC0189436),  # FICLONE, FICLONERANGE, FIDEDUPERANGE
)
_TIOCGPTPEER = 0x5441

# Programmes that take their owner's identity, whoever starts them, would outlive the jail (inode(7), S_ISUID, S_ISGID).
# Which argument is the mode of what is made, and of what is there; for open(2) and openat(2) the flags come before it.
_OPENS = {"openat": 3, "open": 2}
_MAKES = {"creat": 1, "mknod": 1, "mknodat": 2}
_CHMODS = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
_MAKING = 0x400040  # O_CREAT, __O_TMPFILE: without them the mode means nothing, and may be anything
_SET_UID, _SET_GID = 0o4000, 0o2000

_SEND_FLAGS = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}

_CLONE_NEW = 0x7E020000
_CLONE_NEWTIME = 0x80  # in clone's flags these bits are the exit signal, in unshare's a namespace
_MSG_FASTOPEN = 0x20000000
_IPPROTO_TCP = 6
_TCP_FASTOPEN_CONNECT = 30
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX: put words in the user's mouth; TIOCSETD
# F_SETLEASE, F_SETDELEG: whoever opens the file next, outside too, waits for the holder. F_SETSIG: a terminal's input
# sends its foreground group any signal then, SIGKILL too, and the launcher and the init are in that group.
_FILE_COMMANDS = (1024, 1040, 10)
_PERSONALITY_HARMLESS = 0x60008  # ADDR_NO_RANDOMIZE (debuggers), UNAME26, PER_LINUX32: `setarch`

_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5


def program(
    machine: str,
    *,
    net: str,
    own_network: bool,
    own_processes: bool,
    own_ipc: bool,
    kill_zero: bool,
    unix_datagrams: bool,
    guard: bool = False,
    set_gid: bool = False,
    watch: bool = False,
) -> bytes:
    """The filter for one jail, as an array of `struct sock_filter`.

    Foreign instruction sets (int 0x80 and x32 on x86-64, 32-bit ARM on aarch64) kill the process: their numbers mean
    other calls. Numbers beyond `syscall_tables.NEWEST` are ENOSYS.

    Args:
        machine: "x86_64" or "aarch64".
        net: "none", "proxy" or "open". Without `own_network`, "none" has no internet sockets at all (a Landlock port
            rule would leave `listen` on an ephemeral port) and "proxy" has TCP clients only: no `listen`, hence no
            AF_UNIX servers either, as the filter cannot see a socket's family.
        own_network: the jail has a network namespace with nothing but loopback: TCP, UDP and ping may be used in it.
        own_processes: the jail has a PID namespace, so process ids cannot name anything outside. Without one,
            priorities, limits, scheduling and affinity can be changed by the calling thread for itself only (id 0);
            naming a thread by its own id (pthread_setaffinity_np) is EPERM, because the filter cannot tell it from a
            stranger's.
        own_ipc: the jail has an IPC namespace; without one System V IPC and POSIX queues are EPERM.
        kill_zero: `kill(0, ...)` is allowed. The process group may have members outside the jail, in a PID namespace
            too, so allow it only where Landlock scopes signals (ABI 6).
        unix_datagrams: AF_UNIX datagram sockets are allowed; deny them where connections to host sockets are mediated,
            since each datagram carries an address of its own.
        guard: the calls of `MEDIATED` are notified of, which needs a listener; without one they are ENOSYS. File
            systems' own ioctls are reduced to harmless ones.
        set_gid: chmod may set the set-gid bit, which the filter can allow for directories and files alike or for
            neither. Without effect where the guard looks at what it is.
        watch: what would be allowed of the calls of `launcher.jail.guard.watch` is notified of. Nothing that is refused
            otherwise comes there, because whoever watches lets all of it go on.

    Raises:
        Refusal: unknown machine.
        ValueError: unknown `net`.
    """
    # A warm launch has the finished programme in its plan.
    from launcher.jail import syscall_tables

    if machine not in syscall_tables.MACHINES:
        raise Refusal("machine-unsupported", f"there is no system call filter for {machine}")
    if net not in NETWORKS:
        raise ValueError(f"unknown network mode {net!r}")
    bpf = Program()
    bpf.load(_ARCH)
    bpf.equal(syscall_tables.AUDIT_ARCH[machine], otherwise="killed")
    bpf.load(_NUMBER)
    bpf.greater(syscall_tables.NEWEST, then="beyond")
    for name in _OPENS:  # first, because they are called most and never allowed whatever their arguments are
        _on(bpf, machine, name, name)

    forbidden = _FORBIDDEN if own_ipc else _FORBIDDEN + _IPC
    closed_network = net != "open" and not own_network
    if closed_network and net == "proxy":
        forbidden += ("listen",)
    absent = _ABSENT + _ABSENT_WITH_GUARD if guard else _ABSENT
    mediated = MEDIATED if guard else ()
    for names, verdict in ((absent, "absent"), (forbidden, "forbidden"), (mediated, "notified")):
        for name in names:
            _on(bpf, machine, name, verdict)

    judged = ["clone", "unshare", "personality", "ioctl", "fcntl", "setpriority", "ioprio_set", "socket"]
    judged += [*_MAKES, *([_LET_GO] if guard else _CHMODS)]
    judged += [*_LIMITS, *(() if own_processes else _BY_PID)]
    judged += [] if kill_zero else ["kill"]
    judged += [] if unix_datagrams else ["socketpair"]
    judged += [*_SEND_FLAGS, "setsockopt"] if closed_network else []
    for name in judged:
        _on(bpf, machine, name, name)
    bpf.jump("allow") if watch else bpf.answer(ALLOW)

    _modes(bpf, guard=guard, set_gid=set_gid)
    _namespace_flags(bpf)
    _personality(bpf)
    _ioctl(bpf, guard)
    if guard:
        bpf.label(_LET_GO)
        bpf.load(_argument(1))
        bpf.equal(0, "allow", "notified")  # 0: a group of the process's own
    bpf.label("fcntl")
    bpf.load(_argument(1))
    for command in _FILE_COMMANDS:
        bpf.equal(command, "forbidden")
    bpf.jump("allow")
    _priorities(bpf, own_processes)
    _core_limit(bpf, own_processes)
    if not own_processes:
        for name in _BY_PID:
            bpf.label(name)
        bpf.load(_argument(0))
        bpf.equal(0, "allow", "forbidden")
    if not kill_zero:
        bpf.label("kill")
        bpf.load(_argument(0))
        bpf.equal(0, "forbidden", "allow")
    _sockets(bpf, net, own_network, unix_datagrams)
    if closed_network:
        _fast_open(bpf)

    bpf.label("beyond")
    # -1 is what a debugger writes to skip a call; on x86-64 it looks like an x32 number.
    bpf.equal(0xFFFFFFFF, then="absent")
    if machine == "x86_64":
        bpf.any_bit(syscall_tables.X32_BIT, then="killed")
    for label, action in (
        ("absent", ERRNO | errno.ENOSYS),
        ("done", ERRNO),
        ("forbidden", ERRNO | errno.EPERM),
        ("family", ERRNO | errno.EAFNOSUPPORT),
        ("protocol", ERRNO | errno.EPROTONOSUPPORT),
        ("unreachable", ERRNO | errno.EACCES),
        ("fastopen", ERRNO | errno.EOPNOTSUPP),
        ("killed", KILL_PROCESS),
    ):
        bpf.label(label)
        bpf.answer(action)
    bpf.label("allow")
    if watch:
        from launcher.jail.guard import watch as observer

        bpf.load(_NUMBER)
        for number in observer.numbers(machine):
            bpf.equal(number, then="notified")
    bpf.answer(ALLOW)
    if guard or watch:
        bpf.label("notified")
        bpf.answer(USER_NOTIF)
    return bpf.assemble()


def _on(bpf: "Program", machine: str, name: str, target: str) -> None:
    from launcher.jail import syscall_tables

    number = syscall_tables.number(name, machine)
    if number is not None:
        bpf.equal(number, then=target)


def _modes(bpf: "Program", *, guard: bool, set_gid: bool) -> None:
    bits = dict.fromkeys((*_OPENS, *_MAKES), _SET_UID | _SET_GID)
    bits |= {} if guard else dict.fromkeys(_CHMODS, _SET_UID | (0 if set_gid else _SET_GID))
    for name, index in (_OPENS | _MAKES | _CHMODS).items():
        if name in bits:
            bpf.label(name)
            if name in _OPENS:
                bpf.load(_argument(index - 1))
                bpf.any_bit(_MAKING, otherwise="allow")
            bpf.load(_argument(index))
            bpf.any_bit(bits[name], "forbidden", "allow")


def _namespace_flags(bpf: "Program") -> None:
    bpf.label("clone")
    bpf.load(_argument(0))
    bpf.any_bit(_CLONE_NEW, "forbidden", "allow")
    bpf.label("unshare")
    bpf.load(_argument(0))
    bpf.any_bit(_CLONE_NEW | _CLONE_NEWTIME, "forbidden", "allow")


def _personality(bpf: "Program") -> None:
    bpf.label("personality")
    bpf.load(_argument(0))
    bpf.equal(0xFFFFFFFF, "allow")  # a question
    bpf.any_bit(~_PERSONALITY_HARMLESS & 0xFFFFFFFF, "forbidden", "allow")


def _ioctl(bpf: "Program", guard: bool) -> None:
    bpf.label("ioctl")
    bpf.load(_argument(1))
    for request in _TERMINAL_REQUESTS:
        bpf.equal(request, "forbidden")
    if guard:
        bpf.equal(_TIOCGPTPEER, "notified")
        for request in _FILE_SYSTEM_REQUESTS:
            bpf.equal(request, "allow")
        bpf.mask(0xFF00)
        for family in _FILE_SYSTEM_FAMILIES:
            bpf.equal(family, "forbidden")
    bpf.jump("allow")


def _priorities(bpf: "Program", own_processes: bool) -> None:
    # "which" is a process, a process group or a user. Group 0 is the caller's own, which it shares with whatever
    # stands outside in the same pipeline, and no PID namespace hides those members from the kernel's walk.
    for name, process, group in (("setpriority", 0, 1), ("ioprio_set", 1, 2)):
        bpf.label(name)
        bpf.load(_argument(0))
        if own_processes:
            bpf.equal(group, "", "allow")
            bpf.load(_argument(1))
            bpf.equal(0, "forbidden", "allow")
        else:
            bpf.equal(process, "", "forbidden")
            bpf.load(_argument(1))
            bpf.equal(0, "allow", "forbidden")


def _core_limit(bpf: "Program", own_processes: bool) -> None:
    bpf.label("prlimit64")
    if not own_processes:
        bpf.load(_argument(0))
        bpf.equal(0, otherwise="forbidden")
    bpf.load(_argument(1))
    bpf.equal(_RLIMIT_CORE, otherwise="allow")
    for half in (0, 4):
        bpf.load(_argument(2) + half)
        bpf.equal(0, otherwise="done")
    bpf.jump("allow")  # a question
    bpf.label("setrlimit")
    bpf.load(_argument(0))
    bpf.equal(_RLIMIT_CORE, "done", "allow")


def _sockets(bpf: "Program", net: str, own_network: bool, unix_datagrams: bool) -> None:
    bpf.label("socket")
    bpf.load(_argument(0))
    bpf.equal(_UNIX, "allow" if unix_datagrams else "unix type")
    bpf.equal(_NETLINK, "netlink")
    internet = "internet" if own_network or net != "none" else "unreachable"
    bpf.equal(_INET, internet)
    bpf.equal(_INET6, internet, "family")

    bpf.label("netlink")  # 0 is NETLINK_ROUTE: what addresses are there, asked by every resolver
    bpf.load(_argument(2))
    bpf.equal(0, "allow", "protocol")

    if not unix_datagrams:
        # The kernel treats AF_UNIX SOCK_RAW as SOCK_DGRAM, so name what is allowed, not what is denied.
        bpf.label("socketpair")
        bpf.label("unix type")
        bpf.load(_argument(1))
        bpf.mask(0xF)
        bpf.equal(_STREAM, "allow")
        bpf.equal(_SEQPACKET, "allow", "family")

    if internet == "internet":
        datagrams = own_network or net == "open"
        bpf.label("internet")
        bpf.load(_argument(1))
        bpf.mask(0xF)
        bpf.equal(_STREAM, "stream")
        bpf.equal(_DGRAM, "datagram" if datagrams else "unreachable", "forbidden")
        bpf.label("stream")  # not MPTCP (262) nor SCTP (132), which Landlock's TCP rules do not see
        bpf.load(_argument(2))
        bpf.equal(0, "allow")
        bpf.equal(_IPPROTO_TCP, "allow", "protocol")
        if datagrams:
            bpf.label("datagram")
            bpf.load(_argument(2))
            for protocol in (0, 17, 1):  # default, UDP, ICMP echo
                bpf.equal(protocol, "allow")
            bpf.equal(58, "allow", "protocol")  # ICMPv6 echo


def _fast_open(bpf: "Program") -> None:
    # sendto on an unconnected socket connects without connect(2), past Landlock's TCP rule.
    for name, index in _SEND_FLAGS.items():
        bpf.label(name)
        bpf.load(_argument(index))
        bpf.any_bit(_MSG_FASTOPEN, "fastopen", "allow")
    bpf.label("setsockopt")
    bpf.load(_argument(1))
    bpf.equal(_IPPROTO_TCP, "", "allow")
    bpf.load(_argument(2))
    bpf.equal(_TCP_FASTOPEN_CONNECT, "fastopen", "allow")


# Having the kernel's audit told of what the system call filter refuses.


def telling(filter_program: bytes) -> bytes:
    """A filter to be installed on top of `filter_program`, with `log`, so that the audit hears of what that refuses.

    The flag counts for a whole filter, and libc asks for clone3 with each thread it starts. So what is answered as if
    the kernel lacked it or had done it, and what somebody else answers, passes here: the first filter has its say.
    """
    allow = _answer(ALLOW)
    silent = (_answer(ERRNO), _answer(ERRNO | errno.ENOSYS), _answer(USER_NOTIF))
    instructions = (filter_program[at : at + 8] for at in range(0, len(filter_program), 8))
    return b"".join(allow if instruction in silent else instruction for instruction in instructions)


def _answer(action: int) -> bytes:
    """The instruction that returns `action` (BPF_RET | BPF_K)."""
    return b"\x06\0\0\0" + action.to_bytes(4, "little")
