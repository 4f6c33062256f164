"""tests/support/suite.py, on suites of two tests."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import suite

HERE = Path(suite.__file__).parents[2]


def run(place: Path, text: str, *words: str, seconds: int = 60) -> "subprocess.CompletedProcess[str]":
    """The runner in a directory that holds one file of tests."""
    (place / "test_it.py").write_text(text)
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); from tests.support import suite; "
    program += f"suite.MOST_SECONDS = {seconds}; sys.exit(suite.pytest(*sys.argv[1:]))"
    line = [sys.executable, "-c", program, "-p", "xdist", "--numprocesses", "1", "--quiet", *words, str(place)]
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


def test_what_fails_once_fails_the_suite(tmp_path: Path) -> None:
    """Whatever it would have done the next time, and it does; nothing else is left in the directory."""
    assert run(tmp_path, ONCE).returncode == suite.FAILED
    assert run(tmp_path, ONCE).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"test_it.py", "mark", "__pycache__"}


def test_a_suite_that_hangs_says_where(tmp_path: Path) -> None:
    """It is interrupted, as from a terminal."""
    done = run(tmp_path, "import time\ndef test_hangs(): time.sleep(60)\n", "-n0", seconds=2)
    assert done.returncode not in (0, suite.FAILED)
    assert "interrupted after 2 seconds" in done.stdout
    assert "test_it.py:2: KeyboardInterrupt" in done.stdout


def test_a_suite_that_cannot_be_read_fails(tmp_path: Path) -> None:
    """A wrong option is pytest's own status."""
    assert run(tmp_path, ONCE, "--no-such-option").returncode not in (0, suite.FAILED)
    assert run(tmp_path, "import nothing_like_this\n").returncode != 0
