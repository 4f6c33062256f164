"""`paddock worktree harvest` and `paddock worktree dock`: take an agent's commits over; put `.git` right."""

import json
import os
import sys
from typing import Annotated

import typer

from launcher.session import configuration, harvesting, places
from launcher.session.machine import Machine
from launcher.session.planning import worktree_id
from launcher.vcs import checkout, way
from launcher.vcs.harvest import dock as docking
from launcher.vcs.harvest import push as pushing
from launcher.vcs.harvest.parts import HarvestResult, Limits
from launcher.vcs.quarantine import record as records
from launcher.vcs.worktrees.store import WorktreeRepository
from launcher.verbs import typer_verb
from launcher.verbs.worktree_common import directory_named, service
from policy.errors import Refusal, printable

HARVEST_EXAMPLES = (
    ("paddock worktree harvest", "take over what the last session here committed"),
    ("paddock worktree harvest PROJ-17", "the same in the worktree of a ticket"),
    ("paddock worktree harvest ../agent-1 --branch topic", "a branch that the agent made, too"),
    ("paddock worktree harvest --strict-handoff --json", "refuse what other tools would execute; say it as JSON"),
    ("paddock worktree harvest --sign", "and sign the commits, with your own key"),
    ("paddock worktree harvest --push origin", "and push the branch, with your own credentials"),
)
DOCK_EXAMPLES = (("paddock worktree dock ../agent-1", "make .git lead to your repository again, whatever lies there"),)

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_ANEW = "`git submodule update` makes it anew, where it still belongs"
_WHICH = "Root of the worktree, or its ticket, branch or id."
_Directory = Annotated[str | None, typer.Argument(metavar="DIR|NAME", help=_WHICH, show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_BRANCH = "A branch that the agent made; SUBMODULE:NAME for a submodule's, NAME=OTHER for another name here."


def harvest(argv: list[str]) -> int:
    """Exit status 0: nothing to do or harvested; 3: work is kept beside a moved branch; 4: busy; 5: no branch."""
    return typer_verb.run("worktree harvest", _harvest, argv, examples=HARVEST_EXAMPLES)


def dock(argv: list[str]) -> int:
    """Exit status 0 when every `.git` is right."""
    return typer_verb.run("worktree dock", _dock, argv, examples=DOCK_EXAMPLES)


def _harvest(
    directory: _Directory = None,
    branch: Annotated[list[str] | None, typer.Option("--branch", metavar="NAME", help=_BRANCH)] = None,
    strict: Annotated[
        bool, typer.Option("--strict-handoff", help="Refuse commits that change files which other tools execute.")
    ] = False,
    sign: Annotated[
        bool, typer.Option("--sign", help="Sign the commits, by your own git configuration (user.signingKey).")
    ] = False,
    no_sign: Annotated[
        bool, typer.Option("--no-sign", help="Do not, though a session was told to (which counts otherwise).")
    ] = False,
    push: Annotated[str, typer.Option("--push", metavar="REMOTE", help="Then push there what was taken.")] = "",
    max_size: Annotated[str, typer.Option("--max-size", metavar="BYTES", help="Largest pack (default: 2G).")] = "2G",
    max_blob: Annotated[
        str, typer.Option("--max-blob", metavar="BYTES", help="Largest file (default: 512M).")
    ] = "512M",
    max_objects: Annotated[
        int, typer.Option("--max-objects", metavar="N", help="How many objects at most.")
    ] = 2_000_000,
    max_commits: Annotated[int, typer.Option("--max-commits", metavar="N", help="How many commits at most.")] = 100_000,
    as_json: _Json = False,
) -> int:
    """Takes over what an agent committed in its private git directory.

    Sessions do it when they end; this is for what was refused then, for further branches, and for after a crash. The
    commits are checked and come onto the branch that the worktree is on. A branch that you have moved meanwhile stays,
    and the work is kept in a ref of its own.

    Exit status: 0 when it was harvested or there was nothing to do; 3 when the work is kept beside a branch that has
    moved; 4 when a session is running there; 5 when the agent's own branch is not to be found; 125 when it was refused,
    or failed.
    """
    limits = Limits(_bytes("--max-size", max_size), max_objects, _bytes("--max-blob", max_blob), max_commits)
    if sign and no_sign:
        raise Refusal("usage", "--sign and --no-sign exclude each other", hint="paddock worktree harvest --help")
    where, git_dir, root, project = _place(directory)
    result = harvesting.take(
        where,
        configuration.handoff_patterns(project, os.environ),
        strict=strict,
        sign=True if sign else False if no_sign else None,
        limits=limits,
        branches=_branches(branch or []),
        step=_progress if not as_json and sys.stderr.isatty() else lambda what: None,
    )
    if result.state in ("nothing", "harvested") and push:
        _push(where, git_dir, root, push, tuple(_branches(branch or []).values()), as_json=as_json)
    _show(result, directory or "", as_json=as_json)
    return {"kept": 3, "busy": 4, "gone": 5}.get(result.state, 0)


def _dock(directory: _Directory = None, as_json: _Json = False) -> int:
    """Makes `.git` in a worktree and its submodules lead to your repository again.

    What lies there instead is moved aside first, to where no git looks for it.
    """
    start = directory_named(directory) if directory else places.current_directory()
    root = os.path.realpath(start)
    done = docking.dock(records.directory_of(places.places(os.environ).state, worktree_id(root)))
    if as_json:
        print(json.dumps([item.as_dict() for item in done], indent=2))
        return 0
    for item in done:
        aside = f"; what was there is in {item.aside}" if item.aside else ""
        if item.action == "gone":
            seen = way.look(root, item.path)
            after = f"{seen.told}; what it leads to is no submodule's" if seen.link else _ANEW
            print(f"{printable(item.path)} is gone; {after}")
            continue
        print(f"{printable(item.path)}/.git {'is right' if item.action == 'right' else 'restored'}{aside}")
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
    where = records.directory_of(state, worktree_id(root))
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
        raise Refusal("usage", f"{option} {text} is no number of bytes", hint=f"{option} 4G, 512M, 64k or 1000000")
    return int(number) * _UNITS[unit]


def _push(where: str, git_dir: str, root: str, remote: str, names: tuple[str, ...], *, as_json: bool) -> None:
    """Pushes the branches that were asked for, else the worktree's own."""
    record = records.read(where)
    own = record.repositories[0].branch if record is not None else None
    if own is None and not names:
        raise Refusal("push-detached", "HEAD is detached, so there is no branch to push", hint="git switch -c NAME")
    for branch in tuple(f"refs/heads/{name.removeprefix('refs/heads/')}" for name in names) or (own or "",):
        said = pushing.push(git_dir, root, branch, remote)
        if not as_json:
            print("\n".join(printable(line) for line in said.splitlines()))


def _progress(what: str) -> None:
    print(f"\r\x1b[K{printable(what)}" if what != "done" else "\r\x1b[K", end="", file=sys.stderr, flush=True)


def _show(result: HarvestResult, place: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
        return
    for line in harvesting.told(result, place=place):
        print(line)
    if result.state == "nothing" and not result.branches:
        print("nothing new")
    elif result.state == "busy":
        print("a session is running there; the last one to end harvests")
