"""What a harvest is about to publish, written down before anything of it is visible.

One file, replaced in one step and synced. Before it is there, a harvest that was killed has left nothing but a
quarantine, which the next one throws away. From then on the next one finishes what it says. Everything in it comes
from checks that have passed; it lies beside the private git directory, out of every jail's reach.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from launcher.vcs.harvest.parts import HarvestResult, PartResult
from launcher.vcs.harvest.tips import HARVEST_JOURNAL
from launcher.vcs.quarantine import record
from policy.errors import Refusal

NAME = HARVEST_JOURNAL
_VERSION = 1


@dataclass(frozen=True)
class Update:
    """One ref that is to move.

    Args:
        ref: full name, or HEAD for a detached one.
        old: what it must be; "" for whatever it is, zeros for: it must not exist.
        new: what it becomes.
        beside: where `new` goes when somebody else has moved the ref; "" where that is no loss.
    """

    ref: str
    old: str
    new: str
    beside: str = ""


@dataclass(frozen=True)
class Entry:
    """What is published in one repository.

    Args:
        name: of the `Part`.
        path: root of the checkout.
        git_dir: trusted.
        common: trusted.
        quarantine: directory with the packs; "" when there are none.
        updates: in one transaction.
        index: (object id that the index belongs to, object id that it shall belong to); None to leave it alone.
        private: the repository's `private` in the record.
        base: what its `base` in the record becomes; "" to leave it.
        tip: the own ref's new value, when it is not `base`: the signed commit that stands for it.
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


@dataclass(frozen=True)
class Journal:
    """All that is published together, submodules before what holds them.

    Args:
        entries: one per repository.
        serial: random, names temporary files.
        result: what will be said about it; plain data.
    """

    entries: tuple[Entry, ...]
    serial: str
    result: dict[str, Any] = field(default_factory=dict)


def write(directory: str, journal: Journal) -> None:
    """Writes the journal, synced.

    Raises:
        OSError: the directory cannot be written.
    """
    content = json.dumps({"version": _VERSION} | asdict(journal)).encode("ascii")
    record.replace_file(f"{directory}/{NAME}", content)


def read(directory: str) -> Journal | None:
    """The journal of a harvest that did not end; None when there is none.

    Raises:
        Refusal: harvest-journal: another version of Paddock wrote it.
    """
    path = f"{directory}/{NAME}"
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read())
    except FileNotFoundError:
        return None
    if data.get("version") != _VERSION:
        raise Refusal(
            "harvest-journal",
            "a harvest that another version of Paddock began has not ended",
            context=path,
            hint="finish it with that version: paddock worktree harvest",
        )
    entries = tuple(
        Entry(
            **entry
            | {
                "updates": tuple(Update(**update) for update in entry["updates"]),
                "index": tuple(entry["index"]) if entry["index"] else None,
            }
        )
        for entry in data["entries"]
    )
    return Journal(entries, data["serial"], data["result"])


def remove(directory: str) -> None:
    """Removes the journal: the harvest has ended."""
    os.unlink(f"{directory}/{NAME}")
    record.sync_directory(directory)


def restored(data: Mapping[str, object]) -> HarvestResult:
    """The result that a journal holds, of a harvest that somebody else began."""
    fields = dict(data)
    parts = fields.pop("parts")
    assert isinstance(parts, list)
    texts = {name: tuple(map(_frozen, value)) for name, value in fields.items() if isinstance(value, list)}
    words = {name: str(value) for name, value in fields.items() if isinstance(value, str)}
    return HarvestResult(**words, **texts, parts=tuple(PartResult(**part) for part in parts))  # type: ignore[arg-type]


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
