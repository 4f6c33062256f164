"""The crossing: a jailed `pack-objects` writes what is new, a strict, bounded `index-pack`, in a jail of its own, reads
it into a quarantine.

Objects in the quarantine are real (their names are their hashes) and well-formed (git-fsck(1), all warnings taken for
errors), but nothing of the main repository points to them, and it does not see them.
"""

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from typing import IO, NamedTuple

from launcher.safefs.guarded_files import Inside
from launcher.vcs import added_packs
from launcher.vcs.added_packs import Held, Quarantine
from launcher.vcs.git import EMPTY_TREE, Git, GitFailed, Object, in_gits_words, kill, parsed_objects
from launcher.vcs.harvest.jail import KEPT, Jailed, Reading
from launcher.vcs.harvest.parts import FileChange, Limits, Part
from launcher.vcs.jailed_git import JailedGit
from policy.errors import Refusal, Rows, in_rows, printable
from policy.pasted import cited

PATIENCE = 1800.0
"""Seconds for reading one pack."""

_TIPS = ("rev-list", "--no-walk=unsorted", "--ignore-missing", "--max-count=200", "--all")
_MOST_TEXT = 1 << 20
"""Bytes of a commit or tag: of signed ones dozens are held together, and git holds each tag whole that it lists."""
_DATES = 1 << 34
"""A commit's date in seconds is below: a commit-graph has no more bits for it (gitformat-commit-graph(5)). With a later
one `git gc` writes a graph that git-fsck(1) calls damaged, and by which ancestors are none."""
_OF_PACKS = re.compile(r"pack-[0-9a-f]{40,64}\.(?:pack|idx|rev)")
_HEADER = 12  # "PACK", version, number of objects: gitformat-pack(5)
_BOUNDED = ("-c", "core.bigFileThreshold=64m", "-c", "core.packedGitLimit=256m", "-c", "core.packedGitWindowSize=64m")
_PACK = ("pack-objects", "--revs", "--thin", "--stdout", "--delta-base-offset", "-q")


def take(part: Part, git: Git, reading: Reading, wanted: tuple[str, ...], directory: str, limits: Limits) -> Quarantine:
    """Takes `wanted` and all they need that the main repository has not, into a quarantine.

    Args:
        wanted: object ids of commits in the agent's object directory.
        directory: where the quarantine is made; must not exist.

    Refusals: harvest-unreadable (objects are missing or damaged), harvest-too-large, harvest-malformed.
    """
    os.makedirs(f"{directory}/pack", 0o700)
    quarantine = Quarantine(directory, part.store)
    # What may be left out; the check of connectivity decides, so a tip more or less changes only the size.
    tips = git.text(*_TIPS)
    known = dict.fromkeys((*([part.base] if part.base else []), *tips.split()))
    revisions = "".join(f"{oid}\n" for oid in wanted) + "".join(f"^{oid}\n" for oid in known)
    what = f"packing the commits of {part.label}"
    with Jailed(_PACK, reading, stdin=revisions.encode()) as jailed:
        stream = jailed.process.stdout
        assert stream is not None
        header = _exactly(stream.fileno(), _HEADER)
        if len(header) < _HEADER:
            jailed.check(what)
            raise Refusal("harvest-unreadable", f"{what} returned nothing", hint=KEPT)
        version, count = int.from_bytes(header[4:8]), int.from_bytes(header[8:12])
        if header[:4] != b"PACK" or version != 2:
            raise Refusal("harvest-malformed", f"{what} returned something else", hint=KEPT)
        if count > limits.objects:
            raise too_large(part, f"{count} objects; the limit is {limits.objects}", "--max-objects")
        if count:
            failure = _index(part, reading, stream, version, count, quarantine, limits)
            if failure is not None:
                stream.close()
                if "early EOF" in failure.context:
                    jailed.check(what)  # a pack that breaks off has its cause in the jail, if that has failed too
                raise failure
        jailed.check(what)
    check_packs_alone(quarantine, what)
    return quarantine


def check_packs_alone(quarantine: Quarantine, what: str) -> None:
    """Refuses (harvest-malformed) a quarantine that holds anything but packs.

    Git in its jail has written it. A git that an object has taken over could leave `info/alternates`, and git outside
    would then read objects that nobody has checked, or links that lead elsewhere.
    """
    directory = os.path.realpath(quarantine.directory)
    try:
        with Inside(directory) as top, Inside(directory, "pack") as packs:
            strange = [name for name in top.names() if name != "pack"]
            strange += [
                name for name in packs.names() if not _OF_PACKS.fullmatch(name) or packs.kind(name) != stat.S_IFREG
            ]
    except OSError:  # `pack` is no directory any more, or one behind a link
        strange = ["pack"]
    if strange:
        named = ", ".join(sorted(map(printable, strange))[:5])
        raise Refusal("harvest-malformed", f"{what} left other files than packs", context=named, hint=KEPT)


