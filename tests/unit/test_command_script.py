"""The `paddock` script: however it is called, it starts its own interpreter, isolated, with every word intact.

These tests use an environment with a stand-in for the launcher that prints what reaches it.
"""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.install import ROOT

SCRIPT = ROOT / "launcher/paddock"

STAND_IN = """
import json, os, sys
from launcher import start

start.write_bundle = lambda: None  # there are no modules to be bundled

def main(argv):
    if "--interrupt" in argv:
        raise KeyboardInterrupt
    if "--broken" in argv:
        import a_module_that_does_not_exist
    words = [word.encode("utf-8", "surrogateescape").hex() for word in argv]
    print(json.dumps({"words": words, "path": sys.path, "prefix": sys.prefix, "file": __file__,
                      "same": argv is sys.argv, "isolated": sys.flags.isolated, "site": "site" in sys.modules,
                      "environment": dict(os.environ)}))
    return 42
"""

VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class Environment:
    """A directory in the shape of a virtual environment."""

    prefix: Path

    @property
    def paddock(self) -> Path:
        """The command."""
        return self.prefix / "bin/paddock"

    @property
    def packages(self) -> Path:
        """site-packages."""
        return self.prefix / "lib" / VERSION / "site-packages"


def make(prefix: Path, *, stand_in: bool = True) -> Environment:
    """An environment at `prefix`, with the stand-in for the launcher or without."""
    environment = Environment(prefix)
    (prefix / "bin").mkdir(parents=True)
    environment.packages.mkdir(parents=True)
    shutil.copy(SCRIPT, environment.paddock)
    environment.paddock.chmod(0o755)
    interpreter = Path(os.path.realpath(sys.executable))
    (prefix / "bin/python3").symlink_to(interpreter)
    (prefix / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    if stand_in:
        install_stand_in(environment.packages)
    return environment


def install_stand_in(packages: Path) -> None:
    """Puts a package `launcher` whose main reports what it got into `packages`."""
    (packages / "launcher").mkdir(parents=True)
    (packages / "launcher/__init__.py").write_text("")
    (packages / "launcher/__main__.py").write_text(STAND_IN)
    shutil.copy(ROOT / "launcher/start.py", packages / "launcher")


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment whose path has a space and a quote in it."""
    return make(tmp_path / "it's an env")


def call(
    argv: Sequence[str | Path | bytes], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Runs a command with a small environment and returns how it ended."""
    clean = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"} | dict(env or {})
    return subprocess.run(argv, cwd=cwd, env=clean, capture_output=True, text=True, timeout=60, check=False)


def reached(ended: "subprocess.CompletedProcess[str]") -> tuple[str, list[bytes]]:
    """The name and the words that the launcher saw; fails when it was not reached."""
    assert ended.returncode == 42, ended.stderr
    name, *words = (bytes.fromhex(word) for word in json.loads(ended.stdout)["words"])
    return name.decode(), words


def test_the_launcher_runs_isolated_and_without_site(environment: Environment) -> None:
    """Only the standard library and the environment's own packages are on the module path, in this order."""
    ended = call([environment.paddock])
    assert ended.returncode == 42, ended.stderr
    facts = json.loads(ended.stdout)
    assert facts["isolated"] == 1
    assert facts["site"] is False
    assert facts["same"] is True
    assert facts["prefix"] == str(environment.prefix)
    assert facts["path"][-1] == str(environment.packages)
    assert all(entry.startswith(sys.base_prefix) for entry in facts["path"][:-1])


def test_every_word_arrives_as_it_was_written(environment: Environment) -> None:
    """Empty words, options of Python's, line feeds and bytes that are no UTF-8 pass unchanged."""
    words = [b"", b" ", b"-c", b"--", b"-I", b"$HOME `id` 'x' \"y\"", b"a\nb\n", b"\xff\xfe", "世界".encode()]
    assert reached(call([environment.paddock, *words])) == (str(environment.paddock), words)


def test_no_variable_of_the_callers_is_changed(environment: Environment, tmp_path: Path) -> None:
    """The shell would hand on its own value of an exported one of the same name."""
    (tmp_path / "link").symlink_to(environment.paddock)
    given = dict.fromkeys(("self", "python", "real", "readlink"), "mine")
    said = json.loads(call([tmp_path / "link"], env=given).stdout)
    assert given.items() <= said["environment"].items()


@pytest.mark.parametrize("depth", [1, 2])
def test_it_is_found_behind_symbolic_links(environment: Environment, tmp_path: Path, depth: int) -> None:
    """A link to a link leads to the real environment, and the launcher sees the name of the link."""
    target: Path = environment.paddock
    for number in range(depth):
        link = tmp_path / f"elsewhere {number}" / "claude"
        link.parent.mkdir()
        link.symlink_to(os.path.relpath(target, link.parent))
        target = link
    assert reached(call([target, "--resume"])) == (str(target), [b"--resume"])


def test_an_interpreter_beside_a_link_is_not_used(environment: Environment, tmp_path: Path) -> None:
    """~/.local/bin may hold a python3 of its own beside the link that pipx made."""
    link = tmp_path / "bin/paddock"
    link.parent.mkdir()
    link.symlink_to(environment.paddock)
    stranger = link.parent / "python3"
    stranger.write_text("#!/bin/sh\necho stranger\n")
    stranger.chmod(0o755)
    assert reached(call([link]))[0] == str(link)


@pytest.mark.parametrize(
    ("cwd", "word"),
    [("bin", "./paddock"), ("", "bin/paddock"), ("lib", "../bin/paddock"), ("bin", "../bin/./paddock")],
)
def test_a_relative_name_is_enough(environment: Environment, cwd: str, word: str) -> None:
    """The command is found relative to the current directory."""
    ended = call(["/bin/sh", "-c", f"exec {word} x"], cwd=environment.prefix / cwd)
    assert reached(ended) == (word, [b"x"])


@pytest.mark.parametrize("entry", ["{bin}", ".", "", "../bin"])
def test_it_is_found_along_path(environment: Environment, entry: str) -> None:
    """An absolute, a relative and an empty element of PATH all work."""
    path = entry.format(bin=environment.prefix / "bin")
    ended = call(["/bin/sh", "-c", "paddock x"], cwd=environment.prefix / "bin", env={"PATH": f"{path}:/usr/bin:/bin"})
    assert reached(ended)[1] == [b"x"]


def test_a_name_without_a_slash_works_where_the_file_is(environment: Environment) -> None:
    """execvp(3) with an empty element of PATH hands over the bare name."""
    program = "import os; os.execv('paddock', ['paddock', 'x'])"
    ended = call([sys.executable, "-I", "-c", program], cwd=environment.prefix / "bin")
    assert reached(ended)[1] == [b"x"]


def test_a_directory_that_looks_like_an_option_is_none(tmp_path: Path) -> None:
    """A path that begins with a hyphen is anchored before Python sees it."""
    environment = make(tmp_path / "-c")
    ended = call(["/bin/sh", "--", "-c/bin/paddock", "x"], cwd=tmp_path)
    assert reached(ended) == ("-c/bin/paddock", [b"x"])
    assert environment.paddock.exists()


def shells() -> dict[str, list[str]]:
    """The shells of this machine that /bin/sh may be elsewhere: name -> words that start it as `sh`."""
    found = {name: [path] for name in ("dash", "bash", "mksh", "ksh", "zsh", "yash") if (path := shutil.which(name))}
    if busybox := shutil.which("busybox"):
        found["busybox"] = [busybox, "sh"]
    return found | {"sh": ["/bin/sh"]}


@pytest.mark.parametrize("shell", shells().values(), ids=shells())
def test_any_posix_shell_can_read_it(environment: Environment, tmp_path: Path, shell: list[str]) -> None:
    """/bin/sh is dash, bash, busybox or another: each starts the command, through a link too."""
    link = tmp_path / "link"
    link.symlink_to(environment.paddock)
    assert reached(call([*shell, environment.paddock, "x"]))[1] == [b"x"]
    assert reached(call([*shell, link, "x"])) == (str(link), [b"x"])


def test_bash_under_the_name_of_sh_can_read_it(environment: Environment, tmp_path: Path) -> None:
    """In POSIX mode bash ends at mistakes that it forgives otherwise."""
    if (bash := shutil.which("bash")) is None:
        pytest.fail("bash is missing")
    (tmp_path / "sh").symlink_to(bash)
    assert reached(call([tmp_path / "sh", environment.paddock, "x"]))[1] == [b"x"]


def test_a_shell_that_found_it_along_path_is_refused(environment: Environment, tmp_path: Path) -> None:
    """`bash paddock` does not say where the file was found; ./python3 may be anybody's."""
    stranger = tmp_path / "python3"
    stranger.write_text("#!/bin/sh\necho stranger\n")
    stranger.chmod(0o755)
    path = f"{environment.prefix / 'bin'}:/usr/bin:/bin"
    ended = call(["bash", "paddock"], cwd=tmp_path, env={"PATH": path})
    assert (ended.returncode, ended.stdout) == (125, "")
    assert ended.stderr.startswith("paddock: it is not clear where Paddock is installed [location-unknown]\n  why: ")


def test_functions_from_the_environment_do_not_stand_in(environment: Environment) -> None:
    """bash imports functions from its environment; the script's own words stay what they are."""
    trap = "() { echo stranger; exit 1; }"
    names = {f"BASH_FUNC_{name}%%": trap for name in ("printf", "refuse", "python3", "readlink", "case")}
    assert reached(call(["bash", environment.paddock, "x"], env=names))[1] == [b"x"]


def test_a_copy_without_an_interpreter_says_so(environment: Environment, tmp_path: Path) -> None:
    """The refusal has Paddock's status and form, and says what to do."""
    lonely = tmp_path / "lonely"
    shutil.copy(environment.paddock, lonely)
    ended = call([lonely])
    assert (ended.returncode, ended.stdout) == (125, "")
    assert ended.stderr.splitlines() == [
        "paddock: there is no Python interpreter beside the command [interpreter-missing]",
        f"  why:  {tmp_path}/python3 cannot be executed",
        "  hint: install it in an environment of its own, which this user can read: in a clone, pipx install .",
    ]


@pytest.mark.parametrize("stream", ["<", "1<"])
def test_a_directory_as_a_standard_stream_is_refused(environment: Environment, stream: str) -> None:
    """Python itself would end with a dump of its own state."""
    ended = call(["sh", "-c", f'"$0" {stream} /', environment.paddock])
    assert (ended.returncode, ended.stdout) == (125, "")
    assert ended.stderr.startswith("paddock: a standard stream is a directory [stream-unusable]\n  why: ")


def test_a_link_that_leads_nowhere_is_not_started(tmp_path: Path) -> None:
    """sh itself reports a dangling link, and nothing is run."""
    (tmp_path / "paddock").symlink_to("gone")
    ended = call(["/bin/sh", tmp_path / "paddock"])
    assert ended.returncode != 0
    assert ended.stdout == ""


def test_an_environment_without_the_launcher_says_so(tmp_path: Path) -> None:
    """An environment that lost its packages is no traceback."""
    ended = call([make(tmp_path / "env", stand_in=False).paddock])
    assert (ended.returncode, ended.stdout) == (125, "")
    assert ended.stderr.startswith("paddock: Paddock is not installed beside its interpreter [not-installed]\n")


def test_another_missing_module_is_not_mistaken_for_that(environment: Environment) -> None:
    """A broken dependency is reported as what it is."""
    ended = call([environment.paddock, "--broken"])
    assert ended.returncode == 1
    assert "a_module_that_does_not_exist" in ended.stderr
    assert "not-installed" not in ended.stderr


def test_an_editable_install_is_found_through_its_pth_file(tmp_path: Path) -> None:
    """`pip install -e .` works, at the cost of `site`."""
    environment = make(tmp_path / "env", stand_in=False)
    install_stand_in(tmp_path / "sources")
    (environment.packages / "paddock.pth").write_text(f"{tmp_path / 'sources'}\n")
    ended = call([environment.paddock, "x"])
    assert reached(ended)[1] == [b"x"]
    facts = json.loads(ended.stdout)
    assert facts["file"] == str(tmp_path / "sources/launcher/__main__.py")
    assert facts["isolated"] == 1


def test_ctrl_c_ends_it_like_any_other_command(environment: Environment) -> None:
    """A shell loop around it must see death by SIGINT, or it would go on."""
    ended = call([environment.paddock, "--interrupt"])
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def pretending(statement: str) -> "subprocess.CompletedProcess[str]":
    """Runs the part that Python reads after `statement`, which tells lies about the interpreter."""
    program = f"import sys; {statement}; exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'))"
    return call([sys.executable, "-I", "-S", "-c", program, SCRIPT])


def test_an_old_python_is_refused() -> None:
    """One sentence, the version that was found, the status of the launcher."""
    ended = pretending("sys.version_info = (3, 10, 9, 'final', 0)")
    assert (ended.returncode, ended.stdout) == (125, "")
    assert ended.stderr.startswith("paddock: Paddock needs Python 3.11 or newer [python-too-old]\n  why:  ")
    assert len(ended.stderr.splitlines()) == 3


def test_another_system_is_refused() -> None:
    """Not a traceback from the first Linux call, but one sentence."""
    ended = pretending("sys.platform = 'darwin'")
    assert (ended.returncode, ended.stdout) == (125, "")
    assert ended.stderr.startswith("paddock: Paddock runs on Linux only [not-linux]\n  why:  this is darwin\n")


def test_old_pythons_can_read_far_enough_to_refuse() -> None:
    """No syntax is used that Python 3.5 did not know: a SyntaxError would hide the refusal."""
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 5))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.NamedExpr | ast.AnnAssign)]
