"""What every test may ask for: an identity, a place to work in, a repository, the installed command."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import features, forked, identity, install, repository
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.repository import Repo

SCRUBBED = ("GIT_", "XDG_", "PADDOCK_")

# An ordinary user cannot act as root; the ids say so, instead of a skip that reads like a fault.
IDENTITIES = ("root", "user") if os.geteuid() == 0 else ("user-of-the-suite",)

# Neither time nor chance decides whether the suite passes. Whoever sets the number looks for more, and gets others.
settings.register_profile(
    "paddock",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="PADDOCK_EXAMPLES" not in os.environ,
)
settings.load_profile("paddock")


def pytest_configure(config: pytest.Config) -> None:
    """Refuses a `PADDOCK_REQUIRE` that names what nobody checks, and hears the signals that the caller ignores.

    A command inherits what is ignored (signal(7)): in the background of a script, or behind nohup(1), nothing that a
    test starts could be ended by SIGINT, SIGQUIT or SIGHUP.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        features.parse_required(features.REQUIRED_TEXT)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    gc.disable()  # until all that stays has been made


def pytest_collection_finish() -> None:
    """Keeps eight thousand tests and their modules out of each collection of garbage, and forks cheap."""
    gc.enable()
    gc.freeze()
    forked.make_cheap()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts first what may take longest: a test of minutes that is begun last leaves the other processors idle."""
    marks = {item: item.get_closest_marker("timeout") for item in items}
    items.sort(key=lambda item: -float(mark.args[0]) if (mark := marks[item]) else 0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names what failed at once: a run that is cut off has no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)", file=sys.__stderr__, flush=True)


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    """Says what a whole run spent its time on: seconds of all workers together, by folder, and the longest files."""
    if config.args != [str(config.rootpath / "tests")] and config.args != ["tests"]:
        return
    folders, files = defaultdict[str, float](float), defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            path = getattr(report, "nodeid", "").partition("::")[0]
            seconds = getattr(report, "duration", 0.0)
            folders[path.rpartition("/")[0]] += seconds
            files[path.rpartition("/")[2]] += seconds
    for title, counted, most in (("folders", folders, 9), ("longest files", files, 12)):
        shown = ", ".join(
            f"{name} {seconds:.0f} s"
            for name, seconds in sorted(counted.items(), key=lambda item: -item[1])[:most]
            if seconds >= 1
        )
        terminalreporter.write_line(f"{title}: {shown}")


@pytest.fixture(scope="session", autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Takes the caller's git, XDG and Paddock settings away, and his home."""
    before = os.umask(0o022)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(SCRUBBED)]:
            patch.delenv(name)
        install.spread(tmp_path_factory.getbasetemp())
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield
    os.umask(before)


@pytest.fixture(scope="session")
def installed() -> Installed:
    """The wheel of the present sources, installed where every user can execute it."""
    return install.install()


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """An empty directory that every user can enter (`tmp_path` lies in one of mode 0700), removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="t-", dir=install.public_root()))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=IDENTITIES)
def who(request: pytest.FixtureRequest, public_dir: Path) -> Who:
    """The identity a test acts as: once root, once an ordinary user without capabilities."""
    home = public_dir / "home"
    return identity.root(home) if request.param == "root" else identity.user(home)


@pytest.fixture
def user(public_dir: Path) -> Who:
    """An ordinary user without capabilities, whoever runs the suite."""
    return identity.user(public_dir / "home-of-user")


@pytest.fixture
def as_user(user: Who) -> Callable[..., object]:
    """`user.run`, for tests that need nothing else of it: argv, then cwd=, env=, stdin=, timeout=."""
    return user.run


@pytest.fixture
def place(who: Who, public_dir: Path) -> Path:
    """An empty directory that belongs to `who`."""
    path = public_dir / "place"
    path.mkdir()
    return who.give(path)


@pytest.fixture
def repo(who: Who, place: Path) -> Repo:
    """A repository with the linked worktrees `one` and `two` and the submodule `library`, owned by `who`."""
    return repository.make(who, place)
