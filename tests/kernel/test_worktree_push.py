"""`paddock worktree harvest --push`: the user's own git, which starts nothing that sessions may have written."""

import shlex
from pathlib import Path

import pytest

from tests.conftest import IDENTITIES
from tests.support import paddock as paddocks
from tests.support.features import need
from tests.support.git_scene import ok
from tests.support.identity import AS_A_USER, Who
from tests.support.install import Installed
from tests.support.paddock import Paddock


@pytest.fixture
def here(who: Who, installed: Installed, place: Path) -> Paddock:
    """The command with a linked worktree whose branch has a remote `origin` on another machine."""
    need("landlock")
    need("userns")
    made = paddocks.make(who, installed, place)
    (made.worktree / "file").unlink()
    paddocks.far(made)
    return made


def _host(here: Paddock, *words: str, at: Path | None = None) -> str:
    return ok(here.who.run(["git", *words], cwd=at or here.worktree)).removesuffix("\n")


def _commit(here: Paddock) -> None:
    ok(here.run("--git", "private", "--", "sh", "-ec", "date +%N >x; git add x; git commit -qm work"))


_LEAVES = """#!/bin/sh
touch {0}/canary
exit 1
"""


@pytest.mark.parametrize(
    ("backend", "who"),
    [("landlock", IDENTITIES[0]), ("bubblewrap", IDENTITIES[-1]), ("guard", IDENTITIES[-1])],
    indirect=["who"],
)
def test_a_push_obeys_nothing_that_sessions_made_in_any_tree(here: Paddock, backend: str) -> None:
    """Files of the configuration and programmes that were not there, in this worktree and in another session's.

    Which trees are a session's depends on what held it; what is judged by them does not, and is tried once.
    """
    other = here.worktree.with_name("two")
    _host(here, "worktree", "add", "-q", str(other))
    options = ("--backend", "bubblewrap" if backend == "bubblewrap" else "landlock", "--git", "readonly")
    env = {"PADDOCK_NO_USERNS": "1"} if backend == "guard" else {}
    need("bubblewrap" if backend == "bubblewrap" else "landlock")
    program = _LEAVES.format(here.place)
    makes = f"""
    mkdir -p tools
    for name in tool ssh git-credential-x; do printf '%s' {shlex.quote(program)} >tools/$name; done
    chmod 755 tools/*
    printf '[remote "origin"]\\n\\treceivepack = "touch {here.place}/canary; git-receive-pack"\\n' >included
    git init -q --bare bare; cp tools/tool bare/hooks/pre-receive
    git init -q plain; cp tools/tool plain/.git/hooks/pre-receive
    """
    for where in (here.worktree, other):
        ended = here.run(*options, "--", "sh", "-ec", makes, cwd=where, env=env)
        assert ended.returncode == 0, ended.stderr
    _commit(here)
    _host(here, "symbolic-ref", "HEAD", "refs/heads/one")
    (here.who.home / "bin").mkdir()
    (here.who.home / "bin/linked").symlink_to(other / "tools/tool")
    here.who.give(here.who.home / "bin")
    path = {"PATH": f"{here.who.home}/bin:{here.who.path}"}
    for tree in (here.worktree, other):
        settings = (
            ("include.path", f"{tree}/included"),
            ("include.path", f"{tree}/later"),
            ("includeIf.onbranch:none.path", f"{tree}/later"),
            ("core.sshCommand", f"{tree}/tools/ssh"),
            ("core.sshCommand", f"env A=b '{tree}/tools/ssh' -v"),
            ("core.sshCommand", f"ssh -F{tree}/later"),
            ("core.askPass", f"{tree}/tools/tool"),
            ("core.gitProxy", f"{tree}/tools/tool for example.invalid"),
            ("credential.helper", f"!f() {{ {tree}/tools/tool; }}; f"),
            ("credential.https://example.invalid.helper", f"{tree}/tools/git-credential-x"),
            ("remote.origin.receivepack", f"{tree}/tools/tool"),
            ("remote.origin.pushurl", f"{tree}/bare"),
            ("remote.origin.pushurl", f"file://{tree}/plain"),
            (f"url.{tree}/bare.pushInsteadOf", "ssh://far.invalid/"),
            ("alias.credential-x", f"!{tree}/tools/tool"),
            ("core.sshCommand", "linked"),
        )
        for key, value in settings if backend == "landlock" else settings[::6]:
            _host(here, "config", "--global", key, value)
            said = here.refused("worktree", "harvest", "--push", "origin", env=path)
            wanted = "push-transport" if "url" in key else "git-config-in-worktree"
            assert said.reference == wanted, (key, value)
            _host(here, "config", "--global", "--unset", key)
    (here.who.home / "link").symlink_to(other / "tools")
    _host(here, "config", "--global", "core.sshCommand", f"{here.who.home}/link/ssh")
    assert here.refused("worktree", "harvest", "--push", "origin").reference == "git-config-in-worktree"
    # The twins: what names such a tree without obeying it, programmes of the user's, and PATH's other directories.
    (here.who.home / "mine").write_text("[user]\n\tname = Tester\n")
    for key, value in (
        ("core.sshCommand", "ssh -v"), ("credential.helper", "!/bin/echo"), ("include.path", f"{here.who.home}/mine"),
        ("safe.directory", str(other)), ("core.hooksPath", f"{other}/tools"),
    ):  # fmt: skip
        _host(here, "config", "--global", key, value)
    planted = {"PATH": f"{other}/tools:{here.who.path}", "SSH_ASKPASS": f"{other}/tools/tool"}
    ended = here.call("worktree", "harvest", "--push", "origin", env=planted)
    assert ended.returncode == 0, ended.stderr
    assert _host(here, "rev-parse", "one") == _host(here, "rev-parse", "one", at=here.place / "origin.git")
    assert not (here.place / "canary").exists()


