"""What one jail is: plain data, and all that `launcher.jail` reads.

A Plan becomes one in `launcher.session.running`; whoever confines a helper writes one down. The defaults are the
closed ones: no network, nothing granted, every layer on, every row of `HELD` required.

Launch path: no imports.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

HELD = ("reads", "writes", "environment", "fds", "privileges", "signals", "network", "kernel-surface")
"""Rows of `policy.promises` that a helper's jail must hold."""

Facts = tuple[tuple[str, str, str], ...]
"""For the ledger: (row of policy.promises or name of a layer, "held" | "not held" | "layer", detail)."""

Sockets = tuple[int, tuple[tuple[str, bytes, int], ...], tuple[tuple[bytes, int], ...]]
"""What the jail's network namespace gives the proxy outside, from `launcher.egress.handle`: the channel on which
descriptors are handed out (-1 for none), the sockets in their order, and the networks (packed address, prefix length)
that are made the namespace's own. A socket is ("tcp", address, port), listening; the same with "udp", bound;
("any", b"", port), listening for TCP at every address; ("free", b"", 0), a TCP socket to connect there later."""
NO_SOCKETS: Sockets = (-1, (), ())


class JailSpec:
    """One jail and its first command. Immutable by custom; paths are canonical and absolute.

    Attributes:
        argv: the command's words.
        environment: complete; nothing of the caller's is added.
        program: the file to execute; argv[0] by default.
        worktree: a directory that must still be there when the jail is built.
        cwd: where the command starts; `worktree` by default.
        grants, binds, links, denied, read_only, narrowed, handoff, net, limits: as in `policy.plan.Plan`, bound.
        exempt: paths at and below which grants hold although a denied path lies above them.
        copy: a directory with empty `upper` and `work`, where what is written in the worktree goes; "" for the disk.
        root: an unpacked image that the jail's root shows, and all grants in their places in it; "" for an empty root.
        root_copy: as `copy`, for what is written in that image.
        search: files that the command's name may mean, tried in this order in place of `program`.
        private: which of /tmp and /var/tmp show a directory of the session, and which one.
        required: rows of `policy.promises` without which the command does not start.
        namespaces: Paddock makes namespaces and mounts.
        bwrap: path of the bubblewrap that makes them instead; "" for none.
        landlock: Landlock holds the command, too.
        guard: a guard answers the calls that only mounts would cover otherwise.
        watch: what the command wants is looked at and sent to the launcher.
        audited: the kernel's audit is read, so it is to record what the filter refuses.
        filter: from `seccomp.program`; b"" has it made from the rest.
        about: (worktree, command, backend, network, provider), for clients that ask what runs here.
        streams: descriptors that become the command's standard input, output and error.
        cgroups: descriptors of control groups that every command of the jail enters.
        addresses: (4 or 16 bytes, port) that the guard lets the command connect to over TCP.
        sockets: what the jail's network namespace gives the proxy outside; see `Sockets`.
        listener: the socket on which the jail's init takes further commands; -1 for none.
        proof: what a client of that socket must know.
    """

    __slots__ = (
        "about", "addresses", "argv", "audited", "binds", "bwrap", "cgroups", "copy", "cwd", "denied", "environment",
        "exempt",
        "filter", "grants", "guard", "handoff", "landlock", "limits", "links", "listener", "namespaces", "narrowed",
        "net", "private", "program", "proof", "read_only", "required", "root", "root_copy", "search", "sockets",
        "streams", "watch", "worktree",
    )  # fmt: skip

    def __init__(
        self,
        argv: tuple[str, ...] = ("",),
        environment: "Mapping[str, str] | None" = None,
        *,
        program: str = "",
        worktree: str = "/",
        cwd: str = "",
        grants: tuple[tuple[str, str, str], ...] = (),
        binds: tuple[tuple[str, str, str], ...] = (),
        links: tuple[tuple[str, str], ...] = (),
        denied: tuple[tuple[str, str], ...] = (),
        read_only: tuple[tuple[str, str], ...] = (),
        narrowed: tuple[tuple[str, str, str], ...] = (),
        handoff: tuple[tuple[str, str], ...] = (),
        exempt: tuple[str, ...] = (),
        copy: str = "",
        root: str = "",
        root_copy: str = "",
        search: tuple[str, ...] = (),
        private: "Mapping[str, str] | None" = None,
        net: str = "none",
        limits: tuple[tuple[str, int], ...] = (),
        required: tuple[str, ...] = HELD,
        namespaces: bool = True,
        bwrap: str = "",
        landlock: bool = True,
        guard: bool = False,
        watch: bool = False,
        audited: bool = False,
        filter: bytes = b"",
        about: tuple[str, ...] = (),
        streams: tuple[int, int, int] = (0, 1, 2),
        cgroups: tuple[int, ...] = (),
        addresses: tuple[tuple[bytes, int], ...] = (),
        sockets: Sockets = NO_SOCKETS,
        listener: int = -1,
        proof: bytes = b"",
    ) -> None:
        self.argv = argv
        self.environment = dict(environment or {})
        self.program = program or argv[0]
        self.worktree = worktree
        self.cwd = cwd or worktree
        self.grants = grants
        self.binds = binds
        self.links = links
        self.denied = denied
        self.read_only = read_only
        self.narrowed = narrowed
        self.handoff = handoff
        self.exempt = exempt
        self.copy = copy
        self.root = root
        self.root_copy = root_copy
        self.search = search
        self.private = dict(private or {})
        self.net = net
        self.limits = limits
        self.required = required
        self.namespaces = namespaces
        self.bwrap = bwrap
        self.landlock = landlock
        self.guard = guard
        self.watch = watch
        self.audited = audited
        self.filter = filter
        self.about = about
        self.streams = streams
        self.cgroups = cgroups
        self.addresses = addresses
        self.sockets = sockets
        self.listener = listener
        self.proof = proof

    @property
    def mounts(self) -> bool:
        """Whether the command sees a view of its own, in namespaces of its own."""
        return self.namespaces or bool(self.bwrap)

    @property
    def handed_over(self) -> tuple[int, ...]:
        """Descriptors that belong to the jail alone once it is spawned."""
        fds = (self.listener, self.sockets[0], *(fd for fd in self.streams if fd > 2))
        return tuple({fd for fd in fds if fd != -1})

    def replace(self, **changes: "Any") -> "JailSpec":  # noqa: ANN401  # values of any field
        """A copy with some fields changed."""
        return JailSpec(**({name: getattr(self, name) for name in self.__slots__} | changes))
