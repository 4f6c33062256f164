"""Why work was left in a private git directory, and what a later harvest has to respect: kept beside it.

A session with a strict hand-off is remembered from its start until its work has been taken over, whatever kills it, so
that nobody hands over by himself what it would have refused, neither a later session, nor one beside it, nor the
service. A user who harvests by hand has decided otherwise.

Sessions share the note, so lines are only ever added to it: `+MARK` when a strict session begins, `-MARK` when it has
ended and found no hand-off file that no commit has, `held ...` for each such file when one refuses. A mark without its
end is that of a session that was killed: nobody has looked what it left in the worktree.
"""

import os

from launcher.safefs import walk
from launcher.vcs.private import record
from launcher.vcs.private.record import STRICT
from policy.errors import Refusal, in_rows

NOTE = "refused"
"""Name of the file."""

_MOST = 4096
_HELD = "held"
_ADDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def note(directory: str, reason: str) -> None:
    """Keeps the reason, a line; with none forgets it, because a harvest has taken the work over (OSError)."""
    if reason:
        record.note(directory, NOTE, reason.encode("utf-8", "surrogateescape")[:_MOST])
    else:
        record.forget(directory, NOTE)


def why(directory: str) -> str:
    """The reason in one line, "" when there is none."""
    return (record.noted(directory, NOTE) or b"").decode("utf-8", "surrogateescape")


def demand_strictness(directory: str) -> str:
    """Notes that a strict session is at work there (OSError). Returns the mark with which it ends."""
    mark = os.urandom(5).hex()
    _add(directory, f"+{mark}")
    return mark


def release(directory: str, mark: str) -> None:
    """Notes that a strict session is over, and has seen nothing to refuse but what commits may have (OSError)."""
    _add(directory, f"-{mark}")


def hold(directory: str, refusal: Refusal) -> None:
    """Notes what a strict session has refused to hand over: files that no commit has (OSError)."""
    _add(directory, *(f"{_HELD} {row}" for row in refusal.context.splitlines()))
    note(directory, f"{refusal.message} [{refusal.reference}]")


def _add(directory: str, *lines: str) -> None:
    descriptor = os.open(f"{directory}/{STRICT}", _ADDING, 0o600)
    try:
        walk.write_all(descriptor, "".join(f"\n{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    walk.sync_directory(directory)


def _strict_lines(directory: str) -> list[str]:
    return (record.noted(directory, STRICT) or b"").decode("utf-8", "surrogateescape").splitlines()


def is_strict(directory: str) -> bool:
    """Whether a strict session left what waits there, or some of it."""
    return record.noted(directory, STRICT) is not None


def has_refused(directory: str) -> bool:
    """Whether a strict session has refused to hand over what is there, for files that no commit has."""
    return any(line.startswith(_HELD) for line in _strict_lines(directory))


def held(directory: str) -> Refusal | None:
    """Why only the user may hand over what waits there; None where nothing but the commits themselves matters."""
    lines = _strict_lines(directory)
    ended = {line[1:] for line in lines if line.startswith("-")}
    rows = dict.fromkeys(line.removeprefix(_HELD).strip() for line in lines if line.startswith(_HELD))
    if not rows and all(line[1:] in ended for line in lines if line.startswith("+")):
        return None
    found = [row for row in rows if row] or ["it was ended before it had looked for hand-off files in the worktree"]
    return Refusal("handoff-strict", "a strict session left the work to you, so it is not handed over",
                   context=in_rows(*found), hint="read what it left, then: paddock worktree harvest")  # fmt: skip
