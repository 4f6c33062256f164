"""One layer of configuration: a file, or the command line's options; where it comes from and how it is read."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from policy import tables
from policy.config.values import SCHEMA, Base, Configuration
from policy.errors import Refusal, in_rows
from policy.keys import BUDGETS
from policy.tables import Mistake, Mistakes, Part, Place, checked, names

# Mistakes in a configuration, in words: which file, which line, which key, and what was probably meant.


def config_refusal(error: Mistakes, origin: str, line_of: Callable[[Place], int | None]) -> Refusal:
    """One Refusal for everything that is wrong in one file."""
    lines = []
    for mistake in error.found:
        line = line_of(mistake.place)
        lines.append(f"line {line}: {sentence(mistake)}" if line else sentence(mistake))
    unknown = any(mistake.owner for mistake in error.found)
    return Refusal(
        "config-unknown-key" if unknown else "config-invalid",
        f"{origin}: {lines[0]}",
        context=in_rows(*(f"also {line}" for line in lines[1:])),
        hint="paddock init writes a commented example of every key" if unknown else "",
    )


def sentence(mistake: Mistake) -> str:
    """One mistake as ``KEY is wrong in this way``."""
    name = ".".join(mistake.keys) or "the file"
    if mistake.owner is None:
        return f"{name} {mistake.text}"
    near = nearest(mistake.keys)
    return f"unknown key {name}" + (f"; did you mean {near}?" if near else "")


def nearest(keys: Sequence[str]) -> str:
    """The known key closest to a dotted one that is unknown at its last part; "" when none is close."""
    from difflib import get_close_matches  # of mistakes alone

    known = known_keys(keys[:-1])
    if close := get_close_matches(keys[-1], known, n=1, cutoff=0.5):
        return ".".join([*keys[:-1], close[0]])
    # Perhaps the key is right and the table is not.
    for table in known_keys(()):
        if keys[-1] in known_keys((table,)):
            return f"{table}.{keys[-1]}"
    return ""


def known_keys(tables: Iterable[str]) -> list[str]:
    """The keys a table takes; [] for a table that does not exist or has free keys."""
    part: type[Part] = Configuration
    for table in tables:
        inner = part.KEYS[table].kind if table in part.KEYS else None
        if not isinstance(inner, type):
            return []
        part = inner
    return names(part)


def line_finder(content: str) -> Callable[[Place], int | None]:
    """Tells in which line of a TOML text a key stands: the deepest known part of it counts.

    Reads headers and ``key =`` lines only, so a text inside a multi-line string can mislead it: good enough for a
    message, and never used for anything else.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(content.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            table = _parts(stripped.strip("[").partition("]")[0])
            lines.setdefault(table, number)
        elif not stripped.startswith("#") and "=" in stripped:
            key = (*table, *_parts(stripped.partition("=")[0]))
            for end in range(len(table) + 1, len(key) + 1):
                lines.setdefault(key[:end], number)

    def line_of(place: Place) -> int | None:
        keys = tuple(part for part in place if isinstance(part, str))
        return next((lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in lines), None)

    return line_of


def _parts(dotted: str) -> tuple[str, ...]:
    # More parts than any key has would only cost time: the text comes from agents.
    return tuple(part.strip().strip("\"'") for part in dotted.split(".", 8)[:8])


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


class Layer(NamedTuple):
    """A validated layer.

    Attributes:
        kind: its place in the order of precedence.
        origin: the file's path; "" for the shipped default and for flags.
        content: what it says; its paths are absolute.
        trusted: False for a file that an agent may have written: it can only tighten what lies below it.
        submodules: names given by flags; a file cannot choose them, since they differ from run to run.
        same_as: the main checkout's file, where that has the same content and may be trusted in place of this one.
        elsewhere: a path in it that is another place in the main checkout, whose trust does not count here therefore.
    """

    kind: Kind
    origin: str
    content: Configuration
    trusted: bool = True
    submodules: tuple[str, ...] = ()
    same_as: str = ""
    elsewhere: str = ""


@cache
def shipped() -> Layer:
    """The built-in defaults, `policy/default.toml`."""
    table = tables.shipped(f"{os.path.dirname(os.path.dirname(__file__))}/default.toml")
    return Layer(Kind.DEFAULT, "", checked(Configuration, table, Base(None, None)))


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
            "config-encoding",
            f"{origin}: line {number} is not UTF-8",
            hint="TOML files must be UTF-8: save it again in that encoding",
        ) from None
    table = migrated(_table(content, origin), origin)
    line_of = line_finder(content)
    if "system" in table and kind > Kind.USER:
        line = line_of(("system",))
        raise Refusal(
            "config-misplaced-key",
            f"{origin}{f': line {line}' if line else ''}: [system] cannot be set here",
            context="it describes the machine, not a project",
            hint="it belongs in /etc/paddock/config.toml or in your own config.toml",
        )
    try:
        found = checked(Configuration, table, base)
    except Mistakes as error:
        raise config_refusal(error, origin, line_of) from None
    return Layer(kind, "" if kind == Kind.DEFAULT else origin, found, trusted)


