"""HEAD's own log (gitrepository-layout(5), ``logs/HEAD``), as messages of git's tell what was done there."""

from launcher.vcs.private.ref_files import is_oid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MAKES = frozenset({b"commit", b"cherry-pick", b"revert", b"am", b"merge", b"pull", b"rebase"})


def left_behind(log: bytes, branch: str | None, *, loose: bool) -> list[str]:
    """Ids of commits that were made on no branch, and left when something else was checked out, as nobody came back.

    Besides git-checkout(1), whose message tells, that is an orphan branch, a move whose message is another programme's,
    and a rebase of another branch or commit: it picks nothing with the last subject. What was only checked out, reset
    to or forwarded to was somewhere (shallow histories lose it); what was forwarded from goes along. What was amended,
    rebased or reset, or had a branch when it was left, was given up, or has that.

    Args:
        branch: full name of the one that HEAD was on when the log began; None for no branch, "" for unknown.
        loose: whether HEAD is on no branch now.
    """
    on = ("HEAD" if branch is None else branch.removeprefix("refs/heads/")).encode("utf-8", "surrogateescape")
    left: dict[bytes, bytes] = {}  # with subjects
    here: dict[bytes, bytes] = {}  # what was made since something was checked out
    moved: dict[bytes, bytes] = {}  # of that, from where something else has moved HEAD, or its branch
    made = rebased = wanted = before = b""
    picked = False
    for last, old, new, message in _entries(log):
        action, _, text = message.partition(b": ")
        verb = action.partition(b" ")[0]
        came, _, target = text.partition(b" to ")
        target = target.removeprefix(b"refs/heads/")
        if last.strip(b"0") and not old.strip(b"0"):  # since an orphan branch was begun; not after a rename
            left |= moved | {made: here.get(made, b"")}
            on, made, here, moved = b"", b"", {}, {}
        if verb == b"checkout" and came.startswith(b"moving from "):
            origin = came[12:]
            if not is_oid(origin.decode("ascii", "replace")):  # a branch
                made, here, moved = b"", {}, {}
            elif old != new:
                left |= moved | {made: here.get(made, b"")}
                made, here, moved = b"", {}, {}
            on = target if target != origin else b""  # --detach says no more
        elif came == b"returning" and action.endswith(b")"):  # from a rebase of that branch
            if new != rebased and before != target and (before or not picked):
                left[rebased] = wanted
            on, rebased, made = target, b"", new if new in here else b""
        elif action.endswith(b" (start)") and text.startswith(b"checkout "):
            if not picked:
                left[rebased] = wanted
            rebased, wanted, before, picked = made, _of_fixups(here.get(made, b"")), on, False
            made = new if new in here else b""
        elif action == b"rebase" and text.startswith(b"checkout "):  # another branch, which was up to date
            left[made] = here.get(made, b"")
            on, made, here = text[9:], b"", {}
        elif came.startswith(b"renamed refs/heads/"):
            on = target
        elif text.lower() == b"fast-forward" and verb in _MAKES:
            made = new if new in here else made
        elif verb == b"reset" and came == b"moving":
            made = new if new in here else made if new == old else b""
        elif verb == b"clone" or not (message or old.strip(b"0")):
            made = b""
        else:
            if verb not in _MAKES or not text:
                moved[made] = here.get(made, b"")
            made, here[new] = new, text
            picked = picked or text == wanted
        moved.pop(new, None)
        if new in left:
            made, here[new] = new, left.pop(new)
    if not picked:
        left[rebased] = wanted
    left |= moved if loose else {}
    return [oid.decode() for oid in left if oid]


def _of_fixups(subject: bytes) -> bytes:
    """The subject that a commit has which `git rebase --autosquash` makes of one like it."""
    while subject.startswith((b"fixup! ", b"squash! ", b"amend! ")):
        subject = subject.partition(b" ")[2]
    return subject


def _entries(log: bytes) -> "Iterator[tuple[bytes, bytes, bytes, bytes]]":
    """What HEAD was before each line, what the line says that it was and is, and the message."""
    last, start = b"", 0
    while start < len(log):
        end = log.find(b"\n", start)
        end = len(log) if end == -1 else end
        ids, _, rest = log[start:end].partition(b"> ")  # no name has a >, and any may have a tab
        old, _, new = ids.partition(b" ")
        new = new.partition(b" ")[0]
        if is_oid(new.decode("ascii", "replace")):
            yield last, old, new, rest.partition(b"\t")[2]
            last = new
        start = end + 1
