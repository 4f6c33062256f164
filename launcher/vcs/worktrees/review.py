"""What a worktree would bring, as a diff for people: of its commits, and of its files that are in none of them.

An agent wrote all of it, so git compares in a jail, with no driver, no attribute and no configuration of anybody's
(`JailedGit`), and a confined process reads what it says (`patches`). All is bounded: files, lines, and bytes of a line.
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from launcher import programmes
from launcher.safefs.guarded_files import Inside
from launcher.vcs import history, jailed_git
from launcher.vcs.git import Change, Git, parsed_changes
from launcher.vcs.git_config import UserConfig
from launcher.vcs.jailed_git import JailedGit
from launcher.vcs.scratch import Scratch
from launcher.vcs.worktrees import admin_files, at_stake
from launcher.vcs.worktrees.models import Part, State, Worktree
from policy import review_marks
from policy.errors import Refusal
from policy.handoff import PROTECT, REPORT, Patterns

MOST_FILES = 1_000
"""Files of one part and section that are named."""
MOST_NESTED = 50
"""Repositories among the files that are named."""
MOST_SHOWN = 100
"""Files whose lines are read where no single one is asked for."""
_MOST_TOGETHER, _MOST_EACH = 4 << 20, 512 << 10
"""Bytes of the files, before and after, whose lines are read: of all together, and of each."""
_MOST_ALONE = 8 << 20
MOST_LINES, MOST_LINES_ALONE = 400, 10_000
"""Lines of a file's differences: among others, and where it is asked for alone."""
_OUTPUT = 32 << 20
_SECONDS = 60.0

COMMITS, FILES = "commits", "files"
"""The sections: what a merge would bring, and what lies in the files and in no commit that has been harvested."""

_SETTINGS = (("core.bigFileThreshold", str(_MOST_ALONE)), ("diff.renames", "true"), ("core.safecrlf", "false"))
_WORDS = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", "-l400", "--no-abbrev",
          "--src-prefix=a/", "--dst-prefix=b/", "--submodule=short", "--raw", "-z")  # fmt: skip
_GITLINK, _LINK, _EXECUTABLE = "160000", "120000", "100755"
_ORDER = {PROTECT: 0, REPORT: 1, "": 2}
_ARGUMENTS = 64 << 10
"""Bytes of names that git is given at a time."""

Lying = Callable[[str, frozenset[str]], tuple[tuple[str, ...], tuple[str, ...]]]
"""A root of files, and those of the worktree and its submodules -> hand-off files and repositories that lie there,
whatever an ignore file says: an agent may have written that (`launcher.session.handoff_changes.present`)."""


def key_of(section: str, path: str) -> str:
    """A name for a file of a section in addresses, where what an agent calls it may not stand as it is."""
    return hashlib.blake2b(os.fsencode(f"{section}\0{path}"), digest_size=8).hexdigest()


def read(
    worktree: Worktree, patterns: Patterns, user: UserConfig, waiting: Sequence[str], lying: Lying, wanted: str = ""
) -> dict[str, Any]:
    """What a worktree would bring.

    Args:
        worktree: as the store has it.
        patterns: of hand-off files.
        user: whose ignored files do not count.
        waiting: what is in the agent's private git directory and not harvested, in words.
        lying: finds hand-off files that are ignored.
        wanted: key of the one file of which more is to be shown; "" for none.

    Returns:
        ``parts``: the worktree itself, then its submodules: ``name``, ``path`` from the root, ``base`` and ``head``,
        ``commits`` and ``commit_count``, ``problem``, and ``sections``: each with its ``section``, ``count`` of files,
        ``marked`` (how many of these have a mark or a ``why``), ``nested``, at most `MOST_NESTED` repositories that lie
        among the files, and ``nested_count`` of all, and ``files``, at most `MOST_FILES`, hand-off files first. A file
        has ``key``, ``path``, ``old_path``, ``kind`` (git's letter), modes, sizes, ``mark`` and ``why``
        (`review_marks.first`),
        ``hunks`` (``title``, ``lines``: kind, number before and after, text, bytes left out, what looks secret, and
        where its language is known `patches.shade`),
        ``left`` (lines left out) and ``note`` (why there are no lines). Bytes that are no UTF-8 are escapes in all.

    Refusals: those of git; worktree-obstructed.
    """
    there = worktree.state is State.READY
    if there:
        worktree = at_stake.with_populated(worktree)
    with jailed_git.many(), Scratch() as scratch:
        parts = [
            _part(part, worktree, patterns, user, lying, scratch.path(str(number)), wanted, there=there)
            for number, part in enumerate(worktree.parts)
            if not part.path.is_relative_to(f"{worktree.path}/.git")  # what has no files there has no review
        ]
    about = {"worktree_id": worktree.worktree_id, "ticket": worktree.ticket, "path": worktree.path,
             "state": str(worktree.state), "branch": worktree.main.branch or ""}  # fmt: skip
    found: dict[str, Any] = _clean({**about, "waiting": list(waiting), "parts": parts})
    return found


