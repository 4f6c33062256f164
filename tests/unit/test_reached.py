"""Whether commits have arrived in a repository: one is asked for, or many at once."""

from pathlib import Path

import pytest

from launcher.vcs.git import Completed, Git
from launcher.vcs.private.contents import reached, unreached
from tests.support.ground import Ground


def test_many_are_asked_for_at_once_and_answered_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits, tags of them, other objects, and what nobody has: an agent has as many refs as he likes."""
    ground = Ground(tmp_path / "repo", {"m": "m\n"})
    git = Git(ground.root / ".git")
    first, second = ground.id("main"), ground.commit("main", {"m": "2\n"})
    beside, further = ground.branch("topic", {"t": "t\n"}, start=first), ground.branch("more", {"u": "u\n"})
    for name in ("topic", "main"):
        ground.git("tag", "-a", "-m", "tag", f"of-{name}", name)
    oids = [first, second, beside, further, *map(ground.id, ("of-topic", "of-main", "main:m", "main^{tree}")), "1" * 40]
    for tips, refs in (((), ("refs/heads/main",)), ((further,), ()), ((), ("refs/heads/",)), ((), ())):
        alone = {oid for oid in oids if not reached(git, oid, tips=tips, refs=refs)}
        assert unreached(git, oids, tips=tips, refs=refs) == alone
    calls = []
    run = Git.run

    def counted(self: Git, *words: str, **options: object) -> Completed:
        calls.append(words)
        return run(self, *words, **options)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(Git, "run", counted)
    many = [f"{number:040x}" for number in range(5000)]
    assert unreached(git, [*many, beside, first], refs=("refs/heads/main",)) == {*many, beside}
    assert len(calls) <= 3
