"""tests/support/suite.py, on suites of three tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import suite

HERE = Path(suite.__file__).parents[2]


def run(place: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """The runner in a directory that holds one file of tests."""
    (place / "test_it.py").write_text(text)
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); from tests.support.suite import main; "
    program += "sys.exit(main(sys.argv[1:]))"
    line = [sys.executable, "-c", program, "-p", "xdist", "--numprocesses", "1", "--quiet", str(place)]
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # their imports take longer than the tests
    return subprocess.run(line, cwd=place, env=env, capture_output=True, text=True, check=False)


ONCE = """
from pathlib import Path
def test_good(): pass
def test_once():
    mark = Path(__file__).with_name("mark")
    before = mark.exists()
    mark.touch()
    assert before
"""


def test_what_passes_is_run_once(tmp_path: Path) -> None:
    """And nothing is said beyond what pytest says."""
    done = run(tmp_path, "def test_good(): pass\n")
    assert done.returncode == 0
    assert "suite:" not in done.stdout


def test_what_fails_beside_others_and_passes_alone_is_named(tmp_path: Path) -> None:
    """The suite passes, and nobody has to search for what was unsteady."""
    done = run(tmp_path, ONCE)
    assert done.returncode == 0, done.stdout
    assert "unsteady" in done.stdout.splitlines()[-2]
    assert done.stdout.splitlines()[-1].endswith("test_it.py::test_once")


def test_what_fails_twice_fails_the_suite(tmp_path: Path) -> None:
    """A fault stays one beside a test that was only unsteady."""
    done = run(tmp_path, ONCE + "\ndef test_bad(): assert False\n")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    """Load does not explain them."""
    text = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_bad(n): assert False\n"
    done = run(tmp_path, text)
    assert done.returncode == 1
    assert "suite:" not in done.stdout


def test_a_suite_that_cannot_be_read_is_no_failure_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong option is pytest's own status."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    assert suite.pytest("--no-such-option") not in (0, suite.FAILED)
    assert run(tmp_path, "import nothing_like_this\n").returncode not in (0,)
