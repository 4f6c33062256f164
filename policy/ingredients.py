"""Parts of a Plan that follow from one fact each: devices, git, the programme, hand-off files, the environment."""

from collections.abc import Iterable

from policy.config.rules import Rules
from policy.errors import EXIT_NOT_FOUND, Refusal
from policy.host import Host
from policy.launch import Command, Git, Translation
from policy.plan import Grant, beneath
from policy.toolchains import Toolchains

READ = "rx"  # a tree that may be used: read, listed, executed
WRITE = "rwx"
DATA = "r"  # files that are only read

PRIVATE_TEMP = "private /tmp"

_PRIVATE = ("/tmp", "/var/tmp", "/dev", "/proc")


def devices(rules: Rules, host: Host, *, mounts: bool) -> list[Grant]:
    """Devices and process information. With mounts /dev, /tmp and /proc are made anew inside the jail."""
    found = [device for device in rules.devices if host.kind(device[0]) not in (None, "link")]
    if not mounts:
        return found
    return [
        *(device for device in found if device[0] != "/dev/ptmx"),  # inside, a link into the private /dev/pts
        ("/dev", DATA, "private /dev"),
        ("/dev/console", "rwi", "private /dev"),
        ("/tmp", WRITE, PRIVATE_TEMP),
        ("/var/tmp", WRITE, PRIVATE_TEMP),
    ]


def git_grants(git: Git, mode: str, root: str, host: Host) -> list[Grant]:
    """Grants outside the worktree that git itself needs.

    readonly: objects, refs and config can be read, so `git log`, `diff` and `status` work. shared: all of it,
    writable.
    """
    source = f"--git {mode}"
    if mode == "shared":
        return [] if git.kind == "main" else [(git.common_dir, WRITE, source), (git.git_dir, WRITE, source)]
    # As trees, not file by file: git replaces its files by renaming, and a rule or mount stays with the old one.
    paths = [git.common_dir, git.git_dir, *(path for _, path in git.modules)]
    for objects in [f"{path}/objects" for path in dict.fromkeys(paths)]:
        paths += _alternates(objects, host, 5)
    outside = dict.fromkeys(path for path in paths if not beneath(path, root))
    return [(path, DATA, source) for path in outside]


def _alternates(objects: str, host: Host, depth: int) -> list[str]:
    """Object stores that `objects` borrows from (gitrepository-layout(5), objects/info/alternates)."""
    content = host.read(f"{objects}/info/alternates") if depth else None
    found: list[str] = []
    for line in (content or b"").split(b"\n"):
        text = line.decode("utf-8", "surrogateescape")
        if text and not text.startswith("#"):
            path = host.resolve(text if text.startswith("/") else f"{objects}/{text}")
            if path is not None:
                found += [path, *_alternates(path, host, depth - 1)]
    return found


def program_grants(command: Command, grants: Iterable[Grant], host: Host) -> list[Grant]:
    """The programme itself, and the package it belongs to, when nothing else grants them."""
    if any(beneath(command.program, path) and "x" in access for path, access, _ in grants):
        return []
    before, marker, _ = command.program.partition("/node_modules/")
    path = before + "/node_modules" if marker else command.program
    if host.resolve(path) != path:
        raise Refusal("command-moved", f"{command.program} changed while it was looked at", exit_code=EXIT_NOT_FOUND)
    return [(path, READ, "the command's own programme")]


def handoff(root: str, rules: Rules, host: Host, exceptions: dict[str, str], git: Git) -> tuple[tuple[str, str], ...]:
    """Existing hand-off files in the worktree: (canonical path, mode). Names are relative to the root."""
    found: dict[str, str] = {}
    for mode, names in (("report", rules.handoff_report), ("protect", rules.handoff_protect)):
        for name in names:
            path = f"{root}/{name.rstrip('/')}"
            if rules.git == "shared" and beneath(path, git.common_dir):
                continue  # opened on purpose, and the user has been told what for
            if host.kind(path) in ("file", "dir") and host.resolve(path) == path and path not in exceptions:
                found[path] = mode
    return tuple(sorted(found.items()))


def environment(rules: Rules, provider: Translation, toolchains: Toolchains) -> tuple[tuple[str, str], ...]:
    """Later entries win: what the user sets beats the provider's, which beats ours."""
    values = {"HOME": "${home}", "TMPDIR": "${tmp}", "TMP": "${tmp}", "TEMP": "${tmp}"}
    if rules.git == "readonly":
        values["GIT_OPTIONAL_LOCKS"] = "0"  # or `git status` complains that it cannot refresh the index
    if toolchains.path:
        values["PATH"] = ":".join(toolchains.path)  # without entries that lead nowhere in the jail
    return tuple((values | dict(toolchains.env_set) | dict(provider.environment) | dict(rules.env_set)).items())


def merged(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """One grant per path, with the union of accesses; sources are joined, order is kept.

    A grant that one above it covers is left out: rules and mounts reach the whole tree below them. Not so where the
    one above is a private directory of the jail, which shows nothing of what lies below it outside.
    """
    merged: dict[str, tuple[str, str]] = {}
    for path, access, source in grants:
        known, sources = merged.get(path, ("", ""))
        union = "".join(letter for letter in "rwxi" if letter in known or letter in access)
        merged[path] = (union, sources if union == known else f"{sources}, {source}" if sources else source)

    def covered(path: str, access: str) -> bool:
        parent = path
        while parent not in ("", "/"):
            parent = parent.rpartition("/")[0] or "/"
            if parent not in _PRIVATE and parent in merged and set(access) <= set(merged[parent][0]):
                return True
        return False

    return tuple((path, access, source) for path, (access, source) in merged.items() if not covered(path, access))
