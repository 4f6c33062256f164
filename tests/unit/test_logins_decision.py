"""What of a login may pass: decided on two documents, of which the agent wrote one."""

import base64
import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import logins
from policy.logins import Login

CLAUDE = Login(
    "/h/.credentials.json",
    ".claude/.credentials.json",
    entry="claudeAiOauth",
    refreshed=("accessToken", "refreshToken", "expiresAt"),
    newer="expiresAt",
    account=("scopes",),
    only=("claudeAiOauth",),
)
CODEX = Login(
    "/h/auth.json",
    ".codex/auth.json",
    refreshed=("tokens.id_token", "tokens.refresh_token", "last_refresh"),
    newer="last_refresh",
    account=("tokens.account_id", "OPENAI_API_KEY"),
    proofs=(("tokens.id_token", ("sub",)),),
)
EACH = Login("/h/auth", "auth", entry="*", refreshed=("access", "expires"), newer="expires", account=("type",))


def token(**claims: object) -> str:
    """An unsigned JWT."""
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "sig"])


def claude(access: str = "old", expires: object = 10, **more: object) -> dict[str, Any]:
    return {
        "claudeAiOauth": {"accessToken": access, "refreshToken": "r-" + access, "expiresAt": expires, "scopes": ["a"]},
        "mcpOAuth": {"server": {"token": "secret"}},
        **more,
    }


def codex(sub: str = "me", when: str = "2026-11-21T10:00:00Z", account: str = "acc") -> dict[str, Any]:
    tokens = {"id_token": token(sub=sub, exp=when), "refresh_token": "r-" + when[11:13], "account_id": account}
    return {"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": when}


def test_a_newer_token_replaces_the_older_one_and_nothing_else() -> None:
    """Whatever else the agent wrote beside it stays out of the user's file."""
    inside = claude("new", 20, evil={"apiKeyHelper": "rm"}, mcpOAuth={"server": {"token": "other"}})
    inside["claudeAiOauth"]["more"] = "x"
    found = logins.refreshed(claude(), inside, CLAUDE)
    assert found == claude("new", 20)
    assert logins.same_account(claude(), inside, CLAUDE)


@pytest.mark.parametrize("expires", [10, 9, "20", None, True, [20], {}, 1 << 53, 1e300, float("inf"), float("nan")])
def test_what_is_not_newer_stays_out(expires: object) -> None:
    """The time must be a number as before, and greater: an old session does not undo a new login."""
    assert logins.refreshed(claude(), claude("new", expires), CLAUDE) is None


@pytest.mark.parametrize(
    "access", ["", "a b", "a\nb", "\u00e4", "x" * (logins.LARGEST_TOKEN + 1), None, 5, ["x"], {"$ref": 1}]
)
def test_what_is_no_token_spoils_the_whole_entry(access: Any) -> None:  # noqa: ANN401  # JSON
    """No half of a login passes, nor anything that a programme could take for more than a token."""
    inside = claude("new", 20)
    inside["claudeAiOauth"]["accessToken"] = access
    assert logins.refreshed(claude(), inside, CLAUDE) is None
    del inside["claudeAiOauth"]["accessToken"]
    assert logins.refreshed(claude(), inside, CLAUDE) is None


def test_what_the_users_file_lacks_is_not_added() -> None:
    """A file without a refresh token gets none; one without the entry stays as it is."""
    host = claude()
    del host["claudeAiOauth"]["refreshToken"]
    found = logins.refreshed(host, claude("new", 20), CLAUDE)
    assert found is not None
    assert "refreshToken" not in found["claudeAiOauth"]
    assert logins.refreshed({}, claude("new", 20), CLAUDE) is None
    assert logins.refreshed({"claudeAiOauth": None}, claude("new", 20), CLAUDE) is None


def test_another_account_is_known_by_its_fields_and_by_the_claims_of_its_tokens() -> None:
    """Even where only one of them differs."""
    later = "2026-11-21T12:00:00Z"
    assert logins.same_account(codex(), codex(when=later), CODEX)
    assert not logins.same_account(codex(), codex(sub="other", when=later), CODEX)
    assert not logins.same_account(codex(), codex(account="other", when=later), CODEX)
    assert not logins.same_account(codex(), {}, Login("/h", "x", entry="tokens", account=("account_id",)))
    hidden = codex(when=later)
    hidden["tokens"]["id_token"] = "opaque"
    assert not logins.same_account(codex(), hidden, CODEX)
    assert logins.same_account(hidden, hidden, CODEX)
    other = claude("new", 20)
    other["claudeAiOauth"]["scopes"] = ["a", "b"]
    assert not logins.same_account(claude(), other, CLAUDE)


def test_times_in_words_grow_too() -> None:
    """As codex writes them."""
    found = logins.refreshed(codex(), codex(when="2026-11-21T12:00:00Z"), CODEX)
    assert found is not None
    assert found["tokens"]["refresh_token"] == "r-12"
    assert logins.refreshed(codex(), codex(when="2026-11-21T09:00:00Z"), CODEX) is None


def test_each_of_several_logins_is_judged_by_itself() -> None:
    """opencode keeps one per model provider: the agent's further ones stay out."""
    host = {"one": {"type": "oauth", "access": "a", "expires": 1}, "two": {"type": "api", "key": "k"}, "x": 3}
    inside = {
        "one": {"type": "oauth", "access": "b", "expires": 2},
        "two": {"type": "api", "key": "other"},
        "three": {"type": "oauth", "access": "c", "expires": 2},
    }
    assert logins.refreshed(host, inside, EACH) == host | {"one": inside["one"]}


