"""What would conflict: every child with the trunk, the children with one another, and all of them in their order.

Nothing is moved or kept.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from types import TracebackType
from typing import Self

from launcher import programmes
from launcher.safefs.remove import remove_tree
from launcher.vcs.git import EMPTY_TREE, Git, GitFailed, parsed_changes
from launcher.vcs.gitlinks import MODE as GITLINK
from launcher.vcs.gitlinks import gitlinks_of, of_tree
from launcher.vcs.merge import report, rewinds, work
from launcher.vcs.merge.descriptors import Frozen, MergeConflict, ObjectId, Outcome, Source, Text
from launcher.vcs.merge.engine import Engine
from launcher.vcs.merge.object_store import changes
from launcher.vcs.merge.target import Place, Target
from launcher.vcs.scratch import PREFIX, Scratch
from launcher.vcs.worktrees import admin_files
from policy import review_marks
from policy.errors import Refusal, printable
from policy.handoff import Patterns
from policy.pasted import cited
from policy.sandbox_context import Name

_NOBODY = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "preview"), ("EMAIL", "preview@invalid"), ("DATE", "@0 +0000"))
}


class Forecast(Frozen):
    """What merging one branch into another would come to.

    Attributes:
        source: the branch.
        into: the trunk, or another child.
        clean: git would have nothing to ask.
        conflicts: what it would ask.
        error: why it cannot be told.
    """

    source: Name
    into: Name
    clean: bool
    conflicts: tuple[MergeConflict, ...] = ()
    error: Text | None = None


MOST_CHANGES = 1_000
"""Paths that are named."""


class Changed(Frozen):
    """A path that would be another in the trunk.

    Attributes:
        kind: git's letter.
        path: from the root.
        why: it deserves a look: what would run or obey it (`review_marks.first`); "" for most.
    """

    kind: str
    path: Text
    why: str


class InOrder(Frozen):
    """What a merge would do now.

    Attributes:
        merged: the children that it would merge.
        conflict: of the next one, with what those before it have made of the trunk; None when all merge.
        pending: those that it would not come to.
        changed: how many paths of the trunk would be others.
        changes: the first of them, those that deserve a look in front.
    """

    merged: tuple[Name, ...]
    conflict: Forecast | None
    pending: tuple[Name, ...]
    changed: int
    changes: tuple[Changed, ...]


class MergePreview(Frozen):
    """The forecast for all children.

    Attributes:
        target: the trunk.
        target_commit: where it stands.
        children: each child against the trunk as it is now.
        pairs: each two children against each other.
        in_order: all of them, one after the other, as a merge would go.
    """

    target: Name
    target_commit: ObjectId
    children: tuple[Forecast, ...]
    pairs: tuple[Forecast, ...]
    in_order: InOrder

    @property
    def clean(self) -> bool:
        """Nothing conflicts with anything."""
        return self.in_order.conflict is None and all(each.clean for each in (*self.children, *self.pairs))

    def pretty_print(self, shown: Callable[[str], str] = cited) -> str:
        """The forecast as text; `shown` makes paths printable."""
        lines = [f"into {printable(self.target)}: {sum(each.clean for each in self.children)} of "
                 f"{len(self.children)} would merge cleanly on their own"]  # fmt: skip
        for each in (*self.children, *self.pairs):
            if not each.clean:
                lines.append(f"  {printable(each.source)} conflicts with {printable(each.into)}")
                lines += _reasons(each, shown)
        if self.pairs and (end := self.in_order.conflict) is not None:
            before = ", ".join(map(printable, self.in_order.merged)) or "nothing"
            lines.append(f"  in this order: {before} would be merged, then {printable(end.source)} conflicts")
            lines += _reasons(end, shown)
        files = "1 file" if self.in_order.changed == 1 else f"{self.in_order.changed} files"
        lines.append(f"in this order, {files} of {printable(self.target)} would change")
        lines += [f"  {shown(each.path)}: {each.why}" for each in self.in_order.changes if each.why]
        return "\n".join(lines)


def _reasons(each: Forecast, shown: Callable[[str], str]) -> list[str]:
    lines = [f"    {printable(each.error)}"] if each.error else []
    return lines + [f"    {conflict.kind} in {shown(conflict.path)}" for conflict in each.conflicts]


def preview(
    target: Target, sources: Sequence[Source], patterns: Patterns, *, rewind: Collection[str] = ()
) -> MergePreview:  # fmt: skip
    """Tries every child with the trunk and with every other one, each merge on its own, and then all in this order.

    One git process does all merges in which no submodule and no attribute is touched; the others get what a real run
    would do for them. New objects go to a directory that is removed again.

    Args:
        patterns: of hand-off files.
        rewind: names of submodules that may go back.

    Raises:
        GitFailed: git failed on what all have in common.
    """
    place = target.place
    trunk = Source(target.label, target.commit)
    wanted = [*((trunk, source) for source in sources), *combinations(sources, 2)]
    with Engine(place, _NOBODY) as engine:
        differences = changes(engine.main, target.commit, [source.commit for source in sources])
        plain = not any(change.attributes or change.submodules for change in differences)
        found = _together(engine, wanted, target.commit) if plain else None
        if found is None:
            engine.main.attributes_may_differ()
            found = [_alone(engine, ours, theirs, rewind) for ours, theirs in wanted]
        in_order = _in_order(engine, target, sources, patterns, rewind)
    return MergePreview(
        target=target.label,
        target_commit=target.commit,
        children=tuple(found[: len(sources)]),
        pairs=tuple(found[len(sources) :]),
        in_order=in_order,
    )


def _in_order(
    engine: Engine, target: Target, sources: Sequence[Source], patterns: Patterns, rewind: Collection[str]
) -> InOrder:  # fmt: skip
    done = work.merge_in_turn(engine, target.commit, sources, target.label, rewind=rewind)
    last = done.tried[-1] if done.tried and not done.tried[-1].outcome.commit else None
    raw = engine.main.git.run(
        "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", target.commit, done.commit
    )
    changes = parsed_changes(raw.out)[0]
    modes = ((each.path, review_marks.reason_of_mode(each.old_mode, each.new_mode)) for each in changes)
    marks = review_marks.first(modes, patterns)
    changes.sort(key=lambda each: each.path not in marks)
    return InOrder(
        merged=tuple(each.source.label for each in done.tried if each.outcome.commit),
        conflict=None if last is None else _told(last.source, target.label, last.outcome),
        pending=tuple(each.label for each in sources[len(done.tried) :]),
        changed=len(changes),
        changes=tuple(
            Changed(kind=each.kind, path=each.path, why=marks.get(each.path, ("", ""))[1])
            for each in changes[:MOST_CHANGES]
        ),
    )


def _together(engine: Engine, wanted: Sequence[tuple[Source, Source]], trunk: str) -> list[Forecast] | None:
    """All in one process; None when one of them cannot be merged at all, because that ends the process."""
    try:
        pairs = [(ours.commit, theirs.commit) for ours, theirs in wanted]
        answers = engine.main.forecast(pairs, attributes=trunk)
    except GitFailed:
        return None
    return [
        Forecast(source=theirs.label, into=ours.label, clean=answer.clean, conflicts=report.conflicts(answer))
        for (ours, theirs), answer in zip(wanted, answers, strict=True)
    ]


def _alone(engine: Engine, ours: Source, theirs: Source, rewind: Collection[str]) -> Forecast:
    try:
        outcome = engine.merge(ours.commit, theirs, "Preview.\n")
        outcome = rewinds.refused(engine, ours.commit, theirs, outcome, rewind)
    except Refusal as error:
        return Forecast(source=theirs.label, into=ours.label, clean=False, error=error.message)
    return _told(theirs, ours.label, outcome)


def _told(source: Source, into: str, outcome: Outcome) -> Forecast:
    return Forecast(
        source=source.label,
        into=into,
        clean=bool(outcome.commit),
        conflicts=outcome.conflicts,
        error=outcome.error or None,
    )


# What judges a commit sees files that come from that commit alone: no session has had them, or the home beside them.


RUN_OPTIONS = ("--git", "readonly")
"""Of `paddock run` in such a worktree: it reads the user's repository, and has nothing to hand over."""


