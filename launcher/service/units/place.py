"""Where the units of a scope belong on this machine, and which command they start."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.service.units.templates import Scope
from launcher.session import places
from policy.errors import Refusal


@dataclass(frozen=True)
class Place:
    """Directories for one scope's files.

    Args:
        scope: whose manager.
        units: for units: the administrator's, or the user's own (systemd.unit(5)).
        temporary_files: for tmpfiles.d(5).
    """

    scope: Scope
    units: Path
    temporary_files: Path


def scope_of(*, system: bool, user: bool) -> Scope:
    """The scope that was asked for; without a word root means the system and everybody else himself.

    Raises:
        Refusal: usage.
    """
    if system and user:
        raise Refusal("usage", "--system and --user exclude each other", hint="paddock service --help")
    return Scope.SYSTEM if system or (not user and os.geteuid() == 0) else Scope.USER


def place_for(scope: Scope, root: str | None) -> Place:
    """The directories, below `root` where one is given."""
    base = Path(root).absolute() if root is not None else Path("/")
    if scope is Scope.SYSTEM:
        units = base / "etc/systemd/system"
    else:
        # Beside Paddock's own: .../paddock is below the same XDG_CONFIG_HOME.
        own = Path(places.places(os.environ).config).parent / "systemd/user"
        units = base / own.relative_to("/")
    return Place(scope, units, base / "etc/tmpfiles.d")


def command() -> Path:
    """The absolute path of the installed `paddock`, as units start it.

    Raises:
        Refusal: service-not-installed.
    """
    path = Path(sys.executable).parent / "paddock"
    if not os.access(path, os.X_OK):
        raise Refusal(
            "service-not-installed",
            "this Paddock is not installed, so that no unit could start it",
            context=f"{path} is missing",
            hint="install it in an environment of its own: pipx install paddock-launcher",
        )
    return path


def edit_line(scope: Scope) -> str:
    """The command line that makes a drop-in."""
    return "systemctl edit paddock@USER.service" if scope is Scope.SYSTEM else "systemctl --user edit paddock.service"
