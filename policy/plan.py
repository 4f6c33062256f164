"""The Plan: one finished answer, as plain data.

Everything that enforces, translates, explains or reports reads the same Plan, so the kernel, the
provider's flags and the path validator cannot disagree about what was decided.

This module is on the launch path: no imports at all, and a Plan is built from what `marshal` reads.

Shapes
------
Access
    A string of letters, in this order: ``r`` read files and list directories, ``w`` write, create,
    remove, rename and truncate, ``x`` execute, ``i`` device ioctls.
Slot
    A session path that is known only at launch, written ``@name`` as the first component of a path
    (``@home/.cache``). Absolute paths start with ``/``, so the two cannot be confused.
Grant
    ``(path, access, source)``: the canonical path (no symbolic link in it), the access, and where the
    grant comes from (``default``, a file name with its key, ``--rw`` ...), for `paddock explain`.
"""

VERSION = 14

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin"
"""Where programmes are looked for that Paddock itself runs, outside of every jail. Never the caller's PATH: it may lead
into a worktree (an active virtual environment does), and whoever works there would choose what runs."""

SLOTS = ("home", "tmp", "git", "run", "proxy", "proxy_port", "proxy_token", "secret")
"""home and git belong to the worktree, tmp and run to the session (DESIGN section 2). The others are no paths: where
the session's proxy is, as ``USER:TOKEN@HOST:PORT``, two parts of that, and a random password for its servers."""

USAGE = "usage.json"
"""In the session's directory: what its keys were used for so far, as the proxy counts it."""

Grant = tuple[str, str, str]

Bind = tuple[str, str, str]
"""``(source, path, access)``: what lies at `source` outside is what a jail with mounts shows at `path`."""

Brought = tuple[str, str, str]
"""``(source, path, from)``: what lies at the canonical `source` outside ("" for nothing) is seen, read-only, at `path`
below the private home; `from` is who asked for it."""

Repository = tuple[str, str, str, str, str, str, tuple[str, ...]]
"""A repository that gets a private git directory: the submodule's name ("" for the worktree's own), the root of its
working tree, its git directory, its common directory, the private one's place ("" or ``modules/...``), its object
format (``sha1`` or ``sha256``), and the object directories it borrows from, its own first."""

Place = tuple[str, str, str]
"""A submodule's place: root and trusted git directory of the repository around it, and its own path."""


Conditional = tuple[tuple[str, ...], tuple[str, ...]]
"""``(arguments, words)``: they are left out where the caller gives one of the words: a flag anywhere, or a sub-command
as the first word behind the programme."""