_AS_COMMITTED = (
    ("core.sparseCheckout", "false"),
    ("index.sparse", "false"),
    ("core.symlinks", "true"),
    ("core.ignoreCase", "false"),
    ("core.autocrlf", "false"),
    ("core.eol", "lf"),
    ("core.attributesFile", "/dev/null"),
)
"""What a user's own checkout leaves out or converts is in the commit all the same."""

_DISGUISES = ("working-tree-encoding", "ident")
"""Attributes that let a file on the disk say something else than its blob. Filters are not executed; line ends stay
convertible (`eol`, `text`): nearly every repository has such rules, and no line says something else by them."""

_ATTRIBUTES = b".gitattributes"


class Trees:
    """Fresh worktrees of commits, one after the other, where no session's grants lead. Leaving it removes all.

    Args:
        place: where the commits are, and those of their submodules.
        trunk: the commit that people answer for now: what it has, too, needs no judge. Not where a commit has left it:
            that is for who made the commit to choose, in all that was ever merged.
    """

    def __init__(self, place: Place, trunk: str) -> None:
        self._place = place
        self._trunk = trunk
        self._scratch: Scratch | None = None
        self._number = 0

    def __enter__(self) -> Self:
        self._scratch = Scratch(for_session=True)
        self._forget()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scratch is not None:
            self._scratch.close()

    @contextmanager
    def of(self, commit: str) -> Iterator[str]:
        """The root of a worktree with all files of `commit`, as long as it is entered.

        Refusals: content-disguised, submodule-unseen: it would not show what is committed.
        """
        assert self._scratch is not None
        self._number += 1
        root = self._scratch.path(f"merge-{self._number}")
        git = Git(self._place.common_dir, settings=_AS_COMMITTED)
        try:
            git.run("worktree", "add", "--quiet", "--detach", root, commit)
            self._complete([self._place], git.variant(own_tree=root), commit, self._trunk, root)
            yield root
        finally:
            remove_tree(root)
            self._forget()

    def _forget(self) -> None:
        """Removes what git keeps of these worktrees, and of those that killed processes have left, once they are gone.

        Not by `git worktree prune`, which also forgets those of the user's whose files are elsewhere at the moment.
        """
        assert self._scratch is not None
        ours = os.path.join(os.path.dirname(self._scratch.name), PREFIX)
        for git_dir in admin_files.linked(self._place.common_dir):
            root = os.path.dirname(admin_files.points_to(git_dir) or "")
            scratch = os.path.dirname(root)
            # The directory of another process is there before the worktree in it, and as long as that may be used.
            unused = scratch == self._scratch.name or not os.path.lexists(scratch)
            if scratch.startswith(ours) and unused and not os.path.lexists(root):
                admin_files.remove(git_dir)

    def _complete(self, places: Sequence[Place], git: Git, commit: str, trunk: str, root: str) -> None:
        """Writes the submodules' files, without git directories: the command is to see files, not repositories.

        Args:
            places: of the repository, where its submodules' stores are.
            trunk: what the trunk has in place of `commit`; "" for nothing.
            root: of the files of `commit`.
        """
        _refuse_disguised(git, commit, trunk)
        before = of_tree(git, trunk) if trunk else {}
        named = [*gitlinks_of(git, commit).values(), *(gitlinks_of(git, trunk).values() if trunk else ())]
        for path, link in of_tree(git, commit).items():
            names = list(dict.fromkeys(each.name for each in named if each.path == path))
            stores = list(_stores(places, names, path))
            found = next((store for store in stores if _has(Git(store.common_dir), link)), None)
            if found is None and before.get(path) == link:
                continue  # nothing new; the command sees an empty directory, as after a clone
            if found is None:
                raise _unseen(path, link, named=bool(names))
            directory = os.path.join(root, path)
            os.makedirs(directory, exist_ok=True)
            there = Git(found.common_dir, own_tree=directory, settings=_AS_COMMITTED)
            with Scratch() as trial:
                there.run("read-tree", "--reset", "-u", link, environment={"GIT_INDEX_FILE": trial.path("index")})
            old = before.get(path, "")
            self._complete([found, *stores], there, link, old if old and _has(there, old) else "", directory)