def _index(
    part: Part, reading: Reading, stream: IO[bytes], version: int, count: int, quarantine: Quarantine, limits: Limits
) -> Refusal | None:
    """Reads the rest of a pack, whose header is known, into the quarantine. Returns what git objected to."""
    words = ("index-pack", "--stdin", "--fix-thin", "--strict", f"--max-input-size={limits.pack}")
    header = f"--pack_header={version},{count}"
    into = reading._replace(objects=quarantine.directory)
    try:
        with Jailed((*_BOUNDED, *words, header), into, stdin=stream, writes=True, patience=PATIENCE) as jailed:
            jailed.check(f"reading the pack of {part.label}")
    except Refusal as refusal:
        if "maximum allowed size" in refusal.context:
            return too_large(part, f"its pack exceeds {limits.pack} bytes", "--max-size")
        if refusal.reference == "harvest-unreadable":
            return Refusal(
                "harvest-malformed",
                f"the commits of {part.label} are not harvested",
                context=Rows(refusal.context) or refusal.message,
                hint=KEPT,
            )
        raise
    return None


def adopt(git: JailedGit, objects: str, commit: str, directory: str, holder: Held) -> None:
    """Brings a commit that jailed git has made from a worktree's files into the repository.

    Args:
        objects: the object directory that it has written.
        directory: for a quarantine; must not exist.
        holder: holds what is brought in.

    Raises:
        GitFailed, Refusal: it cannot be read.
    """
    os.makedirs(f"{directory}/pack", 0o700)
    own = {"GIT_OBJECT_DIRECTORY": objects}
    skeleton = git.skeleton()
    packer = git.start(*_PACK, stdin=subprocess.PIPE, stdout=subprocess.PIPE, environment=own)
    try:
        assert packer.stdin is not None
        assert packer.stdout is not None
        known = git.run(*_TIPS, ok=(0, 128)).out.split()
        packer.stdin.write(commit.encode() + b"\n" + b"".join(b"^%s\n" % oid for oid in known))
        packer.stdin.close()
        packer.stdin = None
        into = Reading(skeleton.path, directory, skeleton.stores)
        words = (*_BOUNDED, "index-pack", "--stdin", "--fix-thin")
        with Jailed(words, into, stdin=packer.stdout, writes=True, patience=PATIENCE) as jailed:
            jailed.check("reading the pack of a backup")
    finally:
        kill(packer)
    holder.add(directory, git.common_dir)


def own_objects(git: Git, quarantine: Quarantine) -> Iterator[Object]:
    """The objects in the quarantine, one by one: there may be millions."""
    words = ("cat-file", "--batch-all-objects", "--unordered", "--batch-check")
    return parsed_objects(git.run(*words, environment=_alone(quarantine)).out)


def _alone(quarantine: Quarantine) -> dict[str, str]:
    """The quarantine without the store that it adds to."""
    return quarantine.environment | {"GIT_ALTERNATE_OBJECT_DIRECTORIES": ""}


def check_sizes(part: Part, git: Git, quarantine: Quarantine, wanted: tuple[str, ...], limits: Limits) -> None:
    """Refuses (harvest-too-large) objects in the quarantine larger than `limits.blob`, and huge commits and tags."""
    most = dict.fromkeys(("commit", "tag"), min(_MOST_TEXT, limits.blob))
    large = [one for one in own_objects(git, quarantine) if one.size > most.get(one.kind, limits.blob)]
    if not large:
        return
    # --fix-thin may have brought in old ones, which the main repository has already.
    for new, known in zip(large, git.objects(one.oid for one in large), strict=True):
        if known.kind == "missing" and new.size <= limits.blob:
            raise too_large(part, f"{new.kind} {new.oid} has {new.size} bytes; the limit is {_MOST_TEXT}", "")
        if known.kind == "missing":
            what = _place_of(git, quarantine, wanted, new.oid)
            raise too_large(part, f"{what} has {new.size} bytes; the limit is {limits.blob}", "--max-blob")


def _place_of(git: Git, quarantine: Quarantine, wanted: tuple[str, ...], oid: str) -> str:
    """Path and commit that bring an object; its id where there is none, or what leads there is damaged."""
    words = ("log", "-1", "-m", "-t", "-z", "--name-only", "--no-ext-diff", "--format=%h", f"--find-object={oid}")
    ended = git.run(*words, *wanted, "--not", "--all", "--", ok=(0, 128), environment=quarantine.environment)
    commit, _, path = ended.out.decode("utf-8", "surrogateescape").strip("\0\n").partition("\0")
    path = path.strip("\0\n").partition("\0")[0]
    return f"{cited(path)} of commit {commit} (object {oid})" if path and not ended.status else f"object {oid}"


