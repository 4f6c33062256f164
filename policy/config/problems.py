"""Mistakes in a configuration, in words: which file, which line, which key, and what was probably meant."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from policy.config.model import Configuration
from policy.config.values import toml_type
from policy.errors import Refusal

Location = tuple[int | str, ...]


def refusal(error: ValidationError, origin: str, line_of: Callable[[Location], int | None]) -> Refusal:
    """One Refusal for everything that is wrong in one file.

    Args:
        error: what pydantic found.
        origin: the file's name for the message.
        line_of: where a key stands in the file, None when it cannot be told.
    """
    found = error.errors(include_url=False, include_context=True)
    lines = []
    for detail in found:
        line = line_of(detail["loc"])
        lines.append(f"line {line}: {sentence(detail)}" if line else sentence(detail))
    unknown = any(detail["type"] == "extra_forbidden" for detail in found)
    return Refusal(
        "config-unknown-key" if unknown else "config-invalid",
        f"{origin}: {lines[0]}",
        context="\n".join(f"also {line}" for line in lines[1:]),
        hint="paddock init writes a commented example of every key" if unknown else "",
    )


def sentence(detail: ErrorDetails) -> str:
    """One mistake as ``KEY is wrong in this way``."""
    keys = [part for part in detail["loc"] if isinstance(part, str) and part != "[key]"]
    name = ".".join(keys) or "the file"
    kind = detail["type"]
    if kind == "extra_forbidden":
        near = nearest(keys)
        return f"unknown key {name}" + (f"; did you mean {near}?" if near else "")
    if kind == "value_error":
        return f"{name} {detail['ctx']['error']}"
    if kind == "literal_error":
        return f"{name} must be one of {detail['ctx']['expected']}"
    if kind == "tuple_type":
        return f"{name} must be a list of strings, not {toml_type(detail['input'])}"
    if kind == "dict_type":
        return f"{name} must be a table, not {toml_type(detail['input'])}"
    return f"{name}: {detail['msg']}"


def nearest(keys: Sequence[str]) -> str:
    """The known key closest to a dotted one that is unknown at its last part; "" when none is close."""
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
    model: type[BaseModel] = Configuration
    for table in tables:
        field = next((f for n, f in model.model_fields.items() if (f.alias or n) == table), None)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def line_finder(content: str) -> Callable[[Location], int | None]:
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

    def line_of(location: Location) -> int | None:
        keys = tuple(part for part in location if isinstance(part, str) and part != "[key]")
        return next((lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in lines), None)

    return line_of


def _parts(dotted: str) -> tuple[str, ...]:
    # More parts than any key has would only cost time: the text comes from agents.
    return tuple(part.strip().strip("\"'") for part in dotted.split(".", 8)[:8])
