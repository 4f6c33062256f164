"""Which toolchains outside the system directories a command can reach through PATH, and what they need.

Pure: all that must be known of the disk comes from the `Host`. Grants are read and execute, never write. What a tool
would write is redirected to the private home, and files that may hold credentials stay closed. So does what a link in
the worktree leads to, which an agent may have put there, apart from the usual places of known toolchains.

How it goes: each PATH entry, each active variable (VIRTUAL_ENV, JAVA_HOME ...) and each named programme is a place that
is *reached*. A reached place selects the toolchains whose root holds it; a selected toolchain's own links, and the
links and `#!` lines of plain directories of programmes, reach further places, until nothing new is found.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from policy import tables
from policy.errors import Refusal
from policy.launch import Host, Trail, led_by, linked_by
from policy.plan import Grant, beneath
from policy.tables import Many, Pairs, Part, Version, boolean, checked, key, matching, string

# The table of known toolchains (`toolchains.toml`): its format and its loader.


TABLE_FILE = f"{os.path.dirname(__file__)}/toolchains.toml"


def _below(value: object) -> str:
    pattern = string(value)
    parts = pattern.split("/")
    if pattern != "." and (not all(parts) or {".", ".."} & set(parts) or "\0" in pattern):
        raise ValueError("must be relative, without empty, . or .. components")
    return pattern


def _placed(value: object) -> str:
    path = string(value)
    if not path.startswith(("/", "~/")) or ".." in path.split("/") or path.rstrip("/") in {"", "~"}:
        raise ValueError("must start with / or ~/, name something below it and hold no ..")
    return path.rstrip("/")


_variable = matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name")


class Toolchain(Part):
    """One kind of installation. Patterns are relative to its root; ``*`` stands for part of one component."""

    name: str = key(string)
    """Short name, shown in `paddock explain`."""
    variables: tuple[str, ...] = key(Many(_variable), ())
    """Variables whose value is a root, when it bears the markers."""
    active_variables: tuple[str, ...] = key(Many(_variable), ())
    """Those of them that select the toolchain even when PATH does not lead there, and that pass through."""
    roots: tuple[str, ...] = key(Many(_placed), ())
    """Where it is usually installed."""
    anywhere: bool = key(boolean, False)
    """Whether any ancestor of a reached programme that bears the markers is a root."""
    shared_prefix: bool = key(boolean, False)
    """Whether a directory of `ToolchainTable.shared_prefixes` may be such a root."""
    markers: tuple[str, ...] = key(Many(string, least=1))
    """Patterns that must all exist; ``a|b`` means either. A root without them is never granted."""
    touched_by: tuple[str, ...] = key(Many(_below), (".",))
    """The parts of the root that select it when PATH or a link leads there."""
    grants: tuple[str, ...] = key(Many(_below, least=1))
    """What is granted, read and execute."""
    excluded: tuple[str, ...] = key(Many(_below), ())
    """What stays closed below the grants: files that may hold credentials."""
    follow: tuple[str, ...] = key(Many(_below), ())
    """Links and programmes that may lead on to further installations."""
    brings: tuple[str, ...] = key(Many(string), ())
    """Toolchains that this one runs, selected at their roots as well."""
    set: dict[str, str] = key(Pairs(_variable, string), {})
    """Variables to set; ``${root}`` and ``${home}`` (the private home) may be used."""
    pass_: tuple[str, ...] = key(Many(_variable), ())
    """Plain variables that pass through."""
    pass_paths: tuple[str, ...] = key(Many(_variable), ())
    """Variables that hold one path, and pass through when it can be reached in the jail."""
    seeds: tuple[str, ...] = key(Many(_below), ())
    """Plain files in the home directory that it needs in the private home: versions, never credentials."""
    notes: tuple[str, ...] = key(Many(string), ())
    """What people should know when it is found."""


class ToolchainTable(Part):
    """All of `toolchains.toml`."""

    schema_: int = key(Version(1))
    """Version of the format."""
    system: tuple[str, ...] = key(Many(_placed))
    """Trees that every plan grants anyway."""
    followed: tuple[str, ...] = key(Many(_placed))
    """System directories whose links are followed."""
    worktree_interpreters: tuple[str, ...] = key(Many(_below))
    """Links in the worktree that lead to interpreters."""
    credentials: tuple[str, ...] = key(Many(_below))
    """Below the home directory; never granted."""
    programmes_inside: tuple[str, ...] = key(Many(_below))
    """Below the home directory: parts of `credentials` that hold programmes after all."""
    shared_prefixes: tuple[str, ...] = key(Many(_placed))
    """Directories that are no toolchain's own."""
    credential_names: tuple[str, ...] = key(Many(string))
    """File names that are never granted one by one."""
    toolchain: tuple[Toolchain, ...] = key(Many(Toolchain))
    """The toolchains, the more particular first."""


