"""Files of a provider's that pass between the user's home and a worktree's private one: the keys of ``[[files]]``.

Example::

    [[files]]
    path = "~/.codex/auth.json"         # where it lies by default
    moved = "auth.json"                 # where below the directory that the provider's state variable names
    refreshed = ["tokens.access_token", "last_refresh"]
    newer = "last_refresh"
    account = ["tokens.account_id"]
    proofs = { "tokens.id_token" = ["sub"] }
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def home_relative(path: str) -> str:
    """`path` if it starts with ``~/``, names something below it and holds no ``..``; ValueError otherwise."""
    if not path.startswith("~/") or path == "~/" or ".." in path.split("/") or "\0" in path:
        raise ValueError("must start with ~/, name something below it and hold no ..")
    return path.rstrip("/")


def _below(path: str) -> str:
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError("must be a path below a directory, without any ..")
    return path


Dotted = Annotated[str, Field(pattern=r"^[^.]+(\.[^.]+)*$")]
HomePath = Annotated[str, AfterValidator(home_relative)]
Below = Annotated[str, AfterValidator(_below)]


class ProviderFile(BaseModel):
    """One such file. It is copied in when a session starts, and what was refreshed in it is copied back at the end."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: HomePath
    """Where it lies when nothing moves it."""
    moved: Below | None = None
    """Where it lies below the directory that the provider's state variable names; none: that does not move it."""
    format: Literal["json", "text"] = "json"
    """A text is copied in, and never back."""
    entry: Annotated[str, Field(pattern=r"^(\*|[^.*]+(\.[^.*]+)*)?$")] = ""
    """Dotted path of the object that holds one login; "" is the whole document, ``*`` each object in it."""
    refreshed: list[Dotted] = []
    """Below an entry: what a refresh replaces. Nothing else is ever copied back; nothing at all without."""
    newer: Dotted | None = None
    """That of them which grows with each refresh: a time."""
    account: list[Dotted] = []
    """Below an entry: what tells the account. Where it differs, in any file of the provider's, nothing goes back."""
    proofs: dict[Dotted, list[str]] = {}
    """Below an entry: JSON Web Tokens, and their claims that tell the account."""
    only: list[Dotted] = []
    """What of the document is copied in; none: all of it."""
    put: dict[Dotted, str | bool | int] = {}
    """Dotted path -> value that the copy is given besides, whatever the user's own file says."""
    unattended: dict[Dotted, str | bool | int] = {}
    """The same where the provider's questions are off; what was put so is taken away where they are kept."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if bool(self.refreshed) != (self.newer is not None):
            raise ValueError("refreshed and newer go together")
        if self.newer is not None and self.newer not in self.refreshed:
            raise ValueError("newer must be one of refreshed")
        if set(self.account) & set(self.refreshed):
            raise ValueError("what tells the account is never refreshed")
        detailed = self.refreshed or self.account or self.proofs or self.only or self.put or self.unattended
        if self.format == "text" and detailed:
            raise ValueError("of a text, only path and moved can be said")
        return self
