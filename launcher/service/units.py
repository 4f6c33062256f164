"""Unit files on disk: what state each is in; writing and removing them without losing what people changed."""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from launcher.safefs import walk
from launcher.session import places
from policy.errors import Refusal, in_rows

# The text of the units, as they belong on this machine.
#
# They lie in `systemd/` of the sources and in `launcher/systemd/` of an installation, with `@PADDOCK@` where the
# absolute path of the command goes. The last line of a rendered file is a digest of the others: so a file that
# somebody edited is told from one that an earlier version wrote.

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
    """The content that one file should have."""

    path: Path
    content: str


def sources() -> Path:
    """The directory that holds the units' text.

    Refusals: service-units-missing.
    """
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "systemd", package.parent / "systemd"):
        if (directory / "system/paddock@.service").is_file():
            return directory
    raise Refusal(
        "service-units-missing",
        "this installation has no systemd units",
        context=f"they should be in {package / 'systemd'}",
        hint="install it again: pipx install --force paddock-launcher",
    )


def render(scope: Scope, command: Path, units: Path, temporary_files: Path) -> list[Rendered]:
    """All files of a scope.

    Args:
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

    Refusals: service-path: it cannot be written there.
    """
    text = str(path)
    if not text.startswith("/") or not text.isprintable():
        raise Refusal(
            "service-path",
            "a unit cannot name the path where Paddock is installed",
            context=f"{text!r} is not absolute, or has unprintable characters",
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

    Refusals: service-unreadable.
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
    known = untouched(content)
    if known is None:
        return State.FOREIGN
    return State.OUTDATED if known else State.EDITED


def refuse_kept(files: list[File], edit: str) -> None:
    """Refuses when a file that people have edited stands where Paddock would write one.

    Args:
        edit: the command line that makes a drop-in, for the hint.

    Refusals: service-edited.
    """
    kept = [file for file in files if file.state in KEPT]
    if kept:
        raise Refusal(
            "service-edited",
            "files that Paddock did not write would be overwritten",
            context=in_rows(*(f"{file.path}: {file.state.value}" for file in kept)),
            hint=f"move what you changed into a drop-in ({edit}), remove the file, and install again",
        )


def write(file: File) -> None:
    """Puts a file in place, readable by all, atomically.

    Refusals: service-unwritable.
    """
    path = file.path
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        walk.replace(str(path), file.rendered.content.encode(), mode=0o644)
    except OSError as error:
        raise _unusable("write", path, error) from None


def remove(file: File) -> None:
    """Removes one of Paddock's files.

    Refusals: service-unwritable.
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
        hint="`--system` needs root (sudo paddock service ...); `--user` does not",
    )


# Whether an installation is fit to be started by the system's service manager.
#
# A unit of the system names a programme that root starts (`paddock-audit.service`) and that starts for every user.
# If an ordinary user could change that programme, or a directory on the way to it, the unit would hand him root.


_MOST_SHOWN = 5


def check_trusted(command: Path) -> None:
    """Refuses an installation that anybody but root can change, or that others cannot execute.

    Args:
        command: absolute path of the `paddock` command, in the environment's `bin`.

    Refusals: service-not-trusted, service-not-reachable.
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
            context=in_rows(*dict.fromkeys(found[:_MOST_SHOWN]),
                         f"and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""),
            hint="install it as root where only root writes (sudo pipx install --global paddock-launcher), "
            "or use your own manager: paddock service install --user",
        )  # fmt: skip
    closed = [str(path) for path in _ways(command) if path.is_dir() and not path.stat().st_mode & stat.S_IXOTH]
    if closed:
        raise Refusal(
            "service-not-reachable",
            "the users of this service cannot execute it",
            context=f"{closed[0]} cannot be entered by everyone",
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
    for directory, names, files in os.walk(prefix):
        yield from (Path(directory, name) for name in (*names, *files))


def _changeable(paths: Iterator[Path]) -> Iterator[str]:
    """Names the paths that others than root can change; in a sticky directory nobody can replace root's files."""
    for path in paths:
        found = path.lstat()
        if found.st_uid != 0:
            yield f"{path} belongs to user {found.st_uid}"
        elif stat.S_ISLNK(found.st_mode):
            continue  # what it leads to is looked at itself
        elif found.st_mode & 0o022 and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
            yield f"{path} has mode {stat.S_IMODE(found.st_mode):04o}"


# Where the units of a scope belong on this machine, and which command they start.


PACKAGED = Path("/usr/lib/paddock/bin/paddock")
"""The command of the Debian package, which brings its units where packages do."""


@dataclass(frozen=True)
class Place:
    """Directories for one scope's files.

    Args:
        units: for units: the administrator's, or the user's own (systemd.unit(5)).
        temporary_files: for tmpfiles.d(5).
        packaged: they are a package's, which alone may change them.
    """

    scope: Scope
    units: Path
    temporary_files: Path
    packaged: bool = False


def scope_of(*, system: bool, user: bool) -> Scope:
    """The scope that was asked for; without a word root means the system and everybody else himself.

    Refusals: usage.
    """
    if system and user:
        raise Refusal("usage", "--system and --user exclude each other", hint="paddock service --help")
    return Scope.SYSTEM if system or (not user and os.geteuid() == 0) else Scope.USER


def place_for(scope: Scope, root: str | None) -> Place:
    """The directories, below `root` where one is given."""
    if root is None and Path(sys.executable).parent == PACKAGED.parent:
        return Place(scope, Path("/usr/lib/systemd", scope.value), Path("/usr/lib/tmpfiles.d"), packaged=True)
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

    Refusals: service-not-installed.
    """
    path = Path(sys.executable).parent / "paddock"
    if not os.access(path, os.X_OK):
        raise Refusal(
            "service-not-installed",
            "this Paddock is not installed, so no unit could start it",
            context=f"{path} is missing",
            hint="install it in an environment of its own: in a clone, pipx install .",
        )
    return path


def edit_line(scope: Scope) -> str:
    """The command line that makes a drop-in."""
    return "systemctl edit paddock@USER.service" if scope is Scope.SYSTEM else "systemctl --user edit paddock.service"


# systemctl(1) and systemd-tmpfiles(8), for one scope.

SHOWN = ("ActiveState", "SubState", "StatusText", "MainPID", "UnitFileState", "NRestarts")
_SECONDS = 120.0


class Manager:
    """A running service manager, spoken to by `systemctl`.

    Args:
        environment: of the caller: systemctl finds the bus and the user's runtime directory by it.
    """

    def __init__(self, scope: Scope, environment: Mapping[str, str], seconds: float = _SECONDS) -> None:
        self.scope = scope
        self._seconds = seconds
        self._environment = dict(environment)

    def runs(self) -> bool:
        """Whether there is one (sd_booted(3); a user's has a socket in the runtime directory)."""
        if not shutil.which("systemctl", path=self._environment.get("PATH")):
            return False
        if self.scope is Scope.SYSTEM:
            return os.path.isdir("/run/systemd/system")
        runtime = self._environment.get("XDG_RUNTIME_DIR", "")
        return runtime.startswith("/") and os.path.exists(f"{runtime}/systemd/private")

    def call(self, *words: str) -> str:
        """Runs ``systemctl WORDS`` and returns what it prints.

        Refusals: service-manager: it says no.
        """
        user = ("--user",) if self.scope is Scope.USER else ()
        return self._run("systemctl", *user, "--no-pager", "--no-ask-password", *words)

    def make_directories(self, configuration: str) -> None:
        """Makes at once what tmpfiles.d(5) makes at boot.

        Refusals: service-manager.
        """
        self._run("systemd-tmpfiles", "--create", configuration)

    def units(self, *patterns: str) -> dict[str, dict[str, str]]:
        """Unit names that match and are loaded -> their properties among `SHOWN`."""
        listed = self.call("list-units", "--all", "--plain", "--no-legend", *patterns)
        names = [line.split()[0] for line in listed.splitlines() if line.split() and " not-found " not in line]
        found = {}
        for name in names:
            shown = self.call("show", name, *(f"--property={key}" for key in SHOWN))
            found[name] = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        return found

    def failed(self, *names: str) -> list[str]:
        """The failed units that systemd does not restart by itself; [] when it cannot be asked."""
        try:
            shown = self.call("show", "--property=Id", "--property=ActiveState", *names)
        except Refusal:
            return []
        units = [dict(line.partition("=")[::2] for line in each.splitlines()) for each in shown.split("\n\n")]
        return [unit["Id"] for unit in units if unit.get("ActiveState") == "failed" and "Id" in unit]

    def _run(self, *argv: str) -> str:
        line = " ".join(argv)
        try:
            ended = subprocess.run(
                argv, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=self._seconds, check=False,
            )  # fmt: skip
        except OSError as error:
            raise _refused(line, error.strerror or str(error)) from None
        except subprocess.TimeoutExpired:
            raise _refused(line, f"no answer within {self._seconds:.0f} seconds") from None
        if ended.returncode != 0:
            raise _refused(line, ended.stderr.strip() or f"it ended with {ended.returncode}")
        return ended.stdout


def _refused(line: str, why: str) -> Refusal:
    return Refusal(
        "service-manager",
        "a service manager command failed",
        context=f"{line}: {why}",
        hint="paddock service status shows what is in place; journalctl -xe what the manager did",
    )
