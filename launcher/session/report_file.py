"""The file behind `--report`, opened before the command starts.

The command may be able to rename directories on the way to it; what was opened before cannot be moved under our feet.
Launch path: `os`.
"""

import os

from policy.errors import Refusal


class Target:
    """A file to be written once, atomically, in a directory that is held open. Owns the directory's descriptor.

    Args:
        path: of the file; it need not exist.

    Raises:
        Refusal: report-unwritable.
    """

    __slots__ = ("_directory", "_name", "_path")

    def __init__(self, path: str) -> None:
        """See the class."""
        self._path = path
        directory, self._name = os.path.split(path)
        try:
            if self._name in ("", ".", "..") or os.path.isdir(path):
                raise IsADirectoryError(21, "it is a directory")
            self._directory = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # Tried now: a report that cannot be written must not come out after an hour's work.
            os.close(self._created(f".{self._name}.{os.getpid()}.try"))
            os.unlink(f".{self._name}.{os.getpid()}.try", dir_fd=self._directory)
        except OSError as error:
            raise self._refusal(error) from None

    def _created(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, 0o644, dir_fd=self._directory)

    def write(self, text: str) -> None:
        """Writes the file, replacing what was there only once it is complete, and lets go of the directory."""
        temporary = f".{self._name}.{os.urandom(5).hex()}"
        try:
            with os.fdopen(self._created(temporary), "w", encoding="ascii") as file:
                file.write(text)
            os.replace(temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError as error:
            raise self._refusal(error) from None
        finally:
            os.close(self._directory)

    def _refusal(self, error: OSError) -> Refusal:
        return Refusal(
            "report-unwritable", f"cannot write the report {self._path}", context=error.strerror or str(error)
        )