@cache
def load_table(path: str = TABLE_FILE) -> ToolchainTable:
    """Reads the table.

    Raises:
        Refusal: `toolchains-invalid`, with the file and what is wrong in it.
    """
    try:
        return checked(ToolchainTable, tables.shipped(path))
    except (OSError, ValueError) as error:
        raise Refusal("toolchains-invalid", f"{path} is not a table of toolchains", context=str(error)) from error


# Which interpreter a script names (execve(2), "Interpreter scripts").


def interpreter_of(content: bytes) -> str | None:
    """The interpreter's absolute path, or None when `content` is no script or names none.

    pip and uv write ``#!/bin/sh`` with ``'''exec' "INTERPRETER" "$0" "$@"`` in the second line when the path is too
    long for the kernel, or holds a space; then that interpreter is the answer.
    """
    if not content.startswith(b"#!"):
        return None
    first, _, rest = content[:4096].partition(b"\n")
    word = (first[2:].split() or [b""])[0]
    if word == b"/bin/sh" and rest.startswith(b"'''exec' "):
        command = rest.removeprefix(b"'''exec' ").partition(b"\n")[0]
        word = command[1:].partition(b'"')[0] if command.startswith(b'"') else command.split(b" ")[0]
    if not word.startswith(b"/") or b"\0" in word:
        return None
    return word.decode("utf-8", "surrogateescape")


ACCESS = "rx"

MAX_PROGRAMMES = 2000  # a PATH directory with more entries than this is not looked through


class Selected(NamedTuple):
    """One selected toolchain."""

    name: str
    root: str


class Toolchains(NamedTuple):
    """What a plan takes over. Paths are canonical."""

    found: tuple[Selected, ...]
    grants: tuple[Grant, ...]
    """Read and execute; the source is ``toolchain NAME`` or ``PATH``."""
    denied: tuple[tuple[str, str], ...]
    """(path, source): stays closed below the grants."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links (path, text) on the way to the grants."""
    env_pass: tuple[str, ...]
    """Names of variables that pass through."""
    env_set: tuple[tuple[str, str], ...]
    """Variables to set; values may hold ``${home}``."""
    seeds: tuple[tuple[str, str], ...]
    """(path relative to the private home, canonical source): plain files to copy there."""
    path: tuple[str, ...]
    """The entries of PATH that lead somewhere in the jail, in order."""
    notes: tuple[str, ...]
    """What was not granted, and why."""


NOTHING = Toolchains((), (), (), (), (), (), (), (), ())
"""Of a jail that shows another machine's programmes."""


def discover(
    host: Host,
    path: str,
    table: ToolchainTable,
    *,
    worktree: str = "",
    programs: Sequence[str] = (),
    written: tuple[str, ...] = (),
) -> Toolchains:
    """Finds the toolchains.

    Args:
        host: the machine.
        path: value of PATH.
        table: the known toolchains, from `load_table`.
        worktree: canonical root of the worktree; what lies in it is granted elsewhere.
        programs: absolute paths of commands that will be run, wherever they lie.
        written: other trees in which an agent may have put links.
    """
    search = _Search(host, table, worktree, written)
    for entry in path.split(":"):
        search.path_entry(entry)
    search.active_variables()
    for program in programs:
        # A link in the worktree may be an agent's; what it leads to is looked at by `worktree_interpreters` only.
        if not (worktree and led_by(worktree, program, host.trail(program))):
            search.follow(program, "the command", trusted=True)
    for directory in table.followed:
        for name in host.listing(directory) or ():
            if host.kind(f"{directory}/{name}") == "link":
                search.follow(f"{directory}/{name}", f"{directory}/{name}", trusted=True)
    for pattern in table.worktree_interpreters if worktree else ():
        search.follow(f"{worktree}/{pattern}", "the worktree", trusted=False)
    return search.result()


