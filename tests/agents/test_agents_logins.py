"""Real programmes find the login that was copied into their private homes, and work by phantoms of it."""

import base64
import json
import shlex
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support import agent_packages, agent_scene, identity
from tests.support.agent_scene import Agent, Scene
from tests.support.features import need
from tests.support.models.script import Json, Run


def jwt(claims: dict[str, object]) -> str:
    """A token that names its owner and is signed by nobody."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    return ".".join((*parts, "c2ln"))


OWNER = jwt({"sub": "u", "email": "u@example.com", "exp": 4102444800,
             "https://api.openai.com/auth": {"chatgpt_account_id": "a", "chatgpt_plan_type": "plus"}})  # fmt: skip
CODEX = {
    "auth_mode": "chatgpt",
    "OPENAI_API_KEY": None,
    "tokens": {"id_token": OWNER, "access_token": OWNER, "refresh_token": "r", "account_id": "a"},
    "last_refresh": "2026-11-21T10:00:00Z",
}
CLAUDE = {"claudeAiOauth": {"accessToken": "a", "refreshToken": "r", "expiresAt": 4102444800000,
                            "scopes": ["user:inference"], "subscriptionType": "max"}}  # fmt: skip
OPENCODE = {"anthropic": {"type": "oauth", "access": "a", "refresh": "r", "expires": 4102444800000}}


@pytest.mark.parametrize(
    ("file", "login", "command", "words"),
    [
        (".codex/auth.json", CODEX, ("codex", "login", "status"), "Logged in using ChatGPT"),
        (".claude/.credentials.json", CLAUDE, ("claude", "auth", "status"), '"subscriptionType": "max"'),
        (".local/share/opencode/auth.json", OPENCODE, ("opencode", "auth", "list"), "1 credentials"),
    ],
)
def test_a_copied_login_is_found(
    scene: Scene, file: str, login: dict[str, object], command: tuple[str, ...], words: str
) -> None:
    """And without one there is none: nothing else of the user's is in the jail. OpenCode's words are a count."""
    need("userns")
    environment = {"PATH": f"{agent_packages.programs()}:{identity.SYSTEM_PATH}"}
    place = shlex.quote(f"{scene.who.home}/{file}")
    scene.who.run(["sh", "-c", f"umask 077; mkdir -p $(dirname {place}) && cat >{place}"], stdin=json.dumps(login))
    without = [] if login is OPENCODE else [(("--logins", "none"), False)]
    for option, found in (*without, ((), True)):
        ended = scene.paddock.run(*option, "--", *command, env=environment)
        assert (words in ended.stdout + ended.stderr) is found, ended


# A login that stays outside. The vendor's own hosts are asked, by TLS that ends at the proxy; a token is good once it
# has been refreshed, and until then there is a 401.

HOSTS = ("api.anthropic.com", "platform.claude.com", "chatgpt.com", "auth.openai.com")
SEARCH = Path(__file__).parent.parent / "support" / "programs" / "search.py"
MARK = "TokenOfTheUser"


@dataclass
class Account:
    """What the vendor knows: the n-th tokens are good.

    Attributes:
        wrong: requests for a model with something else than its token.
        refreshed: bodies that asked for new tokens.
    """

    number: int = 1
    wrong: list[str] = field(default_factory=list)
    refreshed: list[dict[str, Any]] = field(default_factory=list)

    def access(self, number: int, *, lasts: int = 28800) -> str:
        """An access token that is a JWT, as Codex wants it: with a signature that only the vendor can have made."""
        claims = {
            "sub": "u", "email": "u@example.com", "exp": int(time.time()) + lasts, "n": number,
            "https://api.openai.com/auth": {"chatgpt_account_id": "a", "chatgpt_plan_type": "plus"},
        }  # fmt: skip
        return jwt(claims).rpartition(".")[0] + f".{MARK}{number}" + "x" * 60

    def answer(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> dict[str, Any] | int | None:
        """See `ModelServer.account`."""
        if path.endswith("/oauth/token"):
            self.refreshed.append(body)
            if not body.get("refresh_token", "").endswith(f"{MARK}{self.number}" + "y" * 60):
                return 400
            self.number += 1
            self.wrong.clear()
            return {
                "access_token": self.token(self.number, headers["host"]),
                "refresh_token": self.refresh(self.number, headers["host"]),
                "id_token": self.access(self.number),
                "expires_in": 28800,
                "scope": "user:inference user:profile",
            }
        if path.endswith("/accounts/check"):
            origin = {"workspace_backend_origin": "https://chatgpt.com", "account_routing_override": "us"}
            return {"accounts": [{"id": "a", "structure": "personal", "plan_type": "plus", **origin}],
                    "default_account_id": "a", "account_ordering": ["a"]}  # fmt: skip
        if path.endswith(("/messages", "/responses")) and method == "POST":
            shown = headers.get("authorization", "")
            if f".{MARK}{self.number}x" not in shown and f"-{MARK}{self.number}x" not in shown:
                self.wrong.append(shown)
                return 401
        return None

    def token(self, number: int, host: str) -> str:
        """The access token, in its vendor's form."""
        return f"sk-ant-oat01-{MARK}{number}" + "x" * 60 if "claude" in host else self.access(number)

    def refresh(self, number: int, host: str) -> str:
        """The refresh token."""
        return f"{'sk-ant-ort01-' if 'claude' in host else 'rt_'}{MARK}{number}" + "y" * 60


