"""Files and directories that others may have prepared: read once and whole, replaced in one step.

A name in a worktree can be a symbolic link, a FIFO that never answers, a device, or a file without end. Everything
here acts on one open descriptor, so what was checked is what is used.
"""

import errno
import fcntl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from launcher.lean import os
from launcher.safefs import walk
from launcher.safefs.remove import remove_tree, widen
from policy.errors import Refusal, unusable

CONFIG_LIMIT = 256 << 10
"""Bytes: the largest configuration file."""


class Content(NamedTuple):
    """The bytes of a file, with the owner and mode that held while they were read."""

    data: bytes
    owner: int
    mode: int


def read(path: str, *, follow: bool, limit: int = CONFIG_LIMIT) -> Content | None:
    """A regular file's content; None when there is no such file.

    Args:
        follow: whether `path` itself may be a symbolic link.

    Refusals: config-symlink, config-not-a-file, config-too-large, config-unreadable.
    """
    try:
        descriptor = walk.open_regular(path, follow=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if descriptor is None:
        raise Refusal("config-not-a-file", f"{path} is not a regular file")
    try:
        found = os.fstat(descriptor)
        data = walk.read_up_to(descriptor, limit)
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(descriptor)
    if data is None:
        raise Refusal("config-too-large", f"{path} is larger than {limit >> 10} KiB")
    return Content(data, found.st_uid, stat.S_IMODE(found.st_mode))


def read_private(path: str, *, limit: int, hint: str) -> bytes | None:
    """What Paddock has written for this user alone; None when there is no such file.

    Args:
        hint: what to do once a file that is not this user's alone has been removed.

    Refusals: state-not-ours, and those of `read`.
    """
    content = read(path, follow=False, limit=limit)
    if content is not None and (content.owner != os.geteuid() or content.mode & 0o077):
        raise Refusal(
            "state-not-ours",
            f"{path} is not a private file of this user",
            context=f"owner {content.owner}, mode {content.mode:04o}; expected owner {os.geteuid()}, mode 0600",
            hint=f"remove it, then {hint}",
        )
    return None if content is None else content.data


def _unreadable(path: str, error: OSError | ValueError) -> Refusal:
    if os.path.islink(path):
        try:
            target = os.readlink(path)
        except OSError:
            target = "somewhere else"
        return Refusal(
            "config-symlink",
            f"{path} is a symbolic link",
            context=f"it points to {target}; anyone who can write the directory could point it elsewhere",
            hint="replace it with a regular file",
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Refusal("config-unreadable", f"{path} cannot be read", context=reason)


@contextmanager
def locked_directory(path: str) -> Iterator[int]:
    """A directory, under flock(2) until the block ends (OSError)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def locked_file(path: str) -> Iterator[None]:
    """Waits for flock(2) on a file of Paddock's own, made where it is missing, and holds it until the block ends.

    Refusals: state-unusable.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise unusable(path, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# Files of a git directory that an agent may have written, read and replaced without following a link.
#
# Any name there can be a symbolic link, a FIFO that never answers, or a file without end. So everything is opened
# below one descriptor without following a link, must be a regular file, is read up to a bound, and is replaced by
# renaming.

MOST_BYTES = 1 << 30
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Inside:
    """A directory whose content an agent may have written. A context manager; `close` it otherwise."""

    __slots__ = ("_fd", "path")

    def __init__(self, tree: str, inside: str = "") -> None:
        """Opens a directory.

        Args:
            tree: canonical; a link that leads to it, which a session may have made meanwhile, is an error.
            inside: relative path below it; "" for `tree` itself.

        Raises:
            OSError: there is no such directory.
        """
        self.path = f"{tree}/{inside}" if inside else tree
        top = walk.open_canonical(tree, _DIRECTORY)
        if not inside:
            self._fd = top
            return
        try:
            self._fd = walk.open_inside(top, inside, _DIRECTORY)
        finally:
            os.close(top)

    def __enter__(self) -> "Inside":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the directory."""
        os.close(self._fd)

    def opened(self, path: str) -> int | None:
        """A descriptor for reading the regular file `path`, for the caller to close; None when there is none."""
        try:
            return walk.reopened(walk.open_inside(self._fd, path, os.O_PATH))
        except OSError as error:
            if error.errno in walk.ABSENT:
                return None
            raise

    def read(self, path: str, limit: int = MOST_BYTES) -> bytes | None:
        """Content of the regular file `path`; None when there is none, or it holds more than `limit` bytes."""
        fd = self.opened(path)
        if fd is None:
            return None
        try:
            return walk.read_up_to(fd, limit)
        finally:
            os.close(fd)

    def is_directory(self, path: str) -> bool:
        """Whether `path` is a directory that can be reached without any link."""
        try:
            os.close(walk.open_inside(self._fd, path, _DIRECTORY))
        except OSError as error:
            if error.errno in walk.ABSENT:
                return False
            raise
        return True

    def names(self) -> list[str]:
        """Names of all that is in it (OSError)."""
        return os.listdir(self._fd)

    def is_closed(self, path: str) -> bool:
        """Whether `path` is a directory in which this process can make or remove no name (mode, mount, attributes)."""
        try:
            fd = walk.open_inside(self._fd, path or ".", os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            if error.errno in walk.ABSENT:
                return False
            raise
        try:
            return not os.access(f"/proc/self/fd/{fd}", os.W_OK | os.X_OK, effective_ids=True)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        """Whether there is anything of that name, whatever it is."""
        return self.kind(path) is not None

    def kind(self, path: str) -> int | None:
        """The type of what has that name (`stat.S_IFMT`); None when nothing has, or a link is on the way there."""
        found = self.status(path)
        return None if found is None else found.st_mode & 0o170000

    def size(self, path: str) -> int | None:
        """The bytes of what has that name; None as for `kind`."""
        found = self.status(path)
        return None if found is None else found.st_size

    def link(self, path: str) -> str | None:
        """The text of the symbolic link `path`; None when there is none."""
        fd = self._entry(path)
        if fd is None:
            return None
        try:
            return os.readlink("", dir_fd=fd)
        except FileNotFoundError:  # readlink(2) of what is no link
            return None
        finally:
            os.close(fd)

    def status(self, path: str) -> os.stat_result | None:
        """lstat(2) of what has that name; None as for `kind`."""
        fd = self._entry(path)
        if fd is None:
            return None
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def _entry(self, path: str) -> int | None:
        """An O_PATH descriptor of what has that name, a link itself, for the caller to close."""
        try:
            return walk.open_inside(self._fd, path, os.O_PATH | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in walk.ABSENT:
                return None
            raise

    def write(self, path: str, content: bytes, *, mode: int | None = 0o600, time: int | None = None) -> None:
        """Replaces the file `path`, making the directories above it. What stands in the way is renamed.

        An agent that could stop this with a link in place of a directory would stop every later session here.

        Args:
            mode: permission bits; None for what the umask leaves.
            time: of its last change, in nanoseconds; None for now.

        Raises:
            OSError: the disk is full, or the agent is at work at the same time.
        """
        directory, name = self._above(path)
        try:
            try:
                walk.put(directory, name, content, mode=mode, time=time, lasting=False)
            except IsADirectoryError:
                _put_aside(name, directory)
                walk.put(directory, name, content, mode=mode, time=time, lasting=False)
        finally:
            os.close(directory)

    def remove(self, path: str) -> None:
        """Removes the file or link `path`, if there is one (OSError for a directory)."""
        head, _, name = path.rpartition("/")
        try:
            directory = walk.open_inside(self._fd, head or ".", _DIRECTORY)
        except OSError as error:
            if error.errno in walk.ABSENT:
                return
            raise
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        finally:
            os.close(directory)

    def clear(self, path: str) -> None:
        """Frees the name `path`, whatever has it and whatever mode the directory around it has.

        A directory with content is renamed to the top, which takes no longer for a million files than for one.

        Raises:
            OSError: the name is not free.
        """
        head, _, name = path.rpartition("/")
        holder = walk.open_inside(self._fd, head or ".", os.O_PATH | os.O_DIRECTORY)
        try:
            widen(holder)
            try:
                os.unlink(name, dir_fd=holder)
            except IsADirectoryError:
                entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=holder)
                try:
                    widen(entry)  # renaming it changes what `..` is in it
                finally:
                    os.close(entry)
                try:
                    os.rmdir(name, dir_fd=holder)
                except OSError:
                    aside = f"{name[:100]}.replaced-{os.urandom(5).hex()}"
                    os.rename(name, aside, src_dir_fd=holder, dst_dir_fd=self._fd)
        except FileNotFoundError:
            return
        finally:
            os.close(holder)

    def free(self, path: str, kind: int, *, move: bool = True) -> str:
        """Frees the way to `path`, whatever modes the directories on it have: what is in the way goes to the top.

        Args:
            kind: what may be at `path` itself (`stat.S_IFMT`); 0 for nothing.
            move: else what is in the way is an error.

        Returns:
            What it is called there; "" where nothing was in the way.

        Raises:
            OSError: the way is not free.
        """
        here = os.dup(self._fd)
        names = path.split("/")
        try:
            for left, name in enumerate(names, 1 - len(names)):
                widen(here)
                try:
                    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                except FileNotFoundError:
                    return ""
                above, here = here, entry
                try:
                    found = stat.S_IFMT(os.fstat(here).st_mode)
                    if found == (stat.S_IFDIR if left else kind):
                        continue
                    if not move:
                        raise FileExistsError(errno.EEXIST, "something else is there, and another session is live")
                    if found == stat.S_IFDIR:
                        widen(here)  # renaming it changes what `..` is in it
                    aside = f"{name[:100]}.replaced-{os.urandom(5).hex()}"
                    os.rename(name, aside, src_dir_fd=above, dst_dir_fd=self._fd)
                    return aside
                finally:
                    os.close(above)
            return ""
        finally:
            os.close(here)

    def move(self, path: str, target: str) -> None:
        """Renames `path`, whatever it is, to the free name `target` (OSError)."""
        source, name = self._above(path)
        try:
            directory, new = self._above(target)
            try:
                os.rename(name, new, src_dir_fd=source, dst_dir_fd=directory)
            finally:
                os.close(directory)
        finally:
            os.close(source)

    def create(self, path: str, content: bytes, *, mode: int = 0o666, time: int | None = None) -> None:
        """Makes the file `path`, as open(2) does for the user. OSError where anything has that name."""
        with self._holder(path) as directory:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(os.path.basename(path), flags, mode, dir_fd=directory), "wb") as file:
                file.write(content)
                if time is not None:
                    file.flush()
                    os.utime(file.fileno(), ns=(time, time))

    def create_directory(self, path: str) -> None:
        """Makes the directory `path`, as mkdir(2) does for the user. OSError where anything has that name."""
        with self._holder(path) as directory:
            os.mkdir(os.path.basename(path), dir_fd=directory)

    def link_to(self, path: str, text: str) -> None:
        """Makes the symbolic link `path`, and the directories above it. OSError where anything has that name."""
        directory, name = self._above(path)
        try:
            os.symlink(text, name, dir_fd=directory)
        finally:
            os.close(directory)

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory (OSError)."""
        with self._holder(path) as directory:
            os.rmdir(os.path.basename(path), dir_fd=directory)

    def remove_tree(self, name: str) -> list[str]:
        """Removes `name` and all below it; see `launcher.safefs.remove`."""
        return remove_tree(f"{self.path}/{name}", parent=self._fd)

    def make(self, path: str, *, mode: int = 0o700) -> None:
        """Makes the directory `path` and those above it, where they are missing (OSError)."""
        os.close(self._above(f"{path}/.", mode)[0])

    @contextmanager
    def _holder(self, path: str) -> Iterator[int]:
        directory = walk.open_inside(self._fd, os.path.dirname(path) or ".", _DIRECTORY)
        try:
            yield directory
        finally:
            os.close(directory)

    def _above(self, path: str, mode: int = 0o700) -> tuple[int, str]:
        """The directory that holds `path`, made when it is missing: (descriptor for the caller to close, name)."""
        *parents, name = path.split("/")
        directory = os.dup(self._fd)
        for parent in parents:
            try:
                try:
                    inner = os.open(parent, _DIRECTORY, dir_fd=directory)
                except (FileNotFoundError, NotADirectoryError) as error:  # Linux says the latter of a link, too
                    if isinstance(error, NotADirectoryError):
                        _put_aside(parent, directory)
                    os.mkdir(parent, mode, dir_fd=directory)
                    inner = os.open(parent, _DIRECTORY, dir_fd=directory)
            finally:
                os.close(directory)
            directory = inner
        return directory, name


def _put_aside(name: str, directory: int) -> None:
    """Renames what has a needed name, in the same directory: it is the agent's, who can find it there."""
    os.rename(name, f"{name[:100]}.replaced-{os.urandom(5).hex()}", src_dir_fd=directory, dst_dir_fd=directory)
