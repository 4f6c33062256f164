"""`paddock worktree SUBCOMMAND`: make, look at, harvest and remove worktrees for agents."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import cli
from launcher.session import configuration, harvesting, messages, places
from launcher.session.machine import Machine
from launcher.vcs import checkout, git_config, gitlinks, worktree_words
from launcher.vcs.disk import Present
from launcher.vcs.harvest import as_user
from launcher.vcs.harvest.outstanding import waiting
from launcher.vcs.harvest.parts import HarvestResult, Limits
from launcher.vcs.private import record, swap
from launcher.vcs.private import record as records
from launcher.vcs.worktrees import condition, removal
from launcher.vcs.worktrees.condition import Condition, Progress, Work
from launcher.vcs.worktrees.models import Options, State, Worktree
from launcher.vcs.worktrees.store import WorktreeRepository, root_of
from launcher.vcs.worktrees.worktree_service import WorktreeService
from launcher.verbs import style, table
from policy import launch
from policy.documents import plain
from policy.errors import Refusal, printable
from policy.pasted import cited

if TYPE_CHECKING:
    from launcher.vcs.history import History


def service(*, quiet: bool = False) -> WorktreeService:
    """The user's worktree service; it reports slow steps on standard error, unless `quiet`."""
    where = places.places(os.environ)
    state = places.made(where.state)
    user = git_config.read(where.home, os.path.dirname(where.config))

    def unharvested(root: Path) -> tuple[str, ...]:
        return waiting(record.directory_of(state, launch.worktree_id(os.fspath(root))))

    def say(line: str) -> None:
        if not quiet and sys.stderr.isatty():
            messages.say(f"paddock: {printable(line)}")

    def warn(line: str) -> None:
        messages.say(f"paddock: warning: {printable(line)}")

    return WorktreeService(state, unharvested=unharvested, user=user, say=say, warn=warn)


def start(repository: str | None) -> str:
    """The directory from which the repository is found."""
    return places.current_directory() if repository is None else repository


def directory_named(word: str) -> str:
    """The root of the worktree that `word` names, here before elsewhere, or the directory that it is as a path.

    Only Paddock's own list is asked: in a worktree that an agent has left, no git is to look at anything yet.
    """
    state = places.made(places.places(os.environ).state)
    rows = WorktreeRepository(state).all()
    here = _of_this_repository(rows, state)
    known = {row.path for row in rows}

    def is_root(path: str) -> bool:
        return worktree_words.is_path(word) or path in known or os.path.lexists(f"{path}/.git")

    root = worktree_words.meant(
        word, places.current_directory(), is_root, str, lambda: root_of(word, here) or root_of(word, rows)
    )
    if root is None:
        raise Refusal(
            "worktree-unknown",
            f"{word} is neither a worktree's directory nor a worktree that Paddock knows",
            context="known: " + (", ".join(dict.fromkeys(printable(row.ticket) for row in here)) or "none"),
            hint="paddock worktree list --all; or name the directory: paddock worktree ... ../DIR",
        )
    return root


def _of_this_repository(rows: list[Worktree], state: str) -> list[Worktree]:
    """Those of the repository that the current directory lies in, all if it lies in none: those are meant first."""
    try:
        here = checkout.find(places.current_directory(), Present(swap.originals(state)), exact=False)
    except Refusal:
        return rows  # in none, or in one that cannot be trusted
    return [row for row in rows if os.fspath(row.main.common_dir) == here.common_dir]