def _claude(account: Account, ends: float) -> tuple[str, dict[str, Any]]:
    found = {"accessToken": account.token(1, "claude"), "refreshToken": account.refresh(1, "claude"),
             "expiresAt": int((time.time() + ends) * 1000), "scopes": ["user:inference", "user:profile"],
             "subscriptionType": "max"}  # fmt: skip
    return ".claude/.credentials.json", {"claudeAiOauth": found}


def _codex(account: Account, ends: float) -> tuple[str, dict[str, Any]]:
    access = account.access(1, lasts=int(ends))
    tokens = {"id_token": access, "access_token": access, "refresh_token": account.refresh(1, "openai")}
    return ".codex/auth.json", {
        "auth_mode": "chatgpt",
        "OPENAI_API_KEY": None,
        "tokens": {**tokens, "account_id": "a"},
        "last_refresh": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@pytest.mark.parametrize(
    ("command", "make", "ends"),
    [
        ("claude-agent-acp", _claude, 3600),
        ("claude-agent-acp", _claude, 120),  # which it takes for an end, as any that is past
        ("codex-acp", _codex, 120),
    ],
    ids=["claude-good", "claude-ends-soon", "codex-ends-soon"],
)
def test_an_agent_works_by_a_phantom_of_its_login(
    scene: Scene,
    command: str,
    make: Callable[[Account, float], tuple[str, Json]],
    ends: float,
    tmp_path: Path,
) -> None:
    """The vendor sees the user's tokens, the jail has none, and the user's file is what is refreshed."""
    need("userns")
    account = Account()
    scene.model.account = account.answer
    authority, place = trustme.CA(), scene.outside.parent / "ca.pem"
    authority.cert_pem.write_to_path(place)
    place.chmod(0o644)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*HOSTS).configure_cert(tls)
    scene.company.tls, scene.company.vendors = tls, dict.fromkeys(HOSTS, scene.model.port)
    name, login = make(account, ends)
    file = Path(scene.who.home, name)
    quoted = shlex.quote(str(file))
    scene.who.run(["sh", "-c", f"umask 077; mkdir -p $(dirname {quoted}) && cat >{quoted}"], stdin=json.dumps(login))
    (scene.worktree / "search.py").write_text(SEARCH.read_text())
    kept = {key: value for key, value in scene.environment.items() if not key.endswith(("_BASE_URL", "_API_KEY"))}
    agent = Agent((command,), options=("--logins", "phantom"))
    steps = [Run(f"python3 search.py {MARK[::-1]}")]
    told = agent_scene.talk(
        scene, agent, list(steps), tmp_path / "stderr", environment={**kept, "SSL_CERT_FILE": str(place)}
    )
    assert (told.stop_reason, told.status) == ("end_turn", 0), (told.stderr, account)
    assert "looked at" in scene.model.results[0]
    assert "found in" not in scene.model.results[0]
    assert account.wrong == []
    assert len(account.refreshed) == (0 if ends > 600 else 1)
    assert all(MARK in request.headers["authorization"] for request in scene.model.requests)
    now = file.read_text()
    assert f"{MARK}{account.number}" in now
    assert file.stat().st_mode & 0o777 == 0o600
