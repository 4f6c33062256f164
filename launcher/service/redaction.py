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

_UNSEEN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*(?:[@-~]|\Z)"
    rb"|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\|\Z)"
    rb"|\x1b[ -/]*(?:[0-OQ-WYZ\\`-~]|\Z)"
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
"""What may stand between two characters that a terminal shows side by side."""


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
        """`data` without them, also where something that a terminal does not show stands in between."""
        if self._pattern is None:
            return data
        data = self._pattern.sub(REPLACEMENT.encode(), data)
        if self._pattern.search(_UNSEEN.sub(b"", data)):
            seen, at = _visible(data)
            for found in reversed(list(self._pattern.finditer(seen))):
                data = data[: at[found.start()]] + REPLACEMENT.encode() + data[at[found.end() - 1] + 1 :]
        return data

    def certain(self, data: bytes) -> int:
        """How many bytes of `data` can be written before what follows is known: none of them begins a secret."""
        seen, at = _visible(data)
        begun = max((size for form in self._forms for size in range(1, len(form)) if seen.endswith(form[:size])),
                    default=0)  # fmt: skip
        end = at[-begun] if begun else len(data)
        for found in self._pattern.finditer(data) if self._pattern is not None else ():
            if found.start() < end < found.end():
                return found.start()
        return end


def _visible(data: bytes) -> tuple[bytes, list[int]]:
    """What a terminal shows of `data`, and where each of these bytes stands in it."""
    at: list[int] = []
    last = 0
    for found in _UNSEEN.finditer(data):
        at += range(last, found.start())
        last = found.end()
    at += range(last, len(data))
    return bytes(data[index] for index in at), at
