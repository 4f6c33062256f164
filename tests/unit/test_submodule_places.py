"""The places of submodules in a worktree that an agent has written."""

from pathlib import Path

from launcher.vcs import gitlinks
from launcher.vcs.private import planted


def test_a_walk_stops_at_the_first_link(tmp_path: Path) -> None:
    """It names the link and its text; what lies behind is not looked at."""
    worktree = tmp_path / "worktree"
    (worktree / "dir/inner").mkdir(parents=True)
    (tmp_path / "own/inner/.git").mkdir(parents=True)
    (worktree / "led").symlink_to("../own")
    (worktree / "dir/last").symlink_to(tmp_path / "own")
    (worktree / "file").touch()

    def look(place: str) -> gitlinks.Reached:
        return gitlinks.reach(str(worktree), f"{worktree}/{place}")

    assert look("dir/inner") == look("file") == gitlinks.Reached(there=True)
    for absent in ("dir/none", "file/x", "none/x", "dir/../dir", "n" * 300):
        assert look(absent) == gitlinks.Reached(there=False)
    assert look("led/inner/.git") == gitlinks.Reached(there=False, link=f"{worktree}/led", target="../own")
    assert look("dir/last") == gitlinks.Reached(there=False, link=f"{worktree}/dir/last", target=str(tmp_path / "own"))
    assert (
        gitlinks.how_to_populate(str(worktree), "dir/x y", "top/dir/x y")
        == "git submodule update --init -- 'top/dir/x y'"
    )
    assert gitlinks.how_to_populate(str(worktree), "led/x", "led/x").startswith(
        f"{worktree}/led is a symbolic link to ../own, "
    )
    assert gitlinks.reach(f"{tmp_path}/missing", f"{tmp_path}/missing/x") == gitlinks.Reached(there=False)


def test_nothing_is_put_aside_behind_a_link_that_leads_to_the_repository_around(tmp_path: Path) -> None:
    """A command that moves a submodule away and puts a link there does not have the user's own `.git` moved."""
    root, own, aside = tmp_path / "worktree/lib/mid", tmp_path / "own/mid/inner/.git", tmp_path / "aside"
    (root / "inner/.git").mkdir(parents=True)
    own.mkdir(parents=True)
    aside.mkdir()
    assert planted.of_place(str(root), f"{root}/inner", str(tmp_path / "git"), str(aside))
    root.parent.rename(tmp_path / "worktree/moved")
    root.parent.symlink_to(tmp_path / "own")
    assert planted.of_place(str(root), f"{root}/inner", str(tmp_path / "git"), str(aside)) is None
    assert own.is_dir()
