"""The user's own things in a jail: there, read-only, and nowhere else, whatever an agent has prepared."""

import itertools
import json
import os
import shlex
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.vcs.private import writers
from policy import promises
from tests.conftest import IDENTITIES
from tests.support.features import need_backend
from tests.support.identity import Console
from tests.support.paddock import Paddock, Said, seen
from tests.support.programs.scene import SWITCHES

BASHRC, RULES, SKILL = "export MINE=1\n", "be brief\n", "how to test\n"
SERVERS = '[mcp_servers.tests]\ncommand = "sh"\nargs = ["-c", "true"]\nenv = { KEY = "value-of-the-user" }\n'
HOME = f"""
umask 077; cd "$HOME"; mkdir -p dotfiles .codex/skills/own .agents/skills/linked
printf %s {shlex.quote(BASHRC)} >dotfiles/bashrc; ln -s dotfiles/bashrc .bashrc
printf %s {shlex.quote(RULES)} >.codex/AGENTS.md
printf %s {shlex.quote(SKILL)} | tee .codex/skills/own/SKILL.md >.agents/skills/linked/SKILL.md
ln -s ../../.agents/skills/linked .codex/skills/linked
printf %s {shlex.quote(SERVERS)} >.codex/config.toml; echo 'model = "not-for-the-jail"' | cat - .codex/config.toml >x
mv x .codex/config.toml; printf {{}} >.codex/auth.json
"""
SHOWN = (
    "cd; cat .bashrc .codex/AGENTS.md .codex/skills/own/SKILL.md .codex/skills/linked/SKILL.md .agents/skills/*/*; true"
)
CONTENT = BASHRC + RULES + 3 * SKILL
ATTACKS = (
    "echo x >.bashrc",
    "echo x >>.codex/AGENTS.md",
    "echo x >.codex/skills/own/new",
    "rm -f .bashrc",
    "rm -rf .codex/skills/own",
    "mv .bashrc b",
    "mv .codex c && mkdir .codex",
    "mv .codex/AGENTS.md .codex/a",
    "ln -sf /etc/hosts .bashrc",
    "echo x >y && mv -f y .codex/AGENTS.md",
    "chmod 777 .bashrc",
    "touch -d 2001-01-01 .codex/AGENTS.md",
    "truncate -s 0 .agents/skills/linked/SKILL.md",
)


