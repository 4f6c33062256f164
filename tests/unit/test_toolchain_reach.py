"""Toolchains: how far a PATH entry, a link or a named programme reaches."""

from pathlib import Path

import pytest

from tests.support.derived import found, granted, link, program, put


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home directory beside a worktree."""
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "tree").mkdir()
    return tmp_path / "home"


def test_links_out_of_a_plain_directory_lead_to_their_installations(home: Path) -> None:
    """~/.local/bin leads to uv's interpreters and tools, pipx and npm, but uv's credentials stay closed."""
    python = program(home / ".local/share/uv/python/cpython-3.13/bin/python3.13")
    link(home / ".local/share/uv/tools/ruff/bin/python", python)
    link(home / ".local/bin/ruff", program(home / ".local/share/uv/tools/ruff/bin/ruff"))
    link(home / ".local/bin/black", program(home / ".local/share/pipx/venvs/black/bin/black"))
    put(home / ".local/lib/node_modules/tsc/cli.js", mode=0o755)
    link(home / ".local/bin/tsc", "../lib/node_modules/tsc/cli.js")
    secret = put(home / ".local/share/uv/credentials/credentials.toml")
    diary = put(home / ".local/share/diary/today.txt")
    result = found(home, "~/.local/bin")
    assert {"uv", "pipx", "node"} <= {tool.name for tool in result.found}
    assert granted(result, python)
    assert granted(result, home / ".local/lib/node_modules/tsc/cli.js")
    assert not granted(result, secret)
    assert not granted(result, diary)
    assert result.path == (f"{home}/.local/bin",)


def test_a_script_leads_to_the_interpreter_of_its_first_line(home: Path) -> None:
    """A copied pipx script names its environment's interpreter, which is a link into pyenv."""
    real = program(home / ".pyenv/versions/3.12/bin/python3.12")
    program(home / ".pyenv/libexec/pyenv")
    put(home / "envs/tool/pyvenv.cfg")
    link(home / "envs/tool/bin/python", real)
    module = put(home / "envs/tool/lib/python3.12/site-packages/tool.py")
    program(home / "bin/tool", f"#!{home}/envs/tool/bin/python\n")
    result = found(home, "~/bin")
    assert granted(result, module)
    assert granted(result, real)


def test_a_link_to_one_programme_grants_just_that_file(home: Path) -> None:
    """A single binary that belongs to no known layout is granted alone."""
    target = program(home / ".local/share/claude/versions/2.1", "\x7fELF")
    neighbour = put(home / ".local/share/claude/notes.txt")
    link(home / ".local/bin/claude", target)
    result = found(home, "~/.local/bin")
    assert granted(result, target)
    assert not granted(result, neighbour)


def test_a_link_to_a_plain_file_grants_nothing(home: Path) -> None:
    """A link in a directory of programmes does not open what is no programme."""
    target = put(home / "Documents/letter.txt")
    link(home / "bin/letter", target)
    result = found(home, "~/bin")
    assert not granted(result, target)
    assert any("letter.txt" in note for note in result.notes)


def test_a_directory_with_other_files_is_granted_programme_by_programme(home: Path) -> None:
    """~/bin with a plain file in it: the programme runs, the file stays closed, and a note says so."""
    tool, stray = program(home / "bin/tool"), put(home / "bin/passwords.txt")
    result = found(home, "~/bin")
    assert granted(result, tool)
    assert not granted(result, stray)
    assert any("passwords.txt" in note for note in result.notes)


def test_a_directory_of_programmes_is_granted_whole(home: Path) -> None:
    """~/bin with nothing but programmes is one grant."""
    program(home / "bin/a")
    program(home / "bin/b")
    assert found(home, "~/bin").grants == ((f"{home}/bin", "rx", "PATH"),)


@pytest.mark.parametrize(("entry", "word"), [("bin", "relative"), ("", "relative"), (".", "relative"), ("~", "home")])
def test_odd_path_entries_are_refused_with_a_reason(home: Path, entry: str, word: str) -> None:
    """Relative entries and the home directory itself are not granted."""
    program(home / "tool")
    result = found(home, entry)
    assert (result.grants, result.path) == ((), ())
    assert word in result.notes[0]


def test_a_directory_that_others_can_write_is_not_granted(home: Path) -> None:
    """Anybody could put a programme there."""
    program(home / "bin/tool")
    (home / "bin").chmod(0o777)
    result = found(home, "~/bin")
    assert (result.grants, result.path) == ((), ())
    assert "other users" in result.notes[0]
    (home / "bin").chmod(0o755)
    assert granted(found(home, "~/bin"), home / "bin/tool")


