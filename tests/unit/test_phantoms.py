"""Phantoms of a login's tokens, and what a refresh makes of the user's file: the decision."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import phantoms
from policy.logins import Login
from policy.phantoms import Mint, Phantom
from policy.providers.registry import load_registry

REGISTRY = load_registry()
SECRET = bytes(range(32))
NOW = 1_800_000_000.0
TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=300)


def login(name: str) -> Login:
    """The built-in provider's, as a plan has it."""
    spec = REGISTRY.spec(name)
    assert spec is not None
    (file,) = [file for file in spec.files if file.phantom is not None]
    assert file.phantom is not None
    how = tuple(file.phantom.as_planned())
    return Login("/home/u/file", "inside", entry=file.entry, only=tuple(file.only), phantom=how)


def jwt(claims: dict[str, object], signature: str = "c2lnbmF0dXJl") -> str:
    """A token of RFC 7519."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    return ".".join((*parts, signature))


CLAUDE: dict[str, Any] = {
    "claudeAiOauth": {
        "accessToken": "sk-ant-oat01-" + "A" * 90,
        "refreshToken": "sk-ant-ort01-" + "R" * 90,
        "expiresAt": int((NOW + 3600) * 1000),
        "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
        "somethingNew": "SECRET",
    },
    "organizationUuid": "o",
    "mcpOAuth": {"server": {"accessToken": "SECRET"}},
}
CODEX: dict[str, Any] = {
    "auth_mode": "chatgpt",
    "OPENAI_API_KEY": "SECRET",
    "tokens": {
        "id_token": jwt({"sub": "u"}),
        "access_token": jwt({"sub": "u", "exp": NOW + 3600}),
        "refresh_token": "rt_" + "R" * 60,
        "account_id": "a",
    },
    "last_refresh": "2026-11-21T10:00:00Z",
    "agent_identity": "SECRET",
}


def test_the_copy_of_claudes_login_has_what_is_named_and_nothing_else() -> None:
    """What the agent keeps in its own copy stays, as with any login."""
    made = phantoms.disguised(CLAUDE, {"mcpOAuth": "its own"}, login("claude-code"), Mint(SECRET))
    assert made is not None
    found = made["claudeAiOauth"]
    assert "SECRET" not in json.dumps(made)
    assert made.keys() == {"claudeAiOauth", "organizationUuid", "mcpOAuth"}
    assert made["mcpOAuth"] == "its own"
    assert found.keys() == {"accessToken", "refreshToken", "expiresAt", "scopes", "subscriptionType"}
    for name, prefix in (("accessToken", "sk-ant-oat01-"), ("refreshToken", "sk-ant-ort01-")):
        real = CLAUDE["claudeAiOauth"][name]
        assert found[name].startswith(prefix)
        assert len(found[name]) == len(real)
        assert found[name] != real
    assert found["expiresAt"] == CLAUDE["claudeAiOauth"]["expiresAt"]


def test_the_copy_of_codexs_login_tells_the_account_and_holds_no_signature() -> None:
    """The claims are what Codex reads; without the vendor's signature they open nothing."""
    made = phantoms.disguised(CODEX, {"left": "over"}, login("codex"), Mint(SECRET))
    assert made is not None
    assert "SECRET" not in json.dumps(made)
    assert "c2lnbmF0dXJl" not in json.dumps(made)
    assert made.keys() == {"auth_mode", "tokens", "last_refresh"}
    for name in ("id_token", "access_token"):
        assert made["tokens"][name].rpartition(".")[0] == CODEX["tokens"][name].rpartition(".")[0]


@pytest.mark.parametrize("document", [{}, {"claudeAiOauth": None}, {"claudeAiOauth": {"accessToken": None}}])
def test_without_a_token_there_is_no_copy(document: dict[str, Any]) -> None:
    """A login by a key alone, for instance."""
    assert phantoms.disguised(document, None, login("claude-code"), Mint(SECRET)) is None


@given(TEXT, st.sampled_from(("a", "b.c")), st.sampled_from(("", "sk-", "rt_")))
def test_a_phantom_is_known_by_its_home_and_path_and_tells_nothing(token: str, path: str, prefix: str) -> None:
    """Of the token remain its prefix and its length, where that has room for the code."""
    mint = Mint(SECRET)
    made = mint.phantom(prefix + token, path, prefix)
    assert mint.knows(made, path)
    assert not mint.knows(made, path + "x")
    assert not Mint(SECRET[::-1]).knows(made, path)
    assert not mint.knows(prefix + token, path)
    assert len(made) >= 43
    assert made == mint.phantom(prefix + "~" * len(token), path, prefix)


@given(st.text(max_size=60))
def test_whatever_is_shown_is_no_phantom(shown: str) -> None:
    """And no error."""
    assert not Mint(SECRET).knows(shown, "a")


