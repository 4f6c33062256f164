"""What a Plan was made from, in a form that can be checked again in microseconds.

An input is ``(kind, subject, answer)``; `unchanged` asks every question once more and compares. Launch path: `os`.
"""

import marshal

from launcher.jail import syscalls
from launcher.lean import os
from launcher.safefs import walk
from launcher.session import submodule_places

Input = tuple[str, str, object]

PRESENT = "some"  # subject: directory, names, suffixes (see `packed`); answer: the sorted entries that are asked for
ENVIRONMENT = "env"  # subject: a variable's name; answer: its value or None
NAMED = "says"  # subject: a variable, NUL, a text; answer: whether its value holds the text; None where it is empty
LOCATIONS = (
    "urls"  # subject: a variable's name with at most one `*`; answer: names and values, see `without_credentials`
)
IDENTITY = "id"  # subject: a path; answer: device, inode, mode, owner of the entry itself (lstat) and of its target
DIRECTORY = "born"  # subject: a path; answer: `syscalls.identity`: which directory it is, whoever has its inode next
CONTENT = "stat"  # as IDENTITY, and size, mtime, ctime: changes with a file's content and a directory's entries
TEXT = "text"  # subject: a small file of /proc, whose stat says nothing; answer: its first bytes
POINTER = "git"  # subject: a `.git` file; answer: its content, whichever file it is: it is replaced and put back again
IMPLIED = "dir"  # subject: a directory; answer: what CONTENT gives for it, and inputs (marshalled) that hold as long
LINKS = "links"  # subject: a git directory; answer: its index's CONTENT (None: do not go by it), its gitlinks
RESOLVED = "real"  # subject: a path; answer: its canonical form with device and inode there, or None


def ask(kind: str, subject: str, environ: "os._Environ[str] | dict[str, str]") -> object:
    """The answer to one question, as plain data that `marshal` can keep. Absence is an answer too (None)."""
    if kind == ENVIRONMENT:
        return environ.get(subject)
    if kind == NAMED:
        name, _, text = subject.partition("\0")
        return text in value if (value := environ.get(name)) else None
    if kind == LOCATIONS:
        head, star, tail = subject.partition("*")
        names = [subject] if not star else sorted(
            name for name in environ
            if len(name) > len(head + tail) and name.startswith(head) and name.endswith(tail)
        )  # fmt: skip
        return tuple((name, without_credentials(environ[name])) for name in names if name in environ)
    if kind == DIRECTORY:
        return syscalls.identity(subject)
    try:
        if kind == CONTENT:
            return content_of(os.stat(subject))
        if kind == IDENTITY:
            found = os.lstat(subject)
            if found.st_mode & 0o170000 != 0o120000:
                return (found.st_dev, found.st_ino, found.st_mode, found.st_uid)
            return (found.st_dev, found.st_ino, os.readlink(subject))
        if kind == PRESENT:
            directory, names, suffixes = (part.split("/") for part in subject.split("\0"))
            wanted, endings = frozenset(names), tuple(suffix for suffix in suffixes if suffix)
            entries = os.listdir("/".join(directory))
            return tuple(sorted(entry for entry in entries if entry in wanted or (endings and entry.endswith(endings))))
        if kind == POINTER:
            return walk.read_regular(subject, 8192)
        if kind == TEXT:
            descriptor = os.open(subject, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(descriptor, 256)
            finally:
                os.close(descriptor)
    except (OSError, ValueError):
        return None
    raise ValueError(kind)


def without_credentials(text: str) -> str:
    """`text` with its URLs' credentials cut out; their ``@`` stays. A word that could be read in two ways is ``@``."""
    words = text.split()
    for at, word in enumerate(words):
        head, *parts = word.split("://")
        plain = "@" not in head
        for index, part in enumerate(parts):
            end = min((part.index(char) for char in "/?#" if char in part), default=len(part))
            _, mark, host = part[:end].rpartition("@")
            parts[index] = mark + host + part[end:]
            port = host.replace("|", ",").partition(",")[0].rpartition("]")[2].partition(":")[2]
            plain = plain and "@" not in part[end:] and (not port or port.isdigit())
        words[at] = "://".join((head, *parts)) if plain else "@"
    return " ".join(words)


def content_of(found: "os.stat_result") -> tuple[int, ...]:
    """The answer to CONTENT, from the status of what a path leads to."""
    return (found.st_dev, found.st_ino, found.st_mode, found.st_uid,
            found.st_size, found.st_mtime_ns, found.st_ctime_ns)  # fmt: skip


def packed(directory: str, names: tuple[str, ...], suffixes: tuple[str, ...]) -> str:
    """The subject of a PRESENT question. Neither NUL nor, in names, a slash can be part of a file's name."""
    return "\0".join((directory, "/".join(names), "/".join(suffixes)))


def resolved(path: str) -> str | None:
    """The kernel's own resolution of `path` (all symbolic links), or None when it cannot be reached.

    Three system calls, instead of the walk that `os.path.realpath` makes.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return name_of(descriptor)
    finally:
        os.close(descriptor)


def name_of(descriptor: int) -> str | None:
    """The canonical path of what is open, or None when it has none."""
    try:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return name if name.startswith("/") and not name.endswith(" (deleted)") else None


def unchanged(recorded: tuple[Input, ...], environ: "os._Environ[str] | dict[str, str]") -> bool:
    """Whether every recorded answer would still be given.

    For a resolved path it is enough that it leads to the same inode, and that the directories above its canonical
    name are the same ones (`Machine.recorded` adds them once for all): one system call instead of four. Without the
    directories a denied path could be renamed, a link left in its place, and the exception would hold for nothing.
    """
    stat, lstat = os.stat, os.lstat
    for kind, subject, answer in recorded:
        if kind == CONTENT and answer is not None:
            # The most frequent one, in place: a call of `ask` takes as long as the kernel's answer.
            try:
                found = stat(subject)
            except (OSError, ValueError):
                return False
            if answer != (found.st_dev, found.st_ino, found.st_mode, found.st_uid,
                          found.st_size, found.st_mtime_ns, found.st_ctime_ns):  # fmt: skip
                return False
        elif kind == IDENTITY and isinstance(answer, tuple) and len(answer) == 4:
            try:
                found = lstat(subject)
            except (OSError, ValueError):
                return False
            # What is no link now, and has the same inode and mode, was none then.
            if answer != (found.st_dev, found.st_ino, found.st_mode, found.st_uid):
                return False
        elif kind == RESOLVED:
            try:
                found = (lstat if isinstance(answer, tuple) and answer[0] == subject else stat)(subject)
            except (OSError, ValueError):
                if answer is None:
                    continue
                return False
            if not isinstance(answer, tuple) or found.st_ino != answer[2] or found.st_dev != answer[1]:
                return False
        elif kind == IMPLIED:
            # As `session.machine` made it: the mark, and the inputs as bytes, which are seldom needed.
            if not isinstance(answer, tuple) or (
                ask(CONTENT, subject, environ) != answer[0] and not unchanged(marshal.loads(answer[1]), environ)
            ):
                return False
        elif kind == LINKS:
            # As `Machine.gitlinks` made it. An index is read only when it is another one than it was.
            if not isinstance(answer, tuple) or (
                (answer[0] is None or ask(CONTENT, f"{subject}/index", environ) != answer[0])
                and tuple(submodule_places.named(subject)) != answer[1]
            ):
                return False
        elif ask(kind, subject, environ) != answer:
            return False
    return True
