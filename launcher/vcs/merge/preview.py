"""What would conflict: every child with the trunk, and the children with one another. Nothing is moved or kept."""

from collections.abc import Collection, Sequence
from itertools import combinations

from launcher.vcs.git import GitFailed
from launcher.vcs.merge import report, rewinds
from launcher.vcs.merge.engine import Engine
from launcher.vcs.merge.models import Frozen, MergeConflict, ObjectId, Source, Text
from launcher.vcs.merge.place import Place
from launcher.vcs.merge.store import changes
from launcher.vcs.merge.target import Target
from policy.errors import Refusal, printable
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


class MergePreview(Frozen):
    """The forecast for all children.

    Attributes:
        target: the trunk.
        target_commit: where it stands.
        children: each child against the trunk as it is now.
        pairs: each two children against each other.
    """

    target: Name
    target_commit: ObjectId
    children: tuple[Forecast, ...]
    pairs: tuple[Forecast, ...]

    @property
    def clean(self) -> bool:
        """Nothing conflicts with anything."""
        return all(each.clean for each in (*self.children, *self.pairs))

    def pretty_print(self) -> str:
        """The forecast as text."""
        lines = [f"into {printable(self.target)}: {sum(each.clean for each in self.children)} of "
                 f"{len(self.children)} would merge cleanly by themselves"]  # fmt: skip
        for each in (*self.children, *self.pairs):
            if each.clean:
                continue
            lines.append(f"  {printable(each.source)} conflicts with {printable(each.into)}")
            if each.error:
                lines.append(f"    {printable(each.error)}")
            lines += [f"    {conflict.kind} in {printable(conflict.path)}" for conflict in each.conflicts]
        return "\n".join(lines)


def preview(
    target: Target, sources: Sequence[Source], *, pairwise: bool = True, rewind: Collection[str] = ()
) -> MergePreview:
    """Tries every merge on its own.

    One git process does all merges in which no submodule and no attribute is touched; the others get what a real run
    would do for them. New objects go to a directory that is removed again.

    Args:
        target: the trunk.
        sources: the children.
        pairwise: try every two children with each other, too.
        rewind: names of submodules that may go back.

    Raises:
        GitFailed: git failed on what all have in common.
    """
    place = Place(target.git_dir, target.common_dir, target.worktree)
    trunk = Source(target.label, target.commit)
    wanted = [(trunk, source) for source in sources]
    if pairwise:
        wanted += list(combinations(sources, 2))
    with Engine(place, _NOBODY) as engine:
        differences = changes(engine.main, target.commit, [source.commit for source in sources])
        plain = not any(change.attributes or change.submodules for change in differences)
        found = _together(engine, wanted, target.commit) if plain else None
        if found is None:
            engine.main.attributes_may_differ()
            found = [_alone(engine, ours, theirs, rewind) for ours, theirs in wanted]
    return MergePreview(
        target=target.label,
        target_commit=target.commit,
        children=tuple(found[: len(sources)]),
        pairs=tuple(found[len(sources) :]),
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
    return Forecast(
        source=theirs.label,
        into=ours.label,
        clean=bool(outcome.commit),
        conflicts=outcome.conflicts,
        error=outcome.error or None,
    )
