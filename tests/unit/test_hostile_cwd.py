"""The directory that Paddock is started in belongs to the agent: nothing in it may run before the jail stands."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.identity import SYSTEM_PATH, Who
from tests.support.install import Installed

MODULES = (
    "launcher",
    "policy",
    "encodings",
    "sitecustomize",
    "usercustomize",
    "site",
    "os",
    "stat",
    "signal",
    "marshal",
    "ctypes",
    "importlib",
    "typing",
    "json",
    "pydantic",
    "rich",
    "typer",
)
PROGRAMS = ("python3", "python", "sh", "bash", "env", "readlink", "printf", "[", "test", "git", "uname", "ldconfig")


# Works even in the place of `encodings`, when Python cannot open a text file yet. 1025 = O_WRONLY | O_APPEND.
PLANTED = "import posix; posix.write(posix.open({report!r}, 1025), {name!r})\n"


@dataclass(frozen=True)
class Trap:
    """A directory full of code that reports when it runs.

    Args:
        where: the directory; start commands there.
        report: file that sprung traps append their names to.
    """

    where: Path
    report: Path

    def sprung(self) -> list[str]:
        """Names of what ran so far."""
        return self.report.read_text().split()


@pytest.fixture
def trap(who: Who, place: Path, public_dir: Path, installed: Installed) -> Trap:
    """A git repository whose agent planted a module, a package and a programme for every name it could think of."""
    report = public_dir / "report"
    report.touch()
    report.chmod(0o666)
    # The directory itself, and the directory in the shape of an installed Python and of an environment.
    library = place / "lib" / installed.packages.parent.name
    for folder in (place, library, library / "site-packages"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in MODULES:
            code = PLANTED.format(report=os.fsencode(report), name=f"module-{name}\n".encode())
            (folder / f"{name}.py").write_text(code)
            (folder / name).mkdir()
            for file in ("__init__.py", "__main__.py"):
                (folder / name / file).write_text(code)
    for folder in (place, place / "bin"):
        folder.mkdir(exist_ok=True)
        for name in PROGRAMS:
            (folder / name).write_text(f"#!/bin/sh\necho program-{name} >>'{report}'\n")
            (folder / name).chmod(0o755)
    (place / "startup").write_text(f"echo startup >>'{report}'\n")
    (place / "evil.pth").write_text(PLANTED.format(report=os.fsencode(report), name=b"pth\n"))
    (place / "pyvenv.cfg").write_text(f"home = {place / 'bin'}\n")
    # An own repository, made by hand: `git` would be one of the traps.
    (place / ".git/objects").mkdir(parents=True)
    (place / ".git/refs/heads").mkdir(parents=True)
    (place / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (place / ".git/config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")
    who.give(place)
    return Trap(place, report)


HERE: dict[str, Callable[[Path], dict[str, str]]] = {
    "nothing": lambda _: {},
    "PYTHONPATH": lambda here: {"PYTHONPATH": f".:{here}:"},
    "PYTHONHOME": lambda here: {"PYTHONHOME": str(here)},
    "PYTHONSTARTUP": lambda here: {"PYTHONSTARTUP": str(here / "os.py"), "PYTHONINSPECT": "1"},
    "PYTHONUSERBASE": lambda here: {"PYTHONUSERBASE": str(here), "PYTHONPLATLIBDIR": str(here)},
    "PYTHONBREAKPOINT": lambda _: {"PYTHONBREAKPOINT": "launcher.main", "PYTHONWARNINGS": "error::launcher.X"},
    "PYTHONPYCACHEPREFIX": lambda here: {"PYTHONPYCACHEPREFIX": str(here)},
    "PYTHONEXECUTABLE": lambda here: {"PYTHONEXECUTABLE": str(here / "bin/python3")},
    "PYVENV_LAUNCHER": lambda here: {"__PYVENV_LAUNCHER__": str(here / "bin/python3")},
    "BASH_ENV": lambda here: {"BASH_ENV": str(here / "startup"), "ENV": str(here / "startup")},
    "PATH": lambda _: {"PATH": f".:{SYSTEM_PATH}"},
    "empty-PATH": lambda _: {"PATH": f":{SYSTEM_PATH}:"},
}

COMMANDS: dict[str, tuple[str, ...]] = {
    "version": ("--version",),
    "help": ("run", "--help"),
    "explain": ("explain", "--plan"),
    "run": ("run", "--net", "none", "--git", "readonly", "--", "/bin/true"),
}


def test_no_code_of_the_current_directory_runs(who: Who, trap: Trap, installed: Installed) -> None:
    """Neither a module nor a programme of the current directory runs, whatever the environment says.

    All commands start alike, so each variable is tried with one of them, and the others with none and with all.
    """
    everything = {name: value for make in HERE.values() for name, value in make(trap.where).items()}
    environments = {name: make(trap.where) for name, make in HERE.items()} | {"everything": everything}
    for command, words in COMMANDS.items():
        for name, environment in environments.items():
            if command != "version" and name not in ("nothing", "everything"):
                continue
            ended = who.run([str(installed.paddock), *words], cwd=trap.where, env=environment)
            assert (command, name, trap.sprung()) == (command, name, [])
            assert ended.returncode == 0, (command, name, ended.stderr)


# CPython 3.11 reads these two even under -I; only the `paddock` script can take them away in time.
UNPROTECTED = {"PYTHONEXECUTABLE", "PYVENV_LAUNCHER"}


def test_the_module_form_is_safe_with_isolation(who: Who, trap: Trap, installed: Installed) -> None:
    """`python -I -m launcher` is the other documented way to start."""
    argv = [str(installed.python), "-I", "-m", "launcher", "--version"]
    for name in [name for name in HERE if name not in UNPROTECTED]:
        ended = who.run(argv, cwd=trap.where, env=HERE[name](trap.where))
        assert (name, trap.sprung()) == (name, [])
        assert (ended.returncode, ended.stdout.startswith("paddock ")) == (0, True), (name, ended.stderr)


def test_a_link_in_the_hostile_directory_leads_out_of_it(who: Who, trap: Trap, installed: Installed) -> None:
    """Started through a link beside a planted python3, the environment's own interpreter runs."""
    (trap.where / "paddock").symlink_to(installed.paddock)
    ended = who.run(["./paddock", "--version"], cwd=trap.where, env={"PATH": f".:{SYSTEM_PATH}"})
    assert trap.sprung() == []
    assert ended.returncode == 0, ended.stderr


