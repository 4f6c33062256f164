"""Credential values that must not come into a log, and taking them out of it."""

import base64
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

REPLACEMENT = "[redacted]"
LEAST = 6
"""Shorter values are words of any text: a log without them would say more about them, not less."""

_TELLING = re.compile(
    r"(^|_)(KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIALS?|AUTH|COOKIE|PAT|DSN)(_|$)",
    re.IGNORECASE,
)


def secrets(environment: Mapping[str, str], given: Iterable[str], declared: Iterable[str] = ()) -> tuple[str, ...]:
    """The values to be taken out, in every form that they are likely to be printed in, the longest first.

    A value in `given`, ``NAME=VALUE`` of `--env`, counts as a secret too: it was typed for this session alone.
    """
    names = set(declared)
    values = {value for name, value in environment.items() if name in names or _TELLING.search(name)}
    values |= {value for item in given for value in (item.partition("=")[2],) if value}
    forms: set[str] = set()
    for value in values:
        if len(value) >= LEAST:
            forms |= {value, quote(value, safe=""), base64.b64encode(value.encode(errors="surrogateescape")).decode()}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


class Redactor:
    """Takes the forms of secrets out of text.

    Attributes:
        longest: bytes of the longest form: who cuts text into pieces must not cut closer to an end than this.
    """

    def __init__(self, forms: Iterable[str]) -> None:
        """Args: from `secrets`."""
        self._forms = tuple(form.encode(errors="surrogateescape") for form in forms)
        self.longest = max(map(len, self._forms), default=0)
        self._pattern = re.compile(b"|".join(map(re.escape, self._forms))) if self._forms else None

    def __call__(self, data: bytes) -> bytes:
        """`data` without them."""
        return data if self._pattern is None else self._pattern.sub(REPLACEMENT.encode(), data)

    def certain(self, data: bytes) -> int:
        """How many bytes of `data` can be written before what follows is known: none of them begins a secret."""
        begun = max((size for form in self._forms for size in range(1, len(form)) if data.endswith(form[:size])),
                    default=0)  # fmt: skip
        end = len(data) - begun
        for found in self._pattern.finditer(data) if self._pattern is not None else ():
            if found.start() < end < found.end():
                return found.start()
        return end
