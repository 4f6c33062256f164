"""Real agents, real jails, a scripted model. As in the kernel suite, nothing may outlive a test."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.conftest import _nothing_left_behind, _subreaper
from tests.support import agent_scene, install
from tests.support.agent_scene import Scene
from tests.support.features import need
from tests.support.install import Installed

__all__ = ("_nothing_left_behind", "_subreaper")


@pytest.fixture
def scene(installed: Installed) -> Iterator[Scene]:
    """A worktree with a model and a surrounding that attacks aim at."""
    need("agents")
    need("landlock")
    place = Path(tempfile.mkdtemp(prefix="a-", dir=install.public_root()))
    place.chmod(0o755)
    with agent_scene.scene(place, installed) as made:
        yield made
    shutil.rmtree(place)
