"""Directories that two launches make in the same moment."""

import os
from pathlib import Path
from typing import Any

import pytest

from launcher.session import planning


@pytest.mark.parametrize("step", ["mkdir", "chmod", "rename"])
def test_who_comes_second_takes_what_the_first_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another launch makes the same private home just before, or in, one of the steps; one is there, and whole."""
    home, really = tmp_path / "state/homes/one", getattr(os, step)
    begun: list[str] = []

    def between(*given: Any, **named: Any) -> object:  # noqa: ANN401  # as the function it stands for
        if not begun:
            begun.append(step)
            planning.make_private_home(str(home), str(tmp_path / "none"), (), str(tmp_path))
        return really(*given, **named)

    monkeypatch.setattr(os, step, between)
    planning.make_private_home(str(home), str(tmp_path / "none"), (), str(tmp_path))
    assert begun == [step]
    assert [path.name for path in home.iterdir()] == [".gitconfig"]
    assert [path.name for path in home.parent.iterdir()] == ["one"]
    assert {path.stat().st_mode & 0o777 for path in (home, home.parent, home.parent.parent)} == {0o700}