def _stores(places: Sequence[Place], names: Sequence[str], path: str) -> Iterator[Place]:
    """Where a submodule's commits may be: in these places, then in other worktrees' stores of the same name."""
    for place in places:
        for name in names or ("",):  # one without a name may be checked out all the same
            if (own := place.submodule(name, path)) is not None:
                yield own
    for place in places:
        for name in names:
            yield from (Place(store, store, None) for store in place.other_stores(name))


def _has(git: Git, commit: str) -> bool:
    return git.run("cat-file", "-e", f"{commit}^{{commit}}", ok=(0, 1, 128)).status == 0


def _unseen(path: str, commit: str, *, named: bool) -> Refusal:
    update = "git submodule update --init --recursive, in a worktree that has it checked out; or take it back"
    return Refusal(
        "submodule-unseen",
        f"it records {commit[:12]} for the submodule {cited(path)}, which nobody has here",
        context="whatever judges it would see an empty directory",
        hint=update if named else "name it in .gitmodules and populate it, or take it out of the commit",
    )


def _refuse_disguised(git: Git, commit: str, trunk: str) -> None:
    """Refuses a commit whose attributes are not those of `trunk` and let a file on the disk say something else.

    So are rules for files that are not there yet: with the next commit, they would be the trunk's own.
    """
    changed = git.differences(trunk or EMPTY_TREE[len(commit)], commit)
    files = [each for each in changed if each.path.rpartition(b"/")[2] == _ATTRIBUTES]
    if not files:
        return
    paths = git.run("ls-tree", "-r", "-z", "--full-tree", "--name-only", commit).out
    before = _disguised(git, trunk, paths) if trunk else {}
    for (path, attribute), value in _disguised(git, commit, paths).items():
        if before.get((path, attribute)) != value:
            raise _disguise(f"it sets {attribute} for {cited(os.fsdecode(path))}")
    names = _disguising(git, trunk)
    for each in files:
        rules = _rules(git, each.new, each.new_mode, names)
        if rules and rules != _rules(git, each.old, each.old_mode, names):
            raise _disguise(f"its {cited(os.fsdecode(each.path))} has rules for {' or '.join(_DISGUISES)}")