class User:
    """A user with dotfiles and an agent, on one backend.

    Args:
        paddock: the command.
        backend: what holds the jail.
    """

    def __init__(self, paddock: Paddock, backend: str) -> None:
        need_backend(backend)
        self.paddock, self.backend = paddock, backend
        self.mounts = promises.has_mounts(backend)
        self.agent = paddock.place / "bin/codex"
        self.outside(HOME)
        self.outside(f"mkdir -p {self.agent.parent}; cat >{self.agent}; chmod 755 {self.agent}", stdin=_AGENT)
        self.home = Path(paddock.who.home)

    def outside(self, line: str, *, stdin: str = "") -> str:
        """What a line of sh(1) prints that the user runs outside of any jail."""
        ended = self.paddock.who.run(["sh", "-euc", line], cwd=self.paddock.worktree, stdin=stdin)
        assert ended.returncode == 0, ended
        return ended.stdout

    def session(self, line: str, *options: str, env: Mapping[str, str] = {}) -> tuple[str, str]:
        """Runs a line as the agent. Returns what it wrote, and what Paddock said."""
        switches, words = SWITCHES[self.backend]
        ended = self.paddock.run(*words, *options, "--", self.agent, line, env={**switches, **env})
        assert ended.returncode == 0, ended
        return ended.stdout, ended.stderr

    @contextmanager
    def living(self, line: str, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
        """A session of the agent's that goes on when a line comes on its standard input; killed in the end."""
        switches, words = SWITCHES[self.backend]
        words = (*words, *options, "--", str(self.agent), f"echo ready; read -r line; {line}")
        command = self.paddock.words("run", *words)
        with self.paddock.who.start(command, cwd=self.paddock.worktree, env=switches) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                assert process.stdout.readline() == b"ready\n", process.stderr.read()
                yield process
            finally:
                process.kill()

    def refused(self, line: str, *options: str) -> Said:
        """What Paddock said of a session that did not start."""
        switches, words = SWITCHES[self.backend]
        return self.paddock.refused("run", *words, *options, "--", self.agent, line, env=switches)

    def kept(self) -> str:
        """Everything of the user's that must stay as it is: content, modes, times, links."""
        return self.outside(
            "cd; find .bashrc dotfiles .codex .agents -printf '%p %y %m %T@ %s %l\\n' | sort; "
            "find dotfiles .codex .agents -type f -exec cat {} +"
        )


_AGENT = '#!/bin/sh\nfor word in "$@"; do :; done; eval "$word"\n'


@pytest.fixture
def user_of(request: pytest.FixtureRequest, paddock: Paddock) -> User:
    """Whoever the test names, on the backend that it names."""
    return User(paddock, request.param)


@pytest.fixture(params=promises.BACKENDS)
def ordinary(request: pytest.FixtureRequest, user_paddock: Paddock) -> User:
    """An ordinary user, on each backend."""
    return User(user_paddock, request.param)


MOUNTED_AND_COPIED = pytest.mark.parametrize("ordinary", [promises.NAMESPACES, promises.GUARD], indirect=True)
"""Of a test of what Paddock itself makes ready in a home, which bubblewrap shows as namespaces do."""


COPIED = pytest.mark.parametrize("ordinary", [promises.GUARD], indirect=True)
"""Of a test of what is planned, or written, before anything is mounted or copied."""


def _brought(user: User) -> tuple[str, ...]:
    return ("--bring", "agents", "--bring", f"{user.home}/.bashrc")


@pytest.mark.parametrize(
    ("user_of", "who"),
    [*((each, IDENTITIES[-1]) for each in promises.BACKENDS),
     *((promises.NAMESPACES, each) for each in IDENTITIES[:-1])],
    indirect=True,
)  # fmt: skip
def test_the_users_own_things_are_there_and_stay_his(user_of: User) -> None:
    """Read-only where there are mounts; else copies, which the command may spoil until the next session."""
    user, before = user_of, user_of.kept()
    words = _brought(user)
    assert user.session(SHOWN)[0] == ""
    attacks = "; ".join(f"({line}) >/dev/null 2>&1 && echo {number}" for number, line in enumerate(ATTACKS))
    done = user.session(f"{SHOWN}; {attacks}; {SHOWN if user.mounts else 'true'}", *words)[0]
    if user.mounts:
        assert done == CONTENT * 2, "an attack succeeded, or changed what is shown"
    else:
        assert done.startswith(CONTENT)
        assert done != CONTENT, "copies can be written"
    assert user.session(SHOWN, *words)[0] == CONTENT
    assert user.kept() == before


def test_nothing_that_an_agent_left_leads_a_mount_or_a_copy_elsewhere(ordinary: User) -> None:
    """Links, directories, files and FIFOs in the places of what is brought, and of the directories above it."""
    user = ordinary
    target = user.paddock.place / "target"
    user.outside(f"mkdir -p {target}/skills; for name in AGENTS.md bashrc; do echo untouched >{target}/$name; done")
    before, words, known = user.kept(), _brought(user), seen(target)
    bashrc: tuple[str, ...] = (
        f"rm -f .bashrc; ln -s {target}/bashrc .bashrc",
        "rm -f .bashrc; mkfifo .bashrc",
        "rm -f .bashrc; mkdir -p .bashrc/full",
        "rm -f .bashrc; echo x >.bashrc; ln .bashrc other; chmod 0 .bashrc",
        f"rm -rf .agents; ln -s {target} .agents",
    )
    codex: tuple[str, ...] = (
        f"rm -rf .codex; ln -s {target} .codex",
        f"rm -rf .codex; ln -s {user.home}/.codex .codex",
        f"rm -rf .codex; mkdir .codex; ln -s {target}/AGENTS.md {target}/skills .codex; chmod 555 .codex",
        "rm -rf .codex; echo file >.codex",
        "rm -rf .codex; mkdir .codex; echo file >.codex/skills; chmod 0 .codex",
        "rm -rf .codex; mkdir -p .codex/AGENTS.md/full; chmod -R a-w .codex; chmod 0 .codex/AGENTS.md",
    )
    if user.backend == promises.BUBBLEWRAP:  # which shows what Paddock has made ready as for namespaces
        codex, bashrc = codex[:2], bashrc[:2]
    for plants in itertools.zip_longest(codex, bashrc, fillvalue="true"):
        user.session(f"cd; {{ {plants[0]}; }} && {{ {plants[1]}; }}")
        out, said = user.session(SHOWN, *words)
        assert out == CONTENT, (plants, said)
        assert seen(target) == known, plants
    assert user.kept() == before


@COPIED
def test_an_agent_cannot_keep_its_own_servers_in_the_place_of_the_users(ordinary: User) -> None:
    """Modes are put right, and what is in the way is moved aside, named once."""
    user, words = ordinary, ("--bring", "agents")
    for plant in (
        "mkdir .codex; echo EVIL >.codex/config.toml; chmod 400 .codex/config.toml; chmod 555 .codex",
        "mkdir -p .codex/config.toml/full; echo EVIL >.codex/config.toml/full/x; chmod 500 .codex/config.toml .codex",
        "echo EVIL >ev; mkdir .codex; ln -s ../ev .codex/config.toml; chmod 100 .codex",
        "mkdir evil; echo EVIL >evil/config.toml; ln -s evil .codex",
        "mkdir .codex; mkfifo .codex/config.toml; chmod 0 .codex",
    ):
        user.session(f"cd; chmod 700 .codex; rm -rf .codex evil ev; {plant}")
        out, said = user.session("cat ~/.codex/config.toml", *words)
        assert "value-of-the-user" in out, (plant, said)
        assert "EVIL" not in out
        assert said.count("what was in the way is now ~/") == (0 if "400" in plant else 1)
    assert "in the way" not in user.session("true", *words)[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes something that the user cannot move")
@MOUNTED_AND_COPIED
def test_what_cannot_be_brought_refuses_the_start(ordinary: User) -> None:
    """The command would take for the user's what is there."""
    user, words = ordinary, ("--bring", "agents")
    user.session("cd; mkdir -p .codex")
    (place,) = user.paddock.state.glob("worktrees/*/home/.codex")
    os.chown(place, 0, 0)
    said = user.refused("true", *words)
    assert (said.reference, "requested by bring.agents" in said.text, str(place) in said.text) == (
        "bring-blocked", True, True,
    )  # fmt: skip
    user.paddock.who.give(place)
    assert "value-of-the-user" in user.session("cat ~/.codex/config.toml", *words)[0]


SPOILT = "cd; rm -rf .bashrc .codex; mkdir .codex; mv x .bashrc; rm -rf .agents; mkdir -p .codex/skills/evil"


@pytest.mark.parametrize(
    ("user_of", "who"),
    [(promises.NAMESPACES, IDENTITIES[-1]), (promises.GUARD, IDENTITIES[0])],
    indirect=True,
)
def test_sessions_of_one_home_bring_the_same(user_of: User) -> None:
    """Else one unlinks the mount points of another, or overwrites its copies. A session that was killed is none."""
    user, words = user_of, _brought(user_of)
    with user.living(SHOWN, *words) as first:
        more = (*words, "--bring", f"{user.home}/dotfiles")
        for other in (more,) if user.mounts else ((), ("--bring", "agents"), more):
            said = user.refused(f"echo x >x; {SPOILT}", *other)
            assert said.reference == "bring-home-shared"
            assert ("~/.bashrc" in said.text, "paddock exec" in said.text) == (True, True)
        if user.mounts:  # what brings nothing may work beside it, and has those places read-only
            out = user.session(f"({SPOILT}) 2>&1; echo beside; echo x >made")[0]
            assert ("beside" in out, "Read-only" in out or "busy" in out) == (True, True), out
        attack = SPOILT if user.mounts else "true"
        assert user.session(f"({attack}) >/dev/null 2>&1; {SHOWN}", *words)[0] == CONTENT
        assert first.communicate(b"\n")[0].decode() == CONTENT
    with user.living("true"):
        assert user.refused("true", *words).reference == "bring-home-shared"
        assert user.session("echo beside")[0] == "beside\n"
    for brings in (words, ()):
        with user.living("true", *brings) as first:
            first.kill()
            first.wait()
            deadline = time.monotonic() + 20  # its jail ends with it, a moment later
            while writers.live(os.fspath(user.paddock.state), os.fspath(user.paddock.worktree), frozen=True):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert user.session(SHOWN, *(() if brings else words))[0] == ("" if brings else CONTENT)


@MOUNTED_AND_COPIED
def test_of_sessions_that_start_together_none_spoils_another(ordinary: User) -> None:
    """Half of them bring, half do not: whoever starts has what it asked for, to its end."""
    user, words = ordinary, _brought(ordinary)
    switches, extra = SWITCHES[user.backend]
    shown = f"{SHOWN} 2>/dev/null; sleep 0.3; {SHOWN} 2>/dev/null"
    for _ in range(2):
        running = [
            user.paddock.who.start(
                user.paddock.words("run", *extra, *(brings or ()), "--", user.agent, (brings and shown) or SPOILT),
                cwd=user.paddock.worktree, env=switches,
            )
            for brings in (words, None) * 3
        ]  # fmt: skip
        for number, process in enumerate(running):
            out, said = process.communicate()
            if process.returncode == 125:
                # Or the place that it was to keep was spoilt by one that had been there before.
                assert b"[bring-home-shared]" in said or b"No such file" in said, said
            elif number % 2 == 0:
                assert out.decode() == CONTENT * 2, said
    assert user.session(SHOWN, *words)[0] == CONTENT


@MOUNTED_AND_COPIED
def test_a_session_misses_nothing_while_others_start(ordinary: User) -> None:
    """Where it is shown copies, too: they are renewed under it, one by one, with what the user has changed."""
    user, words = ordinary, _brought(ordinary)
    skills = ("own", "linked", "../../.agents/skills/linked")
    looks = " && ".join(f"read -r x <.codex/skills/{name}/SKILL.md" for name in skills)
    watching = f'here=$PWD; cd; while [ ! -e "$here/stop" ]; do {looks} || exit 3; done'
    with user.living(watching, *words) as first:
        assert first.stdin is not None
        first.stdin.write(b"\n")
        first.stdin.flush()
        for number in range(2 if user.mounts else 4):
            user.outside(
                f"cd; echo {number} >x; mv x .codex/skills/own/SKILL.md; ln -s SKILL.md .codex/skills/own/also{number}"
            )
            assert user.session("cd; cat .codex/skills/own/also*", *words)[0] == f"{number}\n" * (number + 1)
        (user.paddock.worktree / "stop").touch()
        said = first.stderr.read() if first.stderr is not None else b""
        assert first.wait() == 0, said


@MOUNTED_AND_COPIED
def test_what_was_brought_is_gone_when_it_is_brought_no_more(ordinary: User) -> None:
    """What the agent has made itself stays: files, servers and settings."""
    user = ordinary
    user.session(SHOWN, *_brought(user))
    own = r'printf "[mcp_servers.own]\ncommand = \"x\"\n[a]\nb = 1\n" >>.codex/config.toml; echo mine >.codex/mine'
    out, _ = user.session(f"cd; cat .codex/config.toml; {own}", *_brought(user))
    assert "value-of-the-user" in out
    assert "not-for-the-jail" not in out
    out, _ = user.session("cd; ls -A . .codex .codex/skills .agents/skills 2>&1; cat .codex/config.toml .codex/mine")
    assert "value-of-the-user" not in out
    assert "tests" not in out
    assert not {".bashrc", "AGENTS.md", "own", "linked"} & set(out.split())
    assert '["mcp_servers"."own"]\n"command" = "x"\n["a"]\n"b" = 1\n' in out
    assert out.endswith("mine\n")


@COPIED
def test_what_appears_changes_and_goes_is_noticed(ordinary: User) -> None:
    """Although the same launch was planned before."""
    user, words = ordinary, ("--bring", "agents")
    own = "~/.config/paddock"
    user.outside(f"mkdir -p {own}; printf '[bring]\\nfiles = [\"~/.vimrc\"]\\n' >{own}/config.toml")
    line = "cd; cat .vimrc .codex/AGENTS.override.md 2>&1; true"
    assert "No such file" in user.session(line, *words)[0]
    for text in ("one\n", "two\n"):
        user.outside(f"cd; printf '{text}' >.vimrc; printf '{text}' >new; mv new .codex/AGENTS.override.md")
        assert user.session(line, *words)[0] == text + text
    user.outside("cd; rm .vimrc .codex/AGENTS.override.md")
    assert "No such file" in user.session(line, *words)[0]


def test_a_configuration_brings_and_a_project_asks_first(user_paddock: Paddock) -> None:
    """The user's own file counts; what lies in the worktree loosens."""
    user = User(user_paddock, promises.GUARD)
    line = "cat ~/.bashrc 2>&1; true"
    project = user.paddock.worktree / ".paddock.toml"
    user.outside(f"printf '[bring]\\nfiles = [\"~/.bashrc\"]\\n' >{project}")
    said = user.paddock.refused("run", "--", "true")
    assert (said.reference, "bring.files: adds ~/.bashrc" in said.text) == ("config-untrusted", True)
    user.outside(f"mkdir -p ~/.config/paddock; mv {project} ~/.config/paddock/config.toml")
    assert user.session(line)[0] == BASHRC
    user.outside(f"printf '[bring]\\nagents = false\\n' >{project}")
    assert user.session(line)[0] == BASHRC


def test_secrets_are_refused(user_paddock: Paddock) -> None:
    """By what they are known as, and behind a link."""
    user = User(user_paddock, promises.GUARD)
    user.outside("cd; mkdir .ssh; echo key >.ssh/id; ln -s .ssh/id .toolrc; mkdir -p d/e; echo TOKEN=x >d/e/.env")
    secrets = (".ssh", ".toolrc", ".codex", ".codex/auth.json", ".codex/config.toml", ".netrc", ".config", "d")
    wanted = {f"~/{name}": "bring-secret" for name in secrets}
    wanted |= {"/etc/passwd": "usage", "~/.not-there": "bring-missing"}
    errors = user.paddock.refused_each(*(["run", "--bring", name, "--", "true"] for name in wanted))
    assert dict(zip(wanted, (error.reference for error in errors), strict=True)) == wanted


@MOUNTED_AND_COPIED
def test_credentials_in_a_skill_are_left_out(ordinary: User) -> None:
    """Also when they come after the launch was planned; and the user is told of files with other names."""
    user, words = ordinary, ("--bring", "agents")
    line = "cd ~/.codex/skills; cat */SKILL.md; find -L . -name .env"
    user.outside("cd ~/.codex/skills; mkdir env; echo x >env/SKILL.md; ln env/SKILL.md ~/other-name")
    out, said = user.session(line, *words)
    assert out == f"x\n{SKILL}{SKILL}"
    assert "skills/env/SKILL.md can be reached under another name" in said
    user.outside("mkdir ~/.codex/skills/env/lib; echo TOKEN=x >~/.codex/skills/env/lib/.env")
    out, said = user.session(line, *words)
    assert out == f"x\n{SKILL}{SKILL}"
    assert "skills/env/lib is not brought into the jail (bring.agents)" in said
    assert "skills/env/lib/.env: files of this name contain credentials" in said


def test_explain_and_why_tell_of_it(user_paddock: Paddock) -> None:
    """Each file, which servers, with which of the user's values, and what they lack."""
    user = User(user_paddock, promises.GUARD)
    url = "https://u:secretpw@far.example/mcp?apiKey=secretpw&x=1"
    user.outside(rf"""printf '[mcp_servers.far]\nurl = "{url}"\n' >>~/.codex/config.toml""")
    user.outside(r"""printf '[mcp_servers.lost]\ncommand = "no-such-programme"\n' >>~/.codex/config.toml""")
    user.outside("touch ~/.vimrc ~/.claude.json")
    words = (*_brought(user), "--", str(user.agent))
    secrets = (".claude.json", ".ssh/id", ".codex", ".codex/config.toml")  # bring-secret
    shown, data, asked, *whys = (
        ended.stdout
        for ended in user.paddock.each(
            ("explain", "--plan", *words), ("explain", "--json", *words), ("why", "--json", f"{user.home}/.vimrc"),
            *(("why", f"{user.home}/{secret}") for secret in secrets),
        )
    )  # fmt: skip
    assert f"bring     ~/.bashrc  [shows {user.home}/dotfiles/bashrc; --bring]" in shown
    where = f"{user.home}/.codex/config.toml"
    assert f"server    tests  [{where}; with your values of KEY]" in shown
    far = f"[{where}; with your user name and password, apiKey in its address; its host is out of reach: "
    assert f"server    far  {far}--allow-domain far.example:443]" in shown
    assert f"server    lost  [{where}; its command no-such-programme is not in the jail]" in shown
    assert "value-of-the-user" not in shown
    assert "secretpw" not in shown
    assert json.loads(data)
    assert "value-of-the-user" not in data
    assert json.loads(asked)["allow"]["read"]["flag"] == f"--bring {user.home}/.vimrc"
    assert [secret for secret, why in zip(secrets, whys, strict=True) if not why or "--bring" in why] == []
    assert "risk        logins or state of Claude Code" in whys[0]
    own = "~/.config/paddock"
    user.outside(f"mkdir -p {own}; printf '[bring]\\nfiles = [\"~/.vimrc\"]\\n' >{own}/config.toml")
    asked = user.paddock.call("why", f"{user.home}/.vimrc").stdout
    assert "it is brought: ~/.vimrc in the jail shows it, read-only" in asked
    assert "--bring" not in asked


def test_init_asks_once_and_writes_to_the_users_own_configuration(user_paddock: Paddock) -> None:
    """At a terminal only; comments stay, and an answer that was given is not asked for again."""
    who, words = user_paddock.who, user_paddock.words("init", "--force")
    own = who.home / ".config/paddock/config.toml"
    assert "[y/N]" not in user_paddock.call("init").stdout
    assert not own.exists()
    text = "# mine\n[limits]\nprocesses = 9999 # kept"
    who.run(["sh", "-c", f"mkdir -p {own.parent}; cat >{own}; chmod 640 {own}"], stdin=text)
    with Console(who, user_paddock.worktree) as console:
        console.run(shlex.join(words))
        console.expect(r"\[y/N\] ")
        console.type("y\n")
        console.expect("agents = true")
    assert own.read_text() == "# mine\n[limits]\nprocesses = 9999 # kept\n\n[bring]\nagents = true\n"
    assert stat.S_IMODE(own.stat().st_mode) == 0o640
    assert "\nagents" not in (user_paddock.worktree / ".paddock.toml").read_text()
    with Console(who, user_paddock.worktree) as console:
        console.run(f"{shlex.join(words)}; echo ended-$((1 + 1))")
        said = console.expect(r"(?s).*ended-2").group(0)
    assert "[y/N]" not in said
    assert own.read_text().count("[bring]") == 1
