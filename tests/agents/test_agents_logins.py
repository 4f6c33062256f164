"""Real programmes find the login that was copied into their private homes, where they look for it in a jail."""

import base64
import json
import shlex

import pytest

from tests.support import agent_packages, identity
from tests.support.agent_scene import Scene
from tests.support.features import need


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
    """And without one there is none: nothing else of the user's is in the jail."""
    need("userns")
    environment = {"PATH": f"{agent_packages.programs()}:{identity.SYSTEM_PATH}"}
    place = shlex.quote(f"{scene.who.home}/{file}")
    scene.who.run(["sh", "-c", f"umask 077; mkdir -p $(dirname {place}) && cat >{place}"], stdin=json.dumps(login))
    for option, found in ((("--logins", "none"), False), ((), True)):
        ended = scene.paddock.run(*option, "--", *command, env=environment)
        assert (words in ended.stdout + ended.stderr) is found, ended
