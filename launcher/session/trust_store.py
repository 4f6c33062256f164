"""Which exact contents of which files the user has read and accepted.

A record is (canonical path, SHA-256 of the content). It lives under the user's state directory, which no jail can
reach: an agent that could write here could trust its own file.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.safefs import guarded_files, walk
from launcher.session.places import made
from policy.errors import Refusal, unusable

_NAME = "trust.json"
_VERSION = 1
_LARGEST = 8 << 20


class Trust:
    """The store of one user.

    Args:
        directory: Paddock's state directory (`places().state`); made, with mode 0700, when something is recorded.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.path = os.path.join(directory, _NAME)

    def entries(self) -> tuple[tuple[str, str], ...]:
        """All records as (canonical path, SHA-256 in hexadecimal), sorted by path.

        Refusals: trust-damaged (the store is not what was written), state-not-ours (it could be somebody else's).
        """
        return tuple(sorted(self._load().items()))

    def is_trusted(self, path: str, content: bytes) -> bool:
        """Whether exactly this content was accepted for the file at `path` (canonical)."""
        return self._load().get(path) == digest_of(content)

    def trust(self, path: str, content: bytes) -> str:
        """Records `content` for `path` (canonical), in place of an older record; returns the digest."""
        with self._changing() as records:
            records[path] = digest_of(content)
        return digest_of(content)

    def forget(self, path: str) -> bool:
        """Removes the record of `path`; False when there was none."""
        if path not in self._load():
            return False  # and no directory was made for nothing
        with self._changing() as records:
            return records.pop(path, None) is not None

    def _load(self) -> dict[str, str]:
        content = guarded_files.read_private(self.path, limit=_LARGEST, hint="trust again what you have read")
        if content is None:
            return {}
        import json

        try:
            stored = json.loads(content)
            if stored["version"] != _VERSION:
                raise ValueError(f"version {stored['version']}")
            records = stored["files"]
            if not all(isinstance(text, str) for pair in records.items() for text in pair):
                raise TypeError("records are pairs of strings")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Refusal(
                "trust-damaged",
                f"{self.path} is damaged, so nothing in it can be trusted",
                context=str(error),
                hint="remove it, then trust again what you have read",
            ) from None
        return dict(records)

    @contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        """The records, written back when the block ends; parallel writers wait for each other (flock(2))."""
        import json

        made(self._directory)
        with guarded_files.locked_file(f"{self.path}.lock"):
            records = self._load()
            yield records
            data = json.dumps({"version": _VERSION, "files": dict(sorted(records.items()))}, indent=1) + "\n"
            try:
                walk.replace(self.path, data.encode("ascii"))
            except OSError as error:
                raise unusable(self.path, error) from None


def digest_of(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    import hashlib

    return hashlib.sha256(content).hexdigest()