def connected(part: Part, git: Git, quarantine: Quarantine, wanted: tuple[str, ...], base: str) -> None:
    """Refuses (harvest-incomplete) when anything that `wanted` needs is in neither the quarantine nor the store.

    What it needs of the store, and what is not held there by `base`, goes into the quarantine, too: the user may delete
    the branch that leads to it, and collect garbage, before a ref leads to `wanted`.

    Args:
        base: a commit that a ref of Paddock's own holds; "" for none.

    Refusals: harvest-incomplete; harvest-malformed: a new commit has a date that no commit-graph holds.
    """
    revisions = "".join(f"{oid}\n" for oid in wanted) + (f"^{base}\n" if base else "")
    try:
        # The date as git itself reads it: what a format shows went through the encoding that the commit claims to have.
        listed = git.run(
            *("rev-list", "--objects", "--no-object-names", "--timestamp", "--stdin"),
            input=revisions.encode(),
            environment=quarantine.environment,
        ).out
        needed = re.sub(rb"(?m)^[0-9]+ ", b"", listed)
        held = git.run("cat-file", "--batch-check", input=needed, environment=_alone(quarantine)).out
        for date, oid in re.findall(rb"(?m)^([0-9]{11,}) (.*)$", listed):
            if int(date) >= _DATES and b"%s missing\n" % oid not in held:
                why = f"commit {oid.decode()} has the date {date.decode()}; a commit-graph has those below {_DATES}"
                what = f"the commits of {part.label} are not harvested"
                raise Refusal("harvest-malformed", what, context=why, hint=KEPT)
        if b" missing\n" in held:
            added_packs.closed(git, quarantine, revisions, quarantine.directory)
    except GitFailed as error:
        lines = in_rows(*in_gits_words(error.err, 4))
        raise Refusal("harvest-incomplete", f"commits of {part.label} lack objects", context=lines, hint=KEPT) from None


def too_large(part: Part, why: str, option: str) -> Refusal:
    """The Refusal for work beyond a limit, with the option that widens it; "" for a limit that none does."""
    sizes = " (N may be 1G, or 64M)" if option in ("--max-size", "--max-blob") else ""
    more = (
        f"paddock worktree harvest {option} N allows more{sizes}"
        if option
        else "no option allows more: make it smaller, in a jail"
    )
    return Refusal(
        "harvest-too-large",
        f"the work in {part.label} is larger than the limits of a harvest",
        context=why,
        hint=f"{more}; until then the work stays in the private git directory",
    )


def _exactly(descriptor: int, count: int) -> bytes:
    """The next `count` bytes of a pipe and not one more; fewer at its end."""
    content = b""
    while len(content) < count and (block := os.read(descriptor, count - len(content))):
        content += block
    return content


# What new commits bring, read from a quarantine: how many they are, their gitlinks, the files that differ.
#
# All of it is read by git from trusted configuration with the quarantine as its object directory; the objects have
# passed `index-pack --strict` by then.

_GITLINK = b"160000"
_MOST_FIELD = 16 << 20
_MOST_PATH, _MOST_NAME = 4095, 255
"""Bytes of a path with the root of its checkout, and between two slashes: PATH_MAX and NAME_MAX, path_resolution(7)."""
MOST_LINKS = 10_000
"""Commits of submodules that new commits may name; one that is named at two places counts twice."""


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


