"""A router in this process whose workers run in real jails, from the installed wheel."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from launcher.bridges.files import jail
from launcher.bridges.files.jail import Jails
from launcher.session.places import Places
from tests.support.install import Installed


@contextmanager
def jails(installed: Installed, home: Path) -> Iterator[Jails]:
    """Makes jails for the suite's own user, whose home this is (as HOME of this process).

    The sources under test are not installed beside the suite's interpreter, so the wheel's stands for it.
    """
    python = str(installed.python)
    start = (python, "-I", "-m")
    places = Places(str(home), f"{home}/.config/paddock", f"{home}/.local/state/paddock", f"{home}/.cache/paddock")
    with (
        mock.patch.object(jail, "PADDOCK", (*start, "launcher")),
        mock.patch.object(jail, "WORKER", (*start, "launcher.bridges.files.worker")),
        mock.patch.object(jail, "BEGIN", (*start, "launcher.bridges.files.begin")),
        mock.patch.object(jail, "_code", list),
        mock.patch.dict("os.environ", {"HOME": str(home)}),
    ):
        yield Jails(places, {"--git": "readonly"})
