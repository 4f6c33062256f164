"""One layer of configuration: where it comes from, and how its bytes become a model."""

import re
import tomllib
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from pydantic import ValidationError

from policy.config import problems
from policy.config.model import SCHEMA, Base, Configuration
from policy.errors import Refusal

# tomllib needs time that grows with the square of a dotted key's parts (16,384 parts: 3 s), and a key ends with its
# line. Far above what any sensible line holds, far below what hurts.
_MOST_DOTS_IN_LINE = 1024


class Kind(IntEnum):
    """Where a layer comes from, in ascending precedence."""

    DEFAULT = 0
    SYSTEM = 1
    USER = 2
    PROJECT = 3
    FILE = 4
    FLAGS = 5


@dataclass(frozen=True, slots=True)
class Layer:
    """A validated layer.

    Attributes:
        kind: its place in the order of precedence.
        origin: the file's path; "" for the shipped default and for flags.
        content: the model; its paths are absolute.
        trusted: False for a file that an agent may have written: it can only tighten what lies below it.
        submodules: names given by flags; a file cannot choose them, since they differ from run to run.
    """

    kind: Kind
    origin: str
    content: Configuration
    trusted: bool = True
    submodules: tuple[str, ...] = field(default=())


def shipped() -> Layer:
    """The built-in defaults, `policy/default.toml`."""
    data = Path(__file__).parent.with_name("default.toml").read_bytes()
    return parse(data, Kind.DEFAULT, "default.toml", Base(None, None))


def parse(data: bytes, kind: Kind, origin: str, base: Base, *, trusted: bool = True) -> Layer:
    """The layer that a file's bytes describe.

    Args:
        data: the whole file.
        kind: which layer; `[system]` is accepted only up to `Kind.USER`.
        origin: the file's path, for messages and sources.
        base: what its relative and ``~`` paths mean.
        trusted: see `Layer`.

    Refusals: config-encoding, config-syntax, config-schema, config-unknown-key, config-misplaced-key, config-invalid.
    """
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise Refusal(
            "config-encoding", f"{origin}: line {number} is not UTF-8", hint="TOML files are UTF-8: save it as such"
        ) from None
    table = migrated(_table(content, origin), origin)
    line_of = problems.line_finder(content)
    if "system" in table and kind > Kind.USER:
        line = line_of(("system",))
        raise Refusal(
            "config-misplaced-key",
            f"{origin}{f': line {line}' if line else ''}: [system] cannot be set here",
            context="it describes the machine, not a project",
            hint="it belongs in /etc/paddock/config.toml or in your own config.toml",
        )
    try:
        model = Configuration.model_validate(table, context=base)
    except ValidationError as error:
        raise problems.refusal(error, origin, line_of) from None
    return Layer(kind, "" if kind == Kind.DEFAULT else origin, model, trusted)


def _table(content: str, origin: str) -> dict[str, object]:
    for number, line in enumerate(content.split("\n"), 1):
        if line.count(".") > _MOST_DOTS_IN_LINE:
            raise _syntax(origin, f"line {number} has more than {_MOST_DOTS_IN_LINE} dots; split it")
    try:
        return tomllib.loads(content)
    except RecursionError:
        raise _syntax(origin, "it is nested too deeply") from None
    except (ValueError, OverflowError) as error:  # TOMLDecodeError is a ValueError, an over-long number a plain one
        raise _syntax(origin, _placed(str(error), content)) from None


def _placed(message: str, content: str) -> str:
    """tomllib's message with the place in front, also when it only says that the text ended."""
    if found := re.search(r" \(at line (\d+), column (\d+)\)$", message):
        return f"line {found[1]}, column {found[2]}: {message[: found.start()]}"
    if message.endswith(" (at end of document)"):
        lines = content.split("\n")
        return f"line {len(lines)}, column {len(lines[-1]) + 1}: {message.removesuffix(' (at end of document)')}"
    return message.partition(";")[0]


def _syntax(origin: str, message: str) -> Refusal:
    return Refusal(
        "config-syntax", f"{origin} is not valid TOML: {message}", hint="https://toml.io says how it is written"
    )


def migrated(table: dict[str, object], origin: str) -> dict[str, object]:
    """`table` in the newest schema. A file without the `schema` key is of schema 1."""
    found = table.get("schema", 1)
    version = found if isinstance(found, int) and not isinstance(found, bool) else -1
    if version < 0:
        raise Refusal("config-schema", f"{origin}: schema must be a whole number", hint=f"schema = {SCHEMA}")
    if version > SCHEMA:
        raise Refusal(
            "config-schema",
            f"{origin} is written in schema {version}, and this version of Paddock knows schema {SCHEMA}",
            hint="use a newer Paddock, or rewrite the file after `paddock init`'s example",
        )
    while version < SCHEMA:
        table = _MIGRATIONS[version](table, origin)
        version += 1
    return table


def _from_0(table: dict[str, object], origin: str) -> dict[str, object]:
    """Schema 0 called the table `[filesystem]` `[fs]`."""
    if "fs" in table and "filesystem" in table:
        raise Refusal("config-schema", f"{origin}: schema 0 has [fs], schema 1 has [filesystem]; this file has both")
    renamed = {"filesystem" if key == "fs" else key: value for key, value in table.items()}
    return renamed | {"schema": 1}


_MIGRATIONS = {0: _from_0}