def contents(part: Part, git: Git, reading: Reading, wanted: tuple[str, ...], limits: Limits) -> Contents:
    """Reads all commits of `wanted` that no ref of the main repository has.

    In a jail, whose limits of memory and time hold: one merge may have thousands of parents, each of which differs
    from it in all paths, and git keeps what it compares.

    Args:
        reading: of the quarantine.

    Refusals: harvest-too-large, for more than `limits.commits`, changes of more paths than `limits.objects`, paths
    that no Linux can check out, and more than `MOST_LINKS` commits of submodules.
    """
    words = (
        *("log", "--format=%x01%P%x01", "--raw", "-z", "-r", "--root", "--no-abbrev", "--no-renames", "--no-mailmap"),
        *("--no-show-signature", "--no-decorate", "--diff-merges=combined", "--ignore-submodules=none"),
        *(f"--max-count={limits.commits + 1}", "--stdin", "--"),
    )
    known = git.run("rev-list", "--no-walk=unsorted", "--ignore-missing", "--all").out
    revisions = "".join(f"{oid}\n" for oid in wanted).encode() + b"".join(b"^%s\n" % oid for oid in known.split())
    commits = changes = named = 0
    most = _MOST_PATH - len(os.fsencode(f"{part.path}/"))
    parents: set[str] = set()
    links: dict[str, dict[str, None]] = {}
    with Jailed(words, reading, stdin=revisions, patience=PATIENCE) as jailed:
        assert jailed.process.stdout is not None
        fields = _fields(jailed.process.stdout)
        for field in fields:
            text = field.lstrip(b"\n")
            if text.startswith(b"\x01"):
                commits += 1
                _, names, text = text.split(b"\x01", 2)
                parents.update(names.decode().split())
                text = text.lstrip(b"\n")
            if text.startswith(b":"):
                changes += 1
                if changes > limits.objects:
                    raise too_large(part, f"more than {limits.objects} paths change", "--max-objects")
                path = next(fields, b"")
                mode, oid = _after(text)
                if mode.strip(b"0"):
                    _check_length(part, path, most)
                if mode == _GITLINK:
                    oids = links.setdefault(os.fsdecode(path), {})
                    named += oid not in oids
                    oids[oid] = None
                    if named > MOST_LINKS:
                        raise too_large(part, f"they name more than {MOST_LINKS} commits of submodules", "")
        jailed.check(f"reading the commits of {part.label}")
    if commits > limits.commits:
        raise too_large(part, f"more than {limits.commits} commits are new; was another history merged in?",
                        "--max-commits")  # fmt: skip
    return Contents(commits, frozenset(parents), {path: tuple(oids) for path, oids in links.items()})


def _check_length(part: Part, path: bytes, most: int) -> None:
    """Refuses (harvest-too-large) a path of which no checkout has a file: it is as long as an agent likes."""
    begins = f"it begins with {cited(os.fsdecode(path[:80]))}"
    if len(path) > most:
        raise too_large(part, f"a path of {len(path)} bytes is too long for the checkout (limit {most}); {begins}", "")
    longest = max(map(len, path.split(b"/")))
    if longest > _MOST_NAME:
        why = f"a name of {longest} bytes in a path is too long for Linux (limit {_MOST_NAME}); {begins}"
        raise too_large(part, why, "")


def files(part: Part, git: Git, quarantine: Quarantine, old: str, new: str, limits: Limits) -> Iterator[FileChange]:
    """Files that differ between two commits; gitlinks are left out. `old` may be "".

    One by one: a blob may stand in a tree any number of times, and a few objects describe millions.

    Refusals: harvest-too-large, for more than `limits.objects`: cut short, the list would hide what comes last.
    """
    found = 0
    for before, after, _, _, _, path in git.differences(old or EMPTY_TREE[part.digits], new, quarantine.environment):
        if _GITLINK in (before, after):
            continue
        found += 1
        if found > limits.objects:
            raise too_large(part, f"more than {limits.objects} files differ", "--max-objects")
        change = "created" if before == b"000000" else "removed" if after == b"000000" else "changed"
        yield FileChange(part.prefix + os.fsdecode(path), change, after == b"100755")


def contains(git: Git, quarantine: Quarantine, newer: str, older: str) -> bool:
    """Whether `older` is an ancestor of `newer`, or the same."""
    return (
        git.run("merge-base", "--is-ancestor", older, newer, ok=(0, 1), environment=quarantine.environment).status == 0
    )


def missing(git: Git, oids: tuple[str, ...], quarantine: Quarantine | None = None) -> tuple[str, ...]:
    """Those of `oids` that name no commit in the repository (nor in the quarantine)."""
    if not oids:
        return ()
    known = git.objects(oids, quarantine.environment if quarantine is not None else None)
    return tuple(oid for oid, one in zip(oids, known, strict=True) if one.kind != "commit")


def gitlink_refused(part: Part, path: str, oid: str, why: str, hint: str = "") -> Refusal:
    """The Refusal for a commit that names a submodule's commit which nobody has."""
    return Refusal(
        "harvest-gitlink",
        f"a commit of {part.label} names a commit of the submodule {cited(path)} that is not available",
        context=f"{oid}: {why}",
        hint=hint
        or "commit in the submodule first, or undo its change, and amend; the work stays in the private "
        "git directory until then",
    )


def _after(record: bytes) -> tuple[bytes, str]:
    """(mode, object id) on the new side of a raw record; those of merges have a column for each parent."""
    parents = len(record) - len(record.lstrip(b":"))
    words = record[parents:].split(b" ")
    return words[parents], words[2 * parents + 1].decode()


def _fields(stream: IO[bytes]) -> Iterator[bytes]:
    """NUL-terminated fields of a stream, read piece by piece.

    Refusals: harvest-malformed: one is larger than any name.
    """
    rest = b""
    while block := stream.read(1 << 16):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole
        if len(rest) > _MOST_FIELD:
            raise Refusal("harvest-malformed", "a name in the new commits is too long", hint=KEPT)
    if rest:
        yield rest
