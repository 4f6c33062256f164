"""The text of the units, as they belong on this machine.

They lie in `systemd/` of the sources and in `launcher/systemd/` of an installation, with `@PADDOCK@` where the absolute
path of the command goes. The last line of a rendered file is a digest of the others: so a file that somebody edited is
told from one that an earlier version wrote.
"""

import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from policy.errors import Refusal

PLACEHOLDER = "@PADDOCK@"
MARK = "# written by `paddock service install`; sha256 of the lines above: "


class Scope(Enum):
    """Whose service manager."""

    SYSTEM = "system"
    USER = "user"


UNITS = {
    Scope.SYSTEM: ("paddock@.service", "paddock@.socket", "paddock-audit.service", "paddock.slice"),
    Scope.USER: ("paddock.service", "paddock.socket"),
}
TEMPORARY_FILES = "paddock.conf"
"""Of tmpfiles.d(5), for the whole machine."""


@dataclass(frozen=True)
class Rendered:
    """One file as it is to be.

    Args:
        path: where it belongs.
        content: its whole text, the last line included.
    """

    path: Path
    content: str


def sources() -> Path:
    """The directory that holds the units' text.

    Raises:
        Refusal: service-units-missing.
    """
    package = Path(__file__).resolve().parents[2]
    for directory in (package / "systemd", package.parent / "systemd"):
        if (directory / "system/paddock@.service").is_file():
            return directory
    raise Refusal(
        "service-units-missing",
        "this installation has no systemd units",
        context=f"they should lie in {package / 'systemd'}",
        hint="install it again: pipx install --force paddock-launcher",
    )


def render(scope: Scope, command: Path, units: Path, temporary_files: Path) -> list[Rendered]:
    """All files of a scope.

    Args:
        scope: whose manager.
        command: absolute path of the `paddock` command.
        units: directory for units.
        temporary_files: directory for tmpfiles.d(5); only the system's scope uses it.
    """
    directory = sources()
    files = [(units / name, directory / scope.value / name) for name in UNITS[scope]]
    if scope is Scope.SYSTEM:
        files.append((temporary_files / TEMPORARY_FILES, directory / "tmpfiles.d" / TEMPORARY_FILES))
    # Comments name the placeholder too, and would be odd with a path in its place.
    lines = [(path, source.read_text(encoding="utf-8").splitlines()) for path, source in files]
    word = quoted(command)
    return [
        Rendered(path, sealed("\n".join(line if line.startswith("#") else line.replace(PLACEHOLDER, word)
                                        for line in text) + "\n"))
        for path, text in lines
    ]  # fmt: skip


def quoted(path: Path) -> str:
    """A path as the first word of ExecStart= (systemd.service(5), systemd.syntax(7)).

    Raises:
        Refusal: service-path: it cannot be written there.
    """
    text = str(path)
    if not text.startswith("/") or not text.isprintable():
        raise Refusal(
            "service-path",
            "a unit cannot name the place where Paddock is installed",
            context=f"{text!r} is not absolute, or holds characters that cannot be printed",
            hint="install it elsewhere",
        )
    text = text.replace("%", "%%")
    if not any(char in text for char in " \"'\\;"):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def sealed(text: str) -> str:
    """`text` with its digest as the last line."""
    return f"{text}{MARK}{_digest(text)}\n"


def untouched(content: str) -> bool | None:
    """Whether `content` is just what was written; None when it does not come from here."""
    text, mark, digest = content.rpartition(MARK)
    return digest.strip() == _digest(text) if mark else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