class Plan:
    """What one launch may do; see `FIELDS` for the meaning of each attribute. Immutable by custom.

    A Plan never holds the value of a secret: environment values that the caller passes are named only, and
    the caller's own arguments are not part of it (`argv` puts them in at launch).
    """

    FIELDS = (
        "version",  # int: VERSION of the writer; a reader of another version discards the data
        "worktree",  # str: canonical root of the worktree
        "worktree_id",  # str: stable id of the worktree, names its private directories
        "cwd",  # str: directory to start in, inside the worktree
        "provider",  # str: provider's name, "" for a plain command
        "provider_source",  # str: why that one
        "dialect",  # str: "native" or "contract"
        "program",  # str: canonical path of what is executed
        "command",  # str: the command's name as the caller gave it, argv[0]
        "arguments",  # tuple[str, ...]: the provider's flags
        "arguments_unless",  # tuple[Conditional, ...]: more of them, behind those
        "arguments_at",  # int: index in the whole command line where they go; -1 is its end
        "grants",  # tuple[Grant, ...]
        "links",  # tuple[tuple[str, str], ...]: symbolic links (path, target) that lead to grants
        "denied",  # tuple[tuple[str, str], ...]: (canonical path, source): nothing below is granted
        "read_only",  # tuple[tuple[str, str], ...]: (path, source) inside writable trees: never writable
        "narrowed",  # tuple[Grant, ...]: "r" or "w", as the user chose in writable trees; the longest path counts
        "binds",  # tuple[Bind, ...]: what is shown at another path than its own, whatever lies there outside
        "brought",  # tuple[Brought, ...]: the user's own things; bound where there are mounts, else copied
        "files",  # tuple[tuple[str, str], ...]: (path below the private home, content) of settings for tools there
        "authorities",  # tuple[tuple[str, str], ...]: (variable, path or PEM) of certificates that a tool trusts alone
        "handoff",  # tuple[tuple[str, str], ...]: (path, "protect" | "report"), existing hand-off files
        "handoff_patterns",  # tuple[tuple[str, str], ...]: (pattern relative to the worktree, "protect" | "report")
        "net",  # str: "none", "proxy" or "open"
        "domains",  # tuple[tuple[str, str], ...]: (egress rule, source) of what may be reached, for net == "proxy"
        "domains_denied",  # tuple[tuple[str, str], ...]: (egress rule, source), which beat those
        "internal",  # tuple[str, ...]: those of `domains` whose names may lead to private networks' addresses, too
        "named_ports",  # tuple[int, ...]: ports that can be reached by name, without a proxy in the client
        "routes",  # tuple[str, ...]: networks that are the jail's own then, for the addresses that names get
        "ask",  # str: whether people are asked about hosts that no rule allows: "no", "auto" (at a terminal), "yes"
        "notify",  # str: line of sh(1), the user's own, that is told of these questions; "" for none
        "keys",  # tuple[tuple[object, ...], ...]: that stay outside, as fields of policy.keys.Key; for net == "proxy"
        "server_name",  # str: "match" (TLS in a tunnel names the tunnel's host, or none) or "require"
        "publish",  # tuple[tuple[str, str], ...]: (loopback ADDRESS:PORT:PORT, the machine's and the jail's; source)
        "reach",  # tuple[tuple[str, str], ...]: (loopback ADDRESS:PORT of the machine, source), for net == "proxy"
        "env_pass",  # tuple[str, ...]: names (or PREFIX_*) taken over from the caller
        "env_set",  # tuple[tuple[str, str], ...]: name and value; values may hold ${slot}
        "limits",  # tuple[tuple[str, int], ...]: name and value (bytes, seconds or a count)
        "budget",  # tuple[tuple[str, int], ...]: tokens, requests in a minute, bytes of upload for keys
        "bounds",  # tuple[tuple[str, int], ...]: "memory" and "disk" in percent of the machine's, where no limit is
        "git",  # str: "private", "readonly" or "shared"
        "review",  # bool: nothing is handed over; for git == "private", the git directory is the session's own
        "cow",  # bool: the worktree is shown as a copy, and what is written there goes with the session; implies review
        "root",  # str: directory of an image whose copy the jail shows in place of the machine's files; "" for none
        "follow",  # bool: for git == "private", new branches and tags are harvested, and the checkout follows HEAD
        "sign",  # bool: for git == "private", the user's git signs what is harvested
        "logins",  # tuple[tuple[object, ...], ...]: files copied between homes, as fields of policy.logins.Login
        "repositories",  # tuple[Repository, ...]: for git == "private", parents before nested ones
        "nested",  # tuple[str, ...]: `.git` and git directories of other repositories in what can be written
        "left_open",  # tuple[Place, ...]: of submodules that are not populated, where the jail does not keep it so
        "backend",  # str: "landlock+namespaces", "landlock+guard", "bubblewrap"
        "required",  # tuple[str, ...]: ids of rows of policy.promises that must hold
        "warnings",  # tuple[str, ...]: what the user should know before the command starts
    )
    __slots__ = FIELDS

    version: int
    worktree: str
    worktree_id: str
    cwd: str
    provider: str
    provider_source: str
    dialect: str
    program: str
    command: str
    arguments: tuple[str, ...]
    arguments_unless: tuple[Conditional, ...]
    arguments_at: int
    grants: tuple[Grant, ...]
    links: tuple[tuple[str, str], ...]
    denied: tuple[tuple[str, str], ...]
    read_only: tuple[tuple[str, str], ...]
    narrowed: tuple[Grant, ...]
    binds: tuple[Bind, ...]
    brought: tuple[Brought, ...]
    files: tuple[tuple[str, str], ...]
    authorities: tuple[tuple[str, str], ...]
    handoff: tuple[tuple[str, str], ...]
    handoff_patterns: tuple[tuple[str, str], ...]
    net: str
    domains: tuple[tuple[str, str], ...]
    domains_denied: tuple[tuple[str, str], ...]
    internal: tuple[str, ...]
    named_ports: tuple[int, ...]
    routes: tuple[str, ...]
    ask: str
    notify: str
    keys: tuple[tuple[object, ...], ...]
    server_name: str
    publish: tuple[tuple[str, str], ...]
    reach: tuple[tuple[str, str], ...]
    env_pass: tuple[str, ...]
    env_set: tuple[tuple[str, str], ...]
    limits: tuple[tuple[str, int], ...]
    budget: tuple[tuple[str, int], ...]
    bounds: tuple[tuple[str, int], ...]
    git: str
    review: bool
    cow: bool
    root: str
    follow: bool
    sign: bool
    logins: tuple[tuple[object, ...], ...]
    repositories: tuple[Repository, ...]
    nested: tuple[str, ...]
    left_open: tuple[Place, ...]
    backend: str
    required: tuple[str, ...]
    warnings: tuple[str, ...]

    def __init__(self, **fields: object) -> None:
        """Takes every name of `FIELDS` as a keyword, no more and no fewer (TypeError otherwise)."""
        if fields.keys() != set(self.FIELDS):
            raise TypeError(f"Plan fields differ: {sorted(fields.keys() ^ set(self.FIELDS))}")
        for name in self.FIELDS:
            setattr(self, name, fields[name])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.to_data() == other.to_data()

    __hash__ = None  # type: ignore[assignment]  # mutable containers may come in through from_data

    def to_data(self) -> tuple[object, ...]:
        """The fields in order, ready for `marshal.dumps`."""
        return tuple(getattr(self, name) for name in self.FIELDS)

    @classmethod
    def from_data(cls, data: object) -> "Plan | None":
        """The Plan that `to_data` gave, or None when the data is of another version or shape."""
        if not isinstance(data, tuple) or len(data) != len(cls.FIELDS) or data[0] != VERSION:
            return None
        return cls(**dict(zip(cls.FIELDS, data, strict=True)))

    def replace(self, **changes: object) -> "Plan":
        """A copy with some fields changed."""
        return Plan(**(dict(zip(self.FIELDS, self.to_data(), strict=True)) | changes))

    def bind(self, slots: dict[str, str]) -> "Plan":
        """A copy whose slots are replaced by the session's paths.

        Args:
            slots: slot name -> absolute canonical path. A slot that is used and not given is a KeyError.
        """
        return self.replace(
            grants=tuple((_bound(path, slots), access, source) for path, access, source in self.grants),
            denied=tuple((_bound(path, slots), source) for path, source in self.denied),
            binds=tuple((_bound(source, slots), _bound(path, slots), access) for source, path, access in self.binds),
            env_set=tuple((name, _expanded(value, slots)) for name, value in self.env_set),
        )

    def argv(self, arguments: tuple[str, ...]) -> list[str]:
        """The argument vector: the command, the caller's `arguments`, and the provider's in their place."""
        words = [self.command, *arguments]
        at = len(words) if self.arguments_at < 0 else self.arguments_at
        given = words[1 : words.index("--")] if "--" in words else words[1:]
        flags = {word.partition("=")[0] for word in given if word.startswith("-")}
        flags.update(words[at : at + 1])
        more = [word for added, unless in self.arguments_unless if flags.isdisjoint(unless) for word in added]
        return [*words[:at], *self.arguments, *more, *words[at:]]

    def describe(self) -> list[str]:
        """The plan in words, one fact per line, for `paddock explain --plan`."""
        lines = [
            f"worktree  {self.worktree}",
            f"command   {' '.join(self.argv(('ARGUMENTS...',)))}  [{self.program}]",
            f"provider  {self.provider}, {self.dialect} dialect  [{self.provider_source}]"
            if self.provider
            else f"provider  none  [{self.provider_source}]",
            f"backend   {self.backend}",
            f"git       {self.git}{', signed when it is harvested' if self.sign else ''}"
            f"{', nothing is harvested' if self.review else ''}",
            *(["copy      of the worktree: what is written there is dropped at the end"] if self.cow else []),
            *([f"root      {self.root}: what is written there is dropped at the end"] if self.root else []),
            f"network   {self.net}",
        ]
        if self.net == "proxy":
            lines += [f"allowed   {rule}  [{source}]" for rule, source in self.domains]
            lines += [f"denied    {rule}  [{source}]" for rule, source in self.domains_denied]
            lines += [f"private   {rule}  [its address may be private]" for rule in self.internal]
            if self.named_ports:
                lines.append(f"by name   ports {' '.join(map(str, self.named_ports))}, without a proxy in the client")
            lines += [f"reach     {where}  [{source}]" for where, source in self.reach]
            lines += [f"publish   {where}  [{source}]" for where, source in self.publish]
            lines += [f"ask       {self.ask}  [about hosts that no rule allows]"] if self.ask != "no" else []
            lines += self._keys()
            lines += ["tls       every tunnel must name its host"] if self.server_name == "require" else []
        lines += [f"{access:<9} {path}  [{source}]" for path, access, source in self.grants]
        lines += [f"denied    {path}  [{source}]" for path, source in self.denied]
        lines += [f"read-only {path}  [{source}]" for path, source in self.read_only]
        words = {"r": "read-only", "w": "writable"}
        lines += [f"{words[access]:<9} {path}  [{source}]" for path, access, source in self.narrowed]
        lines += [f"{access:<9} {path}  [shows {source}]" for source, path, access in self.binds]
        what = "copy of" if self.backend == "landlock+guard" else "shows"
        lines += [
            f"bring     ~/{path}  [{f'{what} {source}' if source else 'not there'}; {who}]"
            for source, path, who in self.brought
        ]
        lines += [f"file      ~/{path}  [{line}]" for path, text in self.files for line in text.splitlines()[1:]]
        lines += [
            f"trust     {name}  [certificates of {where if where[0] == '/' else 'your own setting'}]"
            for name, where in self.authorities
        ]
        lines += [f"{mode:<9} {path}  [hand-off file]" for path, mode in self.handoff]
        held = dict.fromkeys(key[0] for key in self.keys if key[0]) if self.net == "proxy" else {}
        lines.append(f"env       {' '.join(name for name in self.env_pass if name not in held)}")
        lines += [f"env       {name}=phantom  [the key itself stays outside]" for name in held]
        lines += [f"env       {name}={value}" for name, value in self.env_set]
        lines += [f"limit     {name} {value}" for name, value in self.limits]
        lines += [f"budget    {name} {value:,}" for name, value in self.budget]
        of = {"memory": "of the machine's memory", "disk": "of the free disk, for what the session adds"}
        lines += [
            f"limit     {name} {share}% {of[name]}, checked once the session lasts" for name, share in self.bounds
        ]
        lines += [f"login     {host}  [{what}]" for host, _, *rest in self.logins if host and (what := _passing(rest))]
        lines.append(f"required  {' '.join(self.required)}")
        lines += [f"warning   {text}" for text in self.warnings]
        return lines

    def _keys(self) -> list[str]:
        lines = []
        for variable, source, _, _, _, rules, *_, covers, ambient, origin in self.keys:
            only = ", ".join(rule for rule, _ in covers)  # type: ignore[attr-defined]  # as policy.keys.Key has it
            only = f"; not reached otherwise: {only}" if only else ""
            where = ", ".join(rules)  # type: ignore[arg-type]  # the same
            if ambient:
                lines.append(f"key       put in outside, for {where}  [{origin}]")
            else:
                lines.append(f"key       {variable} is a phantom, for {where}{only}  [{origin}; from {source}]")
        return lines


