"""Many commits by one git process: the same, byte for byte, as git makes one by one."""

from pathlib import Path

import pytest

from launcher.vcs.added_packs import Held
from launcher.vcs.git import Git, GitFailed
from launcher.vcs.merge.object_store import CommitWriter, Store
from tests.support.ground import Ground

NAMES = ("Tester", "  J\u00fcrgen <O'Neill>, ")


def who(name: str) -> dict[str, str]:
    values = (("NAME", name), ("EMAIL", "t@example.invalid"), ("DATE", "@1500000000 +0130"))
    return {f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in values}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """A repository with two branches."""
    made = Ground(tmp_path_factory.mktemp("commits") / "repo", {"a": "a\n"})
    made.branch("one", {"a": "b\n"})
    return made


def by_git(git: Git, tree: str, parents: list[str], message: bytes, name: str) -> str:
    words = [word for parent in parents for word in ("-p", parent)]
    made = git.run("commit-tree", tree, "-F", "-", *words, input=message, environment=who(name))
    return made.out.decode().strip()


def test_commits_are_what_git_would_make(ground: Ground, tmp_path: Path) -> None:
    """Whatever the name and message; what git would mend or encode otherwise is left to git."""
    git = Git(ground.root / ".git")
    tree, parents = ground.tree("one"), [ground.id("main"), ground.id("one")]
    messages = (b"Plain.\n", b"\n\n two\n\n", "Merge branch '\u00e9\u4e16'\n".encode(), b"# no comment\n")
    for name in NAMES:
        writer = CommitWriter(git, who(name), str(tmp_path / "commit"))
        try:
            for message in messages if name == NAMES[1] else messages[2:3]:
                for some in (parents, []):
                    assert writer.write(tree, some, message) == by_git(git, tree, some, message, name), (name, message)
            for message in (b"no end", b"a\0b\n", b"\xff\n", "\ufdd0\n".encode(), "\U0001ffff\n".encode()):
                assert writer.write(tree, parents, message) is None
            assert writer.write(tree, [parents[0]] * 2, messages[0]) is None
            with pytest.raises(GitFailed, match="wrote no commit"):
                writer.write("0123456789" * 4 + "x", parents, messages[0])
        finally:
            writer.close()
    encoded = Ground(tmp_path / "encoded", {"a": "a\n"})
    encoded.git("config", "i18n.commitEncoding", "ISO-8859-1")
    with Held("test") as held, Store(str(encoded.root / ".git"), who(NAMES[1])) as store:
        made = [store.commit(encoded.tree("main"), [], f"{number}\n") for number in range(8)]
        store.publish(held, made)
    assert {encoded.git("cat-file", "commit", commit).count("encoding ISO-8859-1") for commit in made} == {1}


def test_a_row_of_commits_is_the_same_with_one_process(ground: Ground) -> None:
    """From the fifth on one process writes them all: the ids, and that they are there, tell no difference."""
    with Held("test") as held, Store(str(ground.root / ".git"), who(NAMES[0])) as store:
        now = ground.id("main")
        for number in range(9):
            message = f"Work {number}.\n"
            then = by_git(store.git, ground.tree("one"), [now], message.encode(), NAMES[0])
            now = store.commit(ground.tree("one"), [now], message)
            assert now == then
        store.publish(held, [now])
    assert ground.git("log", "--format=%s", now).splitlines()[:2] == ["Work 8.", "Work 7."]