def _disguise(message: str) -> Refusal:
    return Refusal(
        "content-disguised",
        message,
        context="the file on the disk, which is judged, then differs from what is committed",
        hint="read it; commit its .gitattributes to the trunk yourself if they are right, or merge the trunk into the "
        "work if the trunk's are newer; and try again",
    )


def _words(line: bytes) -> list[bytes]:
    """The pattern and the attributes of a line; behind a quoted pattern there need not be a blank."""
    return re.split(rb'[\s"]+', line)


def _disguising(git: Git, trunk: str) -> frozenset[bytes]:
    """`_DISGUISES`, and the macros of the trunk's that set one of them (git takes macros from the root alone)."""
    names = frozenset(name.encode() for name in _DISGUISES)
    found = git.run("cat-file", "blob", f"{trunk}:{_ATTRIBUTES.decode()}", ok=(0, 128)) if trunk else None
    macros = [line for line in (found.out if found else b"").split(b"\n") if b"[attr]" in line]
    for _ in macros:  # one may name the next
        words = [_words(line) for line in macros if _sets(line, names)]
        names |= {word.partition(b"[attr]")[2] for line in words for word in line if b"[attr]" in word}
    return names - {b""}


def _sets(line: bytes, names: frozenset[bytes]) -> bool:
    return any(word.lstrip(b"-!").partition(b"=")[0] in names for word in _words(line))


