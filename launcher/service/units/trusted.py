"""Whether an installation is fit to be started by the system's service manager.

A unit of the system names a programme that root starts (`paddock-audit.service`) and that starts for every user. If an
ordinary user could change that programme, or a directory on the way to it, the unit would hand him root.
"""

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from policy.errors import Refusal

_MOST_SHOWN = 5


def check(command: Path) -> None:
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
