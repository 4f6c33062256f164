"""HEAD's own log (gitrepository-layout(5), ``logs/HEAD``), as messages of git's tell what was done there."""

from launcher.vcs.private.ref_files import is_oid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def left_behind(log: bytes, branch: str | None) -> list[str]:
    """Ids of commits that were made on no branch, and left when something else was checked out.

    Besides git-checkout(1), whose message tells, that is a first commit on an orphan branch, and a rebase of another
    branch than the one that HEAD was on, or of a commit: it picks nothing with the last subject. What was only checked
    out, reset to or forwarded to was somewhere (shallow histories lose it); what was forwarded from goes along.

    Args:
        branch: full name of the one that HEAD was on when the log began; None for no branch, "" for unknown.
    """
    found: list[bytes] = []
    stay: dict[bytes, bytes] = {}  # what was made since something was checked out, and its subjects
    on = ("HEAD" if branch is None else branch.removeprefix("refs/heads/")).encode("utf-8", "surrogateescape")
    made = rebased = wanted = b""
    picked = False
    for last, old, new, message in _entries(log):
        source, _, target = message.partition(b" to ")
        target = target.removeprefix(b"refs/heads/")
        if source.endswith(b"): returning"):  # from a rebase of that branch
            found += [rebased] if on not in (b"", target) and new != rebased else []
            on, rebased, made = target, b"", new if new in stay or new == rebased else b""
        elif message.startswith(b"rebase: checkout "):  # of another branch, which was up to date
            found.append(made)
            on, made, stay = message[17:], b"", {}
        elif message.startswith(b"checkout: moving from "):
            found += [rebased] if not picked else []
            found += [made] if is_oid(source[22:].decode("ascii", "replace")) else []
            on, rebased, made, stay = target, b"", b"", {}
        elif b" (start): checkout " in message:
            found += [rebased] if not picked else []
            rebased, wanted, made, stay, picked = made, stay.get(made, b""), b"", {}, False
        elif source.startswith(b"Branch: renamed "):
            on = target
        elif message.startswith(b"reset: moving"):
            made = new if new in stay else b""
        elif message.startswith(b"clone: ") or not (message or old.strip(b"0")):
            made = b""
        elif not message.endswith(b": Fast-forward"):
            if last.strip(b"0") and not old.strip(b"0"):  # on an orphan branch
                found.append(made)
                on = b""
            made, stay[new] = new, message.partition(b": ")[2]
            picked = picked or stay[new] == wanted
    found += [rebased] if not picked else []
    return [oid.decode() for oid in found if is_oid(oid.decode("ascii", "replace"))]


def _entries(log: bytes) -> "Iterator[tuple[bytes, bytes, bytes, bytes]]":
    """What HEAD was before each line, what the line says that it was and is, and the message."""
    last, start = b"", 0
    while start < len(log):
        end = log.find(b"\n", start)
        end = len(log) if end == -1 else end
        ids, _, rest = log[start:end].partition(b"> ")  # no name has a >, and any may have a tab
        old, _, new = ids.partition(b" ")
        new = new.partition(b" ")[0]
        yield last, old, new, rest.partition(b"\t")[2]
        last, start = new, end + 1
