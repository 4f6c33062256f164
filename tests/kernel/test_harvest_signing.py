"""Signing at the harvest: the user's own git and key, outside, on commits that are otherwise as the agent made them."""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import paddock as paddocks
from tests.support import private_git, repository
from tests.support.features import need
from tests.support.git_scene import ok
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.paddock import Paddock, Session
from tests.support.private_git import Planted

_FORMAT = "--format=%T %an %ae %at %cn %ce %ct %e %B"
"""All that a commit says, but for its parents and signature."""


@pytest.fixture
def keys(user: Who, public_dir: Path) -> Path:
    """A key for SSH signatures of the user's, with which his git signs when it is asked to."""
    need("landlock")
    need("userns")
    need("signing")
    place = public_dir / "keys"
    place.mkdir()
    user.give(place)
    ok(user.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"], cwd=place))
    (place / "allowed").write_text(f"tester@example.invalid {(place / 'key.pub').read_text()}")
    for key, value in (
        ("gpg.format", "ssh"), ("user.signingKey", place / "key.pub"), ("gpg.ssh.allowedSignersFile", place / "allowed")
    ):  # fmt: skip
        ok(user.run(["git", "config", "--global", key, value]))
    return place


@pytest.fixture
def here(user: Who, installed: Installed, public_dir: Path, keys: Path) -> Paddock:
    """The command with a linked worktree, of a user who has a key."""
    place = public_dir / "place-of-user"
    place.mkdir()
    return paddocks.make(user, installed, user.give(place))


@pytest.fixture
def planted(user: Who, installed: Installed, public_dir: Path, keys: Path) -> Planted:
    """A private git directory with a submodule's, planted by hand, of a user who has a key."""
    place = public_dir / "harvests"
    place.mkdir()
    repo = repository.make(user, user.give(place))
    return private_git.plant(repo, repo.one, installed, place, submodule=True)


@pytest.fixture
def gpg(user: Who, keys: Path) -> Iterator[None]:
    """A key for OpenPGP signatures, found by the user's name, in the place of the other."""
    for words in (("--unset", "gpg.format"), ("--unset", "user.signingKey")):
        ok(user.run(["git", "config", "--global", *words]))
    made = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key"]
    (user.home / ".gnupg").mkdir(0o700)
    user.give(user.home / ".gnupg")
    ok(user.run([*made, "Tester <tester@example.invalid>", "ed25519", "sign", "never"]))
    yield
    ok(user.run(["gpgconf", "--kill", "all"]))


def _host(here: Paddock, *words: str) -> str:
    return ok(here.who.run(["git", *words], cwd=here.worktree)).strip()


def _sessions_work(here: Paddock, script: str, *options: str) -> "tuple[str, str]":
    ended = here.run(*options, "--", "bash", "-ec", script)
    return ok(ended), ended.stderr


def test_a_run_signs_what_it_harvests_and_the_next_one_goes_on_from_there(here: Paddock) -> None:
    """All commits verify, say what the agent's said, and have signed parents; nothing is ever harvested twice."""
    script = f"""
    date >one; git add one; GIT_AUTHOR_NAME=Other git commit -q -m one
    git switch -q -c side HEAD~1; date >two; git add two
    printf 'no newline\\n\\n  at its end' | git commit -q -F - --cleanup=verbatim
    git switch -q -; git -c i18n.commitEncoding=ISO-8859-1 merge -q -m "$(printf 'Gr\\374n')" side
    git log --topo-order {shlex.quote(_FORMAT)} | sha256sum
    git log --format=%G? | sort -u
    """
    said, told = _sessions_work(here, script, "--sign")
    assert "3 commits harvested" in told
    digest, unsigned = said.splitlines()
    assert unsigned == "N"
    log = ok(
        here.who.run(["sh", "-c", f"git log --topo-order {shlex.quote(_FORMAT)} | sha256sum"], cwd=here.worktree)
    ).strip()
    assert log == digest
    assert _host(here, "log", "--format=%G?").split() == ["G", "G", "G", "N"]
    for commit in _host(here, "rev-list", "HEAD~1..", "--").split():
        assert "Good" in here.who.run(["git", "verify-commit", commit], cwd=here.worktree).stderr
    assert _host(here, "status", "--porcelain", "--untracked-files=no") == ""
    assert _host(here, "rev-parse", "side") == _host(here, "rev-parse", "HEAD^2")
    assert here.call("worktree", "harvest", "--sign").stdout == "nothing new\n"
    head = _host(here, "rev-parse", "HEAD")
    said, told = _sessions_work(
        here, "git rev-parse HEAD; date >three; git add three; git commit -q -m three", "--sign"
    )
    assert said.strip() == head
    assert "1 commit harvested" in told
    said, told = _sessions_work(here, "date >four; git add four; git commit -q -m four")
    assert _host(here, "log", "--format=%G?").split() == ["N", "G", "G", "G", "G", "N"]
    assert here.run("--", "git", "status", "--porcelain", "--untracked-files=no").stderr == ""


def test_a_killed_sessions_work_is_signed_as_it_was_told(here: Paddock) -> None:
    """By the user's configuration too, but not by the project's alone, which whoever works there may have written."""
    project = here.worktree / ".paddock.toml"
    project.write_text("[git]\nsign = true\n")
    here.who.give(here.worktree)
    work = ("sh", "-c", "git commit -q --allow-empty -m work; echo ready; exec cat")
    assert here.refused("run", "--", *work).reference == "config-untrusted"
    user = here.who.home / ".config/paddock/config.toml"
    user.parent.mkdir(parents=True)
    project.rename(user)
    here.who.give(here.who.home)
    user.chmod(0o600)
    for options, shown in (((), True), (("--no-sign",), False)):
        plan = ok(here.call("run", *options, "--dry-run", "--", *work))
        assert ("signed when it is harvested" in plan) is shown
    with Session(here, command=work) as session:
        session.kill()
    user.unlink()
    with Session(here, command=work):  # told nothing, while the other's work waits
        pass
    assert _host(here, "log", "--format=%G? %s").splitlines()[:2] == ["G work", "G work"]
    _sessions_work(here, "true", "--sign")
    with Session(here, command=work):
        pass
    assert _host(here, "log", "--format=%G?").split()[:3] == ["N", "G", "G"]


def test_what_was_signed_and_kept_beside_a_branch_is_known_again(here: Paddock) -> None:
    """The branch has moved: the signed work is kept once, and the session after the merge starts from the merge."""
    work = "date >.envrc; git add .envrc; git commit -q -m work"
    assert "handoff-strict" in here.run("--strict-handoff", "--", "sh", "-c", work).stderr
    _host(here, "commit", "-q", "--allow-empty", "-m", "meanwhile")
    first, second = (
        json.loads(here.call("worktree", "harvest", "--json", *options).stdout)["parts"][0]
        for options in (("--sign",), ())
    )
    assert (first["kept"], first["again"]) == (second["kept"], False)
    assert (second["again"], second["new"]) == (True, first["new"])
    assert _host(here, "log", "-1", "--format=%G? %s", first["kept"]) == "G work"
    assert _host(here, "for-each-ref", "refs/paddock/backup") == ""
    _host(here, "add", ".envrc")
    _host(here, "merge", "-q", "--autostash", "-m", "merge", first["kept"])
    said, told = _sessions_work(here, "git rev-parse HEAD; date >more; git add more; git commit -q -m more", "--sign")
    assert (said.strip(), "harvested to one" in told) == (_host(here, "rev-parse", "HEAD~1"), True), told


def test_openpgp_signs_with_the_users_key_whoever_the_agent_says_he_is(planted: Planted, gpg: None) -> None:
    """Without a configured key it is the user's, by his name; what names a submodule's commit names the signed one."""
    planted.who.run(["git", "config", "--global", "user.email", "tester@example.invalid"])
    planted.who.run(["git", "config", "--global", "user.name", "Tester"])
    inner = planted.commit("inner.py", "1\n", at="library")
    planted.commit("outer.py", "1\n", link=inner)
    result = planted.harvest(sign=True)
    assert result["state"] == "harvested", result
    library = planted.worktree / "library"
    assert planted.host("log", "-1", "--format=%G? %cn") == "G Agent"
    assert planted.host("log", "-1", "--format=%G? %cn", at=library) == "G Agent"
    named = planted.host("rev-parse", "HEAD:library")
    assert inner != named == planted.host("rev-parse", "HEAD", at=library)
    assert planted.host("rev-parse", f"{named}^{{tree}}", at=library) == planted.agent(
        "rev-parse", f"{inner}^{{tree}}", at="library"
    )
    assert planted.host("diff-tree", "-r", "--name-only", "HEAD~1", "HEAD").split() == ["library", "outer.py"]
    assert planted.host("status", "--porcelain") == ""
    assert planted.harvest(sign=True)["state"] == "nothing"


def test_signed_commits_name_signed_commits_of_submodules_at_any_depth(planted: Planted) -> None:
    """Below directories, beside odd names, in commits between and in merges; what the agent goes on from names them."""
    where = "deep/er"
    planted.agent("config", "core.quotePath", "true")
    inners = [planted.commit("inner.py", f"{number}\n", at="library") for number in range(3)]
    tree = planted.agent("rev-parse", "HEAD^{tree}")
    blob = planted.agent("hash-object", "-w", "--stdin", stdin="x\n")
    made: list[str] = []
    for parents, inner in (((), inners[0]), ((0,), inners[1]), ((0,), inners[2]), ((1, 2), inners[1])):
        listing = f"100644 blob {blob}\tnew\nline\0" + f"120000 blob {blob}\tlink\0"
        lower = planted.agent("mktree", "-z", stdin=listing + f"160000 commit {inner}\tlibrary\0")
        middle = planted.agent("mktree", "-z", stdin=f"040000 tree {lower}\ter\0" + listing)
        top = planted.agent("ls-tree", "-z", tree) + "\0" + f"040000 tree {middle}\tdeep\0"
        top = planted.agent("mktree", "-z", stdin="\0".join(filter(None, top.split("\0"))) + "\0")
        words = [word for parent in parents for word in ("-p", made[parent])] or ["-p", "HEAD"]
        made.append(planted.agent("commit-tree", *words, "-m", "deep", top))
    planted.agent("update-ref", "HEAD", made[-1])
    result = planted.harvest(sign=True)
    assert result["state"] == "harvested", result
    assert planted.host("log", "--format=%G?", "one").split() == ["G"] * 4 + ["N"]
    library = planted.worktree / "library"
    signed = planted.host("log", "-3", "--reverse", "--format=%H", at=library).split()
    assert planted.host("log", "-3", "--format=%G?", at=library).split() == ["G"] * 3
    named = [planted.host("rev-parse", f"{at}:{where}/library") for at in ("HEAD", "HEAD^1", "HEAD^2", "HEAD~2")]
    assert named == [signed[1], signed[1], signed[2], signed[0]]
    assert planted.host("ls-tree", "-z", "--name-only", "HEAD", f"{where}/").count("new\nline") == 1
    planted.host("fsck", "--strict", "--no-dangling")


def test_a_commit_that_is_new_in_two_repositories_is_not_signed(planted: Planted) -> None:
    """There would be two that stand for it. Unsigned it can be taken."""
    inner = planted.commit("inner.py", "1\n", at="library")
    planted.agent("fetch", "-q", str(planted.git_dir / "modules/library"), inner)
    planted.agent(
        "update-ref", "HEAD", planted.agent("commit-tree", "-p", "HEAD", "-p", inner, "-m", "m", "HEAD^{tree}")
    )
    before = planted.host("rev-parse", "HEAD")
    result = planted.harvest(sign=True)
    assert (result["errorType"], "in two repositories" in result["context"]) == ("harvest-sign", True), result
    assert planted.host("rev-parse", "HEAD") == before
    assert planted.harvest()["state"] == "harvested"


def test_sigkill_while_signing_loses_nothing_and_signs_nothing_twice(planted: Planted) -> None:
    """Killed before steps of a harvest that signs, the next one finishes it; commits on top have signed parents.

    The agent goes on from his own: what names a submodule's commit of before names what it was signed as then.
    """
    count = 1
    library = planted.worktree / "library"
    planted.commit("0.py", "0\n", link=planted.commit("0.py", "0\n", at="library"))
    steps = planted.harvest(sign=True)["steps"]
    wanted = ("sign", "journal", "commit", "record")
    for kill_at in [next(at for at, step in enumerate(steps, 1) if step.startswith(name)) for name in wanted]:
        planted.commit(f"{kill_at}.py", "x\n", link=planted.commit(f"{kill_at}.py", "x\n", at="library"))
        count += 1
        assert planted.start(sign=True, kill_at=kill_at).returncode == -9
        result = planted.harvest(sign=True)
        assert result["state"] == "harvested", result
        named = planted.host("rev-parse", *[f"HEAD~{back}:library" for back in range(count)]).split()
        assert named == planted.host("log", f"-{count}", "--format=%H", at=library).split()
        assert planted.host("status", "--porcelain") == ""
    for where in (None, library):  # nothing of it is ever rewritten
        assert planted.host("log", "--format=%G?", at=where).split() == ["G"] * count + ["N"]
        kept = planted.host(
            "for-each-ref", "--format=%(refname)", "refs/paddock/agents", "refs/paddock/backup", at=where
        )
        assert kept == ""


def test_a_session_goes_on_from_signed_commits_of_submodules(planted: Planted) -> None:
    """In the jail and outside nothing differs after a session that signed, and the next one commits on top."""
    here = Paddock(planted.who, planted.installed, planted.repo.one.parent, planted.repo.one, planted.repo.main)
    work = "date +%N >{0}/new; git -C {0} add new; git -C {0} commit -q -m inner; git add {0}; git commit -q -m outer"
    for count in (1, 2):
        said, told = _sessions_work(here, f"git status --porcelain; {work.format('library')}", "--sign")
        assert (said, told.count("1 commit harvested")) == ("", 2), told
        assert _host(here, "status", "--porcelain") == ""
        for where in (".", "library"):
            assert _host(here, "-C", where, "log", "--format=%G?").split() == ["G"] * count + ["N"]
        assert _host(here, "rev-parse", "HEAD:library") == _host(here, "-C", "library", "rev-parse", "HEAD")


def test_what_is_signed_never_lies_where_tmpdir_leads(here: Paddock, keys: Path) -> None:
    """It is a file that git writes for the programme that signs: in the worktree, a session could exchange it."""
    temporary = here.worktree / "tmp"
    temporary.mkdir()
    here.who.give(temporary)
    program = keys / "signs"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{keys}/asked\nexec ssh-keygen "$@"\n')
    program.chmod(0o755)
    _host(here, "config", "gpg.ssh.program", str(program))
    work = "date >one; git add one; git commit -q -m one"
    ended = here.run("--sign", "--", "sh", "-c", work, env={"TMPDIR": str(temporary)})
    assert "Good" in here.who.run(["git", "verify-commit", "HEAD"], cwd=here.worktree).stderr, ended
    asked = (keys / "asked").read_text().splitlines()
    assert [word for word in asked if "signing_buffer" in word and str(here.worktree) not in word] != []
    assert [word for word in asked if str(here.worktree) in word] == []


def test_what_cannot_be_signed_as_it_is_is_not_taken(here: Paddock, keys: Path) -> None:
    """Without the key, with a programme or a setting out of the worktree: nothing moves, nothing there is executed."""
    before = _host(here, "rev-parse", "HEAD")
    (keys / "key").rename(keys / "away")
    _, told = _sessions_work(here, "date >one; git add one; git commit -q -m one", "--sign")
    assert "[harvest-sign]" in told
    (keys / "away").rename(keys / "key")
    evil = here.worktree / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {here.place}/canary\n")
    evil.chmod(0o755)
    (here.worktree / "included").write_text(f'[gpg "ssh"]\n\tprogram = {evil}\n')
    # A link leads out of the worktree: to another place where the agent writes, say.
    elsewhere = here.place / "elsewhere"
    elsewhere.write_text(f'[gpg "ssh"]\n\tprogram = {shutil.copy(evil, here.place)}\n')
    (here.worktree / "linked").symlink_to(elsewhere)
    here.who.give(here.worktree)
    for key, value in (
        ("gpg.ssh.program", evil),
        ("user.signingKey", evil),
        ("include.path", evil.with_name("included")),
        ("include.path", evil.with_name("linked")),
    ):
        _host(here, "config", key, str(value))
        assert here.refused("worktree", "harvest", "--sign").reference == "git-config-in-worktree"
        _host(here, "config", "--unset", key)
    assert _host(here, "rev-parse", "HEAD") == before
    assert not (here.place / "canary").exists()
    planted = {"PATH": f"{here.worktree}:{here.who.path}"}
    shutil.copy(evil, here.worktree / "ssh-keygen")
    ended = here.call("worktree", "harvest", "--sign", env=planted)
    assert "1 commit harvested" in ok(ended)
    assert not (here.place / "canary").exists()
    # What the user's git would not write again.
    tagged = r"""
    commit=$(git cat-file commit HEAD | sed -e '/^committer/a header of its own' | git hash-object -t commit -w --stdin)
    git update-ref HEAD "$(git commit-tree -p $commit -m two "HEAD^{tree}")"
    """
    _, told = _sessions_work(here, tagged, "--sign")
    assert "[harvest-sign]" in told
    assert here.refused("worktree", "harvest").reference == "harvest-sign"  # as that session was told
    assert "2 commits harvested" in ok(here.call("worktree", "harvest", "--no-sign"))
    assert "\nheader of its own" in _host(here, "cat-file", "commit", "HEAD~1")


def test_no_tag_brings_commits_without_a_signature(here: Paddock) -> None:
    """Not when the session ends, nor with a later harvest that is told nothing; the twin of a signed one never."""
    script = """git commit -q --allow-empty -m work; git tag light; git tag -m m twin
    git tag -m m off $(git commit-tree -m off -p HEAD HEAD^{tree})"""
    for said in (_sessions_work(here, script, "--sign")[1], ok(here.call("worktree", "harvest"))):
        assert "the agent's tags name commits without a signature, and are not harvested: refs/tags/light" in said
        assert _host(here, "tag") == ""
    assert _host(here, "log", "-1", "--format=%G? %s") == "G work"
    told = ok(here.call("worktree", "harvest", "--no-sign"))
    assert "and are not harvested: refs/tags/twin\n" in told
    assert _host(here, "tag").split() == ["light", "off"]
    assert _host(here, "log", "-1", "--format=%G?", "light") == "G"


def test_signing_obeys_nothing_that_another_session_made(here: Paddock, keys: Path) -> None:
    """A file of the configuration, a programme, a link to one and one in PATH, all made after the user named them."""
    other = here.worktree.with_name("two")
    _host(here, "worktree", "add", "-q", str(other))
    program = f"#!/bin/sh\ntouch {here.place}/canary\n"
    makes = f"""
    mkdir bin; printf '%s' {shlex.quote(program)} >bin/ssh-keygen; cp bin/ssh-keygen bin/keys; chmod 755 bin/*
    printf '[gpg "ssh"]\\n\\tprogram = {other}/bin/keys\\n' >included
    """
    ok(here.run("--git", "readonly", "--", "sh", "-ec", makes, cwd=other))
    links, named = keys / "links", keys / "named"
    for directory, name in ((links, "ssh-keygen"), (named, "signs")):
        directory.mkdir()
        (directory / name).symlink_to(other / "bin/keys")
        here.who.give(directory)
    work = ("--", "bash", "-ec", "date +%N >one; git add one; git commit -q -m one")
    for number, (key, value) in enumerate((
        ("include.path", f"{other}/included"), ("gpg.ssh.program", f"{other}/bin/keys"),
        ("gpg.ssh.defaultKeyCommand", f"sh -c '{other}/bin/keys'"), ("user.signingKey", f"{other}/key"),
        ("gpg.program", f"{other}/bin/keys"), ("gpg.x509.program", f"{other}/bin/keys"),
        ("gpg.ssh.allowedSignersFile", f"{other}/later"), ("gpg.ssh.program", "signs"), ("gpg.program", "signs"),
        ("gpg.x509.program", "signs"), ("gpg.ssh.defaultKeyCommand", "sh -c 'signs; true'"),
    )):  # fmt: skip
        before = _host(here, "config", "--global", "--default", "", key)
        _host(here, "config", "--global", key, value)
        path = {"PATH": f"{named}:{here.who.path}"}
        words = ("run", "--sign", *work) if number < 2 else ("worktree", "harvest", "--sign")
        assert "[git-config-in-worktree]" in here.call(*words, env=path).stderr, (key, value)
        _host(here, "config", "--global", *([key, before] if before else ["--unset", key]))
    path = {"PATH": f"{links}:{here.who.path}"}
    assert here.refused("worktree", "harvest", "--sign", env=path).reference == "git-config-in-worktree"
    path = {"PATH": f"{other}/bin:{here.who.path}"}
    assert "harvested" in ok(here.call("worktree", "harvest", "--sign", env=path))
    assert _host(here, "log", "--format=%G?").split()[:2] == ["G", "G"]
    assert not (here.place / "canary").exists()
