"""Work that a worktree's own git directory alone leads to: it is named, and a forced removal keeps it."""

from pathlib import Path

import pytest

from launcher.vcs.worktrees.models import Worktree
from policy.errors import Refusal
from tests.support import repository
from tests.support.repository import Place, committed, git


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return repository.nested(tmp_path)


def refused(place: Place, made: Worktree) -> Refusal:
    """What a removal says that is not forced; nothing is gone."""
    with pytest.raises(Refusal) as raised:
        place.service.remove(made)
    assert Path(made.path).exists()
    return raised.value


def aside(root: Path) -> str:
    """A commit that nothing leads to any more."""
    git("checkout", "-q", "--detach", at=root)
    committed(root, aside="")
    oid = git("rev-parse", "HEAD", at=root)
    git("checkout", "-q", "-", at=root)
    return oid


@pytest.mark.parametrize("ref", ["refs/worktree/mine", "refs/bisect/bad", "refs/rewritten/mine"])
@pytest.mark.parametrize(("inner", "store"), [("", ".git"), ("lib/outer", ".git/modules/outer")])
def test_a_commit_that_a_ref_of_the_worktrees_alone_leads_to_is_at_stake(
    place: Place, ref: str, inner: str, store: str
) -> None:
    """Git removes such refs with the worktree; the command that is named for it keeps the commit."""
    made = place.service.add(place.app, "T")
    root = Path(made.path, inner)
    oid = aside(root)
    git("update-ref", ref, oid, at=root)
    said = "submodule outer: commits on no branch" if inner else "commits on no branch"
    assert place.service.status(made).at_stake() == [said]
    refusal = refused(place, made)
    assert refusal.context == said
    assert refusal.hint.startswith(f"git -C {root} branch NAME {oid} gives commits on no branch a branch\n")
    git("branch", "saved", oid, at=root)
    assert place.service.status(made).at_stake() == []
    git("branch", "-q", "-D", "saved", at=root)
    kept = [ref for where, ref in place.service.remove(made, force=True).backups if Path(where) == place.app / store]
    assert oid in git("for-each-ref", "--format=%(objectname)", *kept, at=place.app / store).splitlines()
