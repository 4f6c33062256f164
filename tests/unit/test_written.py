"""The record of trees that jails could write: links in them grant nothing, and no git directory in them is ours."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.jail import syscalls
from launcher.session import places
from launcher.session.state import make_short_temp, remove_short_temp
from launcher.vcs import written
from policy import promises
from policy.errors import Refusal
from policy.toolchains import discover
from tests.support.derived import ROOT, TABLE, Disk, access, found, granted, link, plan, program, put, refused

LINKS = {"/srv/shared/cache": "-> /srv/data", "/srv/shared/near": "-> there", "/srv/shared/there/x": "file",
         "/home/u/own": "-> /srv/data", "/srv/shared/tool": "-> /srv/data/y"}  # fmt: skip


@pytest.fixture
def where(tmp_path: Path) -> str:
    """A state directory."""
    return places.made(places.places({"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}).state)


@pytest.mark.parametrize("option", ["read", "write"])
def test_a_link_in_a_tree_that_agents_could_write_grants_nothing(option: str) -> None:
    """The one who may write a directory decides where names in it lead; the refusal says which place to name."""
    asked: dict[str, Any] = {option: (("/srv/shared/cache", "--x"),)}
    error = refused(more=LINKS, written=("/srv/shared",), **asked)
    assert error.reference == "grant-leaves-written-tree"
    assert "/srv/shared" in error.message
    assert "/srv/data" in error.hint
    assert "r" in access(plan(more=LINKS, **asked), "/srv/data/y")


@pytest.mark.parametrize("path", ["/home/u/own", "/srv/data", "/srv/shared/near", f"{ROOT}/link"])
def test_other_links_go_on_working(path: str) -> None:
    """The user's own, one that stays in its tree, and one that stays in the worktree, which makes nothing read-only."""
    plan(more=LINKS, written=("/srv/shared", ROOT), write=((path, "--rw"),))
    if not path.startswith(ROOT):
        plan(more=LINKS, written=("/srv/shared", ROOT), read=((path, "--ro"),))


def test_a_programme_behind_such_a_link_is_not_granted(tmp_path: Path) -> None:
    """Neither for reading, nor what else is found from it."""
    home, shared = tmp_path / "home", tmp_path / "shared"
    put(tmp_path / "private/pyvenv.cfg")
    python = program(tmp_path / "private/bin/python")
    link(shared / "bin/python", python)
    put(home / "x")
    tree = str(tmp_path / "tree")
    entry = str(shared / "bin")
    assert granted(found(home, entry), python)
    closed = discover(Disk(home, {}), entry, TABLE, worktree=tree, written=(str(shared),))
    assert not granted(closed, python)


def test_what_is_granted_is_on_record(where: str, tmp_path: Path) -> None:
    """The worktree, and every directory outside of it that can be written; nothing twice, and not the jail's own."""
    shared = tmp_path / "shared"
    shared.mkdir()
    grants = ((ROOT, "rwx", "worktree"), (f"{ROOT}/inner", "rwx", "x"), (str(shared), "rw", "--rw"),
              ("/usr", "rx", "default"), ("@home", "rwx", "home"), ("/tmp", "rwx", promises.OWN_TMP))  # fmt: skip
    made = plan().replace(grants=grants)
    assert written.trees(where) == ()
    for _ in range(2):
        written.remember(where, made)
        assert written.trees(where) == (ROOT, str(shared))
    assert os.stat(written.path_of(where)).st_mode & 0o777 == 0o600


def test_an_entry_that_was_cut_short_spoils_no_other(where: str) -> None:
    """After a power failure: what is whole counts, and what comes next is whole, too."""
    written.remember(where, plan().replace(grants=()))
    with open(written.path_of(where), "ab") as file:
        file.write(b"/half/of-a")
    written.remember(where, plan().replace(grants=(), worktree="/next"))
    assert {ROOT, "/next"} <= set(written.trees(where))


def test_a_record_of_somebody_else_is_not_believed(where: str) -> None:
    """Nor taken for an empty one."""
    written.remember(where, plan().replace(grants=()))
    os.chmod(written.path_of(where), 0o644)
    with pytest.raises(Refusal, match="private file"):
        written.trees(where)


