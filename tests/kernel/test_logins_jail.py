"""Logins of a stand-in for codex: into a real jail, and back out of it."""

import base64
import json
import shlex
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.identity import Who
from tests.support.paddock import Paddock

AGENT = """#!/bin/sh
for word in "$@"; do case $word in --*|-c|*=*) ;; *) eval "$word";; esac; done
"""


def jwt(sub: str) -> str:
    """A token that names its subject."""
    return ".".join(
        base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in ("{}", f'{{"sub":"{sub}"}}', "s")
    )


def auth(hour: int, *, sub: str = "me", account: str = "acc") -> dict[str, Any]:
    """codex's file."""
    tokens = {"id_token": jwt(sub), "access_token": jwt(sub), "refresh_token": f"r-{hour}", "account_id": account}
    return {
        "auth_mode": "chatgpt",
        "OPENAI_API_KEY": None,
        "tokens": tokens,
        "last_refresh": f"2026-11-21T{hour:02}:00:00Z",
    }


class Login:
    """A user with a login, and an agent that does with its copy what it is told."""

    def __init__(self, paddock: Paddock) -> None:
        self.paddock = paddock
        self.file = Path(paddock.who.home, ".codex/auth.json")
        self.agent = paddock.place / "bin/codex"
        self.agent.parent.mkdir()
        self.agent.write_text(AGENT)
        self.agent.chmod(0o755)
        self.write(auth(10))

    def write(self, content: dict[str, Any]) -> None:
        """Makes the user's file."""
        line = f"umask 077; mkdir -p {shlex.quote(str(self.file.parent))} && cat >{shlex.quote(str(self.file))}"
        self.paddock.who.run(["sh", "-c", line], stdin=json.dumps(content))

    def session(self, line: str, *options: str, env: dict[str, str] | None = None) -> tuple[str, str]:
        """Runs a shell line as the agent; returns what it wrote, and what Paddock said."""
        ended = self.paddock.run(*options, "--", str(self.agent), line, env=env)
        assert ended.returncode == 0, ended
        return ended.stdout, ended.stderr

    def kept(self) -> dict[str, Any]:
        """The user's file."""
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found


def writing(content: dict[str, Any]) -> str:
    """A shell line that puts `content` into the agent's copy."""
    return f"printf %s {shlex.quote(json.dumps(content))} > $CODEX_HOME/auth.json"


@pytest.fixture
def login(paddock: Paddock) -> Login:
    """Of root and of an ordinary user."""
    return Login(paddock)


@pytest.fixture
def users_login(user_paddock: Paddock) -> Login:
    """Of an ordinary user only."""
    return Login(user_paddock)


def test_a_refreshed_token_reaches_the_user_and_another_account_does_not(login: Login) -> None:
    """The agent reads its copy only; the rest of what it writes there stays there."""
    out, said = login.session(f"cat $CODEX_HOME/auth.json; cat {login.file} 2>&1; echo x > {login.file}; true")
    assert json.loads(out[: out.rindex("}") + 1]) == auth(10)
    assert "auth.json" in out[out.rindex("}") :]
    assert login.kept() == auth(10)
    login.session(writing(auth(12) | {"mcp": "evil"}))
    assert login.kept() == auth(12)
    assert stat.S_IMODE(login.file.stat().st_mode) == 0o600
    for other in (auth(14, sub="them"), auth(14, account="theirs")):
        _, said = login.session(writing(other))
        assert "belongs to another account" in said
        assert login.kept() == auth(12)


