"""Refs of a trusted repository as its files hold them, and what of them a private git directory shows.

Shown are branches, tags, remote-tracking branches and notes. Not shown: what belongs to other working trees (stash,
bisect), replacements, and Paddock's own. Formats: gitrepository-layout(5), git-pack-refs(1).
"""

import os
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from policy.errors import Refusal

SHOWN = ("refs/heads", "refs/tags", "refs/remotes", "refs/notes")
_PREFIXES = tuple(os.fsencode(f"{name}/") for name in SHOWN)
_HEX = frozenset("0123456789abcdef")
_HEADER = b"# pack-refs with: peeled fully-peeled sorted \n"
_UNPEELED = b"# pack-refs with: sorted \n"
_PATIENCE = 10.0


class Head(NamedTuple):
    """Where a HEAD stands: on `branch` (full name; None when detached), at `oid` (None on a branch not yet born)."""

    branch: str | None
    oid: str | None


def is_oid(text: str) -> bool:
    """Whether `text` is an object id, of SHA-1 or SHA-256."""
    return len(text) in (40, 64) and _HEX.issuperset(text)


def head(git_dir: str, common_dir: str) -> Head:
    """Where the HEAD of a trusted working tree stands.

    Refusals: git-head-unreadable.
    """
    ref, text = _followed(common_dir, _content(f"{git_dir}/HEAD"))
    branch = ref if ref.startswith("refs/heads/") else None
    if is_oid(text):
        return Head(branch, text)
    if branch is None or text:
        raise Refusal(
            "git-head-unreadable", f"{git_dir}/HEAD points to no commit", context=f"it points to {ref or text!r}"
        )
    return Head(branch, None)


def named(git_dir: str) -> str:
    """Full name of the ref that the HEAD of a trusted working tree is on; "" when it is detached."""
    path = f"{git_dir}/HEAD"
    if os.path.islink(path):  # as git made it long ago
        return os.readlink(path)
    text = _content(path)
    return text[4:].strip() if text.startswith("ref:") else ""


_SHARED = ("refs/heads/", "refs/paddock/", "refs/tags/")


def one(git_dir: str, common_dir: str, ref: str) -> str:
    """The object id of HEAD, or of a ref that all working trees share; "" when its files do not say it."""
    here = _content(f"{git_dir}/HEAD") if ref == "HEAD" else f"ref: {ref}"
    _, text = _followed(common_dir, here)
    return text if is_oid(text) else ""


def absent(common_dir: str, ref: str) -> bool:
    """Whether a ref that all working trees share is surely not there; where it cannot be told from files, False."""
    if not ref.startswith(_SHARED) or os.path.lexists(f"{common_dir}/reftable"):
        return False
    # In this order: git writes `packed-refs` before it removes a ref's file.
    return not os.path.lexists(f"{common_dir}/{ref}") and not packed_one(common_dir, ref)


def _followed(common_dir: str, text: str) -> tuple[str, str]:
    """The last ref that a HEAD leads to, and what it holds. Git writes `packed-refs` before it removes a ref's file."""
    ref = ""
    for _ in range(5):
        if not text.startswith("ref:"):
            break
        ref = text[4:].strip()
        text = _content(f"{common_dir}/{ref}") or packed_one(common_dir, ref)
    return ref, text


def packed_one(common_dir: str, ref: str) -> str:
    """The object id of one packed ref; "" when it is not there."""
    content = _bytes(f"{common_dir}/packed-refs")
    at = content.find(b" " + os.fsencode(ref) + b"\n")
    line = content[content.rfind(b"\n", 0, at) + 1 : at] if at > 0 else b""
    return line.decode("ascii", "replace")


def may_be_below(common_dir: str, places: list[str]) -> bool:
    """Whether git has to be asked for refs: False only where no file of a trusted repository has any of these."""
    if any(os.path.lexists(f"{common_dir}/{place.rstrip('/')}") for place in ("reftable", *places)):
        return True
    content = _bytes(f"{common_dir}/packed-refs")  # git writes it before it removes a ref's file
    return any(b" " + os.fsencode(place) in content for place in places)


def loose(common_dir: str) -> tuple[dict[str, str], list[str]]:
    """Shown refs that have a file of their own, as full name -> content; and the directories that hold them."""
    found: dict[str, str] = {}
    directories = []
    pending = list(SHOWN)
    while pending:
        here = pending.pop()
        directories.append(f"{common_dir}/{here}")
        try:
            with os.scandir(f"{common_dir}/{here}") as entries:
                for entry in entries:
                    if entry.is_dir():
                        pending.append(f"{here}/{entry.name}")
                    elif not entry.name.endswith(".lock"):
                        text = _content(entry.path)
                        if is_oid(text) or text.startswith("ref: "):
                            found[f"{here}/{entry.name}"] = text
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found, directories


