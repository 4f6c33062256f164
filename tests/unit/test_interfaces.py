"""What users, scripts and files on their disks rely on, frozen in `interfaces.json` while the house is rebuilt.

Help texts, the shapes of JSON, refusal ids with their exit statuses, promises and verdicts, and the fields of journals
that an interrupted harvest, merge or swap has left on a disk. A wanted change is written down by
`python -m tests.unit.test_interfaces`, and is then read in the commit's diff.
"""

import ast
import contextlib
import dataclasses
import importlib
import inspect
import io
import json
from collections.abc import Callable, Iterator
from difflib import unified_diff
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest import mock

import pydantic
import pydantic.json_schema
import pytest

from launcher import __main__ as command
from launcher import cli
from launcher.service.api import app
from launcher.service.api.context import Context
from policy import promises
from policy.tables import Part
from tests.support import man_pages

ROOT = Path(__file__).resolve().parents[2]
FROZEN = Path(__file__).with_name("interfaces.json")
JOURNALS = {
    "harvest": ("entries", "serial", "result"),
    "harvest, a repository": (
        *("name", "path", "git_dir", "common", "quarantine", "updates", "index", "private", "base", "tip"),
    ),
    "harvest, a ref": ("ref", "old", "new", "beside"),
    "swap, a file": ("content", "git_dir", "mark", "mode", "owner", "path", "swapped", "time"),
}
"""Fields of what is written to disks by hand; what pydantic writes is frozen with its schema."""


def sources() -> Iterator[Path]:
    """All modules of the product."""
    for folder in ("launcher", "policy"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def modules() -> Iterator[ModuleType]:
    """All of them, imported; an adapter wants its programme's packages."""
    for path in sources():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "adapters" not in parts[:-1]:
            yield importlib.import_module(".".join(part for part in parts if part != "__init__"))


def help_of(*words: str) -> str:
    """What a command line with --help prints, 80 columns wide."""
    printed = io.StringIO()
    narrow = mock.patch.dict("os.environ", {"COLUMNS": "80"})
    with narrow, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        command.main(["paddock", *words, "--help"])
    return printed.getvalue()


def helps() -> dict[str, list[str]]:
    """Help texts by command line form."""
    forms = ["", *dict.fromkeys([*cli.VERBS, *(form.name for form in man_pages.described())])]
    return {form: help_of(*form.split()).splitlines() for form in forms}


def refusals() -> dict[str, list[str]]:
    """Exit statuses (as the source spells them) by refusal id; "" is the ordinary one."""
    found: dict[str, set[str]] = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _named(node.func) == "Refusal" and node.args:
                statuses = [ast.unparse(word.value) for word in node.keywords if word.arg == "exit_code"]
                for constant in ast.walk(node.args[0]):
                    if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                        found.setdefault(constant.value, set()).update(statuses or [""])
    return {reference: sorted(statuses) for reference, statuses in sorted(found.items())}


def _named(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def shapes() -> dict[str, Any]:
    """What is sent, printed with --json, read from files or kept: JSON schemas, keys of tables, the API's paths.

    Several models of one name stand side by side: where they are defined is nobody's interface.
    """
    found: dict[str, list[Any]] = {}
    for module in modules():
        for name, model in inspect.getmembers(module, inspect.isclass):
            if not issubclass(model, pydantic.BaseModel) or model.__module__ != module.__name__:
                continue
            with contextlib.suppress(pydantic.errors.PydanticInvalidForJsonSchema):  # holds callables: never sent
                schema = _without_words(model.model_json_schema())
                schema.pop("$defs", None)  # models by themselves
                found.setdefault(name, []).append(schema)
    tables = {
        kind.__name__: {key.name: man_pages.kind_of(key.kind) for key in kind.KEYS.values()}
        for module in modules()
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Part) and kind is not Part and kind.__module__ == module.__name__
    }
    api = app.build(cast(Context, SimpleNamespace()), "1").openapi()
    models = {name: sorted(each, key=json.dumps) for name, each in found.items()}
    return {"models": models, "tables": tables, "paths": _without_words(api["paths"])}


def _without_words(schema: Any) -> Any:  # noqa: ANN401  # as JSON has it
    """A schema without its prose, which may be rewritten."""
    if isinstance(schema, dict):
        prose = ("description", "summary", "title")
        return {
            key: _without_words(value)
            for key, value in schema.items()
            if key not in prose or not isinstance(value, str)
        }
    return [_without_words(each) for each in schema] if isinstance(schema, list) else schema


def journals() -> dict[str, bool]:
    """Whether there is still a class with the fields of each journal, whatever it is called now."""
    known = set()
    for module in modules():
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if dataclasses.is_dataclass(kind):
                known.add(tuple(each.name for each in dataclasses.fields(kind)))
            known.add(tuple(getattr(kind, "__slots__", ())))
    return {name: fields in known for name, fields in JOURNALS.items()}


def verdicts() -> list[Any]:
    """The promise table: name, promise, verdict and reason of each backend."""
    return [
        [name, promise, {backend: promises.verdict(name, backend) for backend in promises.BACKENDS}]
        for name, promise, _ in promises.ROWS
    ]


PARTS: dict[str, Callable[[], Any]] = {
    "help": helps,
    "refusals": refusals,
    "promises": verdicts,
    "journals": journals,
    "shapes": shapes,
}


def lines(value: Any, depth: int = 2) -> list[str]:  # noqa: ANN401  # as JSON has it
    """JSON with a line for each key of the upper levels; the order of keys is nobody's interface."""
    if not depth or not isinstance(value, dict) or not value:
        return [json.dumps(value, sort_keys=True, ensure_ascii=False)]
    found = ["{"]
    for key in sorted(value):
        first, *rest = lines(value[key], depth - 1)
        found += [f"{json.dumps(key)}: {first}", *rest]
        found[-1] += ","
    found[-1] = found[-1][:-1]
    return [*found, "}"]


@pytest.mark.filterwarnings("ignore::pydantic.json_schema.PydanticJsonSchemaWarning")  # a default that is no JSON
@pytest.mark.parametrize("part", PARTS)
def test_is_as_it_was(part: str) -> None:
    """Nothing that somebody outside of this repository relies on has changed by the way."""
    now, before = json.loads("\n".join(lines(PARTS[part]()))), json.loads(FROZEN.read_text())[part]
    changes = list(unified_diff(lines(before), lines(now), "before", "now", lineterm="", n=0))
    assert not changes, "\n".join(changes[:100])


if __name__ == "__main__":
    FROZEN.write_text("\n".join(lines({part: made() for part, made in PARTS.items()}, 3)) + "\n")