def shells() -> list[str]:
    """The shells that may stand behind /bin/sh and are here."""
    return [name for name in ("dash", "bash", "busybox", "zsh", "ksh") if shutil.which(name, path=SYSTEM_PATH)]


def test_start_files_named_in_the_environment_are_not_read(
    who: Who, trap: Trap, installed: Installed, public_dir: Path
) -> None:
    """ENV is for interactive shells, BASH_ENV for bash under its own name: as `sh` none reads either."""
    for shell in shells():
        (public_dir / shell).mkdir()
        (public_dir / shell / "sh").symlink_to(str(shutil.which(shell, path=SYSTEM_PATH)))
        sh = public_dir / shell / "sh"
        ended = who.run([sh, installed.paddock, "--version"], cwd=trap.where, env=HERE["BASH_ENV"](trap.where))
        assert (shell, trap.sprung()) == (shell, [])
        assert ended.returncode == 0, (shell, ended.stderr)


def test_the_traps_do_spring_without_protection(who: Who, trap: Trap, installed: Installed) -> None:
    """The same directory catches an interpreter and a shell that are started the ordinary way."""
    python = str(installed.python)
    cases: tuple[tuple[tuple[str, ...], str, str], ...] = (
        ((python, "-S", "-c", "import launcher"), "nothing", "module-launcher"),
        ((python, "-m", "launcher"), "nothing", "module-"),
        ((python, "/none"), "PYTHONPATH", "module-encodings"),
        ((python, "-c", ""), "PYTHONHOME", "module-encodings"),
        ((python, "-c", ""), "PYTHONEXECUTABLE", "module-encodings"),
        ((python, "-c", ""), "PYVENV_LAUNCHER", "module-encodings"),
        (("/bin/sh", "-c", "python3"), "PATH", "program-python3"),
        (("bash", "-c", ":"), "BASH_ENV", "startup"),
    )
    for argv, environment, report in cases:
        trap.report.write_text("")
        who.run(argv, cwd=trap.where, env=HERE[environment](trap.where))
        assert [name for name in trap.sprung() if name.startswith(report)], (argv, environment)


def test_the_suite_starts_the_installed_command(installed: Installed) -> None:
    """What is tested here lies outside the sources, owned by whoever runs the suite."""
    assert installed.paddock.stat().st_uid == os.geteuid()
    assert (installed.packages / "launcher/__main__.py").is_file()