def test_a_jwt_with_other_claims_is_no_phantom() -> None:
    """Its code is over the claims."""
    mint = Mint(SECRET)
    made = mint.phantom(jwt({"sub": "u"}), "a", "")
    code = made.rpartition(".")[2]
    assert mint.knows(made, "a")
    assert not mint.knows(f"{jwt({'sub': 'v'}).rpartition('.')[0]}.{code}", "a")
    assert not mint.knows(code, "a")


def test_a_jwt_without_a_signature_is_hidden_as_a_whole() -> None:
    """Its claims would be all that it takes (RFC 7519 section 6)."""
    made = Mint(SECRET).phantom(jwt({"sub": "u"}, ""), "a", "")
    assert "." not in made


def test_a_refresh_is_asked_for_as_the_agent_would() -> None:
    """With the scopes that the login has."""
    entry = CLAUDE["claudeAiOauth"]
    assert phantoms.request(entry, login("claude-code")) == {
        "grant_type": "refresh_token",
        "refresh_token": entry["refreshToken"],
        "client_id": "9d1c250a-e61b-44d9-88ed-5944d1962f5e",
        "scope": "user:inference user:profile",
    }
    assert phantoms.request({**entry, "refreshToken": ""}, login("claude-code")) is None


def test_an_answer_replaces_tokens_and_times_alone() -> None:
    """Everything else in the user's file stays."""
    document = json.loads(json.dumps(CLAUDE))
    answer = {"access_token": "new-a", "refresh_token": "new-r", "expires_in": 60, "scope": "other", "account": {}}
    made = phantoms.renewed(document, answer, login("claude-code"), NOW)
    old = CLAUDE["claudeAiOauth"]
    new = {**old, "accessToken": "new-a", "refreshToken": "new-r", "expiresAt": int((NOW + 60) * 1000)}
    assert made == {**CLAUDE, "claudeAiOauth": new}
    document = json.loads(json.dumps(CODEX))
    made = phantoms.renewed(document, {"access_token": "new-a"}, login("codex"), NOW)
    assert made is not None
    assert made["tokens"] == {**CODEX["tokens"], "access_token": "new-a"}
    assert made["last_refresh"] == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize(
    "answer",
    [{}, {"access_token": ""}, {"access_token": 1}, {"access_token": "a b"}, {"access_token": "a", "refresh_token": []},
     {"refresh_token": "r"}, {"access_token": "x" * 20000}],
)  # fmt: skip
def test_what_is_no_answer_is_none(answer: dict[str, Any]) -> None:
    """A page of the vendor's front end, for instance."""
    assert not phantoms.is_answer(answer, login("claude-code"))


@pytest.mark.parametrize("seconds", [None, "60", 0, -1, 1e300, True, []])
def test_a_token_of_which_nothing_is_told_lasts_an_hour(seconds: object) -> None:
    """Else each request would ask for another one."""
    answer = {"access_token": "new-a", "refresh_token": None, "expires_in": seconds}
    assert phantoms.is_answer(answer, login("claude-code"))
    made = phantoms.renewed(json.loads(json.dumps(CLAUDE)), answer, login("claude-code"), NOW)
    assert made is not None
    assert made["claudeAiOauth"]["expiresAt"] == int((NOW + 3600) * 1000)
    assert made["claudeAiOauth"]["refreshToken"] == CLAUDE["claudeAiOauth"]["refreshToken"]


def test_when_a_token_ends() -> None:
    """By the file's time, or by the token's own; what tells nothing never ends."""
    assert phantoms.expiry(CLAUDE["claudeAiOauth"], login("claude-code")) == NOW + 3600
    assert phantoms.expiry(CODEX, login("codex")) == NOW + 3600
    opaque = {**CODEX, "tokens": {**CODEX["tokens"], "access_token": "opaque"}}
    assert phantoms.expiry(opaque, login("codex")) == float("inf")


def test_the_agent_hears_of_its_phantoms() -> None:
    """The same that are in its file, with what is left of their time."""
    mint, claude = Mint(SECRET), login("claude-code")
    copy = phantoms.disguised(CLAUDE, None, claude, mint)
    assert copy is not None
    assert phantoms.answer(CLAUDE["claudeAiOauth"], claude, mint, NOW) == {
        "access_token": copy["claudeAiOauth"]["accessToken"],
        "refresh_token": copy["claudeAiOauth"]["refreshToken"],
        "expires_in": 3600,
        "token_type": "Bearer",
        "scope": "user:inference user:profile",
    }


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_no_phantom_can_make_a_key_or_write_where_it_need_not(name: str) -> None:
    """What would be good outside is not within its rules."""
    how = Phantom(*login(name).phantom)  # type: ignore[arg-type]
    rules = [rule for _, each in how.apis for rule in each]
    assert not [rule for rule in rules if "key" in rule]
    assert len([rule for rule in rules if "POST" in rule]) == 1