def _clean(value: Any) -> Any:  # noqa: ANN401  # what JSON knows
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return {name: _clean(each) for name, each in value.items()} if isinstance(value, dict) else value


def _part(
    part: Part, worktree: Worktree, patterns: Patterns, user: UserConfig, lying: Lying, scratch: str, wanted: str, *,
    there: bool,
) -> dict[str, Any]:  # fmt: skip
    inside = os.path.relpath(part.path, worktree.path)
    prefix = "" if inside == "." else f"{inside}/"
    found: dict[str, Any] = {"name": part.name, "path": prefix.rstrip("/"), "base": "", "head": "", "problem": "",
                             "commits": [], "commit_count": 0, "sections": []}  # fmt: skip
    os.makedirs(f"{scratch}/empty")
    try:
        with_dir = os.path.isdir(part.git_dir)
        git = Git(part.git_dir if with_dir else part.common_dir)
        head = git.ref("HEAD" if with_dir else part.ref or "HEAD", ok=(0, 1, 128))
        if not head:
            return {**found, "problem": "it has no commit"}
        base = _base(git, part, head)
        found |= {"base": base, "head": head}
        known = history.read(git.git_dir, base, head) if base != head else None
        if known is not None:
            found |= {"commits": known.document()["commits"], "commit_count": known.commit_count}
        reader = _Reader(prefix, patterns, wanted)
        store = _bounded(JailedGit(git.git_dir, f"{scratch}/empty", settings=_SETTINGS))
        found["sections"].append(reader.section(COMMITS, store, (base, head), {}, None))
        place = os.fspath(part.path)
        if there and with_dir and os.path.realpath(place) == place and os.path.isdir(place):
            files = _bounded(JailedGit(git.git_dir, place, settings=(*_SETTINGS, *user.ignores)))
            roots = [os.fspath(each.path) for each in worktree.parts]
            hidden, nested = lying(place, frozenset(roots))
            inner = tuple(f"{each[len(place) + 1 :]}/" for each in roots if each.startswith(f"{place}/"))
            own = _index(files, head, f"{scratch}/index")
            hidden, nested = (
                tuple(name for name in names if not f"{name}/".startswith(inner)) for names in (hidden, nested)
            )
            left = reader.add_new(files, own, head, hidden)
            section = reader.section(FILES, files, (head,), own, place, left)
            if "..." in nested:
                found["problem"] = "it is too large to be searched for hand-off files and repositories that are ignored"
            named = [f"{name.removesuffix('/.git')}/" for name in nested if name != "..."]
            found["sections"].append(section | {"nested": named[:MOST_NESTED], "nested_count": len(named)})
    except Refusal as refusal:
        if refusal.reference in ("worktree-obstructed", "git-dir-written"):
            raise
        found["problem"] = f"{refusal.message}: {refusal.context}"
    return found


def _bounded(git: JailedGit) -> JailedGit:
    git.output_limit = _OUTPUT
    return git


def _base(git: Git, part: Part, head: str) -> str:
    """What the commits of a part are compared with: where they leave the trunk, or else where it began.

    The trunk is what the repository's main checkout is on. What is in it already is compared with the beginning. What
    leaves it at several places is compared with the trunk itself: any of them could be had to hide what a merge brings.
    """
    if not part.name:
        trunk = admin_files.head(os.fspath(part.common_dir)).removeprefix("ref: ")
        done = git.run("merge-base", "--all", "--end-of-options", trunk, head, ok=(0, 1, 128)) if trunk else None
        if done is not None and done.status == 0:
            common = done.out.decode("ascii").split()
            if len(common) > 1:
                return git.ref(trunk)
            if common != [head]:
                return common[0]
    known = git.run("cat-file", "-e", part.base, ok=(0, 1, 128)).status == 0
    return part.base if known and git.contains(head, part.base) else head