def test_no_link_leads_out_of_the_jail_and_no_secret_in(users_login: Login) -> None:
    """Neither for the file nor for its directory, at the end or at the next start."""
    secret = users_login.paddock.place / "secret"
    secret.write_text(json.dumps(auth(15)))
    secret.chmod(0o666)
    home = users_login.file.parent
    for line in (
        f"ln -sf {secret} $CODEX_HOME/auth.json",
        f"rm -rf $CODEX_HOME; ln -s {secret.parent} $CODEX_HOME",
        f"rm -rf $CODEX_HOME; ln -s {home} $CODEX_HOME",
        "rm -rf $CODEX_HOME; mkfifo $CODEX_HOME",
        "rm -rf $CODEX_HOME; mkdir $CODEX_HOME; mkfifo $CODEX_HOME/auth.json",
        "rm -rf $CODEX_HOME; mkdir -p $CODEX_HOME/auth.json",
        "rm -rf $CODEX_HOME; mkdir -p $CODEX_HOME/.auth.json.paddock",
        "rm -rf $CODEX_HOME; chmod 0 $HOME",
    ):
        before = (sorted(path.name for path in secret.parent.iterdir()), sorted(path.name for path in home.iterdir()))
        users_login.session(line)
        users_login.session("true")
        assert users_login.kept() == auth(10), line
        assert json.loads(secret.read_text()) == auth(15), line
        after = (sorted(path.name for path in secret.parent.iterdir()), sorted(path.name for path in home.iterdir()))
        assert before == after, line
    users_login.session("rm -rf $CODEX_HOME")
    assert json.loads(users_login.session("cat $CODEX_HOME/auth.json")[0]) == auth(10)


def test_a_session_that_was_killed_loses_no_token(users_login: Login, user: Who) -> None:
    """The next one in the worktree takes it to the user, and goes on with it."""
    line = f"{writing(auth(13))}; echo ready; exec sleep 600"
    words = users_login.paddock.words("run", "--", str(users_login.agent), line)
    process = user.start(words, cwd=users_login.paddock.worktree)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert users_login.kept() == auth(10)
    out, said = users_login.session("cat $CODEX_HOME/auth.json")
    assert (json.loads(out), said) == (auth(13), "")
    assert users_login.kept() == auth(13)


def test_a_login_passes_as_far_as_is_wanted(users_login: Login) -> None:
    """Not at all, inwards, or both ways; from where the user's own variable says that it lies."""
    out, _ = users_login.session("ls -a $CODEX_HOME 2>&1; true", "--logins", "none")
    assert "auth.json" not in out
    out, _ = users_login.session(f"cat $CODEX_HOME/auth.json; {writing(auth(12))}", "--logins", "copy")
    assert json.loads(out) == auth(10)
    assert users_login.kept() == auth(10)
    users_login.session("true", "--logins", "copy")
    out, _ = users_login.session("ls -a $CODEX_HOME", "--logins", "none")
    assert "auth.json" not in out
    moved = users_login.paddock.place / "moved"
    users_login.paddock.who.run(
        ["sh", "-c", f"mkdir -m 700 {moved} && cat >{moved}/auth.json"], stdin=json.dumps(auth(14))
    )
    out, _ = users_login.session(f"cat $CODEX_HOME/auth.json; {writing(auth(16))}", env={"CODEX_HOME": str(moved)})
    assert json.loads(out) == auth(14)
    assert json.loads((moved / "auth.json").read_text()) == auth(16)
    assert users_login.kept() == auth(10)


def test_a_login_that_the_agent_may_write_itself_is_not_copied(users_login: Login) -> None:
    """What lies in a writable tree is the agent's word, and the user is told."""
    directory = str(users_login.file.parent)
    out, said = users_login.session("ls -A $CODEX_HOME", "--rw", directory)
    assert out == ""
    assert f"warning: {users_login.file} is not copied into the jail" in said


def test_questions_are_off_in_settings_that_are_the_worktrees_own(user_paddock: Paddock) -> None:
    """For an adapter that takes no flags; they are on again with --keep-prompts, and the user's file is as it was."""
    agent = user_paddock.place / "bin/claude-agent-acp"
    agent.parent.mkdir()
    agent.write_text("#!/bin/sh\ncat $CLAUDE_CONFIG_DIR/settings.json\n")
    agent.chmod(0o755)
    off = {"permissions": {"defaultMode": "bypassPermissions"}, "skipDangerousModePermissionPrompt": True}
    assert json.loads(user_paddock.run("--", str(agent)).stdout) == off
    assert json.loads(user_paddock.run("--keep-prompts", "--", str(agent)).stdout) == {"permissions": {}}
    own = Path(user_paddock.who.home, ".claude/settings.json")
    text = '{"model": "opus", "hooks": {"Stop": []}, "permissions": {"defaultMode": "plan"}}'
    user_paddock.who.run(["sh", "-c", f"mkdir -m 700 {own.parent} && cat >{own}"], stdin=text)
    assert json.loads(user_paddock.run("--", str(agent)).stdout) == {**off, "model": "opus"}
    assert own.read_text() == text
