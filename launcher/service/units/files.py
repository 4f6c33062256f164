"""Unit files on disk: what state each is in; writing and removing them without losing what people changed."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from launcher.service.units import templates
from launcher.service.units.templates import Rendered
from policy.errors import Refusal


class State(Enum):
    """How a file stands to what this version of Paddock would write."""

    MISSING = "missing"
    CURRENT = "current"
    OUTDATED = "outdated"  # ours as it was written, by another version or for another place of the command
    EDITED = "edited"
    FOREIGN = "foreign"  # not ours at all
    MASKED = "masked"  # a link to /dev/null: somebody wants it off (systemctl mask)


KEPT = (State.EDITED, State.FOREIGN, State.MASKED)
"""What is never overwritten nor removed."""


@dataclass(frozen=True)
class File:
    """One file and its state."""

    rendered: Rendered
    state: State

    @property
    def path(self) -> Path:
        """Where it is, or belongs."""
        return self.rendered.path


def look(files: list[Rendered]) -> list[File]:
    """The state of each file.

    Raises:
        Refusal: service-unreadable.
    """
    return [File(rendered, _state(rendered)) for rendered in files]


def _state(rendered: Rendered) -> State:
    path = rendered.path
    try:
        if path.is_symlink():
            return State.MASKED if os.path.realpath(path) == "/dev/null" else State.FOREIGN
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return State.MISSING
    except UnicodeDecodeError:
        return State.FOREIGN
    except OSError as error:
        raise _unusable("read", path, error) from None
    if content == rendered.content:
        return State.CURRENT
    known = templates.untouched(content)
    if known is None:
        return State.FOREIGN
    return State.OUTDATED if known else State.EDITED


def refuse_kept(files: list[File], edit: str) -> None:
    """Refuses when a file that people have changed stands where one of ours belongs.

    Args:
        files: as they were found.
        edit: the command line that makes a drop-in, for the hint.

    Raises:
        Refusal: service-edited.
    """
    kept = [file for file in files if file.state in KEPT]
    if kept:
        raise Refusal(
            "service-edited",
            "files that did not come from Paddock as they are would be overwritten",
            context="\n".join(f"{file.path}: {file.state.value}" for file in kept),
            hint=f"move what you changed into a drop-in ({edit}), remove the file, and install again",
        )


def write(file: File) -> None:
    """Puts a file in place, readable by all, atomically.

    Raises:
        Refusal: service-unwritable.
    """
    path = file.path
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as stream:
                stream.write(file.rendered.content)
                os.fchmod(stream.fileno(), 0o644)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise _unusable("write", path, error) from None


def remove(file: File) -> None:
    """Removes a file of ours.

    Raises:
        Refusal: service-unwritable.
    """
    assert file.state not in KEPT
    try:
        file.path.unlink(missing_ok=True)
    except OSError as error:
        raise _unusable("remove", file.path, error) from None


def _unusable(what: str, path: Path, error: OSError) -> Refusal:
    return Refusal(
        "service-unreadable" if what == "read" else "service-unwritable",
        f"cannot {what} {path}",
        context=error.strerror or str(error),
        hint="`--system` takes root (sudo paddock service ...); `--user` does not",
    )


# Whether an installation is fit to be started by the system's service manager.
#
# A unit of the system names a programme that root starts (`paddock-audit.service`) and that starts for every user.
# If an ordinary user could change that programme, or a directory on the way to it, the unit would hand him root.


_MOST_SHOWN = 5


def check_trusted(command: Path) -> None:
    """Refuses an installation that somebody else than root can change, or that others cannot execute.

    Args:
        command: absolute path of the `paddock` command, in the environment's `bin`.

    Raises:
        Refusal: service-not-trusted, service-not-reachable.
    """
    prefix = command.parent.parent
    # What the environment imports from, an editable installation's sources included.
    imported = [Path(entry) for entry in sys.path if os.path.exists(entry)]
    found = [*_changeable(_ways(command, Path(sys.executable), Path(sys.base_prefix), *imported))]
    found += _changeable(_below(prefix))
    if found:
        raise Refusal(
            "service-not-trusted",
            "root must not start a Paddock that others can change",
            context="\n".join([*dict.fromkeys(found[:_MOST_SHOWN]),
                               *([f"and {len(found) - _MOST_SHOWN} more"] if len(found) > _MOST_SHOWN else [])]),
            hint="install it as root where only root writes (sudo pipx install --global paddock-launcher), "
            "or use your own manager: paddock service install --user",
        )  # fmt: skip
    closed = [str(path) for path in _ways(command) if path.is_dir() and not path.stat().st_mode & stat.S_IXOTH]
    if closed:
        raise Refusal(
            "service-not-reachable",
            "the users whose service this is cannot execute it",
            context=f"{closed[0]} cannot be entered by everybody",
            hint="install it where they can (sudo pipx install --global paddock-launcher)",
        )


def _ways(*paths: Path) -> Iterator[Path]:
    """Each path and every directory above it, links resolved."""
    seen: set[Path] = set()
    for path in paths:
        real = path.resolve()
        for step in (real, *real.parents):
            if step not in seen:
                seen.add(step)
                yield step


def _below(prefix: Path) -> Iterator[Path]:
    """Everything in an environment."""
    for directory, names, files in os.walk(prefix):
        yield from (Path(directory, name) for name in (*names, *files))


def _changeable(paths: Iterator[Path]) -> Iterator[str]:
    """Words for those that not only root can change; a sticky directory lets nobody replace what is root's."""
    for path in paths:
        found = path.lstat()
        if found.st_uid != 0:
            yield f"{path} belongs to user {found.st_uid}"
        elif stat.S_ISLNK(found.st_mode):
            continue  # what it leads to is looked at itself
        elif found.st_mode & 0o022 and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
            yield f"{path} has mode {stat.S_IMODE(found.st_mode):04o}"
