"""`paddock merge`: the work of children into a trunk; forecast, finish, undo, and look at what was done."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from launcher.session import configuration, harvesting, messages, places
from launcher.vcs.git import Git
from launcher.vcs.harvest import outstanding
from launcher.vcs.merge import into_children, preview, sessions, target, work
from launcher.vcs.merge.descriptors import MergeAggregation, Source
from launcher.vcs.merge.into_children import Order
from launcher.vcs.merge.preview import Check
from launcher.vcs.merge.runs import Run, State
from launcher.vcs.private import planted, record, swap
from launcher.vcs.worktrees import condition
from launcher.vcs.worktrees.store import WorktreeRepository, root_of
from launcher.verbs import style, table
from policy.errors import Refusal, Rows, in_rows, printable
from policy.handoff import Patterns
from policy.launch import worktree_id
from policy.pasted import cited, joined, quoted

if TYPE_CHECKING:
    from launcher.vcs.history import History

# What `paddock merge` says beside its result: for people on standard error, for programmes in `--json`.


WARNING = "warning: "
"""In front of what a merge has passed over, and somebody has to look at."""


class Notes:
    """Lines about one merge, written to standard error as they come, and kept for the JSON.

    Attributes:
        warnings: what was said, in order, as it stands there without "paddock: " and "warning: ".
        advice: what is left to do that the result itself does not tell, as it stands behind "note" on standard output.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.advice: list[str] = []

    def say(self, line: str, mark: str = "") -> None:
        """Says a line now.

        Args:
            line: the sentence.
            mark: "" or `WARNING`.
        """
        self.warnings.append(line)
        messages.say(f"paddock: {mark}{printable(line)}")

    def document(self, result: BaseModel | None, more: Mapping[str, Any] | None = None) -> str:
        """The JSON of a result with what was said; ``null`` where there is neither."""
        if result is None and not self.warnings:
            return "null"
        found = {} if result is None else result.model_dump(mode="json")
        return json.dumps({**found, **(more or {}), "warnings": self.warnings, "advice": self.advice}, indent=2)


CONFLICT = 1
"""Exit status when a child could not be merged, or when a preview forecasts a conflict."""


_STYLES = {"conflict": style.RED}


def merge(
    words: list[str],
    *,
    into: str | None,
    every: bool,
    order: str,
    forecast: bool,
    no_checkout: bool,
    check: str | None,
    rewind: list[str],
    resume: bool,
    rollback: str | None,
    as_json: bool,
) -> int:
    """Exit status 0 when everything was merged, 1 when a child conflicted (those before it stay merged)."""
    start = places.current_directory()
    where = places.places(os.environ)
    state = places.made(where.state)
    notes = Notes()
    swap.originals(state)  # docks what a session has left that was killed
    for line in planted.sweep(state):
        notes.say(line)
    alone = [name for name, given in (("--resume", resume), ("--rollback", rollback is not None)) if given]
    if alone and (words or every or forecast or check is not None or rewind or len(alone) > 1):
        raise Refusal("usage", f"{alone[0]} cannot be combined with other arguments", hint="paddock merge --help")
    if resume or rollback is not None:
        common_dir = target.opened(start).common_dir
        done = work.resume(common_dir, state) if rollback is None else work.roll_back(common_dir, state, rollback)
        return _tell_end(done, notes, as_json=as_json)
    if bool(words) == every:
        raise Refusal(
            "usage",
            "name what to merge, or use --all" if not words else "--all and names exclude each other",
            hint="paddock merge --all --preview shows what would merge, and changes nothing",
        )

    def find() -> target.Target:
        return target.find(start, into, _root_of(state))

    found = find()
    sources = _children(found, words, start, state)
    for source in sources:
        _warn_of_sessions(source, state, notes)
    sources = into_children.ordered(sources, Order(order), found)
    if forecast:
        root = target.opened(start).root or found.common_dir
        patterns = Patterns(configuration.handoff_patterns(root, os.environ))
        answer = preview.preview(found, sources, patterns, rewind=rewind or ())
        print(notes.document(answer) if as_json else _forecast(answer))
        return 0 if answer.clean else CONFLICT

    def read(root: str) -> None:
        harvesting.refuse_unread(root, found.common_dir, found.commit)

    with (
        harvesting.into(found, where, notes.say, files=not no_checkout) as follow,
        Check(found, check, hidden=as_json, refuse=read) as gate,
    ):
        settings = work.Settings(
            state,
            os.environ,
            follow=follow,
            gate=gate if check is not None else None,
            progress=_progress if sys.stderr.isatty() else None,
            rewind=frozenset(rewind or ()),
        )
        run = work.merge(find, sources, settings, found.common_dir)
    roots = {source.place.worktree for source in sources if source.place is not None}
    rows = [row for row in WorktreeRepository(state).of(found.common_dir) if row.path in roots]
    notes.advice += [line for far in condition.progress_of(rows, state).values() for line in far.lines()]
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    given = [*(("--into", into) if into else ()), *(("--order", order) if order != Order.GIVEN else ())]
    again = joined(("paddock", "merge", *given, *(words or ("--all",))))
    return _tell(run, found, notes, again, as_json=as_json, files=not no_checkout)


def _children(found: target.Target, words: list[str] | None, start: str, state: str) -> list[Source]:
    if not words:
        return into_children.all_of(found)
    of_ticket = _root_of(state)
    try:
        return into_children.named(found, words, start, lambda word: of_ticket(word, found.common_dir))
    except Refusal as refusal:
        if refusal.reference == "child-unknown":
            refusal.hint = in_rows(*_inside(found, words, state), Rows(refusal.hint))
        raise


