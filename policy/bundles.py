"""Named lists of hosts (`bundles.toml`), which an allow-list can hold as one word: ``@python``."""

import functools
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from policy.errors import Refusal

MARK = "@"
FILE = Path(__file__).with_name("bundles.toml")
_PORTS = (443,)


class Bundle(NamedTuple):
    """One list: its name, what it is for, its egress rules, and what allowing it risks ("": nothing special)."""

    name: str
    title: str
    rules: tuple[str, ...]
    risk: str


@functools.cache
def bundles() -> dict[str, Bundle]:
    """All bundles by name."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    if tables.pop("schema") != 1:
        raise ValueError(f"{FILE} is of another version")
    return {
        name: Bundle(name, table["title"], _rules(table["hosts"], table.get("ports", _PORTS)), table.get("risk", ""))
        for name, table in tables.items()
    }


def require(word: str) -> Bundle:
    """The bundle that ``@NAME`` means. Refusal ``bundle-unknown``, with the nearest name."""
    known = bundles()
    name = word.removeprefix(MARK)
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    raise Refusal(
        "bundle-unknown",
        f"{word[:80]!r} is no bundle of hosts",
        context=f"did you mean {MARK}{near[0]}?" if near else "",
        hint="known: " + ", ".join(MARK + name for name in known),
    )


def _rules(names: Iterable[str], ports: Iterable[int]) -> tuple[str, ...]:
    """Egress rules from names that are written from their top-level domains down."""
    hosts = [".".join(reversed(name.split("."))) for name in names]
    return tuple(f"{host}:{port}" for host in hosts for port in ports)
