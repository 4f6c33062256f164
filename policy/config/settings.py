"""The merged settings. Every value, and every entry of a list, knows where it comes from."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from policy.config.layer import Kind
from policy.config.values import looks_secret
from policy.errors import printable

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from: a layer, its file ("" for default and flags), and the key or option."""

    kind: Kind
    origin: str
    key: str

    def __str__(self) -> str:
        """As `paddock explain` shows it: ``default``, ``--rw``, or the file with the key."""
        if self.kind == Kind.DEFAULT:
            return "default"
        return self.key if self.kind == Kind.FLAGS else f"{self.origin} {self.key}"


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value with its source."""

    value: T
    source: Source


Strings = tuple[Sourced[str], ...]
Pairs = tuple[Sourced[tuple[str, str]], ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """What all layers together ask for; the attribute names follow the keys of the files.

    Lists hold each value once, with the first source that named it, in the order of precedence. `deny` beats `read`
    and `write` wherever they come from. `env_set` and `limits` are (name, value) pairs, sorted; a limit without an
    entry is not set. `submodules` is empty when no option chose any, which means all of them.
    """

    read: Strings
    write: Strings
    deny: Strings
    freeze_root: Sourced[bool]
    network_mode: Sourced[str]
    allow_domains: Strings
    deny_domains: Strings
    server_name: Sourced[str]
    reach: Strings
    publish: Strings
    env_pass: Strings
    env_set: Pairs
    git_mode: Sourced[str]
    sign: Sourced[bool]
    submodules: Strings
    limits: tuple[Sourced[tuple[str, int]], ...]
    backend: Sourced[str]
    provider: Sourced[str]
    dialect: Sourced[str]
    keep_prompts: Sourced[bool]
    logins: Sourced[str]
    handoff_protect: Strings
    handoff_report: Strings
    read_trees: Strings
    etc_files: Strings
    kernel_files: Strings
    devices: Pairs

    def warnings(self) -> tuple[str, ...]:
        """What was asked for and has no effect."""
        mode = self.network_mode
        wanted = (*self.allow_domains, *self.reach, *self.publish)
        if not wanted or mode.value in ("proxy", "auto"):
            return ()
        first = wanted[0]
        effect = "no host can be reached" if mode.value == "none" else "every host can be reached"
        return (
            f"{first.value} ({first.source}) has no effect: network mode is {mode.value} ({mode.source}), {effect}; "
            "it counts with --net proxy",
        )

    def describe(self) -> list[str]:
        """One line per value: key, value, source in brackets. Values of variables that look secret are not shown."""
        lines = []
        for key, entries in self._entries():
            lines += [
                f"{key:<24} {printable(_text(entry.value))}  [{printable(str(entry.source))}]" for entry in entries
            ]
        return lines

    def as_dict(self) -> dict[str, object]:
        """The same for `--json`: dotted key -> {value, source}, or a list of them."""
        result: dict[str, object] = {}
        for key, entries in self._entries():
            shown = [{"value": _shown(entry.value), "source": str(entry.source)} for entry in entries]
            result[key] = shown[0] if key in _SCALARS else shown
        return result

    def _entries(self) -> list[tuple[str, tuple[Sourced[object], ...]]]:
        rows: list[tuple[str, tuple[Sourced[object], ...]]] = []
        for attribute, key in KEYS.items():
            value = getattr(self, attribute)
            rows.append((key, (value,) if isinstance(value, Sourced) else value))
        return rows


KEYS = {
    "read": "filesystem.read",
    "write": "filesystem.write",
    "deny": "filesystem.deny",
    "freeze_root": "filesystem.freeze_root",
    "network_mode": "network.mode",
    "allow_domains": "network.allow_domains",
    "deny_domains": "network.deny_domains",
    "server_name": "network.server_name",
    "reach": "network.reach",
    "publish": "network.publish",
    "env_pass": "environment.pass",
    "env_set": "environment.set",
    "git_mode": "git.mode",
    "sign": "git.sign",
    "submodules": "git.submodules",
    "limits": "limits",
    "backend": "backend.choice",
    "provider": "provider.name",
    "dialect": "provider.dialect",
    "keep_prompts": "provider.keep_prompts",
    "logins": "provider.logins",
    "handoff_protect": "handoff.protect",
    "handoff_report": "handoff.report",
    "read_trees": "system.read_trees",
    "etc_files": "system.etc_files",
    "kernel_files": "system.kernel_files",
    "devices": "system.devices",
}
"""Attribute of `Settings` -> dotted key."""

_SCALARS = {
    KEYS[name]
    for name in (
        "freeze_root",
        "network_mode",
        "server_name",
        "git_mode",
        "sign",
        "backend",
        "provider",
        "dialect",
        "keep_prompts",
        "logins",
    )
}


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        name, content = value
        hidden = isinstance(content, str) and looks_secret(name)
        return {"name": name, "value": "(not shown)" if hidden else content}
    return value


def _text(value: object) -> str:
    shown = _shown(value)
    if isinstance(shown, dict):
        return f"{shown['name']}={shown['value']}"
    return str(shown).lower() if isinstance(shown, bool) else str(shown) or "(none)"
