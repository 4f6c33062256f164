"""The keyring as the source of a key: through the package of that name, with a keyring of the test's."""

from pathlib import Path

import keyring
import keyring.backend
import pytest

from launcher.session import key_sources
from policy.errors import Refusal
from policy.keys import parse_key


class Ring(keyring.backend.KeyringBackend):
    """Knows one service, and is locked for another."""

    priority = 1.0

    def get_password(self, service: str, username: str) -> str | None:
        """One password."""
        if service == "locked":
            raise RuntimeError("it is locked")
        return "from-the-ring" if (service, username) == ("vendor/api", "me") else None

    def set_password(self, service: str, username: str, password: str) -> None:
        """Not here."""
        raise NotImplementedError


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ('{"requests": 2, "input": 3, "output": 4}', 3),
        ("", 0),
        ("{", 0),
        ("[1]", 0),
        ("7", 0),
        ("[" * 4000, 0),
        ('{"input": -1}', 0),
        ('{"input": true}', 0),
        ('{"input": "3"}', 0),
        ('{"input": 1e9}', 0),
        (f'{{"input": {1 << 60}}}', 0),
        (" " * 5000, 0),
    ],
)
def test_of_what_the_proxy_counted_numbers_are_taken_and_nothing_else(tmp_path: Path, text: str, tokens: int) -> None:
    """It reads an agent's words: whoever takes it over ends neither a session's harvest nor the service."""
    (tmp_path / "usage.json").write_text(text)
    assert key_sources.usage(str(tmp_path)).input == tokens
    assert len(key_sources.spent(str(tmp_path), ())) == (1 if tokens else 0)
    assert key_sources.usage(str(tmp_path / "missing")) == key_sources.Usage()


def test_a_key_comes_from_the_keyring() -> None:
    """The user's name is behind the last slash; what cannot be had is refused with the reason."""
    before = keyring.get_keyring()
    keyring.set_keyring(Ring())  # type: ignore[no-untyped-call]  # as its base is
    try:
        for source, why in {"vendor/api/me": "", "vendor/api/you": "it is empty", "locked/me": "it is locked"}.items():
            key = parse_key(f"TOKEN=https://api.example.com,from=keyring:{source}")
            if not why:
                assert key_sources.values_of((key,), "/nowhere", ()) == ((key, "from-the-ring"),)
                continue
            with pytest.raises(Refusal) as refused:
                key_sources.values_of((key,), "/nowhere", ())
            assert refused.value.reference == "key-missing"
            assert why in refused.value.message
    finally:
        keyring.set_keyring(before)
