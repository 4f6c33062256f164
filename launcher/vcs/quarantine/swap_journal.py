"""What the `.git` files of a worktree were before `swap` made them lead elsewhere: written down until they are back.

Launch path of jails without mounts: `os`.
"""

from launcher.lean import os
from launcher.vcs.quarantine.record import SWAPPED_NOW, replace_file
from policy.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MAGIC = b"paddock-swap 1"
_END = b"end"
_FIELDS = 9


class Entry:
    """One `.git` file. Immutable by custom.

    Attributes:
        path: the directory that holds it, canonical.
        git_dir: the trusted git directory that it leads to.
        content: of the file.
        mode: of the file: permission bits.
        owner: user and group.
        time: of its last change, in nanoseconds.
        mark: what told this very file from any other; see `_mark`.
        swapped: what is written in its place.
    """

    __slots__ = ("content", "git_dir", "mark", "mode", "owner", "path", "swapped", "time")

    def __init__(
        self,
        path: str,
        git_dir: str,
        content: bytes,
        mode: int,
        owner: tuple[int, int],
        time: int,
        mark: str,
        swapped: bytes,
    ) -> None:
        self.path = path
        self.git_dir = git_dir
        self.content = content
        self.mode = mode
        self.owner = owner
        self.time = time
        self.mark = mark
        self.swapped = swapped

    def moved(self, path: str) -> "Entry":
        """The same in another directory."""
        return Entry(path, self.git_dir, self.content, self.mode, self.owner, self.time, self.mark, self.swapped)


def is_there(directory: str) -> bool:
    """Whether anything is written down in the directory of a private git directory (`record`)."""
    return os.path.lexists(f"{directory}/{SWAPPED_NOW}")


def write(directory: str, serial: str, entries: "Iterable[Entry]") -> None:
    """Writes the entries down, synced. Neither a path nor a pointer holds a NUL, so that separates the fields.

    Args:
        directory: see `record`.
        serial: random, names temporary files.
        entries: the worktree's own first.

    Raises:
        OSError: it cannot be written.
    """
    words = [_MAGIC, serial.encode()]
    for entry in entries:
        words += [os.fsencode(entry.path), os.fsencode(entry.git_dir), entry.content, entry.swapped]
        words += [str(number).encode() for number in (entry.mode, *entry.owner, entry.time)]
        words.append(entry.mark.encode())
    replace_file(f"{directory}/{SWAPPED_NOW}", b"\0".join((*words, _END)))


def remove(directory: str) -> None:
    """Removes what is written down: all of it is back (OSError). Not synced: what is back may be put back once more."""
    try:
        os.unlink(f"{directory}/{SWAPPED_NOW}")
    except FileNotFoundError:
        return


def read(directory: str) -> tuple[str, tuple[Entry, ...]] | None:
    """What is written down: (serial, the entries); None when nothing is swapped.

    Raises:
        Refusal: swap-damaged.
    """
    path = f"{directory}/{SWAPPED_NOW}"
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise failed(directory, path, error) from None
    magic, *words = content.split(b"\0")
    if magic != _MAGIC or len(words) < 2 + _FIELDS or words[-1] != _END or (len(words) - 2) % _FIELDS:
        raise Refusal(
            "swap-damaged",
            f"{path} is not what Paddock writes",
            context="it says which git directories the .git files of a worktree belong to",
            hint="write them by hand (gitdir: PATH), or git worktree repair from the main checkout; then remove it",
        )
    entries = []
    for at in range(1, len(words) - 1, _FIELDS):
        where, git_dir, original, swapped, mode, uid, gid, time, mark = words[at : at + _FIELDS]
        entries.append(Entry(os.fsdecode(where), os.fsdecode(git_dir), original, int(mode), (int(uid), int(gid)),
                             int(time), mark.decode(), swapped))  # fmt: skip
    return words[0].decode(), tuple(entries)


def failed(directory: str, path: str, error: OSError) -> Refusal:
    """The Refusal for a `.git` entry that cannot be put back."""
    return Refusal(
        "dock-failed",
        f"{path} cannot be put right",
        context=error.strerror or str(error),
        hint=f"run no git there until it is: paddock worktree dock; {directory}/{SWAPPED_NOW} says what it was",
    )