def test_a_full_record_forgets_what_is_gone(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worktrees come and go by the thousand; those that are there stay."""
    monkeypatch.setattr(written, "MOST", 3)
    for name in ("/gone/1", str(tmp_path), "/gone/2", "/gone/3"):
        written.remember(where, plan().replace(grants=(), worktree=name))
    assert written.trees(where) == (str(tmp_path), "/gone/3")


def test_a_full_record_forgets_no_tree_that_was_moved(
    main: Path, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known by itself. One that Paddock has removed is taken off at once; not one that was there before."""
    monkeypatch.setattr(written, "MOST", 1)
    moved = main.rename(tmp_path / "moved")
    main.mkdir()
    written.remember(where, _session(main))
    identity = syscalls.identity(str(main))
    written.forget(where, str(main), identity)
    assert written.former(where, str(main)) == (str(main),)
    main.rmdir()
    written.forget(where, str(main), identity)
    for name in ("/gone/1", "/gone/2"):
        written.remember(where, _session(Path(name)))
    assert written.trees(where) == (str(main), "/gone/2")
    assert written.agents_tree(f"{moved}/sub/.git", where) == str(moved)
    written.forget(where, str(main), syscalls.identity(str(moved)))
    assert written.trees(where) == ("/gone/2",)


@pytest.mark.parametrize(
    "environment",
    [{"HOME": "/h/u"}, {"HOME": "/h/u", "XDG_STATE_HOME": "/s/"}, {"HOME": "/h", "XDG_STATE_HOME": "rel"}, {}],
)
def test_the_record_is_looked_for_where_launches_keep_it(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs git finds it by the environment, as `places` does."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert written.user_state() == places.places(environment).state


def test_all_of_a_directory_without_git_is_an_agents(where: str, tmp_path: Path) -> None:
    """A repository that a session makes there, too (`--directory`)."""
    plain = tmp_path / "plain"
    plain.mkdir()
    written.remember(where, plan().replace(worktree=str(plain), grants=()))
    (plain / ".git").mkdir()
    assert written.agents_tree(f"{plain}/.git", where) == str(plain)


@pytest.fixture
def main(tmp_path: Path, where: str) -> Path:
    """A main checkout in which a session with a private git directory has been, and a linked worktree in it."""
    for name in (".git/modules/lib", ".git/worktrees/one", "sub/.git", "one"):
        (tmp_path / "main" / name).mkdir(parents=True)
    written.remember(where, _session(tmp_path / "main"))
    return tmp_path / "main"


def _session(root: Path, *grants: Path, git: str = "private") -> Any:  # noqa: ANN401  # a Plan
    return plan().replace(worktree=str(root), git=git, grants=tuple((str(path), "rw", "--rw") for path in grants))


def _vouch(where: str, git_dir: str) -> None:
    written.vouch(where, git_dir, syscalls.identity(git_dir))


@pytest.mark.parametrize("name", ["", "/modules/lib", "/worktrees/one"])
def test_the_git_directory_of_a_checkout_stays_its_users(main: Path, where: str, name: str) -> None:
    """Jails cover it, so what lies in it is no agent's, unless a session had it to write."""
    assert written.agents_tree(f"{main}/.git{name}", where) == ""
    written.refuse_agents_git_dir(f"{main}/.git{name}", where)
    written.remember(where, _session(main, git="shared"))
    assert written.agents_tree(f"{main}/.git{name}", where) == str(main)
    with pytest.raises(Refusal, match="agents could write"):
        written.refuse_agents_git_dir(f"{main}/.git{name}", where)


@pytest.mark.parametrize("backend", promises.BACKENDS)
def test_under_the_guard_a_pointer_may_become_a_repository(where: str, tmp_path: Path, backend: str) -> None:
    """No mount covers it. A directory, which the guard holds with the root, stays its user's."""
    linked, main = tmp_path / "linked", tmp_path / "main"
    for root in (linked, main):
        root.mkdir()
        (root / ".git").mkdir() if root == main else (root / ".git").write_text(f"gitdir: {main}/.git/worktrees/one\n")
        written.remember(where, _session(root).replace(backend=backend))
    (linked / ".git").unlink()
    (linked / ".git").mkdir()
    assert written.agents_tree(f"{linked}/.git", where) == (str(linked) if backend == promises.GUARD else "")
    assert written.agents_tree(f"{main}/.git", where) == ""
    assert written.agents_tree(f"{main}/.git/worktrees/one", where) == ""


def test_a_git_directory_elsewhere_in_a_tree_is_an_agents(main: Path, where: str) -> None:
    """A nested repository, a submodule's in the old layout, and whatever a link in the tree leads to."""
    assert written.agents_tree(f"{main}/sub/.git", where) == str(main)
    (main / "link").symlink_to(main.parent)
    assert written.agents_tree(f"{main}/link/elsewhere/.git", where) == str(main)
    assert written.agents_tree(f"{main}/../elsewhere/.git", where) == ""


@pytest.mark.parametrize("granted", ["", ".git", ".git/objects"])
def test_a_grant_over_a_git_directory_makes_it_an_agents(tmp_path: Path, where: str, granted: str) -> None:
    """Whether it lies in what was granted, or around it."""
    (tmp_path / "other/.git/objects").mkdir(parents=True)
    written.remember(where, _session(tmp_path / "one", tmp_path / "other" / granted))
    assert written.agents_tree(f"{tmp_path}/other/.git", where) == str(tmp_path / "other" / granted)


def test_a_worktree_inside_a_bare_repository_leaves_it_its_users(tmp_path: Path, where: str) -> None:
    """People keep them so; it is none of the directories that git itself has there."""
    written.remember(where, _session(tmp_path / "project.git/one"))
    assert written.agents_tree(f"{tmp_path}/project.git", where) == ""


def test_what_the_user_vouches_for_counts_until_the_next_session(main: Path, where: str) -> None:
    """A session there could write it again; and the record says so only then."""
    _vouch(where, f"{main}/sub/.git")
    assert written.agents_tree(f"{main}/sub/.git", where) == ""
    assert written.agents_tree(f"{main}/other/.git", where) == str(main)
    written.remember(where, _session(main))
    assert written.agents_tree(f"{main}/sub/.git", where) == str(main)
    before = os.stat(written.path_of(where)).st_size
    written.remember(where, _session(main))
    assert os.stat(written.path_of(where)).st_size == before


def test_what_a_session_had_read_only_as_a_whole_stays_its_user_s(main: Path, where: str) -> None:
    """Only where it was his before: another session may have written it since the Plan was made."""
    one, two = f"{main.parent}/par/one/.git", f"{main.parent}/par/two/.git"
    os.makedirs(one)
    os.makedirs(two)
    session = _session(main.parent / "par", git="shared")
    closed = session.replace(read_only=((one, promises.OTHER_GIT),))
    for _ in range(2):
        written.remember(where, closed)
        size = os.stat(written.path_of(where)).st_size
        assert (written.agents_tree(one, where), written.agents_tree(two, where)) == ("", f"{main.parent}/par")
    written.remember(where, closed)
    assert os.stat(written.path_of(where)).st_size == size
    written.remember(where, session)
    assert written.agents_tree(one, where)
    written.remember(where, closed)
    assert written.agents_tree(one, where), "it was written meanwhile"


def test_a_tree_that_was_moved_is_still_an_agents(main: Path, where: str, tmp_path: Path) -> None:
    """And what lies in it, or around it; not what has come to its place, nor its own `.git`, which jails cover."""
    other = tmp_path / "other/.git"
    (other / "objects").mkdir(parents=True)
    written.remember(where, _session(main, other / "objects"))
    moved = main.rename(tmp_path / "moved")
    assert written.agents_tree(f"{moved}/sub/.git", where) == str(moved)
    assert written.agents_tree(f"{moved}/.git/modules/lib", where) == ""
    assert written.agents_tree(f"{tmp_path}/more/sub/.git", where) == ""
    assert str(moved) not in written.trees(where)
    assert str(moved) in written.trees(where, f"{moved}/sub")
    (moved / "out").symlink_to(tmp_path / "more")
    assert written.agents_tree(f"{moved}/out/.git", where) == str(moved)
    there = other.parent.rename(tmp_path / "there")
    assert written.agents_tree(f"{there}/.git", where) == f"{there}/.git/objects"
    assert written.former(where, str(moved)) == (str(main),)


def test_a_directory_at_the_inode_of_another_one_is_a_different_one(main: Path, where: str, tmp_path: Path) -> None:
    """File systems give an inode to the next one that is made: its birth tells."""
    path = Path(written.path_of(where))
    identity = next(each for each in path.read_bytes().split(b"\0") if each.startswith(b"="))
    assert b":" in identity.partition(b"/")[0], "this file system knows no births"
    inode, _, birth = identity[1:].partition(b"/")[0].partition(b":")
    path.write_bytes(path.read_bytes().replace(identity, b"=%s:%d%s" % (inode, int(birth) - 1, os.fsencode(main))))
    moved = main.rename(tmp_path / "moved")
    assert written.agents_tree(f"{moved}/sub/.git", where) == ""


def test_a_record_without_identities_is_completed(main: Path, where: str, tmp_path: Path) -> None:
    """By the next session, for all that is on it; and counts as ever before."""
    path = Path(written.path_of(where))
    path.write_bytes(b"\0".join(each for each in path.read_bytes().split(b"\0") if not each.startswith(b"=")))
    assert written.agents_tree(f"{main}/sub/.git", where) == str(main)
    written.remember(where, _session(tmp_path / "another"))
    moved = main.rename(tmp_path / "moved")
    assert written.agents_tree(f"{moved}/sub/.git", where) == str(moved)


def test_what_the_user_vouches_for_may_be_moved(main: Path, where: str, tmp_path: Path) -> None:
    """It alone: what comes to its place does not count as accepted, nor what a session could write meanwhile."""
    _vouch(where, f"{main}/sub/.git")
    (main / "other/.git").mkdir(parents=True)
    moved = main.rename(tmp_path / "moved")
    assert written.agents_tree(f"{moved}/sub/.git", where) == ""
    (moved / "sub").rename(tmp_path / "sub")
    (moved / "other").rename(moved / "sub")
    assert written.agents_tree(f"{moved}/sub/.git", where) == str(moved)
    (moved / "sub").rename(moved / "other")
    around = tmp_path / "around"
    around.mkdir()
    before = _session(around, git="shared")
    written.remember(where, before)
    (tmp_path / "sub").rename(around / "sub")
    assert written.agents_tree(f"{around}/sub/.git", where)
    _vouch(where, f"{around}/sub/.git")
    (around / "sub").rename(moved / "sub")
    assert written.agents_tree(f"{moved}/sub/.git", where) == ""
    written.remember(where, _session(moved))
    assert written.agents_tree(f"{moved}/sub/.git", where) == str(moved)


@pytest.mark.parametrize("kept", [False, True], ids=["vouched for", "kept read-only"])
def test_what_comes_to_the_place_of_a_trusted_repository_does_not_stand_for_it(
    main: Path, where: str, *, kept: bool
) -> None:
    """One that a session wrote and moved away stays an agent's when the next one there is accepted."""
    place, before = main / "sub/.git", _session(main / "one")
    if kept:
        os.unlink(written.path_of(where))
        session = _session(main.parent / "elsewhere", main)
        written.remember(where, session.replace(read_only=((str(place), promises.OTHER_GIT),)))
    else:
        session = _session(main)
        _vouch(where, str(place))
    assert written.agents_tree(str(place), where) == ""
    written.remember(where, before)
    assert written.agents_tree(str(place), where) == ""
    written.remember(where, session)
    away = (main / "sub").rename(main / "away") / ".git"
    place.mkdir(parents=True)
    assert written.agents_tree(str(away), where) == str(main)
    _vouch(where, str(place))
    assert (written.agents_tree(str(place), where), written.agents_tree(str(away), where)) == ("", str(main))
    assert written.vouched(where) == {str(place): True}
    with pytest.raises(Refusal, match="is not the directory that was shown"):
        written.vouch(where, str(place), syscalls.identity(str(away)))


def test_an_accepted_place_without_a_directory_that_was_shown_is_not_believed(main: Path, where: str) -> None:
    """As an older Paddock had it: by its path alone."""
    with open(written.path_of(where), "ab") as file:
        file.write(b"+%s/sub/.git\0" % os.fsencode(main))
    assert written.agents_tree(f"{main}/sub/.git", where) == str(main)
    assert written.vouched(where) == {}


def test_a_session_in_a_part_of_what_is_trusted_ends_that(tmp_path: Path, where: str) -> None:
    """Also the second one; and a session elsewhere does not."""
    place = tmp_path / "other/.git"
    (place / "objects").mkdir(parents=True)
    session = _session(tmp_path / "one", place / "objects")
    for _ in range(2):
        written.remember(where, session)
        assert written.agents_tree(str(place), where) == f"{place}/objects"
        _vouch(where, str(place))
        written.remember(where, _session(tmp_path / "two"))
        assert written.agents_tree(str(place), where) == ""


def test_a_session_that_has_a_tree_by_another_name_ends_trust_in_it(
    main: Path, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be mounted in two places: which directory it is counts."""
    other = tmp_path / "mounted"
    (other / "sub/.git").mkdir(parents=True)
    identity = syscalls.identity

    def mounted(path: str) -> str:
        return identity(path.replace(str(other), str(main)))

    monkeypatch.setattr(syscalls, "identity", mounted)
    written.remember(where, _session(other))
    for name in (str(main), str(other)):
        _vouch(where, f"{name}/sub/.git")
        assert [written.agents_tree(f"{each}/sub/.git", where) for each in (main, other)] == ["", ""]
        written.remember(where, _session(other))
        assert all(written.agents_tree(f"{each}/sub/.git", where) for each in (main, other))


def test_trust_in_a_tree_that_was_moved_is_listed_and_taken_back(main: Path, where: str, tmp_path: Path) -> None:
    """By its place of then or now; listed is that of then, as one that has moved."""
    for moved_name, named in (("moved", "moved"), ("again", "main")):
        was = f"{main}/sub/.git"
        _vouch(where, was)
        assert written.vouched(where) == {was: True}
        now = main.rename(tmp_path / moved_name)
        assert written.vouched(where) == {was: False}
        assert written.is_vouched(where, f"{now}/sub/.git")
        assert not written.is_vouched(where, f"{now}/one/.git")
        assert not written.revoke(where, f"{now}/one")
        assert written.revoke(where, f"{tmp_path}/{named}/sub/.git")
        assert (written.vouched(where), written.agents_tree(f"{now}/sub/.git", where)) == ({}, str(now))
        assert not written.revoke(where, f"{now}/sub/.git")
        now.rename(main)
    _vouch(where, f"{main}/sub/.git")
    now = main.rename(tmp_path / "moved")
    written.remember(where, _session(now))
    assert written.vouched(where) == {}


def test_a_tree_that_was_copied_is_followed(main: Path, where: str, tmp_path: Path) -> None:
    """To another file system: nothing but its path says that it is the same. What was accepted is not."""
    _vouch(where, f"{main}/sub/.git")
    copy = shutil.copytree(main, tmp_path / "copy")
    assert written.agents_tree(f"{copy}/one/.git", where) == ""
    written.follow(where, str(main), str(copy))
    assert written.agents_tree(f"{copy}/one/.git", where) == str(copy)
    assert written.agents_tree(f"{copy}/sub/.git", where) == str(copy)
    assert written.agents_tree(f"{main}/sub/.git", where) == ""
    written.follow(where, f"{tmp_path}/nowhere", str(tmp_path / "there"))
    assert str(tmp_path / "there") not in written.trees(where)


@pytest.mark.parametrize("name", ["worktrees/x/home/r", "sessions/s/tmp/r", "git/x/docked-1", "planted/docked-1",
                                  "removed/x/git"])  # fmt: skip
def test_what_sessions_write_below_paddocks_state_is_no_users(tmp_path: Path, where: str, name: str) -> None:
    """By no record, and whatever is vouched for; by a link, too. Paddock's own work there is not meant."""
    (tmp_path / "link").symlink_to(where)
    for path in (f"{where}/{name}", f"{tmp_path}/link/{name}"):
        assert written.agents_tree(path, where) == f"{where}/{name.partition('/')[0]}"
        assert written.agents_tree(path, f"{tmp_path}/link") == f"{where}/{name.partition('/')[0]}"
    os.makedirs(f"{where}/{name}")
    _vouch(where, f"{where}/{name}")
    with pytest.raises(Refusal) as raised:
        written.refuse_agents_git_dir(f"{where}/{name}", where)
    assert "paddock trust" not in raised.value.hint
    own = ("scratch/paddock-work-1/git", "run", "")
    assert [written.agents_tree(f"{where}/{each}", where) for each in own] == [""] * 3


def test_a_temp_directory_with_a_short_name_is_no_users(tmp_path: Path, where: str) -> None:
    """Where jails have no mounts; it is there as long as the session."""
    link = str(tmp_path / "tmp")
    found = make_short_temp(link)
    try:
        assert written.agents_tree(f"{found}/r/.git", where) == found
        assert written.agents_tree("/tmp/paddock-notes/.git", where) == ""
    finally:
        remove_short_temp(link)


def test_a_repository_that_was_moved_out_of_a_worktree_is_an_agents(tmp_path: Path, where: str) -> None:
    """Into the git directory, when the worktree was removed. The user may accept it; a directory so called is his."""
    place = tmp_path / written.BACKUP / "main/.git" / written.BACKUP / "x-1"
    (place / "docked-1").mkdir(parents=True)
    assert written.agents_tree(f"{place}/docked-1", where) == ""
    (place.parent.parent / "HEAD").touch()
    assert written.agents_tree(f"{place}/docked-1", where) == str(place.parent)
    assert written.agents_tree(str(place.parent.parent), where) == ""
    _vouch(where, f"{place}/docked-1")
    assert written.agents_tree(f"{place}/docked-1", where) == ""


@pytest.mark.parametrize("backend", promises.BACKENDS)
def test_the_machines_shared_memory_is_on_record_where_a_jail_has_it(where: str, tmp_path: Path, backend: str) -> None:
    """Without mounts it has none of its own, and may leave a repository there."""
    session = plan().replace(worktree=str(tmp_path), grants=(("/dev/shm", "rw", "devices"),), backend=backend)
    written.remember(where, session)
    assert written.agents_tree("/dev/shm/r/.git", where) == ("/dev/shm" if backend == promises.GUARD else "")