class _Search:
    def __init__(self, host: Host, table: ToolchainTable, worktree: str, written: tuple[str, ...]) -> None:
        self.host = host
        self.table = table
        self.worktree, self.written = worktree, written
        self.selected: dict[tuple[str, str], Toolchain] = {}
        self.grants: dict[str, str] = {}
        self.denied: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self.path: dict[str, None] = {}
        self.followed: set[tuple[str, bool]] = set()
        self.credentials = self._canonical(f"{host.home}/{name}" for name in table.credentials)
        self.inside = self._canonical(f"{host.home}/{name}" for name in table.programmes_inside)
        self.shared = self._canonical(self._placed(place) for place in table.shared_prefixes)
        self.fixed = self._fixed_roots()

    def _canonical(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Each path as written and as resolved: a credential directory may be a link."""
        found: dict[str, None] = {}
        for path in paths:
            found[path] = None
            found[self.host.resolve(path) or path] = None
        return tuple(found)

    def _placed(self, place: str) -> str:
        return self.host.home + place[1:] if place.startswith("~/") else place

    def _fixed_roots(self) -> list[tuple[Toolchain, str]]:
        found = []
        for tool in self.table.toolchain:
            values = [value for value in map(self.host.env, tool.variables) if value and value.startswith("/")]
            named = [trail.canonical for trail in map(self.host.trail, values) if not self.led(trail)]
            for root in [*named, *(self.host.resolve(self._placed(place)) for place in tool.roots)]:
                if root and (tool, root) not in found and self._harmless(root) and self._marked(tool, root):
                    found.append((tool, root))
        return found

    def led(self, trail: Trail) -> bool:
        return linked_by((self.worktree, *self.written), trail)

    def _in(self, path: str, trees: Iterable[str]) -> bool:
        return any(beneath(path, tree) for tree in trees)

    def system(self, path: str) -> bool:
        return self._in(path, self.table.system)

    def local(self, path: str) -> bool:
        return bool(self.worktree) and beneath(path, self.worktree)

    def secret(self, path: str) -> bool:
        return self._in(path, self.credentials) and not self._in(path, self.inside)

    def covered(self, path: str) -> bool:
        return self._in(path, self.grants)

    def reachable(self, path: str) -> bool:
        return self.system(path) or self.local(path) or (self.covered(path) and not self._in(path, self.denied))

    def _acceptable(self, path: str) -> bool:
        """Whether `path` may be granted at all."""
        return self._harmless(path) and not self.secret(path)

    def _harmless(self, path: str) -> bool:
        """Whether it holds neither home nor worktree, no other rule grants it, and no other user can write it."""
        return not (
            beneath(self.host.home, path)
            or (self.worktree and beneath(self.worktree, path))
            or self.system(path)
            or self.local(path)
            or self.host.others_can_write(path)
        )

    def expand(self, root: str, pattern: str) -> Iterator[str]:
        """The existing paths below `root` that match `pattern`."""
        if pattern == ".":
            yield root
            return
        first, _, rest = pattern.partition("/")
        if "*" in first:
            names: Iterable[str] = (name for name in self.host.listing(root) or () if fnmatchcase(name, first))
        else:
            names = (first,) if self.host.kind(f"{root}/{first}") else ()
        for name in names:
            yield from self.expand(f"{root}/{name}", rest or ".")

    def _marked(self, tool: Toolchain, root: str) -> bool:
        return all(
            any(next(self.expand(root, pattern), None) for pattern in marker.split("|")) for marker in tool.markers
        )

    def path_entry(self, entry: str) -> None:
        """One component of PATH."""
        if not entry.startswith("/"):
            self.note(f"PATH entry {entry!r} is relative: its meaning depends on the current directory")
            return
        trail = self.host.trail(entry)
        directory = trail.canonical
        if directory is None or self.host.kind(directory) != "dir":
            return
        self.links.update(trail.links)
        if self.system(directory) or self.local(directory):
            self.path[entry] = None
            return
        if self.host.others_can_write(directory):
            self.note(f"PATH entry {entry} is not granted: other users can put programmes there")
            return
        if not self._acceptable(directory):
            why = (
                "it contains credentials"
                if self.secret(directory)
                else "it contains the home directory or the worktree"
            )
            self.note(f"PATH entry {entry} is not granted: {why}")
            return
        led = self.led(trail)
        self.reach(directory, trusted=not led)
        if led and not self.covered(directory):
            self.note(f"PATH entry {entry} is not granted: a link that an agent may have made points to {directory}")
        elif not self.covered(directory):
            self._programmes(directory)
        if any(beneath(path, directory) or beneath(directory, path) for path in self.grants):
            self.path[entry] = None
        elif names := self.host.listing(directory):
            # Only links, which need no grant themselves: the entry works when one of them leads somewhere.
            targets = (self.host.resolve(f"{directory}/{name}") for name in names)
            if any(target and self.reachable(target) for target in targets):
                self.path[entry] = None

    def active_variables(self) -> None:
        """VIRTUAL_ENV and the like."""
        for tool in self.table.toolchain:
            for name in tool.active_variables:
                trail = self.host.trail(self.host.env(name) or "/")
                root, led = trail.canonical, self.led(trail)
                if root is None or root == "/":
                    continue
                if self.local(root):
                    for pattern in tool.follow:
                        self.follow(f"{root}/{pattern}", "the worktree", trusted=False)
                elif (tool, root) in self.fixed or (not led and self._acceptable(root) and self._marked(tool, root)):
                    self.select(tool, root)

    def reach(self, place: str, *, trusted: bool) -> None:
        """Selects what `place`, a canonical directory or file, belongs to."""
        for tool, root in self.fixed:
            if any(beneath(place, root if part == "." else f"{root}/{part}") for part in tool.touched_by):
                self.select(tool, root)
        if not trusted or self.covered(place):
            return
        root = place
        while root and not beneath(self.host.home, root) and not self.system(root):
            for tool in self.table.toolchain:
                allowed = tool.anywhere and (tool.shared_prefix or root not in self.shared)
                if allowed and self._marked(tool, root) and self._acceptable(root):
                    self.select(tool, root)
                    return
            root = root.rpartition("/")[0]

    def follow(self, path: str, why: str, *, trusted: bool) -> None:
        """Goes along a link or a script's `#!` line to what is behind it."""
        if (path, trusted) in self.followed:
            return
        self.followed.add((path, trusted))
        trail = self.host.trail(path)
        target = trail.canonical
        if target is None:
            return
        self.links.update(trail.links)
        trusted = trusted and not self.led(trail)
        for link, _ in trail.links:
            # A chain may pass through an installation that its end does not lie in (venv -> pyenv -> system).
            if not self.system(link) and not self.local(link):
                self.reach(link, trusted=trusted)
        if self.system(target) or self.local(target):
            return
        self.reach(target, trusted=trusted)
        if self.host.kind(target) != "file":
            return
        if not self.covered(target) and not (trusted and self._single(target)):
            self.note(f"{path} points to {target}, which belongs to no known toolchain: not granted ({why})")
            return
        self._interpreter(target, trusted=trusted)

    def _single(self, target: str) -> bool:
        """Grants one programme by itself, as long as it is one."""
        name = target.rpartition("/")[2]
        if not self.host.executable(target) or not self._acceptable(target) or name in self.table.credential_names:
            return False
        self.grants[target] = "PATH"
        return True

    def _interpreter(self, script: str, *, trusted: bool) -> None:
        if interpreter := interpreter_of(self.host.read(script) or b""):
            self.follow(interpreter, script, trusted=trusted and not self._in(script, self.written))

    def _programmes(self, directory: str) -> None:
        """A directory of programmes that is no toolchain's: ~/bin, ~/.local/bin."""
        names = self.host.listing(directory)
        if names is None or len(names) > MAX_PROGRAMMES:
            self.note(f"PATH entry {directory} is not granted: it cannot be listed, or has over {MAX_PROGRAMMES} names")
            return
        programmes, strays = [], []
        for name in names:
            path = f"{directory}/{name}"
            kind = self.host.kind(path)
            if kind == "link":
                self.follow(path, path, trusted=True)
            elif kind == "file" and self.host.executable(path) and name not in self.table.credential_names:
                programmes.append(path)
            else:
                strays.append(name)
        if programmes and not strays:
            self.grants[directory] = "PATH"
        elif programmes:
            self.note(f"{directory} also contains {strays[0]}: only its programmes are granted, one by one")
        for path in programmes:
            if strays:
                self._single(path)
            self._interpreter(path, trusted=True)

    def select(self, tool: Toolchain, root: str) -> None:
        """Takes over a toolchain's grants and goes on to where its links lead."""
        if (tool.name, root) in self.selected:
            return
        self.selected[tool.name, root] = tool
        source = f"toolchain {tool.name}"
        for pattern in tool.grants:
            for path in self.expand(root, pattern):
                trail = self.host.trail(path)
                target = trail.canonical
                if target is None or self.system(target) or self.local(target) or self.led(trail):
                    continue
                broad = (tool, root) not in self.fixed and any(beneath(secret, target) for secret in self.credentials)
                if broad or not self._acceptable(target):
                    self.note(f"{path} is not granted to {tool.name}: it contains credentials, or others can write it")
                    continue
                self.links.update(trail.links)
                self.grants.setdefault(target, source)
        for pattern in tool.excluded:
            for path in self.expand(root, pattern):
                self._deny(path, source)
        for name in tool.notes:
            self.note(f"{tool.name}: {name}")
        for other, place in self.fixed:
            if other.name in tool.brings:
                self.select(other, place)
        for pattern in tool.follow:
            for path in self.expand(root, pattern):
                self.follow(path, source, trusted=True)

    def _deny(self, path: str, source: str) -> None:
        trail = self.host.trail(path)
        for place in (trail.entry, trail.canonical):
            if place and not self.system(place):
                self.denied[place] = source

    def note(self, text: str) -> None:
        self.notes[text] = None

    def result(self) -> Toolchains:
        """Everything that was found."""
        for path in self.credentials:
            if self.covered(path):
                self._deny(path, "credentials")
                self.denied[path] = "credentials"
        grants = [
            (path, ACCESS, source)
            for path, source in sorted(self.grants.items())
            if not any(path != other and beneath(path, other) for other in self.grants)
        ]
        denied = {path: source for path, source in sorted(self.denied.items()) if self.covered(path)}
        return Toolchains(
            found=tuple(Selected(*key) for key in self.selected),
            grants=tuple(grants),
            denied=tuple(denied.items()),
            links=tuple(sorted((link, text) for link, text in self.links.items() if not self.reachable(link))),
            env_pass=tuple(self._passed()),
            env_set=tuple(sorted(self._environment().items())),
            seeds=tuple(sorted(self._seeds().items())),
            path=tuple(self.path),
            notes=tuple(self.notes),
        )

    def _passed(self) -> list[str]:
        names = {name for tool in self.selected.values() for name in tool.pass_}
        return sorted(name for name in names if self.host.env(name) is not None)

    def _environment(self) -> dict[str, str]:
        values: dict[str, str] = {}
        for (_, root), tool in self.selected.items():
            for name, value in tool.set.items():
                values.setdefault(name, value.replace("${root}", root))
        names = [name for tool in self.table.toolchain for name in tool.active_variables]
        names += [name for tool in self.selected.values() for name in tool.pass_paths]
        for name in names:
            value = self.host.env(name) or ""
            target = self.host.resolve(value) if value.startswith("/") else None
            if target and (self.reachable(target) or any(target == root for _, root in self.selected)):
                values[name] = value
        return values

    def _seeds(self) -> dict[str, str]:
        found = {}
        for name in {seed for tool in self.selected.values() for seed in tool.seeds}:
            source = self.host.resolve(f"{self.host.home}/{name}")
            if source and self.host.kind(source) == "file" and not self.secret(source):
                found[name] = source
        return found
