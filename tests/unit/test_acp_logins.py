"""What an editor is told when an agent lacks a login."""

import pytest

from launcher.bridges.acp.agent_requests import advised
from policy.logins import Login
from policy.plan import VERSION, Plan


@pytest.mark.parametrize(
    ("provider", "files", "advice"),
    [
        ("", (), "--provider NAME"),
        ("codex", (Login("/home/u/.codex/auth.json", "a"), Login("", "b/")), "log in once without Paddock"),
        ("codex", (Login("/home/u/.codex/auth.json", "a", kept_out=("t",)),), "paddock providers codex"),
        ("copilot", (Login("", "b/"),), "paddock providers copilot"),
    ],
)
def test_an_agent_without_a_login_says_what_to_do(provider: str, files: tuple[object, ...], advice: str) -> None:
    """Its own words stay in front; another error, or an update that holds the number, is none."""
    empty: dict[str, object] = dict.fromkeys(Plan.FIELDS, ())
    plan = Plan(**(empty | {"version": VERSION, "provider": provider, "logins": files}))
    error = {"code": -32000, "message": "Authentication required", "data": {"a": 1}}
    asked = {"jsonrpc": "2.0", "id": 3, "error": error}
    told = advised(asked, plan)
    assert told["error"]["message"].startswith("Authentication required. ")
    assert advice in told["error"]["message"]
    assert told["error"]["data"] == {"a": 1}
    for other in ({"id": 3, "error": {"code": -32603, "message": "-32000"}}, {"method": "m", "params": {"n": -32000}}):
        assert advised(other, plan) == other
