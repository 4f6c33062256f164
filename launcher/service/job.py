"""The process of one job (`launcher.service.jobs`): arguments, result and refusal are JSON."""

import gc
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from launcher import wire
from launcher.jail import init, processes, syscalls
from launcher.vcs.private import record
from policy.errors import Refusal
from policy.launch import worktree_id

if TYPE_CHECKING:
    from launcher.vcs.harvest.parts import HarvestResult
    from launcher.vcs.merge.descriptors import Source
    from launcher.vcs.merge.target import Target
    from launcher.vcs.worktrees.models import Worktree


_OUT = 100
"""The descriptor that answers go to."""

_writing = threading.Lock()

_IDLE = 15.0
"""Seconds without a job after which the process ends that they are forked from; with all modules it has 80 MB."""


def serve(descriptor: int, parent: int) -> int:
    """Forks a process for each job that a socket asks for, until that is closed or long without one.

    Python is started once, and what a kind of job imports is imported before the first one is forked: most jobs took
    longer for that than for their work. Each is a child of `parent` (CLONE_PARENT), which waits for it.

    Args:
        descriptor: the socket. A request is a frame with the job's name, and the job's own socket.
        parent: process id of the service, whose end is this process's and all jobs', too.
    """
    processes.tie_to_parent(parent)
    gc.disable()  # a collection would write to pages that are shared
    while True:
        given: list[int] = []
        try:
            kind, name = wire.receive(descriptor, given, deadline=time.monotonic() + _IDLE, most=100)
        except TimeoutError:
            return 0
        if not kind:
            return 0
        _load(name.decode())
        gc.freeze()
        if processes.fork(syscalls.CLONE_PARENT) == 0:
            try:
                os.close(descriptor)
                gc.enable()
                _carry_out(name.decode(), given[0], parent)
            finally:
                os._exit(1)
        os.close(given[0])


def _load(name: str) -> None:
    """Imports what most of the time of such a job was spent on."""
    from launcher.session import harvesting as harvesting
    from launcher.vcs.worktrees import recovery as recovery

    if name.partition(".")[0] in ("tickets", "worktree", "merge", "repository"):
        from launcher.service import ticket_work as ticket_work
    if name == "tickets.files":
        from launcher.service import ticket_files as ticket_files
    if name == "collect":
        from launcher.vcs.worktrees import retention as retention


def _carry_out(name: str, connection: int, parent: int) -> NoReturn:
    """Carries out the job `name` and ends this process.

    Its socket gives the arguments, up to the end, and takes lines: the process's id, each step, the answer.
    """
    processes.tie_to_parent(parent)
    os.setsid()
    os.dup2(connection, _OUT, inheritable=False)
    os.close(connection)
    _write({"process": os.getpid()})
    with open(_OUT, "rb", closefd=False) as stream:
        arguments = json.load(stream)
    answer: dict[str, Any]
    try:
        answer = {"result": TABLE[name](**_unbent(arguments))}
    except Refusal as refusal:
        answer = {"refusal": refusal.as_dict()}
    except Exception as error:
        import traceback

        traceback.print_exc()
        answer = {"refusal": init.failure(f"{name} failed unexpectedly", error).as_dict()}
    _write(answer)
    os._exit(0)  # not the interpreter's end: threads may still be at work for nothing


PATHS = ("repository", "directory", "trunk")
"""Arguments that are directories which a client of the service named."""


