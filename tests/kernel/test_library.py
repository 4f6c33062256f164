"""docs/library.md: its example runs, its table holds, and nothing needs an import that is not documented."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import launcher.api
import policy.api
from tests.support.identity import Who
from tests.support.install import Installed

PAGE = (Path(__file__).parents[2] / "docs/library.md").read_text()
EXAMPLE, SANDBOX = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
ROWS = [row.split(" | ") for row in PAGE.splitlines() if row.startswith("| `")]
SETUP = """
set -e
git config --global protocol.file.allow always; git config --global user.name U; git config --global user.email u@v.w
git init -qb main up; echo lib > up/file; git -C up add -A; git -C up commit -qm Lib.
git init -qb main app; cd app; echo hello > README.md; git add -A; git commit -qm First.
git submodule --quiet add ../up lib; git commit -qm Lib.
"""


@pytest.fixture
def app(user: Who, public_dir: Path) -> Path:
    """A repository with a submodule."""
    (public_dir / "place").mkdir()
    place = user.give(public_dir / "place")
    user.run(["sh", "-c", SETUP], cwd=place).check_returncode()
    return place / "app"


def python(user: Who, installed: Installed, program: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return user.run([str(installed.python), "-I", "-c", program], cwd=cwd)


def test_the_example_of_sandboxes(user: Who, installed: Installed, app: Path) -> None:
    """It prints what it promises, and leaves the worktree as it was."""
    said = python(user, installed, SANDBOX, app)
    assert said.returncode == 0, said.stderr
    assert "['Done.\\n']" in said.stdout
    assert "+# Done" in said.stdout
    assert "+a file" in said.stdout
    assert said.stdout.endswith("command-not-found\n")
    assert (app / "README.md").read_text() == "hello\n"


@pytest.mark.spec("US1.1", "US7.1", "FR-005", "FR-007", "SM-MF-001")
def test_the_example_is_a_whole_flow(user: Who, installed: Installed, app: Path) -> None:
    """Three agents and a submodule: made, run, harvested, merged in two phases, told, taken back, removed."""
    first, rolled_back, rest = EXAMPLE.partition("# A merge can be rolled back")
    merged = 'import os; os.system("echo; cat one lib/two; git log --format=%s")\n'
    said = python(user, installed, f"{first}{merged}{rolled_back}{rest}", app)
    assert said.returncode == 0, said.stderr
    assert "Worktrees for Tickets" in said.stdout
    assert "False " in said.stdout
    assert "\none\ntwo\n" in said.stdout
    assert all(f"{text}\n" in said.stdout for text in ("Add one.", "Move lib.", "Add three."))
    assert not (app / "three").exists()
    left = user.run(["git", "worktree", "list"], cwd=app).stdout.splitlines()
    assert len(left) == 1, left


def test_the_example_imports_what_is_documented_only() -> None:
    """Names of the two modules, and of Python's own."""
    imports = [node for node in ast.walk(ast.parse(EXAMPLE)) if isinstance(node, ast.ImportFrom)]
    ours = {node.module for node in imports if node.module and node.module.split(".")[0] in ("launcher", "policy")}
    assert ours == {"launcher.api", "policy.api"}


@pytest.mark.parametrize("module", [launcher.api, policy.api], ids=lambda each: str(each.__name__))
def test_every_name_is_there_and_typed(module: object) -> None:
    """The table of what is loaded when it is asked for, and the imports that type checkers see, are the same."""
    source = Path(str(getattr(module, "__file__", ""))).read_text()
    block = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    typed = {
        name.asname for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names if name.asname
    } | {target.id for node in block.body if isinstance(node, ast.Assign) for target in node.targets
         if isinstance(target, ast.Name)}  # fmt: skip
    names = set(getattr(module, "__all__", ()))
    assert names - set(getattr(module, "_OWN", ())) == typed
    assert all(getattr(module, name) is not None for name in names)
    assert set(dir(module)) == names
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing  # type: ignore[attr-defined]


def test_the_names_of_the_specification_lead_somewhere() -> None:
    """Each row of the table names what can be imported where it says."""
    modules = {"launcher.api": launcher.api, "policy.api": policy.api}
    for specified, here, where in ROWS:
        module = modules[re.findall(r"`([\w.]+)`", where)[0]]
        said = specified if "the same" in here or "same name" in here else here
        for name in re.findall(r"`([\w.]+)`", said):
            if name != "AgentModels":
                head, _, rest = name.partition(".")
                assert not rest or hasattr(getattr(module, head), rest), name
                assert hasattr(module, head), name
    (also,) = re.findall(r"works as well: (.*?)\.\n", PAGE, re.DOTALL)
    for name in re.findall(r"`(\w+)`", also):
        assert hasattr(launcher.api, name) or hasattr(policy.api, name), name
