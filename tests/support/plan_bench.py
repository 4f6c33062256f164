"""Launches without the launch, for tests of the plan cache."""

import os
from pathlib import Path

from launcher.session import cache, places, planning


class Bench:
    """Launches without the launch: the plan of one command in a real repository, cached as `paddock run` does it.

    Attributes:
        place: everything of this test lies below it.
        root: the main checkout, with a populated submodule ``library``.
        first, second: the directories in front of the system's in PATH.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "repo"
        self.first, self.second = place / "first", place / "second"
        self.options: dict[str, str | list[str] | bool] = {}
        self.command = ["tool", "argument"]

    @property
    def where(self) -> places.Places:
        return places.places(os.environ)

    def key(self) -> bytes:
        words, _ = cache.key_words(self.options, self.command)
        return cache.key(words, str(self.root))

    def plan(self) -> cache.Entry:
        """What a launch does that finds nothing."""
        return planning.entry(self.options, self.command, str(self.root), self.where, key=self.key())

    def cached(self) -> cache.Entry | None:
        """What a launch finds."""
        return cache.load(self.where, self.key(), os.environ)

    @property
    def entries(self) -> list[Path]:
        return sorted(Path(self.where.cache, "plans").iterdir())

    @property
    def entry(self) -> Path:
        (path,) = self.entries
        return path