def _unbent(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with canonical directories; refused behind a link that may be an agent's.

    Refusals: worktree-behind-link.
    """
    from launcher.vcs import worktree_words

    named = {name: arguments[name] for name in PATHS if isinstance(arguments.get(name), str)}
    return arguments | {name: worktree_words.directory(path, "/") for name, path in named.items()}


def _say(step: dict[str, Any]) -> None:
    """Tells the service of a step of this job (`launcher.service.jobs.Jobs.run`)."""
    _write({"step": step})


def _write(line: dict[str, Any]) -> None:
    with _writing, open(_OUT, "w", encoding="utf-8", closefd=False) as stream:
        stream.write(json.dumps(line) + "\n")


def harvest(worktree: str) -> dict[str, Any]:
    """Takes over what waits in a worktree's private git directory; {} when it never had one.

    Refusals: as a session's end does.
    """
    from launcher.session import places

    where = record.directory_of(places.places(os.environ).state, worktree_id(worktree))
    if not os.path.isdir(where):
        return {}
    return _taken(where, worktree).as_dict()


def harvest_waiting(later: Sequence[str] = ()) -> dict[str, Any]:
    """Harvests every private git directory that has commits to harvest and no live session.

    Args:
        later: directories that are not to be tried now.

    Returns:
        ``worktrees``, one for each: ``worktree``, ``directory``, ``strict``, ``state`` (of the harvest, or
        ``refused``, ``busy``, ``later``), ``refusal`` (None without one) and ``lines``, what people are told of it. A
        refusal is one directory's own.
    """
    from launcher.session import harvesting, places
    from launcher.vcs.harvest.outstanding import unharvested

    found = []
    for each in unharvested(places.places(os.environ).state):
        answer: dict[str, Any] = {"state": "refused", "refusal": None, "lines": []}
        about = {"worktree": each.worktree, "directory": each.directory, "strict": each.strict}
        if each.busy or each.directory in later:
            found.append({**about, **answer, "state": "busy" if each.busy else "later"})
            continue
        try:
            if each.damage is not None:
                raise each.damage
            result = _taken(each.directory, each.worktree)
            answer.update(state=result.state, lines=harvesting.report_lines(result, place=each.worktree))
        except Refusal as refusal:
            answer["refusal"] = refusal.as_dict()
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer["refusal"] = init.failure(f"{each.directory} could not be harvested", error).as_dict()
        found.append({**about, **answer})
    return {"worktrees": found}


def _taken(directory: str, worktree: str) -> "HarvestResult":
    """A harvest of a private git directory, by the hand-off patterns of its worktree."""
    from launcher.session import configuration, harvesting
    from launcher.vcs.worktrees import recovery

    patterns = configuration.handoff_patterns(worktree, os.environ)
    known = record.read(directory)
    with recovery.stand_in(directory, known) if known is not None else nullcontext():
        return harvesting.take(directory, patterns)


def collect(roots: dict[str, str], bounds: dict[str, Any], gone_days: float) -> dict[str, Any]:
    """Removes what nothing needs any more: see `launcher.vcs.worktrees.retention`.

    Args:
        roots: roots of worktrees by their ids, as sessions have noted them.
        bounds: fields of `retention.Bounds`.
        gone_days: for which a worktree is missing before its private directories are removed.

    Returns:
        ``gone``: private directories of worktrees; ``pruned``: refs and journals, those with ``lost`` to be said aloud
        (both `retention.Unneeded`); ``notes``: what could not be looked at; ``kept``: how many refs stay.
    """
    from launcher.session import places
    from launcher.vcs.worktrees import retention

    state = places.places(os.environ).state
    gone = retention.gone_worktrees(state, roots, gone_days)
    try:
        done = retention.prune(state, bounds=retention.Bounds(**bounds))
    except Refusal as refusal:
        done = retention.Pruned((), (f"{refusal.message}: {refusal.context}",))
    return {"gone": [each.as_dict() for each in gone], "pruned": [each.as_dict() for each in done.removed],
            "notes": list(done.notes), "kept": done.kept}  # fmt: skip


def promises() -> dict[str, Any]:
    """What this machine can enforce, proved in a jail: what `paddock doctor --json` prints."""
    from launcher.jail import probe
    from launcher.ledger import switching
    from launcher.session import miniature, places
    from policy.plan import SYSTEM_PATH

    os.environ["PATH"] = SYSTEM_PATH  # for what the self-test starts, unjailed
    layers = (*probe.describe(probe.probe(), probe.bubblewrap(search=SYSTEM_PATH)), switching.describe_audit())
    try:
        return miniature.document(layers, miniature.run(places.places(os.environ)), None)
    except Refusal as refusal:
        return miniature.document(layers, None, refusal)


def unneeded(roots: dict[str, str], bounds: dict[str, Any], gone_days: float) -> dict[str, Any]:
    """What `collect` would remove now, with the same arguments: ``removed`` (`retention.Unneeded`), ``notes``."""
    from launcher.session import places
    from launcher.vcs.worktrees import retention

    state = places.places(os.environ).state
    gone = retention.gone_worktrees(state, roots, gone_days, dry_run=True)
    done = retention.prune(state, bounds=retention.Bounds(**bounds), dry_run=True)
    return {"removed": [each.as_dict() for each in (*gone, *done.removed)], "notes": list(done.notes)}


def _of_tickets(name: str, *, steps: bool = False) -> Callable[..., dict[str, Any]]:
    """The function of `launcher.service.ticket_work` that is called so, with `say` where it tells steps."""

    def job(**arguments: Any) -> dict[str, Any]:  # noqa: ANN401  # as JSON has them
        from launcher.service import ticket_work
        from launcher.workflow.chain import DecoratorFailed

        try:
            found: dict[str, Any] = getattr(ticket_work, name)(**arguments, **({"say": _say} if steps else {}))
        except DecoratorFailed as error:
            if isinstance(error.__cause__, Refusal):
                raise error.__cause__ from None
            raise Refusal("workflow-failed", "the request could not be dispatched", context=str(error)) from None
        return found

    return job


def serve_files(**arguments: Any) -> dict[str, Any]:  # noqa: ANN401  # as JSON has them
    """See `launcher.service.ticket_files.serve`."""
    from launcher.service import ticket_files

    return ticket_files.serve(**arguments, say=_say)


def repository(directory: str) -> dict[str, Any]:
    """The git directory that all worktrees of a repository share.

    Refusals: `directory` lies in no worktree.
    """
    from launcher.service import ticket_work

    return {"common_dir": ticket_work.common_dir_of(directory)}


def list_worktrees(repository: str | None) -> dict[str, Any]:
    """The worktrees of one repository, or of all.

    Each with its ``head``, how far its ``work`` is, and what is ``waiting`` to be harvested, in words.
    """
    from launcher.service import ticket_work
    from launcher.session import places
    from launcher.vcs.worktrees import condition

    where = places.places(os.environ)
    service = ticket_work.service(where)
    found = service.everywhere() if repository is None else service.of_repository(repository)
    far = condition.progress_of(found, where.state)
    return {
        "worktrees": [
            {
                **each.document(), "work": str(at), "head": at.head,
                "waiting": _waiting(where.state, each.worktree_id),
            }
            for each in found for at in (far[each.worktree_id],)
        ]
    }  # fmt: skip


def add_worktree(repository: str, ticket: str, branch: str | None, start: str | None) -> dict[str, Any]:
    """Makes a worktree; see `launcher.vcs.worktrees.worktree_service.WorktreeService.add`."""
    from launcher.service import ticket_work
    from launcher.session import places
    from launcher.vcs.worktrees.models import Options

    service = ticket_work.service(places.places(os.environ))
    return service.add(repository, ticket, Options(branch=branch, start=start)).document()


def remove_worktree(repository: str, name: str, keep_branch: bool) -> dict[str, Any]:
    """Removes a worktree that holds nothing that is nowhere else; by its id, ticket, branch or directory."""
    from launcher.service import ticket_work
    from launcher.session import places

    service = ticket_work.service(places.places(os.environ))
    found = service.find(repository, name)
    service.remove(found, keep_branch=keep_branch)
    return {"worktree_id": found.worktree_id, "path": found.path}


def review_worktree(name: str, file: str) -> dict[str, Any]:
    """What a worktree would bring; see `launcher.vcs.worktrees.review.read`.

    Args:
        name: its id.
        file: key of the one file of which more is to be shown; "" for none.

    Refusals: worktree-unknown, and those of git.
    """
    from launcher.session import configuration, handoff_changes, places
    from launcher.vcs import git_config
    from launcher.vcs.worktrees import review
    from policy.handoff import Patterns

    where = places.places(os.environ)
    found = _known(name)
    patterns = configuration.handoff_patterns(os.fspath(found.parent_path or found.path), os.environ)
    user = git_config.read(where.home, os.path.dirname(where.config))

    def lying(root: str, known: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return handoff_changes.present(root, known, patterns)

    return review.read(found, Patterns(patterns), user, _waiting(where.state, found.worktree_id), lying, file)


def harvest_worktree(name: str) -> dict[str, Any]:
    """`harvest` of a worktree by its id: its ``state``, and ``lines`` that tell people of it.

    Refusals: worktree-unknown, and those of a harvest.
    """
    from launcher.session import harvesting

    worktree = os.fspath(_known(name).path)
    directory = record.directory_of(_state(), name)
    if not os.path.isdir(directory):
        return {"state": "nothing", "lines": []}
    result = _taken(directory, worktree)
    return {"state": result.state, "lines": harvesting.report_lines(result, place=worktree)}


def _waiting(state: str, name: str) -> tuple[str, ...]:
    """What waits in a worktree to be harvested, in words; where that cannot be told, why."""
    from launcher.vcs.harvest.outstanding import waiting

    try:
        return waiting(record.directory_of(state, name))
    except Refusal as refusal:
        return (refusal.message,)


def _state() -> str:
    from launcher.session import places

    return places.made(places.places(os.environ).state)


def _known(name: str) -> "Worktree":
    from launcher.vcs.worktrees.store import WorktreeRepository

    found = WorktreeRepository(_state()).get(name)
    if found is None:
        raise Refusal("worktree-unknown", f"Paddock knows no worktree {name}", hint="paddock worktree list --all")
    return found


def merge(repository: str, children: list[str], into: str | None, commits: list[str]) -> dict[str, Any]:
    """Merges children into a trunk. Its steps: ``done`` of ``total`` children, and the ``name`` of the next.

    Args:
        commits: that were shown to somebody, one for each child; none to merge what is there now.

    Returns:
        ``run``, as its journal has it, and ``warnings`` of work that is not on the branches that were merged.

    Refusals: child-moved, and as `paddock merge` does; nothing has moved then.
    """
    from launcher.session import harvesting, places
    from launcher.vcs.merge import sessions, target, work
    from launcher.vcs.private import swap

    where = places.places(os.environ)
    state = places.made(where.state)
    swap.originals(state)
    found = target.find(repository, into)
    sources = _children(found, repository, children, state)
    for source, commit in zip(sources, commits, strict=bool(commits)):
        if source.commit != commit:
            raise Refusal("child-moved", f"{source.label} has moved since it was shown",
                          context=f"shown: {commit or 'nothing'}; now: {source.commit}",
                          hint="review it again, then merge")  # fmt: skip
    warnings = [line for source in sources for line in sessions.warnings(source, state)]

    def say(done: int, total: int, name: str) -> None:
        _say({"done": done, "total": total, "name": name})

    with harvesting.into(found, where, warnings.append) as follow:
        settings = work.Settings(state, os.environ, follow=follow, progress=say)
        run = work.merge(lambda: target.find(repository, into), sources, settings, found.common_dir)
    return {"run": run.model_dump(mode="json"), "warnings": warnings}


def _children(found: "Target", repository: str, children: list[str], state: str) -> "list[Source]":
    from launcher.vcs.merge import into_children
    from launcher.vcs.worktrees.store import WorktreeRepository, root_of

    known = WorktreeRepository(state).of(found.common_dir)
    return into_children.named(found, children, repository, lambda word: root_of(word, known, branches=False))


def preview_merge(repository: str, children: list[str], into: str | None) -> dict[str, Any]:
    """What merging children into a trunk, and with one another, would come to: `paddock merge --preview --json`."""
    from launcher.session import configuration
    from launcher.vcs.merge import preview, sessions, target
    from launcher.vcs.private import swap
    from policy.handoff import Patterns

    state = _state()
    swap.originals(state)
    found = target.find(repository, into)
    sources = _children(found, repository, children, state)
    warnings = [line for source in sources for line in sessions.warnings(source, state)]
    root = target.opened(repository).root or found.common_dir
    patterns = Patterns(configuration.handoff_patterns(root, os.environ))
    return {"forecast": preview.preview(found, sources, patterns).model_dump(mode="json"), "warnings": warnings}


def roll_back_merge(repository: str, run_id: str) -> dict[str, Any]:
    """Takes a run of merges back, as `paddock merge --rollback` does."""
    from launcher.vcs.merge import target, work
    from launcher.vcs.private import swap

    state = _state()
    swap.originals(state)
    run = work.roll_back(target.opened(repository).common_dir, state, run_id)
    return {"run": run.model_dump(mode="json"), "warnings": []}


def list_merges(repository: str) -> dict[str, Any]:
    """What merges have done in a repository."""
    from launcher.vcs.merge import target, work

    journal = work.journal_of(_state(), target.opened(repository).common_dir)
    return {"runs": [journal.read(name).model_dump(mode="json") for name in journal.runs()]}


def resume_merge(common_dir: str) -> dict[str, Any]:
    """Finishes or takes back an interrupted merge; {} when there is none."""
    from launcher.vcs.merge import work

    run = work.resume(common_dir, _state())
    return {} if run is None else run.model_dump(mode="json")


TABLE: dict[str, Callable[..., dict[str, Any]]] = {
    "harvest": harvest,
    "harvest.waiting": harvest_waiting,
    "collect": collect,
    "promises": promises,
    "unneeded": unneeded,
    "tickets.orchestrate": _of_tickets("orchestrate", steps=True),
    "tickets.prepare": _of_tickets("prepare", steps=True),
    "tickets.plan": _of_tickets("plan", steps=True),
    "tickets.merge": _of_tickets("merge", steps=True),
    "tickets.ask": _of_tickets("ask"),
    "tickets.review": _of_tickets("review", steps=True),
    "tickets.resolve": _of_tickets("resolve"),
    "tickets.land": _of_tickets("land"),
    "tickets.end": _of_tickets("end"),
    "tickets.files": serve_files,
    "repository": repository,
    "worktree.list": list_worktrees,
    "worktree.add": add_worktree,
    "worktree.remove": remove_worktree,
    "worktree.review": review_worktree,
    "worktree.harvest": harvest_worktree,
    "merge": merge,
    "merge.preview": preview_merge,
    "merge.rollback": roll_back_merge,
    "merge.list": list_merges,
    "merge.resume": resume_merge,
}