def worktree_add(
    ticket: str,
    *,
    branch: str | None,
    start_at: str | None,
    path: str | None,
    submodule: list[str],
    no_submodules: bool,
    copy: list[str],
    sparse: list[str],
    filter: list[str],
    workers: int | None,
    repo: str | None,
    as_json: bool,
) -> int:
    """Exit status 0 when it is made, 125 when not; then everything made for it was removed."""
    if submodule and no_submodules:
        raise cli.usage("--submodule and --no-submodules exclude each other", "worktree add")
    options = Options(
        branch=branch,
        start=start_at,
        path=path,
        submodules=() if no_submodules else tuple(submodule) if submodule else None,
        copy=tuple(copy or ()),
        sparse=tuple(sparse) if sparse else None,
        filters=tuple(filter or ()),
        workers=workers,
    )
    made = service(quiet=as_json).add(start(repo), ticket, options)
    if as_json:
        print(json.dumps(made.document(), indent=2))
        return 0
    print(f"{printable(made.path)} on branch {made.main.branch}, from {made.main.base[:12]}")
    for part in made.submodules:
        print(f"  submodule {cited(part.name)} on branch {part.branch}, from {part.base[:12]}")
    for left in made.unpopulated:
        print(f"  submodule {cited(left.name)} is empty: {left.why}")
    return 0


def _checkouts(rows: list[Worktree], common_dir: str | None) -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """Checkouts in which sessions have worked, and that are no worktrees of Paddock's: main ones above all.

    Returns:
        root -> (kind, branch or "detached", what waits there to be harvested, in words).
    """
    state = places.made(places.places(os.environ).state)
    known = {row.path for row in rows}
    found = {}
    for name in sorted(os.listdir(f"{state}/git")) if os.path.isdir(f"{state}/git") else ():
        try:
            kept = record.read(f"{state}/git/{name}")
            waits = waiting(f"{state}/git/{name}")
        except Refusal as refusal:
            kept, waits = None, (refusal.message,)
        if kept is None or kept.worktree in known or not os.path.isdir(kept.worktree):
            continue
        own = kept.repositories[0]
        if common_dir is None or own.common_dir == common_dir:
            branch = (own.branch or "detached").removeprefix("refs/heads/")
            found[kept.worktree] = (kept.kind, branch, waits)
    return found


NONE = "Paddock has no worktrees here; paddock worktree add TICKET makes one, adopt registers one of git's"


def worktree_list(*, every: bool, repo: str | None, as_json: bool) -> int:
    """Exit status 0, also when there are none."""
    if every and repo is not None:
        raise Refusal("usage", "--all and --repo exclude each other", hint="paddock worktree list --help")
    known = service()
    rows = known.everywhere() if every else known.of_repository(start(repo))
    far = progress(rows)
    waits = {row.worktree_id: _waits(row) for row in rows}
    others = _checkouts(rows, None if every else _common_dir(repo))
    if as_json:
        documents: list[dict[str, Any]] = [
            {**row.document(), "work": far[row.worktree_id]._asdict(), "waiting": waits[row.worktree_id]}
            for row in rows
        ]
        documents += [
            {"path": root, "state": kind, "branch": branch, "waiting": waiting}
            for root, (kind, branch, waiting) in others.items()
        ]
        print(json.dumps(documents, indent=2))
        return 0
    if not rows:
        print(NONE)
        if not others:
            return 0
    unharvested = "not harvested"
    cells = [
        (row.ticket, str(row.state), unharvested if waits[row.worktree_id] else str(far[row.worktree_id]),
         row.main.branch or "detached", row.path)
        for row in rows
    ]  # fmt: skip
    cells += [
        ("-", kind, unharvested if waits else "-", branch, root) for root, (kind, branch, waits) in others.items()
    ]
    heading, *shown = table.lines(("TICKET", "STATE", "WORK", "BRANCH", "DIRECTORY"), cells)
    waiting = style.styled(unharvested, style.YELLOW)
    print("\n".join([heading, *(line.replace(f"  {unharvested}  ", f"  {waiting}  ", 1) for line in shown)]))
    return 0