def _inside(found: target.Target, words: list[str], state: str) -> list[str]:
    """The commands that bring branches here which only agents have so far."""
    roots = [each.root for each in target.worktrees(Git(found.git_dir))]
    return [
        f"{word} is a branch of the agent in {root}: paddock worktree harvest {quoted(root)} --branch {quoted(word)}"
        for word in words
        for root in map(os.path.realpath, roots)
        if outstanding.has_branch(record.directory_of(state, worktree_id(root)), word)
    ]


def _root_of(state: str) -> Callable[[str, str], str | None]:
    """Finds the root of the worktree that was made for a ticket in a repository."""
    known = WorktreeRepository(state)
    return lambda word, common_dir: root_of(word, known.of(common_dir), branches=False)


def _warn_of_sessions(source: Source, state: str, notes: Notes) -> None:
    """Tells when a child has more than its branch: a branch can be merged all the same."""
    for line in sessions.warnings(source, state):
        notes.say(line, WARNING)


def merge_status(run_id: str | None, *, as_json: bool) -> int:
    """Exit status 0 when everything was merged, 1 when a child conflicted (those before it stay merged)."""
    state = places.made(places.places(os.environ).state)
    journal = work.journal_of(state, target.opened(places.current_directory()).common_dir)
    if run_id is not None:
        run = journal.read(run_id)
        if as_json:
            print(run.model_dump_json(indent=2))
        else:
            print("\n".join(_lines(run)))
        return 0
    runs = [journal.read(name) for name in journal.runs()]
    if as_json:
        print(json.dumps([json.loads(run.model_dump_json()) for run in runs], indent=2))
    elif not runs:
        print("nothing has been merged here yet")
    else:
        rows = [(run.run_id, run.state, run.target, _merged(run)) for run in runs]
        print("\n".join(table.lines(("RUN", "STATE", "INTO", "RESULT"), rows)))
    return 0


def _forecast(answer: preview.MergePreview) -> str:
    """A preview; what conflicts stands out."""
    head, *others = answer.pretty_print(style.path).splitlines()
    return "\n".join([head, *(line if line.startswith("    ") else style.styled(line, style.RED) for line in others)])


def _head(run: Run) -> str:
    return f"{run.run_id}  {run.state}  into {printable(run.target)}: {_merged(run)}"


def _merged(run: Run) -> str:
    return f"{len(run.outcome.merged)} of {run.outcome.total_count} merged" if run.outcome else "from the trunk"


def _lines(run: Run) -> list[str]:
    lines = [_head(run)]
    lines += [f"  note        {printable(note)}" for note in run.note.splitlines()]
    for move in run.moves:
        name = f"submodule {cited(move.name)}" if move.name else printable(move.ref)
        lines.append(f"  moved       {name} {move.old[:12]}..{move.new[:12]}")
    if run.outcome is not None:
        lines += style.marked(run.outcome.pretty_print(style.path), _STYLES).splitlines()[1:]
    return lines


def _tell(run: Run, found: target.Target, notes: Notes, again: str, *, as_json: bool, files: bool) -> int:
    outcome = run.outcome
    assert outcome is not None
    done = run.state is State.DONE
    if done and not files and found.worktree is not None:
        main, root = run.moves[-1], quoted(found.worktree)
        notes.advice.append(
            f"the files are unchanged; to update them: git -C {root} read-tree -m -u {main.old} {main.new}"
        )
    if as_json:
        history = {name: each.document() for name, each in _brought(outcome).items()}
        print(notes.document(run, {"history": history} if history else {}))
        return CONFLICT if outcome.has_conflict else 0
    print(style.marked(f"into {printable(found.label)}: {outcome.pretty_print(style.path)}", _STYLES))
    for name, brought in _brought(outcome).items():
        lines = [f"{printable(name)}: {brought.summary()}", *brought.lines(3, style.path)[1:]]
        print("\n".join(f"  {'' if number else 'brings':<12}{line}" for number, line in enumerate(lines)))
    if outcome.conflicted is not None and outcome.conflicted.merge_descriptor is not None:
        hint = outcome.conflicted.merge_descriptor.hint or ""
        print(f"  next        {printable(hint.replace('then merge again', f'then: {again}'))}")
    if done:
        for note in (*run.note.splitlines(), *notes.advice):
            print(f"  note        {printable(note)}")
        print(f"  undo        paddock merge --rollback {run.run_id}")
    return CONFLICT if outcome.has_conflict else 0


def _brought(outcome: MergeAggregation) -> "dict[str, History]":
    """What was merged, by child: commits, authors, dates and files."""
    merged = {each.agent_result_id: each.merge_descriptor for each in outcome.merged if each.merge_descriptor}
    if not merged:
        return {}
    from launcher.vcs import history

    return history.of_merges({name: each.model_dump(mode="json") for name, each in merged.items()})


def _tell_end(run: Run | None, notes: Notes, *, as_json: bool) -> int:
    if as_json:
        print(notes.document(run))
    elif run is None:
        print("there is no unfinished run")
    else:
        print("\n".join(_taken_back(run) if run.state is State.ROLLED_BACK else _lines(run)))
    return 0


def _taken_back(run: Run) -> list[str]:
    """A run that was rolled back: where everything is again."""
    lines = [f"{run.run_id} was rolled back: {printable(run.target)} is as it was before"]
    for move in run.moves:
        name = f"submodule {cited(move.name)}" if move.name else printable(move.ref)
        lines.append(f"  moved back  {name} {move.new[:12]}..{move.old[:12]}")
    return [*lines, f"  kept        its commits, in refs/paddock/merge/{run.run_id}"]


def _progress(done: int, total: int, name: str) -> None:
    print(f"\r\x1b[Kmerging {done + 1} of {total}: {printable(name)[:60]}", end="", file=sys.stderr, flush=True)
