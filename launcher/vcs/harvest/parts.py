"""What is harvested, as data: the worktree's repository and its submodules' (parts), limits, and the outcome."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from launcher.safefs import walk
from launcher.vcs.harvest.agent_refs import HARVEST_JOURNAL
from launcher.vcs.private.record import Repository
from launcher.vcs.refs import Update
from policy.errors import Refusal
from policy.pasted import cited


class Part(Repository):
    """One repository of the worktree at `root`, as its record has it: the worktree's own, or a submodule's."""

    __slots__ = ("root",)

    def __init__(self, one: Repository, root: str) -> None:
        super().__init__(**{name: getattr(one, name) for name in Repository.__slots__})
        self.root = root

    @property
    def prefix(self) -> str:
        """The checkout's place in the worktree, "" or ``lib/``."""
        below = self.path[len(self.root) :].lstrip("/")
        return f"{below}/" if below else ""

    @property
    def label(self) -> str:
        """For messages."""
        return f"the submodule {cited(self.name)}" if self.name else "the worktree"

    @property
    def store(self) -> str:
        """The trusted object directory."""
        return f"{self.common_dir}/objects"

    @property
    def ref(self) -> str:
        """What a harvest moves: the branch that was checked out, or a detached HEAD."""
        return self.branch or "HEAD"


@dataclass(frozen=True)
class Limits:
    """What one harvest may take over, per repository. More is refused, and stays in the private directory.

    Args:
        pack: bytes of the pack stream.
        objects: their number.
        blob: bytes of the largest single object.
        commits: their number.
    """

    pack: int = 2 << 30
    objects: int = 2_000_000
    blob: int = 512 << 20
    commits: int = 100_000


@dataclass(frozen=True)
class FileChange:
    """A file that differs between what a branch was and what it becomes.

    Args:
        path: relative to the worktree's root, submodules' files too.
        change: ``created``, ``changed`` or ``removed``.
        executable: whether it can be executed now.
    """

    path: str
    change: str
    executable: bool = False


Handoff = Callable[[FileChange], tuple[str, str, str] | None]
"""Tells of a changed file that other tools would execute or obey: (change, path, mode)."""


@dataclass(frozen=True)
class PartResult:
    """What became of one repository.

    Args:
        name: as in `Part`.
        ref: what was moved: a branch's full name, or HEAD.
        old: its value before.
        new: its value now, or what was to become it.
        commits: number of commits that are new in the repository; where there are none, those that the branch gains.
        files: number of files that differ.
        rewritten: the branch does not continue the old value (the agent amended or rebased).
        backup: where the old value is kept then.
        kept: where the work is kept when the branch had been moved by somebody else meanwhile, or HEAD was detached.
        again: an earlier harvest had kept it there already.
        note: why it is kept there, and how to join it with the branch.
    """

    name: str
    ref: str
    old: str
    new: str
    commits: int = 0
    files: int = 0
    rewritten: bool = False
    backup: str = ""
    kept: str = ""
    again: bool = False
    note: str = ""


@dataclass(frozen=True)
class HarvestResult:
    """The outcome of one harvest.

    Args:
        state: ``nothing`` (there was nothing new), ``harvested``, ``kept`` (taken over, but beside the branch, which
            somebody else has moved), ``gone`` (the agent's own branch is not there, or unreadable), or ``busy``
            (another session of the worktree lives).
        parts: repositories with something new.
        branches: branches that the agent made or moved beside its own; ``--branch NAME`` takes one over.
        handoff: files among the changes that other tools execute or obey: (change, path, mode).
        notes: what the user should know.
    """

    worktree: str
    state: str
    parts: tuple[PartResult, ...] = ()
    branches: tuple[str, ...] = ()
    handoff: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        return asdict(self)


# What a harvest is about to publish, written down before anything of it is visible.
#
# One file, replaced in one step and synced. Before it is there, a harvest that was killed has left nothing but a
# quarantine, which the next one throws away. From then on the next one finishes what it says. Everything in it comes
# from checks that have passed; it lies beside the private git directory, out of every jail's reach.

NAME = HARVEST_JOURNAL
_VERSION = 1


@dataclass(frozen=True)
class Entry:
    """What is published in one repository.

    Args:
        name: of the `Part`.
        path: root of the checkout.
        common: trusted.
        quarantine: directory with the packs; "" when there are none.
        updates: in one transaction.
        index: (object id that the index belongs to, object id that it shall belong to); None to leave it alone.
        private: the repository's `private` in the record.
        base: what its `base` in the record becomes; "" to leave it.
        tip: the own ref's new value, when it is not `base`: the signed commit that stands for it.
        head: (branch that HEAD is on, branch that it is to be on, the agent's commit there); None to leave it.
    """

    name: str
    path: str
    git_dir: str
    common: str
    quarantine: str
    updates: tuple[Update, ...]
    index: tuple[str, str] | None = None
    private: str = ""
    base: str = ""
    tip: str = ""
    head: tuple[str, str, str] | None = None


@dataclass(frozen=True)
class Journal:
    """All that is published together, submodules before what holds them.

    Args:
        entries: one per repository.
        serial: random, names temporary files.
        result: what will be said about it.
    """

    entries: tuple[Entry, ...]
    serial: str
    result: HarvestResult


def write(directory: str, journal: Journal) -> None:
    """Writes the journal, synced."""
    content = json.dumps({"version": _VERSION} | asdict(journal)).encode("ascii")
    walk.replace(f"{directory}/{NAME}", content)


def read(directory: str) -> Journal | None:
    """The journal of a harvest that did not end; None when there is none.

    Refusals: harvest-journal: another version of Paddock wrote it.
    """
    path = f"{directory}/{NAME}"
    try:
        with open(path, "rb") as file:
            data = _tuples(json.loads(file.read()))
    except FileNotFoundError:
        return None
    if data.get("version") != _VERSION:
        raise Refusal(
            "harvest-journal",
            "a harvest that another version of Paddock began is unfinished",
            context=path,
            hint="finish it with that version: paddock worktree harvest",
        )
    entries = tuple(
        Entry(**entry | {"updates": tuple(Update(**one) for one in entry["updates"])}) for entry in data["entries"]
    )
    result = data["result"] | {"parts": tuple(PartResult(**part) for part in data["result"]["parts"])}
    return Journal(entries, data["serial"], HarvestResult(**result))


def _tuples(value: Any) -> Any:  # noqa: ANN401  # JSON
    """With tuples, which JSON has not, in place of lists."""
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def remove(directory: str) -> None:
    """Removes the journal: the harvest has ended."""
    os.unlink(f"{directory}/{NAME}")
    walk.sync_directory(directory)