def test_the_copy_holds_what_was_chosen_and_keeps_what_the_agent_has() -> None:
    """The user's other entries stay out; what the user no longer has goes; what Paddock wants is put."""
    login = CLAUDE._replace(only=("claudeAiOauth", "theme"), put=(("a.b", False),), drop=(("c.d", "x"), ("c.e", 1)))
    inside = {"own": 1, "theme": "dark", "a": 5, "c": {"d": "x", "e": 2}}
    assert logins.copied(claude(), inside, login) == {
        "own": 1,
        "claudeAiOauth": claude()["claudeAiOauth"],
        "a": {"b": False},
        "c": {"e": 2},
    }
    assert logins.copied(None, None, login) == {"a": {"b": False}}
    assert logins.copied(codex(), {"own": 1}, CODEX) == codex()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"3", b'{"a": 1e999}', b"null", b"{", b'{"a": NaN}', b'{"a": Infinity}',
        b'{"a": 1, "a": 2}', b'{"b": {"a": 1, "a": 2}}',
        b"\xff{}", b'{"a": "\xc3"}', b'{"a": ' + b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"\xef\xbb\xbf{}",
    ],
)  # fmt: skip
def test_what_is_no_plain_json_object_counts_as_nothing(data: bytes) -> None:
    """Cut, deep, doubled, in another encoding, or with words that JSON does not have."""
    assert logins.parsed(data) is None


def test_a_document_is_written_as_it_was_read() -> None:
    """In one line or several, with a last line end or without."""
    for data in (b'{"a": 1}', b'{"a": "\\ud800"}', b'{"a": 1}\n', b'{\n  "a": 1\n}', b'{\n  "a": 1\n}\n'):
        found = logins.parsed(data)
        assert found is not None
        assert logins.dumped(found, data) == data


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, VALUES, VALUES, VALUES)
def test_whatever_the_agent_writes_only_the_named_tokens_change(a: object, b: object, c: object, d: object) -> None:
    """Names, order and everything else stay the user's."""
    inside = {"claudeAiOauth": {"accessToken": a, "refreshToken": b, "expiresAt": c, "scopes": d}, "evil": d}
    host = claude()
    found = logins.refreshed(host, inside, CLAUDE)
    assert host == claude()
    if found is not None:
        assert list(found) == list(host)
        assert list(found["claudeAiOauth"]) == list(host["claudeAiOauth"])
        assert found["mcpOAuth"] == host["mcpOAuth"]
        assert found["claudeAiOauth"]["scopes"] == ["a"]
        assert found["claudeAiOauth"]["expiresAt"] > 10
        assert isinstance(found["claudeAiOauth"]["accessToken"], str)


TOML = Login("/h/config.toml", "config.toml", only=("mcp_servers",), toml=True, brought=("mcp_servers",))
USERS = r"""
model = "outside"
[mcp_servers."with space"]
command = "x"
args = ["a\tb", "\u007f", "é"]
env = { K = "v" }
timeout = 1.5
since = 2026-01-01
""".encode()


def test_parts_of_toml_are_brought_beside_what_the_agent_keeps() -> None:
    """What is written is read back as the same; dates become text."""
    mine = b'[a.b]\nc = [{ d = 1 }, true]\n[mcp_servers.own]\ncommand = "y"\n[empty]\n'
    first = logins.wanted(USERS, mine, TOML)
    assert first is not None
    found = tomllib.loads(first.decode())
    theirs = tomllib.loads(USERS.decode())["mcp_servers"]
    theirs["with space"]["since"] = "2026-01-01"
    assert found == {"a": {"b": {"c": [{"d": 1}, True]}}, "mcp_servers": theirs, "empty": {}}
    assert logins.wanted(USERS, first, TOML) == first


@pytest.mark.parametrize("mine", [b"a = ", b"[[x]]\n[x]\n", b"\xff", b"a" + b".a" * 3000 + b" = 1", b"[" * 5000])
def test_toml_of_an_agent_that_cannot_be_read_is_replaced(mine: bytes) -> None:
    """And costs no time."""
    found = logins.wanted(USERS, mine, TOML)
    assert found is not None
    assert list(tomllib.loads(found.decode())) == ["mcp_servers"]


def test_what_was_brought_is_withheld_again() -> None:
    """Only what is the user's: entry by entry, and the rest stays."""
    withheld = TOML._replace(only=(), brought=(), withheld=("mcp_servers",))
    brought = logins.wanted(USERS, None, TOML)
    assert brought is not None
    both = brought + b'[mcp_servers.own]\ncommand = "y"\n[a]\n'
    found = logins.wanted(USERS, both, withheld)
    assert found is not None
    assert tomllib.loads(found.decode()) == {"mcp_servers": {"own": {"command": "y"}}, "a": {}}
    assert logins.wanted(USERS, brought, withheld) == b"\n"
    assert logins.wanted(None, both, withheld) == both
    assert (withheld.only_withholds, TOML.only_withholds) == (True, False)


def test_what_is_withheld_brings_nothing_else() -> None:
    """A file of which nothing is chosen is not copied whole."""
    withheld = Login("/h/x.json", "x.json", withheld=("servers",))
    found = logins.wanted(b'{"token": "t", "servers": {"a": 1}}', b'{"servers": {"a": 1, "b": 2}, "c": 3}', withheld)
    assert found is not None
    assert json.loads(found) == {"servers": {"b": 2}, "c": 3}
