"""Named tuples as JSON documents and back: what is kept on disk and printed, without the time that models cost.

Importing pydantic takes a command 0.1 s of processor time, which was half of what `paddock worktree` took. Here are
the few kinds of values that Paddock's own records have; what a user or an agent sends is checked by pydantic.
"""

import json
import os
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import unquote_to_bytes

_URI = "file:///"

T = TypeVar("T")


def absolute_path(value: object) -> Path:
    """`value` as an absolute path without `.`, `..`, doubled or trailing slashes.

    Args:
        value: a str (surrogateescape), bytes, PathLike, or the `file:///` form that JSON output uses for names
            that are not UTF-8. A relative path is taken from the current directory; `~` is an ordinary name.

    Raises:
        ValueError: empty, with a NUL byte, not encodable, relative without a current directory, or with a `..`
            behind a name: only the disk knows where that leads, because the name may be a symbolic link.
    """
    if not isinstance(value, str | bytes | os.PathLike):
        raise ValueError(f"a path is expected, not {type(value).__name__}")
    text = os.fsdecode(value)
    if text.startswith(_URI):
        text = os.fsdecode(unquote_to_bytes(text[len(_URI) - 1 :]))
    if not text:
        raise ValueError("the path is empty; give an absolute path")
    if "\0" in text:
        raise ValueError(f"the path {text!r} holds a NUL byte, which no file name can")
    os.fsencode(text)  # UnicodeEncodeError is a ValueError that names the place
    names: list[str] = []
    if not text.startswith("/"):
        try:
            names = [name for name in os.getcwd().split("/") if name]
        except OSError as error:
            raise ValueError(f"the path {text!r} is relative and the current directory is gone: {error}") from error
    climbing = True  # getcwd() holds no symbolic link, so leading `..` may be taken away from it
    for name in text.split("/"):
        if name in ("", "."):
            continue
        if name == "..":
            if not climbing:
                raise ValueError(f"the path {text!r} has '..' after a name; give the resolved absolute path")
            names = names[:-1]
        else:
            climbing = False
            names.append(name)
    return Path("/" + "/".join(names))


def path_to_json(path: Path) -> str:
    """`path` as JSON can hold it: itself, or percent-encoded behind `file://` when its bytes are not UTF-8.

    A validated path starts with a slash, so the two forms cannot be confused.
    """
    text = str(path)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return path.as_uri()
    return text


def label(text: str) -> str:
    """Undecodable bytes become `\\xNN`: a name is a label, so it need not lead back to the bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def plain(record: tuple[object, ...]) -> dict[str, Any]:
    """What JSON has for a named tuple: an object; arrays for tuples in it, text for paths and members."""
    fields: tuple[str, ...] = record._fields  # type: ignore[attr-defined]  # every NamedTuple has it
    return {name: _plain(value) for name, value in zip(fields, record, strict=True)}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return plain(value) if hasattr(value, "_fields") else [_plain(each) for each in value]
    if isinstance(value, Path):
        return path_to_json(value)
    return label(value) if isinstance(value, str) else value


def written(record: tuple[object, ...]) -> str:
    """A named tuple as one line of JSON."""
    return json.dumps(plain(record), ensure_ascii=False, separators=(",", ":"))


def read(kind: type[T], document: "str | bytes") -> T:
    """The named tuple of a kind that `written` has made.

    Raises:
        ValueError: it is no such document; says where and why.
    """
    try:
        content = json.loads(document)
    except RecursionError:
        raise ValueError(f"{kind.__name__}: it is nested too deeply") from None
    found = _checked(kind, content, kind.__name__)
    assert isinstance(found, kind)
    return found


def _checked(kind: type, value: object, where: str) -> object:
    origin, choices = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if value is None and NoneType in choices:
            return None
        (kind,) = (each for each in choices if each is not NoneType)
        return _checked(kind, value, where)
    if origin is tuple:
        items = _of(list, value, where)
        return tuple(_checked(choices[0], each, f"{where}[{number}]") for number, each in enumerate(items))
    if issubclass(kind, tuple):
        given = _of(dict, value, where)
        types = get_type_hints(kind)
        defaults: dict[str, Any] = kind._field_defaults  # type: ignore[attr-defined]  # every NamedTuple has it
        wrong = (types.keys() - given.keys() - defaults.keys()) | (given.keys() - types.keys())
        if wrong:
            raise ValueError(f"{where}: missing or unknown: {', '.join(sorted(wrong))}")
        return kind(**{name: _checked(types[name], each, f"{where}.{name}") for name, each in given.items()})
    try:
        if issubclass(kind, Path):
            return absolute_path(_of(str, value, where))
        if issubclass(kind, StrEnum):
            return kind(_of(str, value, where))
        if kind is float and type(value) is int:
            return float(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{where}: {error}") from None
    return _of(kind, value, where)


def _of(kind: type[T], value: object, where: str) -> T:
    """`value`, which is exactly of that kind: a bool is no int here."""
    if type(value) is not kind:
        raise ValueError(f"{where}: {kind.__name__} is expected, not {type(value).__name__}")
    return value
