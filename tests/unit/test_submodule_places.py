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


def test_only_a_pointer_to_a_trusted_store_of_this_place_that_leads_through_no_link_is_left(tmp_path: Path) -> None:
    """What a later session can make, or turn, is put aside now, whatever it leads to at this moment.

    A store says its place in one of two files, and the directory of a linked worktree of one in a third.
    """
    root, git_dir, aside = tmp_path / "worktree", tmp_path / "main/.git/worktrees/worktree", tmp_path / "aside"
    other, store = tmp_path / "other", tmp_path / "main/.git/modules/inner"
    own, linked = git_dir / "modules/inner", store / "worktrees/inner"
    strange = {name: tmp_path / "main/.git/modules" / name for name in ("mute", "another's", "turned")}
    for each in (root / "inner", root / "real", own, linked, aside, other, *strange.values()):
        each.mkdir(parents=True)
    (git_dir / "commondir").write_text("../..\n")
    (store / "config").write_text("[core]\n\tworktree = ../../../../worktree/inner\n")
    (own / "config.worktree").write_text(f"[core]\n\tworktree = {root}/inner\n")
    (linked / "commondir").write_text("../..\n")
    (linked / "gitdir").write_text(f"{root}/inner/.git\n")
    (strange["another's"] / "config").write_text("[core]\n\tworktree = ../../../../worktree/real\n")
    (strange["turned"] / "config").write_text("[core]\n\tworktree = ../../../../worktree/turned\n")
    (root / "turned").symlink_to("inner")
    (other / "led").symlink_to(tmp_path / "main/.git")
    (root / "led").symlink_to(tmp_path / "main")
    (root / "inner/led").symlink_to(root)

    def left(pointer: str) -> bool:
        (root / "inner/.git").write_text(f"gitdir: {pointer}\n")
        where = planted.of_place(str(root), f"{root}/inner", str(git_dir), str(aside))
        assert (root / "inner/.git").exists() == (where is None)
        return where is None

    found = {
        pointer: left(pointer)
        for pointer in (
            f"{store}", "../../main/.git/modules/inner", f"{own}", f"{linked}", *map(str, strange.values()),
            f"{tmp_path}/main/.git/modules/none", f"{tmp_path}/main/.git/modules",
            f"{other}/later", f"{other}/led/modules/inner", f"{root}/led/.git/modules/inner",
            "../led/.git/modules/inner", "led/../../main/.git/modules/inner", "../real/../../main/.git/modules/inner",
            f"{tmp_path}/main/.git/modules/../modules/inner", f"{tmp_path}/main/.git/modules/../../../other/later",
            f"{tmp_path}//main/.git/modules/inner", "none", f"{tmp_path}/main/.git", f"{tmp_path}/main/.git/modulesque",
        )
    }  # fmt: skip
    assert [pointer for pointer, stays in found.items() if stays] == list(found)[:4]