def worktree_status(name: str | None, *, repo: str | None, as_json: bool) -> int:
    """Exit status 0 when nothing would be lost, 1 when something is."""
    known = service()
    here = start(repo)
    rows = known.of_repository(here) if name is None else [known.find(here, name)]
    found = [(row, _without_this(now)) for row, now in zip(rows, known.statuses(rows), strict=True)]
    far = progress(rows)
    brings = None if name is None else _brings(*found[0])
    others = _checkouts(rows, _common_dir(repo)) if name is None else {}
    if as_json:
        more = {} if brings is None else {"history": brings.document()}
        documents = [
            {**plain(now), "work": far[row.worktree_id]._asdict(), "at_stake": now.at_stake(), **more}
            for row, now in found
        ]
        documents += [
            {"path": root, "state": kind, "branch": branch, "at_stake": waits}
            for root, (kind, branch, waits) in others.items()
        ]
        print(json.dumps(documents, indent=2))
    else:
        for row, now in found:
            _print(row, now, far[row.worktree_id])
        if brings is not None:
            print("\n".join(f"  {line}" for line in brings.lines(10, style.path)))
        for root, (kind, branch, waits) in others.items():
            print(f"{printable(root)} ({kind} checkout)\n  {printable(branch)}")
            print(f"  would be lost: {printable('; '.join(waits))}" if waits else "  clean: nothing would be lost")
        if not rows and not others:
            print(NONE)
    return int(any(now.at_stake() for _, now in found) or any(waits for _, _, waits in others.values()))


def progress(rows: list[Worktree]) -> dict[str, Progress]:
    """How far the work of each has come, by its id."""
    return condition.progress_of(rows, places.places(os.environ).state)


def _common_dir(repo: str | None) -> str:
    return checkout.find(start(repo), Machine(os.environ), exact=False).common_dir


def _waits(row: Worktree) -> tuple[str, ...]:
    """What waits in a worktree to be harvested, in words."""
    try:
        return waiting(record.directory_of(places.places(os.environ).state, row.worktree_id))
    except Refusal as refusal:
        return (refusal.message,)


def _brings(row: Worktree, now: Condition) -> "History | None":
    """What was committed in one worktree since it was made; of all of them it would cost too much."""
    part = next((each for each in now.parts if not each.name), None)
    if part is None or not part.ahead or not part.head:
        return None
    from launcher.vcs import history

    return history.read(str(row.main.git_dir), row.main.base, part.head)


def _without_this(now: Condition) -> Condition:
    """The same condition; this command itself does not count as being at work there."""
    return now._replace(in_use=tuple(pid for pid in now.in_use if pid != os.getpid()))


def _print(row: Worktree, now: Condition, far: Progress) -> None:
    print(f"{printable(row.path)} ({printable(row.ticket)})")
    if now.state is not State.READY:
        print(f"  {now.state}")
    for part in now.parts:
        where = f"submodule {cited(part.name)}: " if part.name else ""
        count = f"{part.ahead} commit{'' if part.ahead == 1 else 's'}" if part.ahead else "no commit"
        at = f"{part.branch or 'detached'} at {(part.head or 'nothing')[:12]}"
        came = {
            Work.OPEN: f", to merge into {printable(far.into)}",
            Work.MERGED: f", merged into {printable(far.into)}",
        }
        print(
            f"  {where}{printable(at)}, {count} since the worktree was made"
            + ("" if part.name else came.get(far.work, ""))
        )
    for line in far.lines():
        print(f"  {printable(line)}")
    stake = now.at_stake()
    print(style.styled("  would be lost: " + printable("; ".join(stake)), style.RED) if stake
          else style.styled("  clean: nothing would be lost", style.GREEN))  # fmt: skip
    if (named := now.uncommitted())[0]:
        print(f"  not committed: {table.some([*map(style.path, named[0])], named[1])}")
    for line in (*now.lagging(), *now.unknown_to_git()):
        print(f"  {printable(line)}")
    for text in now.ignored():
        print(f"  ignored by git, so it would be removed without asking: {printable(text)}")
    for one in now.beside():
        if now.state is State.READY:
            print(f"  to merge them: {printable(one.join)}")
        else:
            print(f"  to give them a branch: {printable(one.name)}")
    for one in now.stashes:
        print(f"  a stash of the agent is kept; to apply it: {printable(one.apply)}")
    if now.state is State.MISSING:
        print("\n".join(f"  {printable(way)}" for way in removal.if_missing(row, unharvested=now.fetched())))
    if now.in_use:
        print("  in use by " + printable(", ".join(condition.named_processes(now.in_use))))
    if now.locked is not None:
        print(f"  locked: {printable(now.locked) or 'no reason given'}")


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_ANEW = "`git submodule update` recreates it, if it still belongs there"