def _table(content: str, origin: str) -> dict[str, object]:
    for number, line in enumerate(content.split("\n"), 1):
        if line.count(".") > _MOST_DOTS_IN_LINE:
            raise _syntax(origin, f"line {number} has more than {_MOST_DOTS_IN_LINE} dots; split it")
    import tomllib  # most launches have no file of their own

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
        "config-syntax", f"{origin} is not valid TOML: {message}", hint="https://toml.io describes the syntax"
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
            f"{origin} uses schema {version}, and this version of Paddock supports schema {SCHEMA}",
            hint="use a newer Paddock, or rewrite the file like the example that `paddock init` writes",
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


# Command-line options as the topmost layer of configuration.

FLAG_OF = {
    "filesystem.read": "--ro",
    "filesystem.write": "--rw",
    "filesystem.deny": "--deny",
    "filesystem.freeze_root": "--freeze-root",
    "network.mode": "--net",
    "network.proxy_env": "--proxy-env",
    "network.ask": "--ask",
    "network.keys": "--keys",
    "network.inject": "--inject",
    "network.allow_domains": "--allow-domain",
    "network.deny_domains": "--deny-domain",
    "network.reach": "--reach",
    "network.publish": "--publish",
    "environment.pass": "--env",
    "environment.set": "--env",
    "git.mode": "--git",
    "git.branch_policy": "--branch-policy",
    "git.sign": "--sign",
    "git.submodules": "--submodule",
    "limits": "--limit",
    "backend.choice": "--backend",
    "provider.name": "--provider",
    "provider.dialect": "--dialect",
    "provider.keep_prompts": "--keep-prompts",
    "provider.logins": "--logins",
    "bring.agents": "--bring",
    "bring.files": "--bring",
}
"""The option that says the same as a key (`git.submodules` is no key: only the option exists)."""


AGENTS = "agents"
"""What --bring takes besides paths."""


def layer(options: Mapping[str, str | list[str] | bool], *, cwd: str, home: str) -> Layer:
    """The layer that options make. Options that are not about configuration (``--worktree`` ...) are passed over.

    Args:
        options: option -> value; a list for those that may be repeated, as `launcher.cli.parse` gives them.
        cwd: absolute directory that relative paths are relative to.
        home: what ``~/`` means (``--rw=~/x`` is not expanded by every shell).

    Raises:
        Refusal: ``usage``, naming the option.
    """
    tables: dict[str, dict[str, object]] = {}
    for key, flag in FLAG_OF.items():
        table, _, name = key.partition(".")
        if flag in options and flag not in ("--bring", "--env", "--limit", "--submodule"):
            tables.setdefault(table, {})[name] = options[flag]
        elif f"--no-{flag[2:]}" in options:
            tables.setdefault(table, {})[name] = False
    passed, values = [], {}
    for item in _many(options, "--env"):
        name, equals, value = item.partition("=")
        if equals:
            values[name] = value
        else:
            passed.append(name)
    tables["environment"] = {"pass": passed, "set": values}
    brought = _many(options, "--bring")
    tables["bring"] = {"files": [name for name in brought if name != AGENTS]}
    if AGENTS in brought:
        tables["bring"]["agents"] = True
    limits = tables["limits"] = {}
    budgets = _many(options, "--budget")
    for flag, items in (("--limit", _many(options, "--limit")), ("--budget", budgets)):
        for item in items:
            name, equals, value = item.partition("=")
            if not equals:
                raise _usage(f"{flag} {item} needs a value", f"{flag} {name}=VALUE")
            if flag == "--budget" and name not in BUDGETS:
                other = f"--limit {item}" if name in known_keys(("limits",)) else ", ".join(BUDGETS)
                raise _usage(f"--budget: unknown budget {name}", other)
            limits[name] = value
    submodules = tuple(_many(options, "--submodule"))
    if "" in submodules:
        raise _usage("--submodule needs a name", "git submodule status")
    try:
        content = checked(Configuration, tables, Base(cwd, home))
    except Mistakes as error:
        raise _refused(error, budgets) from None
    return Layer(Kind.FLAGS, "", content, True, submodules)


def flag_of(key: str) -> str:
    """The option for a dotted key, ``limits.NAME`` and ``environment.set.NAME`` included."""
    return next(flag for known, flag in FLAG_OF.items() if key == known or key.startswith(known + "."))


def _many(options: Mapping[str, str | list[str] | bool], flag: str) -> list[str]:
    value = options.get(flag, [])
    assert isinstance(value, list), f"{flag} may be repeated, so it comes as a list"
    return value


def _refused(error: Mistakes, budgets: list[str]) -> Refusal:
    mistake, keys = error.found[0], error.found[0].keys
    flag = flag_of(".".join(keys))
    if mistake.owner:  # only --limit has names of its own
        known = ", ".join(known_keys(("limits",)))
        near = nearest(keys).removeprefix("limits.")
        return _usage(f"{flag}: unknown limit {keys[-1]}" + (f"; did you mean {near}?" if near else ""), known)
    text = sentence(mistake)
    name = ".".join(keys)
    if flag == "--limit":
        flag = f"{'--budget' if any(item.startswith(f'{keys[-1]}=') for item in budgets) else flag} {keys[-1]}"
    about_keys = flag.startswith(("--inject", "--budget"))
    return _usage(flag + text.removeprefix(name), f"paddock {'help keys' if about_keys else 'run --help'}")


def _usage(message: str, hint: str) -> Refusal:
    return Refusal("usage", message, hint=hint)
