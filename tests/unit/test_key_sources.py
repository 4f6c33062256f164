"""The keyring as the source of a key: through the package of that name, with a keyring of the test's."""

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