_BARE = 'bare() { git init -q --bare "../$1"; git remote add "$1" "$PWD/../$1"; }'
_TRAPS = {
    "global": "git config --global remote.global.url $other/bare",
    "tilde": "git remote add tilde '~/link/bare'",
    "file": "git remote add file file://$other/bare",
    "old": "mkdir -p .git/remotes; echo URL: $other/bare >.git/remotes/old",
    "setting": "bare setting; git -C ../setting config core.hooksPath $other/bare/hooks",
    "link": "bare link; ln -s $other/bare/hooks/pre-receive ../link/hooks",
    "suffix": "mkdir ../r ../r/x; ln -s $other/bare ../r/x.git; git remote add suffix $PWD/../r/x",
    "helper": "git remote add helper hg::https://example.invalid/x",
    "vcs": "git config remote.vcs.url x; git config remote.vcs.vcs hg",
    "ext": "git config --global protocol.ext.allow always; git remote add ext 'ext::tool %S'",
    "rewritten": "git config --global url.$other/.insteadOf forge:; git remote add rewritten forge:bare",
    "hooks": "bare hooks; git config --global core.hooksPath $other/bare/hooks",
}
"""Remotes for which git starts a programme of this machine: in which way -> how the user made one."""


@AS_A_USER
def test_a_push_starts_nothing_on_this_machine_but_ssh(here: Paddock) -> None:
    """Each remote is a trap that works when the user pushes there himself; a refusal says so in any language."""
    other, canary = _other(here)
    ok(here.who.run(["ln", "-s", str(other), "link"]))
    path = {
        **_linked(here, other / "helper", "tool", "git-remote-hg"),
        "LANGUAGE": "de",
        "GIT_ALLOW_PROTOCOL": "file:hg:ext",
    }
    _commit(here)
    for name, script in _TRAPS.items():
        ok(here.who.run(["sh", "-ec", f"{_BARE}\n{script}"], cwd=here.main, env={"other": str(other)}))
        said = here.refused("worktree", "harvest", "--push", name, env=path)
        assert (said.reference, canary.exists()) == ("push-transport", False), (name, said)
        assert f"push them yourself: git push {name} one\n" in said.text
        here.who.run(["git", "push", name, "one"], cwd=here.main, env=path)
        assert canary.exists(), name
        canary.unlink()
    # The twin: another machine's repository, whatever it obeys itself.
    ok(here.call("worktree", "harvest", "--push", "origin", env=path))
    assert _host(here, "rev-parse", "one") == _host(here, "rev-parse", "one", at=here.place / "origin.git")
    assert not canary.exists()