def there(directory: str, places: Iterable[str]) -> list[str]:
    """Refs at `places`, and below those with a slash at the end, that have a file or a log; and what is closed."""
    found: list[str] = []
    for place in places:
        for top in (f"{directory}/", f"{directory}/logs/"):
            path = f"{top}{place}"
            below = _below(path[:-1]) if place.endswith("/") else filter(_is_file, [path])
            found += (each.removeprefix(top) for each in below if not each.endswith(".lock"))
        found += [place] if packed_one(directory, place) else []
    return list(dict.fromkeys(found))


def _is_file(path: str) -> bool:
    return os.path.lexists(path) and not os.path.isdir(path)


def _below(top: str) -> Iterator[str]:
    closed: list[OSError] = []
    for above, directories, names in os.walk(top, onerror=closed.append):
        links = (name for name in directories if os.path.islink(f"{above}/{name}"))
        yield from (f"{above}/{name}" for name in (*names, *links))
    yield from (os.fsdecode(error.filename) for error in closed if not isinstance(error, FileNotFoundError))


def packed(common_dir: str) -> bytes:
    """The lines of `packed-refs` that are shown, with their peeled ones, without header."""
    kept: list[bytes] = []
    shown = False
    for line in _bytes(f"{common_dir}/packed-refs").splitlines(keepends=True):
        if line[:1] == b"^":
            if shown:
                kept.append(line)
            continue
        shown = line.partition(b" ")[2].startswith(_PREFIXES)
        if shown:
            kept.append(line)
    return b"".join(kept)


def with_loose(lines: bytes, refs: dict[str, str]) -> bytes:
    """A `packed-refs` file of packed `lines` and loose `refs`, which win. Symbolic refs cannot be packed."""
    plain = {os.fsencode(ref): oid for ref, oid in refs.items() if is_oid(oid)}
    if not plain:
        return _HEADER + lines
    # Annotated tags among the loose ones are not peeled, so no line is, and the header promises none: there are readers
    # that refuse a file whose header and lines differ.
    return from_names(by_name(lines) | {name: oid.encode() + b" " + name + b"\n" for name, oid in plain.items()})


def by_name(content: bytes) -> dict[bytes, bytes]:
    """The entries of a `packed-refs` file: name -> its line, without the peeled one."""
    found = {}
    for line in content.splitlines(keepends=True):
        if line[:1] not in (b"#", b"^"):
            found[line.partition(b" ")[2].rstrip(b"\n")] = line
    return found


def from_names(entries: dict[bytes, bytes]) -> bytes:
    """A `packed-refs` file of entries as `by_name` gives them."""
    return _UNPEELED + b"".join(line for _, line in sorted(entries.items()))


def watched(git_dir: str, common_dir: str, directories: list[str]) -> list[str]:
    """The files and directories that change whenever HEAD or a shown ref does.

    Renaming is how git replaces a ref, which changes its directory; so directories stand for the files in them.
    """
    return [f"{git_dir}/HEAD", f"{common_dir}/packed-refs", *directories]


def pin(common_dir: str, ref: str, oid: str) -> None:
    """Sets a ref of Paddock's own in a trusted repository as git would, with its lock.

    Only the holder of the worktree's lock comes here, so a lock that stays was left behind by one that was killed; git
    itself holds one for moments, when it packs refs.
    """
    path = f"{common_dir}/{ref}"
    if _content(path) == oid:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fd = os.open(f"{path}.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            break
        except FileExistsError:
            if time.monotonic() > deadline:
                os.unlink(f"{path}.lock")
            time.sleep(0.02)
    try:
        try:
            os.write(fd, oid.encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(f"{path}.lock", path)
    except BaseException:
        os.unlink(f"{path}.lock")
        raise


def _content(path: str) -> str:
    return os.fsdecode(_bytes(path, 4096)).rstrip()


def _bytes(path: str, limit: int = 1 << 30) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            content = b""
            while len(content) < limit and (block := file.read(limit - len(content))):
                content += block
            return content
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""
    except PermissionError as error:
        raise Refusal("git-refs-unreadable", f"{path} cannot be read", context=f"{error.strerror}: chmod u+r") from None