def worktree_harvest(
    directory: str | None,
    *,
    branch: list[str],
    dismiss: list[str],
    strict_handoff: bool,
    sign: bool,
    no_sign: bool,
    push: str,
    max_size: str,
    max_blob: str,
    max_objects: int,
    max_commits: int,
    as_json: bool,
) -> int:
    """Exit status 0: nothing to do or harvested; 3: work is kept beside a moved branch; 4: busy; 5: no branch."""
    limits = Limits(_bytes("--max-size", max_size), max_objects, _bytes("--max-blob", max_blob), max_commits)
    if sign and no_sign:
        raise Refusal("usage", "--sign and --no-sign exclude each other", hint="paddock worktree harvest --help")
    where, git_dir, root, project = _place(directory)
    result = harvesting.take(
        where,
        configuration.handoff_patterns(project, os.environ),
        strict=strict_handoff,
        sign=True if sign else False if no_sign else None,
        limits=limits,
        branches=_branches(branch or []),
        dismiss=dismiss,
        step=_progress if not as_json and sys.stderr.isatty() else lambda what: None,
    )
    if result.state in ("nothing", "harvested") and push:
        _push(where, git_dir, root, push, tuple(_branches(branch or []).values()), as_json=as_json)
    _show(result, directory or "", as_json=as_json)
    return {"kept": 3, "busy": 4, "gone": 5}.get(result.state, 0)


def worktree_dock(directory: str | None, *, as_json: bool) -> int:
    """Exit status 0 when every `.git` is right."""
    start = directory_named(directory) if directory else places.current_directory()
    root = os.path.realpath(start)
    done = swap.dock_worktree(records.directory_of(places.places(os.environ).state, launch.worktree_id(root)))
    known = service(quiet=as_json)
    if (row := known.store.at(root)) is not None:
        done += tuple(known.restore_pointers(row, lambda line: messages.say(f"paddock: {printable(line)}")))
    if as_json:
        print(json.dumps([item.as_dict() for item in done], indent=2))
        return 0
    for item in done:
        aside = f"; what was there is now in {item.aside}" if item.aside else ""
        if item.action == "gone":
            seen = gitlinks.reach(root, item.path)
            after = f"{seen.link_in_words}; what it points to is not a submodule" if seen.link else _ANEW
            print(f"{cited(item.path)} is missing; {after}")
            continue
        print(f"{cited(item.path)}/.git {'is correct' if item.action == 'right' else 'restored'}{aside}")
    return 0


def _place(directory: str | None) -> tuple[str, str, str, str]:
    """Of the worktree: where its private git directory is, its own git directory, root, and that of the project file.

    The first two do not lie in the worktree, so its directory may be missing; the project file is its parent's then.
    """
    start = directory_named(directory) if directory else places.current_directory()
    state = places.places(os.environ).state
    lost = WorktreeRepository(places.made(state)).at(os.path.realpath(start)) if not os.path.lexists(start) else None
    if lost is not None:
        git_dir, root = os.fspath(lost.main.git_dir), lost.path
        if not os.path.isdir(git_dir):  # pruned: made again, if anything waits
            service(quiet=True).settle(os.fspath(lost.main.common_dir))
        project = os.fspath(lost.parent_path or root)
    else:
        found = checkout.find(start, Machine(os.environ), exact=directory is not None)
        git_dir, root, project = found.git_dir, found.root, found.root
    where = records.directory_of(state, launch.worktree_id(root))
    if not (os.path.isdir(where) and os.path.isdir(git_dir)):
        raise Refusal(
            "harvest-no-record",
            f"there is nothing to harvest: no session has had a private git directory in {root}",
            hint="paddock run --git private -- COMMAND makes one",
        )
    return where, git_dir, root, project


