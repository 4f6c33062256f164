"""Artifact keys: the names under which requests, results and sessions are found (contracts sections 2 and 6)."""

import re
import uuid
from typing import Self

from pydantic import ConfigDict, RootModel, ValidationError, field_validator

MAX_LENGTH = 512
_SEGMENT = re.compile(r"[A-Za-z0-9._~:@+=-]+")


class ArtifactKey(RootModel[str]):
    """A path of segments, such as ``run-7/ticket-2``. Equal texts are equal keys; the JSON form is the text.

    The value is also the session id that tools send in a header, so it holds only characters that mean nothing to
    HTTP, shells and file systems, and no ``.`` or ``..`` segment.
    """

    model_config = ConfigDict(frozen=True)

    @field_validator("root")
    @classmethod
    def _plain(cls, value: str) -> str:
        if len(value) > MAX_LENGTH:
            raise ValueError(f"an artifact key has at most {MAX_LENGTH} characters, not {len(value)}")
        for segment in value.split("/"):
            if not _SEGMENT.fullmatch(segment) or segment in (".", ".."):
                raise ValueError(
                    f"{segment!r} cannot be part of an artifact key: letters, digits and ._~:@+=- between slashes"
                )
        return value

    @classmethod
    def new(cls, label: str) -> Self:
        """A key that nobody else has, beginning with `label`."""
        return cls(f"{label}-{uuid.uuid4().hex}")

    @classmethod
    def of(cls, key: "ArtifactKey | str") -> "ArtifactKey | None":
        """The key that is given, or that a text names; None for what can be none."""
        if isinstance(key, ArtifactKey):
            return key
        try:
            return ArtifactKey(key)
        except ValidationError:
            return None

    @property
    def value(self) -> str:
        """The text: the session id."""
        return self.root

    @property
    def parent(self) -> "ArtifactKey | None":
        """The key that this one was made from with `child`; None at the top."""
        head, slash, _ = self.root.rpartition("/")
        return ArtifactKey(head) if slash else None

    def child(self, label: str) -> "ArtifactKey":
        """The key of something that belongs to this one.

        Raises:
            pydantic.ValidationError: `label` is not one plain segment or more.
        """
        return ArtifactKey(f"{self.root}/{label}")

    def __hash__(self) -> int:
        return hash(self.root)

    def __str__(self) -> str:
        return self.root
