"""Which directories are no root for a jail (`--root`)."""

from pathlib import Path
from typing import Any

import pytest

from launcher.session.machine import Machine
from launcher.session.places import places
from launcher.session.planning import with_image
from launcher.vcs.checkout import Checkout
from policy.errors import Refusal
from tests.support.derived import MOUNTS, RULES


@pytest.mark.parametrize(
    ("given", "reference", "text"),
    [
        ("/", "root-unusable", "the machine's own root"),
        ("home", "root-unusable", "it contains"),
        ("", "root-unusable", "it contains"),
        ("work", "root-unusable", "it contains"),
        ("work/image", "root-unusable", "it is in"),
        ("work/link", "grant-leaves-worktree", "--root"),
        ("written", "root-unusable", "it is in"),
        ("home/.local/state/paddock/image", "root-unusable", "it is in"),
        ("plain", "root-unusable", "neither usr nor bin"),
        ("file", "root-unusable", "not a directory"),
        ("nowhere", "grant-missing", "--root"),
        ("image", "root-covered", "--ro"),
    ],
)
def test_what_is_no_root_is_refused(tmp_path: Path, given: str, reference: str, text: str) -> None:
    """With what is wrong with it; another directory is taken."""
    for image in ("image", "work/image", "written", "home/.local/state/paddock/image"):
        (tmp_path / image / "usr").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "work/link").symlink_to(tmp_path / "image")
    environment = {"HOME": str(tmp_path / "home")}
    support: Any = MOUNTS
    rules = RULES._replace(write=((str(tmp_path / "written"), "--rw"),))
    if reference == "root-covered":
        rules = rules._replace(read=(("/", "--ro"),))

    def asked(name: str) -> str:
        found = Checkout(str(tmp_path / "work"), "directory", "", "", ())
        where = str(tmp_path / name)
        return with_image(rules, where, found, (), support, places(environment), Machine(environment)).root

    with pytest.raises(Refusal, match=text) as refused:
        asked(given)
    assert refused.value.reference == reference
    rules = rules._replace(read=())
    assert asked("image") == str(tmp_path / "image")