def _branches(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, _, other = word.partition("=")
        found[name] = other or name.rpartition(":")[2]
    return found


def _bytes(option: str, text: str) -> int:
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].isalpha() else (text, "")
    if not number.isascii() or not number.isdigit() or unit not in _UNITS:
        raise Refusal("usage", f"{option} {text} is not a number of bytes", hint=f"{option} 4G, 512M, 64k or 1000000")
    return int(number) * _UNITS[unit]


def _push(where: str, git_dir: str, root: str, remote: str, names: tuple[str, ...], *, as_json: bool) -> None:
    """Pushes the branches that were asked for, else the worktree's own."""
    record = records.read(where)
    own = record.repositories[0].branch if record is not None else None
    if own is None and not names:
        raise Refusal("push-detached", "HEAD is detached, so there is no branch to push", hint="git switch -c NAME")
    for branch in tuple(f"refs/heads/{name.removeprefix('refs/heads/')}" for name in names) or (own or "",):
        said = as_user.push(git_dir, root, branch, remote)
        if not as_json:
            print("\n".join(printable(line, len(line)) for line in said.splitlines()))


def _progress(what: str) -> None:
    print(f"\r\x1b[K{printable(what)}" if what != "done" else "\r\x1b[K", end="", file=sys.stderr, flush=True)


def _show(result: HarvestResult, place: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
        return
    for line in harvesting.report_lines(result, place=place):
        print(line)
    if result.state == "nothing" and not result.branches:
        print("nothing new")
    elif result.state == "busy":
        print("a session is running there; the last one to end harvests")


def worktree_remove(name: str, *, force: bool, keep_branch: bool, repo: str | None, as_json: bool) -> int:
    """Exit status 0 when it was removed, 125 when not."""
    known = service(quiet=as_json)
    row = known.find(start(repo), name)
    far = progress([row])[row.worktree_id]
    done = known.remove(row, force=force, keep_branch=keep_branch)
    if as_json:
        pairs = {
            "backups": [{"git_dir": where, "ref": ref} for where, ref in done.backups],
            "branches_deleted": [{"git_dir": where, "branch": branch} for where, branch in done.branches_deleted],
            "refs_kept": [{"git_dir": where, "ref": ref} for where, ref in done.refs_kept],
            "stashes": [{"git_dir": where, "ref": ref} for where, ref in done.stashes],
            "branches_kept": [{"git_dir": where, "branch": branch} for where, branch in done.branches_kept],
        }
        head = {"worktree_id": done.worktree.worktree_id, "path": done.worktree.path}
        print(json.dumps({**head, **pairs, "ignored": done.ignored, "set_aside": done.set_aside}, indent=2))
        return 0
    print(f"removed {printable(done.worktree.path)}")
    for line in (*done.lines(), *far.lines()):
        print(f"  {printable(line)}")
    return 0


def worktree_adopt(directory: str, *, ticket: str | None, as_json: bool) -> int:
    """Exit status 0 when it is known from now on."""
    adopted = service(quiet=as_json).adopt(directory, ticket)
    print(json.dumps(adopted.document(), indent=2) if as_json else f"adopted {printable(adopted.path)}")
    return 0


def worktree_repair(directory: str | None, *, as_json: bool) -> int:
    """Exit status 0."""
    done = service(quiet=as_json).repair(directory or places.current_directory())
    if as_json:
        print(json.dumps({"done": done}, indent=2))
        return 0
    for line in done or ["nothing to do"]:
        print(printable(line))
    return 0
