"""What new commits bring, read from a quarantine: how many they are, their gitlinks, the files that differ.

All of it is read by git from trusted configuration with the quarantine as its object directory; the objects have passed
`index-pack --strict` by then.
"""

import subprocess
from collections.abc import Iterator
from typing import IO, NamedTuple

from launcher.vcs.git import Git, GitFailed, kill
from launcher.vcs.harvest.parts import FileChange, Limits, Part
from launcher.vcs.harvest.transfer import too_large
from launcher.vcs.held import Quarantine
from policy.errors import Refusal

_GITLINK = b"160000"

EMPTY_TREE = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""The tree without entries, by the length of object ids. Git knows it without having it."""


class Contents(NamedTuple):
    """What new commits hold.

    Attributes:
        commits: their number.
        parents: all that they have.
        gitlinks: path of a submodule -> commits that new commits name there.
    """

    commits: int
    parents: frozenset[str]
    gitlinks: dict[str, tuple[str, ...]]


def contents(part: Part, git: Git, quarantine: Quarantine, wanted: tuple[str, ...], limits: Limits) -> Contents:
    """Reads all commits of `wanted` that no ref of the main repository has.

    Raises:
        Refusal: harvest-too-large, for more than `limits.commits`.
        GitFailed: git failed.
    """
    words = (
        *("log", "--format=%x01%P%x01", "--raw", "-z", "-r", "--root", "--no-abbrev", "--no-renames", "--no-mailmap"),
        *("--no-show-signature", "--no-decorate", "--diff-merges=combined", "--ignore-submodules=none"),
        *(f"--max-count={limits.commits + 1}", *wanted, "--not", "--all", "--"),
    )
    process = git.start(*words, stdout=subprocess.PIPE, environment=quarantine.environment)
    commits = 0
    parents: set[str] = set()
    links: dict[str, dict[str, None]] = {}
    try:
        assert process.stdout is not None
        fields = _fields(process.stdout)
        for field in fields:
            text = field.lstrip(b"\n")
            if text.startswith(b"\x01"):
                commits += 1
                _, names, text = text.split(b"\x01", 2)
                parents.update(names.decode().split())
                text = text.lstrip(b"\n")
            if text.startswith(b":"):
                path = next(fields, b"")
                mode, oid = _after(text)
                if mode == _GITLINK:
                    links.setdefault(path.decode("utf-8", "surrogateescape"), {})[oid] = None
        status = process.wait()
    finally:
        kill(process)
    if status:
        raise GitFailed("git-failed", words, git.git_dir, f"exit status {status}", status=status)
    if commits > limits.commits:
        raise too_large(part, f"more than {limits.commits} commits are new; was other history brought in?",
                        "--max-commits")  # fmt: skip
    return Contents(commits, frozenset(parents), {path: tuple(oids) for path, oids in links.items()})


def files(part: Part, git: Git, quarantine: Quarantine, old: str, new: str, limits: Limits) -> tuple[FileChange, ...]:
    """Files that differ between two commits; gitlinks are left out. `old` may be "".

    Raises:
        Refusal: harvest-too-large, for more than `limits.objects`: cut short, the list would hide what comes last. One
            blob may stand in a tree any number of times.
    """
    words = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", old or EMPTY_TREE[part.digits], new, "--")
    fields = iter(git.run(*words, environment=quarantine.environment).out.split(b"\0"))
    found: list[FileChange] = []
    for record in fields:
        if not record:
            break
        before, after = record[1:].split(b" ")[:2]
        path = next(fields).decode("utf-8", "surrogateescape")
        if _GITLINK in (before, after):
            continue
        if len(found) >= limits.objects:
            raise too_large(part, f"more than {limits.objects} files differ", "--max-objects")
        change = "created" if before == b"000000" else "removed" if after == b"000000" else "changed"
        found.append(FileChange(part.prefix + path, change, after == b"100755"))
    return tuple(found)


def contains(git: Git, quarantine: Quarantine, newer: str, older: str) -> bool:
    """Whether `older` is an ancestor of `newer`, or the same."""
    return (
        git.run("merge-base", "--is-ancestor", older, newer, ok=(0, 1), environment=quarantine.environment).status == 0
    )


def missing(git: Git, oids: tuple[str, ...], quarantine: Quarantine | None = None) -> tuple[str, ...]:
    """Those of `oids` that name no commit in the repository (nor in the quarantine)."""
    if not oids:
        return ()
    asked = "".join(f"{oid}\n" for oid in oids).encode()
    environment = quarantine.environment if quarantine is not None else None
    lines = git.run("cat-file", "--batch-check", input=asked, environment=environment).out.decode().splitlines()
    return tuple(oid for oid, line in zip(oids, lines, strict=True) if line.split()[1] != "commit")


def gitlink_refused(part: Part, path: str, oid: str, why: str, hint: str = "") -> Refusal:
    """The Refusal for a commit that names a submodule's commit which nobody has."""
    return Refusal(
        "harvest-gitlink",
        f"a commit of {part.label} names a commit of the submodule {path} that cannot be had",
        context=f"{oid}: {why}",
        hint=hint
        or "commit in the submodule first, or take its change back, and amend; the work stays in the private "
        "git directory until then",
    )


def _after(record: bytes) -> tuple[bytes, str]:
    """(mode, object id) on the new side of a raw record; those of merges have a column for each parent."""
    parents = len(record) - len(record.lstrip(b":"))
    words = record[parents:].split(b" ")
    return words[parents], words[2 * parents + 1].decode()


def _fields(stream: IO[bytes]) -> Iterator[bytes]:
    """NUL-terminated fields of a stream, read piece by piece."""
    rest = b""
    while block := stream.read(1 << 16):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole
    if rest:
        yield rest
