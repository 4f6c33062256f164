"""What one session leaves where it may write, and another one is granted by its name."""

from tests.support.paddock import Paddock

SECRET = "of-no-concern-to-agents"


def test_a_link_left_in_a_shared_directory_grants_nothing_to_others(user_paddock: Paddock) -> None:
    """Refused in every worktree, long after that session; the user's own links, and the place itself, are granted."""
    paddock = user_paddock
    private, shared = paddock.place / "private", paddock.place / "shared"
    for place in (private, shared):
        place.mkdir()
    (private / "file").write_text(SECRET)
    (paddock.place / "own").symlink_to(private)
    paddock.who.give(paddock.place)
    left = paddock.run("--rw", str(shared), "--", "ln", "-s", str(private), str(shared / "cache"))
    assert left.returncode == 0, left
    for directory in (paddock.main, paddock.worktree):
        words = ("--rw", str(shared / "cache"), "--", "cat", str(private / "file"))
        error = paddock.refused("run", *words, cwd=directory)
        assert error.reference == "grant-leaves-written-tree"
        assert str(private) in error.text
    (shared / "config.toml").write_text(f'schema = 1\n[filesystem]\nread = ["{private}"]\n')
    assert paddock.refused("run", "--config", str(shared / "config.toml"), "--", "true").reference == "config-untrusted"
    (shared / "tree").symlink_to(paddock.main)
    away = paddock.refused("run", "--worktree", str(shared / "tree"), "--", "true")
    assert (away.reference, str(paddock.main) in away.text) == ("worktree-behind-link", True)
    other = paddock.place / "other"
    (other / ".git").mkdir(parents=True)
    (other / "merged").symlink_to(private)
    for option in ("--rw", "--ro"):
        error = paddock.refused("run", option, str(other / "merged"), "--", "true")
        assert (error.reference, str(private) in error.text) == ("grant-leaves-written-tree", True)
    (private / "rules.toml").write_text("schema = 1\n")
    paddock.who.give(private)
    assert paddock.run("--config", str(private / "rules.toml"), "--", "true").returncode == 0
    error = paddock.refused("run", "--config", str(other / "merged/rules.toml"), "--", "true")
    assert (error.reference, str(private) in error.text) == ("worktree-behind-link", True)
    for named in (private, paddock.place / "own"):
        assert paddock.run("--ro", str(named), "--", "cat", str(private / "file")).stdout == SECRET