def test_the_worktree_is_left_to_its_own_grant(home: Path) -> None:
    """A PATH entry in the worktree stays on PATH and adds no grant."""
    program(home.parent / "tree/node_modules/.bin/tool")
    result = found(home, "~/../tree/node_modules/.bin")
    assert result.grants == ()
    assert len(result.path) == 1


def test_a_root_that_holds_the_worktree_is_never_granted(home: Path) -> None:
    """A virtual environment made in the worktree's parent would open everything beside the worktree."""
    put(home.parent / "pyvenv.cfg")
    program(home.parent / "bin/tool")
    result = found(home, env={"VIRTUAL_ENV": str(home.parent)})
    assert result.grants == ()


def test_an_active_virtual_environment_is_granted_with_its_base(home: Path) -> None:
    """VIRTUAL_ENV counts without PATH, passes through, and leads to the interpreter it was made from."""
    program(home / "opt/py/bin/python3")
    library = put(home / "opt/py/lib/python3.12/os.py")
    put(home / "venv/pyvenv.cfg")
    link(home / "venv/bin/python", home / "opt/py/bin/python3")
    result = found(home, env={"VIRTUAL_ENV": "~/venv"})
    assert granted(result, library)
    assert dict(result.env_set)["VIRTUAL_ENV"] == f"{home}/venv"


def test_a_variable_alone_opens_nothing(home: Path) -> None:
    """A variable that names a directory without the toolchain's markers is ignored and not passed on."""
    secret = put(home / "private/file")
    result = found(home, env={"VIRTUAL_ENV": "~/private", "JAVA_HOME": "~/private", "PYENV_ROOT": "~/private"})
    assert not granted(result, secret)
    assert result.env_set == ()


def test_an_environment_in_the_worktree_leads_to_a_known_toolchain_only(home: Path) -> None:
    """The worktree's .venv opens uv's interpreters; a link that an agent planted to another project opens nothing."""
    python = program(home / ".local/share/uv/python/cpython-3.13/bin/python3.13")
    link(home.parent / "tree/.venv/bin/python", python)
    put(home / "other/pyvenv.cfg")
    link(home.parent / "tree/venv/bin/python", program(home / "other/bin/python"))
    result = found(home)
    assert granted(result, python)
    assert not granted(result, home / "other/bin/python")


@pytest.mark.parametrize(
    ("planted", "entry", "env"),
    [
        ({"tool": "private/deploy"}, "~/bin", {}),
        ({"tool": "other/bin/python"}, "~/bin", {}),
        ({"tools": "private"}, "~/../tree/tools", {}),
        ({".venv": "other"}, "", {"VIRTUAL_ENV": "~/../tree/.venv"}),
        ({".venv/bin": "other/bin"}, "~/../tree/.venv/bin", {}),
        ({".cargo": "private", "tool": "private/bin/run"}, "~/bin", {"CARGO_HOME": "~/../tree/.cargo"}),
    ],
)
def test_a_link_in_the_worktree_opens_nothing(
    home: Path, planted: dict[str, str], entry: str, env: dict[str, str]
) -> None:
    """Whatever leads into the worktree, PATH, a variable or a link of the user's: what an agent links from there."""
    for name in ("private/deploy", "private/bin/run", "other/bin/python"):
        program(home / name)
    put(home / "other/pyvenv.cfg")
    link(home / "bin/tool", home.parent / "tree/tool")
    for name, target in planted.items():
        link(home.parent / "tree" / name, home / target)
    assert found(home, entry, env=env, programs=(str(home / "bin/tool"),)).grants == ()


def test_a_named_programme_is_followed(home: Path) -> None:
    """The command itself may lie off PATH."""
    tool = program(home / "tools/agent/run", "\x7fELF")
    assert granted(found(home, programs=(str(tool),)), tool)


def test_a_shared_prefix_is_not_taken_for_an_installation(home: Path) -> None:
    """~/.local with python3 in bin and lib stays closed apart from its programmes and site packages."""
    program(home / ".local/bin/python3")
    site = put(home / ".local/lib/python3.12/site-packages/a.py")
    data = put(home / ".local/share/mail/inbox")
    result = found(home, "~/.local/bin")
    assert granted(result, site)
    assert not granted(result, data)
    assert dict(result.env_set)["PYTHONUSERBASE"] == f"{home}/.local"


def test_asdf_brings_its_version_file_to_the_private_home(home: Path) -> None:
    """The shims look for .tool-versions in HOME."""
    program(home / ".asdf/shims/node")
    put(home / ".tool-versions", "nodejs 22\n")
    assert found(home, "~/.asdf/shims").seeds == ((".tool-versions", f"{home}/.tool-versions"),)
