"""The file behind `--report`, opened before the command starts.

The command may be able to rename directories on the way to it; what was opened before cannot be moved under our feet.
Launch path: `os`.
"""

from launcher.lean import os
from policy.errors import Refusal


class Target:
    """A file to be written once, atomically, in a directory that is held open. Owns the directory's descriptor.

    Args:
        path: of the file; it need not exist. Anything but a regular file is refused: root would replace /dev/null.

    Raises:
        Refusal: report-unwritable.
    """

    __slots__ = ("_directory", "_name", "_path")

    def __init__(self, path: str) -> None:
        """See the class."""
        self._path = path
        directory, self._name = os.path.split(path)
        self._check_kind()
        try:
            self._directory = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._refusal(error) from None
        # Tried now: a report that cannot be written must not come out after an hour's work.
        trial = _temporary_name()
        try:
            os.close(self._created(trial))
            os.unlink(trial, dir_fd=self._directory)
        except OSError as error:
            os.close(self._directory)
            raise self._refusal(error) from None

    def _check_kind(self) -> None:
        try:
            kind = os.lstat(self._path).st_mode & 0o170000
        except FileNotFoundError:
            kind = 0o100000
        except (OSError, ValueError) as error:
            raise self._refusal(error) from None
        if self._name in ("", ".", "..") or kind == 0o040000:
            raise self._refusal("it is a directory")
        if kind == 0o120000:
            raise self._refusal("it is a symbolic link; name the file that it leads to")
        if kind != 0o100000:
            raise self._refusal("it is no regular file")

    def _created(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, 0o644, dir_fd=self._directory)

    def write(self, text: str) -> None:
        """Writes the file, replacing what was there only once it is complete, and lets go of the directory."""
        temporary = _temporary_name()
        try:
            descriptor = self._created(temporary)
            try:
                with os.fdopen(descriptor, "w", encoding="ascii") as file:
                    file.write(text)
                os.replace(temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            except OSError:
                os.unlink(temporary, dir_fd=self._directory)
                raise
        except OSError as error:
            raise self._refusal(error) from None
        finally:
            os.close(self._directory)

    def _refusal(self, why: str | OSError | ValueError) -> Refusal:
        reason = (isinstance(why, OSError) and why.strerror) or str(why)
        return Refusal(
            "report-unwritable",
            f"cannot write the report {self._path}",
            context=reason,
            hint="name a regular file, or none yet, in a directory that you can write",
        )


def _temporary_name() -> str:
    # Not made from the report's own name, which may be as long as a name can be.
    return f".paddock-report-{os.urandom(6).hex()}"