_NAMES = (
    ("git-remote-ssh", "remote.mine.url", "ssh::x"),
    ("git-remote-git", "remote.mine.url", "git::x"),
    ("git-remote-ssh", "remote.mine.vcs", "ssh"),
    ("tool", "core.gitProxy", "tool for example.invalid"),
    ("tool", "core.sshCommand", "env A=tool ssh"),
    ("tool", "credential.helper", "!f() { tool; }; f"),
    ("git-credential-tool", "credential.helper", "tool"),
    ("tool", "alias.remote-ssh", "!tool"),
)
"""Name in PATH, and the setting for which git, or a shell, looks for it there."""


@AS_A_USER
def test_a_push_starts_no_programme_by_a_name_that_leads_to_an_agents(here: Paddock) -> None:
    """In PATH is a link of the user's to what a session has made there. The twin: to a programme of his own."""
    other, canary = _other(here)
    _commit(here)
    for name, key, value in _NAMES:
        path = _linked(here, other / "helper", name)
        _host(here, "config", "--global", key, value)
        said = here.refused("worktree", "harvest", "--push", "origin", env=path)
        assert (said.reference, f"/bin/{name} is where" in said.text) == ("git-config-in-worktree", True), (key, said)
        _linked(here, Path("/bin/true"), name)
        ok(here.call("worktree", "harvest", "--push", "origin", env=path))
        _host(here, "config", "--global", "--unset", key)
    assert not canary.exists()


@AS_A_USER
def test_a_push_passes_no_variable_that_names_an_agents_programme(here: Paddock) -> None:
    """Git would ask the one of SSH_ASKPASS for a password. The twin: one of the user's own is there."""
    other, canary = _other(here)
    path = _linked(here, other / "helper", "asks")
    for name in ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_PROXY_COMMAND"):
        path[name] = "asks"
    path["GIT_EXEC_PATH"] = str(other)
    _commit(here)
    for value, wanted in (("asks", ""), ("true", "true")):
        ok(here.call("worktree", "harvest", "--push", "origin", env={**path, "SSH_ASKPASS": value}))
        assert (here.place / "far/askpass").read_text() == f"{wanted}\n"
    assert not canary.exists()


def _other(here: Paddock) -> tuple[Path, Path]:
    """What a session made in another worktree, and the file that whatever runs of it leaves behind.

    It has made a programme, `helper`, and a repository with a hook, `bare`.
    """
    other = here.worktree.with_name("two")
    canary = here.place / "canary"
    _host(here, "worktree", "add", "-q", str(other))
    makes = f"""
    printf '#!/bin/sh\ntouch {canary}\nexit 1\n' >helper; chmod 755 helper
    git init -q --bare bare; cp helper bare/hooks/pre-receive
    """
    ok(here.run("--git", "readonly", "--", "sh", "-ec", makes, cwd=other))
    return other, canary


def _linked(here: Paddock, target: Path, *names: str) -> dict[str, str]:
    """Puts names in a directory of the user's that lead to a programme; PATH with that directory."""
    tools = here.who.home / "bin"
    for words in (["mkdir", "-p", str(tools)], *(["ln", "-sf", str(target), f"{tools}/{name}"] for name in names)):
        ok(here.who.run(words))
    return {"PATH": f"{tools}:{here.who.path}"}