def _index(git: JailedGit, head: str, place: str) -> dict[str, str]:
    """Variables of git's for an index of our own.

    The worktree's own is copied, so that git need not read what has not changed; one with conflicts is not.
    """
    os.mkdir(place)
    own = {"GIT_INDEX_FILE": f"{place}/index"}
    if os.path.exists(f"{git.git_dir}/index"):
        shutil.copyfile(f"{git.git_dir}/index", f"{place}/index")
    if not os.path.exists(f"{place}/index") or git.run("ls-files", "--unmerged", "-z", environment=own).out:
        git.repository.run("read-tree", head, environment=own)
    return own


def _others(git: JailedGit, own: dict[str, str], *words: str) -> list[str]:
    """Files that the index does not have; repositories among them are left out."""
    done = jailed_git.run_patiently(git, "ls-files", "--others", "-z", *words, environment=own)
    return [os.fsdecode(name) for name in done.out.split(b"\0") if name and not name.endswith(b"/")]


def _batches(names: Iterable[str]) -> Iterator[list[str]]:
    """The names, as many at a time as a command line takes."""
    batch: list[str] = []
    size = 0
    for name in names:
        if batch and size + len(name) > _ARGUMENTS:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += len(os.fsencode(name)) + 9  # its end, and where it is
    if batch:
        yield batch


def _rank(mark: tuple[str, str] | None) -> int:
    """The place of a file among others, the worst first."""
    return len(_ORDER) if mark is None else _ORDER[mark[0]]