def _passing(login: "list[object]") -> str:
    """What becomes of a login: the fields of `policy.logins.Login` from `text` on; "" for nothing."""
    refreshed, brought = login[2], login[10]
    if login[13]:
        return "a phantom of it is copied in; refreshed here"
    if login[12]:
        return "kept out"
    if isinstance(brought, tuple) and brought:
        return f"{', '.join(brought)} copied in"
    if login[11] and not any(login[6:9]):  # withheld, and nothing else
        return ""
    return "copied in; refreshed tokens back" if refreshed else "copied in"


def beneath(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it. Both absolute and normalized; by components."""
    return path == root or root == "/" or path.startswith(root + "/")


def held_by(narrowed: "tuple[Grant, ...]", path: str) -> Grant | None:
    """The entry of `Plan.narrowed` that decides at `path`: the longest at or above it; None where there is none."""
    return max((entry for entry in narrowed if beneath(path, entry[0])), key=lambda entry: len(entry[0]), default=None)


def _bound(path: str, slots: dict[str, str]) -> str:
    if not path.startswith("@"):
        return path
    name, slash, rest = path[1:].partition("/")
    return slots[name] + slash + rest


def _expanded(value: str, slots: dict[str, str]) -> str:
    """`value` with each ``${slot}`` replaced, once: what a slot's path holds is not looked at again."""
    head, *rest = value.split("${")
    for part in rest:
        name, brace, tail = part.partition("}")
        head += slots[name] + tail if brace and name in SLOTS else "${" + part
    return head