def _rules(git: Git, oid: str, mode: bytes, names: frozenset[bytes]) -> list[bytes]:
    """The lines of a `.gitattributes` that say something of these attributes; git reads it up to a NUL."""
    if mode in (b"000000", GITLINK):
        return []
    lines = git.run("cat-file", "blob", oid).out.partition(b"\0")[0].removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [line for line in lines if not line.lstrip(b" \t\r").startswith(b"#") and _sets(line, names)]


def _disguised(git: Git, commit: str, paths: bytes) -> dict[tuple[bytes, str], bytes]:
    """What the attributes of a commit say of `_DISGUISES` for paths that need not be in it, by path and attribute."""
    with Scratch() as trial:
        environment = {"GIT_INDEX_FILE": trial.path("index")}
        git.run("read-tree", commit, environment=environment)
        words = ("check-attr", "--cached", "-z", "--stdin", *_DISGUISES)
        fields = git.run(*words, input=paths, environment=environment).out.split(b"\0")
    rows = zip(fields[::3], fields[1::3], fields[2::3], strict=False)  # behind the last one is nothing
    return {(path, name.decode()): value for path, name, value in rows if value not in (b"unspecified", b"unset")}


# A command that has the last word on a merge: run in a jail, on the files that the merge would give.

_SHOWN_LINES = 20
_MARK = "| "
"""Before each line of the command's, which runs what an agent wrote: none looks like one of Paddock's."""
_TAIL = 16 << 10


class Check:
    """A gate (`work.Gate`). Every merged commit gets a fresh worktree, so that no child prepares it for the next.

    Args:
        command: a line of sh(1); None for a gate that is never asked.
        hidden: keep what the command prints to ourselves, but for the end of it when it fails.
        refuse: refuses a worktree that no command is to judge: told its root.
    """

    def __init__(self, target: Target, command: str | None, *, hidden: bool, refuse: Callable[[str], None]) -> None:
        self._refuse = refuse
        self._trees = Trees(target.place, target.commit)
        self._command = command
        self._hidden = hidden

    def __enter__(self) -> Self:
        if self._command is not None:
            self._trees.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._trees.__exit__(kind, error, trace)

    def __call__(self, label: str, commit: str) -> str:
        """Runs the command on `commit`; "" when it succeeds, else what went wrong."""
        assert self._command is not None
        try:
            with self._trees.of(commit) as root:
                self._refuse(root)
                status, said = self._run(root, f"{root}.said")
        except Refusal as refusal:
            return f"{label} is not checked: {refusal.message}\n{refusal.context}; {refusal.hint}"
        if status == 0:
            return ""
        lines = [f"{_MARK}{line.expandtabs()}" for line in said.strip().splitlines()[-_SHOWN_LINES:]]
        return "\n".join([f"the check failed with exit status {status} after merging {label}: {self._command}", *lines])

    def _run(self, root: str, said: str) -> tuple[int, str]:
        words = programmes.paddock("run", *RUN_OPTIONS, "--worktree", root)
        words += ["--", "sh", "-c", self._command or ""]
        with open(said, "x+b") as output:  # in the scratch directory, of which the session has `root` alone
            ended = subprocess.run(
                words,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            size = output.seek(0, os.SEEK_END)
            if not self._hidden:
                output.seek(0)
                for piece in iter(lambda: output.readline(_TAIL), b""):
                    line = piece.decode(errors="replace").rstrip("\r\n").expandtabs()
                    print(f"{_MARK}{printable(line)}", file=sys.stderr)
            output.seek(max(0, size - _TAIL))
            return ended.returncode, output.read().decode(errors="replace")