class _Reader:
    """Reads sections of one part.

    Args:
        prefix: of its paths, from the worktree's root.
        patterns: of hand-off files.
        wanted: key of the one file that is asked for.
    """

    def __init__(self, prefix: str, patterns: Patterns, wanted: str) -> None:
        self._prefix = prefix
        self._patterns = patterns
        self._wanted = wanted

    def _marks(self, changes: Iterable[tuple[str, str, str]]) -> dict[str, tuple[str, str]]:
        """Marks of paths of this part, each with its modes before and after."""
        return review_marks.first(
            ((self._prefix + path, review_marks.reason_of_mode(before, after)) for path, before, after in changes),
            self._patterns,
        )

    def add_new(self, git: JailedGit, own: dict[str, str], head: str, hidden: Iterable[str]) -> tuple[int, int]:
        """Makes new files known to the index, as empty ones, the worst first: so many that a section has room for.

        Args:
            git, own: as for `section`.
            head: a commit, whose id is as long as others.
            hidden: hand-off files and directories of such, which may be ignored, or known to the index.

        Returns:
            How many are left out, and how many of these are marked.
        """
        names = dict.fromkeys(_others(git, own, "--exclude-standard"))
        for batch in _batches(name for name in hidden if name not in names):
            names |= dict.fromkeys(_others(git, own, "--", *batch))
        with Inside(git.work_tree) as inside:
            marks = self._marks((name, "", _mode(inside, name)) for name in names)
        ranks = {name: _rank(marks.get(self._prefix + name)) for name in names}
        first = sorted(names, key=ranks.__getitem__)
        empty = (b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391" if len(head) == 40 else
                 b"473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813")  # fmt: skip
        lines = b"".join(b"100644 %s\t%s\0" % (empty, os.fsencode(name)) for name in first[:MOST_FILES])
        if lines:
            git.repository.run("update-index", "--add", "--replace", "-z", "--index-info", input=lines, environment=own)
        left = first[MOST_FILES:]
        return len(left), sum(ranks[name] < len(_ORDER) for name in left)

    def section(
        self, name: str, git: JailedGit, trees: tuple[str, ...], own: dict[str, str], place: str | None,
        left: tuple[int, int] = (0, 0),
    ) -> dict[str, Any]:  # fmt: skip
        """The files of a section.

        Args:
            git: in a jail.
            trees: what is compared: two commits, or one with the files.
            own: variables of git's.
            place: root of the files; None where two commits are compared.
            left: new files that the index has not, and how many of these are marked.
        """
        words = (*_WORDS, "--ignore-submodules=none" if place is None else "--ignore-submodules=all")
        done = jailed_git.run_patiently(git, *words, *trees, "--", environment=own)
        changes = parsed_changes(done.out)[0]
        count = len(changes) + left[0]
        marks = self._marks((each.path, each.old_mode, each.new_mode) for each in changes)
        changes.sort(key=lambda each: _rank(marks.get(self._prefix + each.path)))
        if self._wanted:
            changes = [each for each in changes if self._wanted == key_of(name, self._prefix + each.path)]
        files = [self._file(name, each, size, marks) for each, size in self._sized(changes[:MOST_FILES], git, place)]
        self._fill(files, git, (*words, "--patch", *trees), own)
        return {"section": name, "count": count, "marked": len(marks) + left[1], "files": files, "nested": [],
                "nested_count": 0}  # fmt: skip

    def _file(
        self, section: str, change: Change, sizes: tuple[int, int], marks: dict[str, tuple[str, str]]
    ) -> dict[str, Any]:
        mark, why = marks.get(self._prefix + change.path, ("", ""))
        return {
            "key": key_of(section, self._prefix + change.path),
            "path": self._prefix + change.path, "old_path": self._prefix + change.old_path, "kind": change.kind,
            "old_mode": change.old_mode, "new_mode": change.new_mode, "old_size": sizes[0], "new_size": sizes[1],
            "mark": mark, "why": why, "hunks": [], "left": 0, "note": "", "added": 0, "removed": 0, "secrets": 0,
        }  # fmt: skip

    def _sized(
        self, changes: list[Change], git: JailedGit, place: str | None
    ) -> Iterator[tuple[Change, tuple[int, int]]]:
        """Each change with the sizes before and after; 0 where there is no file."""
        wanted = [oid for each in changes for oid, mode in ((each.old, each.old_mode), (each.new, each.new_mode))
                  if oid.strip("0") and mode != _GITLINK]  # fmt: skip
        known = {each.oid: each.size for each in git.objects(dict.fromkeys(wanted))} if wanted else {}
        if place is None:
            yield from ((each, (known.get(each.old, 0), known.get(each.new, 0))) for each in changes)
            return
        with Inside(place) as inside:
            for each in changes:
                size = _size(inside, each.path) if each.kind != "D" else 0
                yield each, (known.get(each.old, 0), size)

    def _fill(self, files: list[dict[str, Any]], git: JailedGit, words: tuple[str, ...], own: dict[str, str]) -> None:
        """Puts the lines of as many files as there is room for in their places."""
        alone = bool(self._wanted)
        each_most, room = (_MOST_ALONE, _MOST_ALONE) if alone else (_MOST_EACH, _MOST_TOGETHER)
        chosen: list[dict[str, Any]] = []
        for file in files:
            size = file["old_size"] + file["new_size"]
            if size > each_most:
                file["note"] = "large"
            elif len(chosen) >= MOST_SHOWN or size > room:
                file["note"] = "later"
            else:
                chosen.append(file)
                room -= size
        if not chosen:
            return
        cut = len(self._prefix)
        paths = dict.fromkeys(name[cut:] for file in chosen for name in (file["old_path"], file["path"]))
        out = jailed_git.run_patiently(git, *words, "--", *paths, environment=own).out
        by_path = {file["path"][cut:]: file for file in chosen}
        for path, lines in _read(out, MOST_LINES_ALONE if alone else MOST_LINES):
            if path in by_path:
                by_path[path].update(lines)


def _read(out: bytes, most: int) -> list[tuple[str, dict[str, Any]]]:
    """The files of what git printed, by a confined process (`patches`), for an agent wrote it.

    Args:
        out: of ``--raw -z --patch``.
        most: lines of each file.

    Refusals: review-unreadable.
    """
    words = programmes.helper("patches", str(os.getpid()), str(most))
    try:
        done = subprocess.run(words, input=out, stdout=subprocess.PIPE, cwd="/", timeout=_SECONDS, check=True)
        found: list[tuple[str, dict[str, Any]]] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise Refusal("review-unreadable", "what git says of the changes cannot be read", context=str(error)[:200],
                      hint="git diff, in a jail: paddock run --git readonly -- git diff") from None  # fmt: skip
    return found


def _mode(inside: Inside, path: str) -> str:
    """The mode of a file as git has it; "" for an ordinary one."""
    try:
        found = inside.status(path)
    except OSError:
        return ""
    if found is not None and stat.S_ISLNK(found.st_mode):
        return _LINK
    return _EXECUTABLE if found is not None and found.st_mode & 0o100 else ""


def _size(inside: Inside, path: str) -> int:
    try:
        return inside.size(path) or 0
    except OSError:
        return 0
