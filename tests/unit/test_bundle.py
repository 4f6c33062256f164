"""The modules of a launch in one file: made by the first launch, used by the next, never older than the sources."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.install import base_python, public_root

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def kept() -> Iterator[Path]:
    """A copy of Paddock's own packages that everybody may read: not compiled, and after its first launch."""
    place = Path(tempfile.mkdtemp(prefix="t-", dir=public_root()))
    place.chmod(0o755)
    for package in ("launcher", "policy"):
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "launcher/__pycache__").mkdir()
    shutil.copytree(place, place / "fresh")
    assert not loaded(place)
    launch(place)  # has the modules compiled, one by one
    launch(place)
    shutil.copytree(place, place / "launched", ignore=shutil.ignore_patterns("fresh"))
    yield place
    shutil.rmtree(place)


def again(place: Path, which: str) -> Path:
    """The packages as they were, where they were: a bundle is for its place."""
    for package in ("launcher", "policy"):
        shutil.rmtree(place / package, ignore_errors=True)
        shutil.copytree(place / which / package, place / package)
    return place


@pytest.fixture
def sources(kept: Path) -> Path:
    """The packages, without a bundle and not compiled."""
    return again(kept, "fresh")


@pytest.fixture
def launched(kept: Path) -> Path:
    """The packages, compiled and with their bundle."""
    return again(kept, "launched")


def python(sources: Path, program: str) -> str:
    """What a bare interpreter prints that has `sources` on its path."""
    words = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(sources)!r})\n{program}"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def launch(sources: Path) -> str:
    """A command line that comes as far as `paddock run`."""
    return python(sources, "from launcher.start import start; start(['paddock', 'run', '--help'])")


def loaded(sources: Path) -> bool:
    """Whether the bundle is there, is up to date, and brings the road of a launch."""
    program = (
        "from launcher import start; done = start.load_bundle(); "
        "print(done, 'launcher.verbs.run' in sys.modules and 'launcher.jail.enter' in sys.modules)"
    )
    answers = {"True True\n": True, "False False\n": False}
    return answers[python(sources, program)]


def bundles(sources: Path) -> list[Path]:
    """Every file of the bundle's name, temporary ones included."""
    return sorted((sources / "launcher/__pycache__").glob("launch.*"))


def test_the_first_launch_makes_it_and_the_next_uses_it(launched: Path) -> None:
    """What is printed is the same as without it. Who writes it removes what a killed launch has left, and leaves what a
    living process may still be writing.
    """
    (bundle,) = bundles(launched)
    assert loaded(launched)
    said = launch(launched)
    bundle.unlink()
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, kept = (bundle.with_name(f"{bundle.name}.{pid}") for pid in (gone.pid, os.getpid()))
    left.write_bytes(b"half")
    kept.write_bytes(b"half")
    assert launch(launched) == said
    assert bundles(launched) == sorted([bundle, kept])
    assert "EXAMPLES" in said.upper()


def test_any_verb_makes_it(sources: Path) -> None:
    """Where root installs for everybody, root may never launch anything."""
    for _ in range(2):  # the first time has the modules compiled
        python(sources, "from launcher.start import start; start(['paddock', '--version'])")
    assert loaded(sources)


def test_a_changed_source_counts_at_once(launched: Path) -> None:
    """The bundle is left aside and made anew."""
    plan = launched / "policy/plan.py"
    plan.write_text(plan.read_text() + "\nMARK = 1\n")
    assert not loaded(launched)
    for _ in range(2):  # the first time has the module compiled
        launch(launched)
    assert loaded(launched)
    assert python(launched, "from launcher import start; start.load_bundle(); import policy.plan; "
                           "print(policy.plan.MARK)") == "1\n"  # fmt: skip


def test_a_moved_installation_makes_its_own(launched: Path) -> None:
    """Paths in it are those of the place where it was made."""
    moved = launched / "moved"
    moved.mkdir()
    for package in ("launcher", "policy"):
        shutil.copytree(launched / package, moved / package, copy_function=shutil.copy2)
    assert not loaded(moved)
    launch(moved)
    assert loaded(moved)


def test_another_file_in_its_place_is_left_aside(launched: Path) -> None:
    """Nothing of it is executed, and the launch works."""
    expected = launch(launched)
    (bundle,) = bundles(launched)
    for content in (b"paddock-bundle-0\n" + bytes(64), os.urandom(256)):
        bundle.write_bytes(content)
        assert not loaded(launched), content
        assert launch(launched) == expected, content


def test_checks_stay_in_and_documentation_goes(launched: Path) -> None:
    """Docstrings are left out; assertions and line numbers are not."""
    told = python(
        launched,
        "from launcher import start; start.load_bundle(); from policy import plan\n"
        "from launcher.jail import init\n"
        "code = init.Init._on_connection.__code__\n"
        "print(plan.Plan.__doc__, AssertionError.__name__ in str(init.Init._on_connection.__code__.co_consts) or "
        "any(line for _, _, line in code.co_lines()), code.co_filename.endswith('init.py'))",
    )
    assert told == "None True True\n"


def test_where_it_cannot_be_written_nothing_is_said(sources: Path) -> None:
    """An installation of root's, used by somebody else before root did, works without."""
    for path in (sources, *sources.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    program = f"import sys; sys.path.append({str(sources)!r}); from launcher.start import start; start(sys.argv[1:])"
    words: list[str | Path] = [*become, base_python(), "-I", "-S", "-c", program, "paddock", "run", "--help"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert bundles(sources) == []


_TOGETHER = """
import sys, threading
from importlib import import_module
from launcher import start
assert start.load_bundle()
sys.meta_path.insert(0, start.CompiledModules)
sys.setswitchinterval(1e-6)
names = [name for name in start.CompiledModules.kept if name not in start.TABLES]
seen, together = [], threading.Barrier(4)
def load(number):
    together.wait()
    for name in names[number * 9:] + names[:number * 9] if number else names[::-1]:
        seen.append((name, set(vars(import_module(name)))))
threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(seen) == 4 * len(names)
for name, held in seen:
    parts = {other.rpartition(".")[2] for other in sys.modules if other.rpartition(".")[0] == name}
    assert set(vars(sys.modules[name])) - held <= parts, (name, set(vars(sys.modules[name])) - held)
print(len(names))
"""


def test_no_thread_sees_half_a_module_of_the_bundle(launched: Path) -> None:
    """Threads that import at the same moment, as the guard's and the minder's do, wait for each other."""
    assert int(python(launched, _TOGETHER)) > 20


_FORKED = """
import os, sys, threading, time
from importlib.machinery import PathFinder
from types import SimpleNamespace
from launcher.jail.guard import guard

NAME = "launcher.jail.guard.server"

class Slow:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != NAME:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def slowly(module):
            time.sleep(0.3)
            execute(module)
            module.start = lambda *_, **__: None

        spec.loader.exec_module = slowly
        return spec

sys.meta_path.insert(0, Slow)
own = SimpleNamespace(_spec=None, _ledger_fd=None, _fault=None, _makes=None)
threading.Thread(target=guard.Guard._start, args=(own, -1)).start()
while NAME not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    from launcher.jail.guard import server
    os._exit(not hasattr(server, "start"))
print(os.waitpid(child, 0)[1])
"""


def test_a_further_command_is_not_made_of_half_a_guard(sources: Path) -> None:
    """A fork waits while another thread loads what answers the calls: in the child it would stay half there."""
    assert python(sources, _FORKED) == "0\n"
