"""Objects of Git LFS on their way out of a private store."""

import os
from pathlib import Path

import pytest

from launcher.vcs.git import Git
from launcher.vcs.harvest import lfs
from launcher.vcs.harvest.parts import Part
from launcher.vcs.private import record
from policy.errors import Refusal


def test_a_sparse_object_is_refused_before_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no room where the agent made it, and its copy would fill the user's disk."""
    monkeypatch.setattr(lfs, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(lfs, "lfs_store", lambda git: str(tmp_path / "store"))
    name = "0" * 64
    sparse = tmp_path / record.GIT / f"lfs/objects/00/00/{name}"
    sparse.parent.mkdir(parents=True)
    sparse.touch()
    os.truncate(sparse, 1 << 40)
    part = Part(record.Repository("", str(tmp_path), "", "", "", None, None, "sha1", ()), str(tmp_path))
    with pytest.raises(Refusal) as caught:
        lfs.take(str(tmp_path), part, Git(tmp_path))
    assert (caught.value.reference, "hold more than" in caught.value.context) == ("harvest-lfs", True)
    assert not (tmp_path / "store").exists()
