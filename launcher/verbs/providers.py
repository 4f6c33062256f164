"""`paddock providers`: the known agents, and what Paddock does for one of them."""

import json
import os
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from launcher.session import messages, places, recognition
from launcher.verbs import table
from policy.errors import printable
from policy.providers.model import Dialect, Inject, ProviderFile, Switch
from policy.providers.registry import (
    DeclaredStrategy,
    SandboxTranslationRegistry,
    SandboxTranslationStrategy,
    translate,
)

# What is known about a provider, in words and as plain data, for `paddock providers`.


_WIDTH = 100
_MARGIN = 15
_KNOWN_BY = "if the account is the same (which a hostile agent can fake: --logins copy brings nothing back)"


class _Example(NamedTuple):
    worktree_path: Path = Path("WORKTREE")
    submodule_paths: tuple[Path, ...] = ()


def document(strategy: SandboxTranslationStrategy) -> dict[str, Any]:
    """A provider as plain data: its file's keys, and where it comes from. Of a plug-in's own strategy, what it says."""
    if isinstance(strategy, DeclaredStrategy):
        return {"source": strategy.source} | strategy.spec.as_data()
    return {
        "source": f"{type(strategy).__module__}.{type(strategy).__qualname__}",
        "name": strategy.provider_name,
        "supports_sandbox": strategy.supports_sandbox,
    }


def paragraphs(strategy: SandboxTranslationStrategy) -> list[str]:
    """A provider explained, one line per fact."""
    if not isinstance(strategy, DeclaredStrategy):
        told, arguments = translate(strategy, _Example())
        return [
            f"{strategy.provider_name}  (a plug-in's own strategy: {type(strategy).__module__})",
            *_lines("told", [*(f"{name}={value}" for name, value in told.items()), " ".join(arguments)]),
        ]
    spec = strategy.spec
    native = spec.native
    kept = {inject.variable for inject in spec.inject}
    given = [name for name in (*spec.credentials.environment, *spec.settings) if name not in kept]
    held = [", ".join((*spec.state.directories, *spec.state.files)) + ": private to the worktree"]
    held += [f"{spec.state.variable} points there"] if spec.state.variable else []
    temp = [f"{spec.temp.variable} points to the session's own"] if spec.temp.variable else []
    temp += ["programmes are unpacked and executed there"] if spec.temp.executable else []
    return [
        f"{spec.name}  {spec.title}  ({strategy.source})",
        *_lines("command", [", ".join(spec.commands)]),
        *_lines("ACP adapter", [", ".join(spec.adapters)]),
        *_lines("ACP start", [spec.acp]),
        *_lines("told", _dialect(native)),
        *_lines("sandbox off", _switch(native.sandbox_off)),
        *_lines("prompts off", _switch(native.prompts_off)),
        *_lines("contract", _dialect(spec.contract)),
        *_lines("quiet", [f"{name}={value}" for name, value in spec.quiet.items()]),
        *_lines("hosts", [", ".join(spec.domains)]),
        *_lines("and those of", [", ".join(spec.endpoints)]),
        *_lines("state", held if spec.state.directories or spec.state.files else []),
        *_lines("files", [_file(file) for file in spec.files]),
        *_lines("brought", [", ".join(spec.bring) + ": read-only, with --bring agents"] if spec.bring else []),
        *_lines("kept out", [_key(inject) for inject in spec.inject]),
        *_lines("temp", temp),
        *_lines("passed on", [", ".join(given)] if given else []),
        *_lines("per session", [f"{name}: a random value" for name in spec.session_secrets]),
        *_lines("notes", [f"- {note}" for note in spec.notes]),
    ]


def _key(inject: Inject) -> str:
    paths = ", ".join(f"{inject.url}{path}" for path in inject.paths)
    base = f", or what {inject.base} names" if inject.base else ""
    return f"{inject.variable}: a phantom for {' and '.join(inject.methods)} of {paths}{base}"


def _file(file: ProviderFile) -> str:
    parts = [", ".join(file.only) + " of it"] if file.only else [] if file.brought else ["copied in"]
    parts += [f"{', '.join(file.brought)} of it with --bring agents"] if file.brought else []
    parts += [f"{', '.join(file.refreshed)} back when refreshed, {_KNOWN_BY}"] if file.refreshed else []
    if file.phantom is not None:
        uses = [f"{url}{use.rpartition(' ')[2]}" for url, texts in file.phantom.apis.items() for use in texts]
        names = ", ".join(file.phantom.tokens)
        parts += [f"with --logins phantom, phantoms of {names} are copied in, for requests to {', '.join(uses)}"]
    parts += [f"{name} = {json.dumps(value)} is set" for name, value in file.put.items()]
    parts += [f"{name} = {json.dumps(value)} while its prompts are off" for name, value in file.unattended.items()]
    parts += [f"{name} = {json.dumps(value)} while a key stays outside" for name, value in file.keyed.items()]
    return f"{file.path}: {'; '.join(parts)}"


def _dialect(dialect: Dialect) -> list[str]:
    words = " ".join(dialect.arguments).replace("{worktree}", "WORKTREE")
    more = " ".join(dialect.submodule_arguments).replace("{worktree}", "WORKTREE").replace("{submodule}", "SUBMODULE")
    lines = [f"{name}={value}".replace("{worktree}", "WORKTREE") for name, value in dialect.environment.items()]
    return [*lines, words, *([f"{more}  for each submodule"] if more else [])]


def _switch(switch: Switch) -> list[str]:
    lines = [f"{name}={value}" for name, value in switch.environment.items()]
    words = " ".join(switch.arguments)
    lines += [f"{words}  unless you give {', '.join(switch.unless)}" if switch.unless else words]
    return [*lines, *(["its ACP adapters then ask for nothing"] if switch.silences_adapters else [])]


def _lines(label: str, texts: list[str]) -> list[str]:
    lines: list[str] = []
    for text in texts:
        further = "  " if text.startswith("- ") else ""
        width = _WIDTH - _MARGIN
        for line in textwrap.wrap(
            text, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        ):
            lines.append(f"  {'' if lines else label:<{_MARGIN - 2}}{line}")
    return lines


def providers(name: str | None, *, as_json: bool) -> int:
    """Exit status 0; 125 when there is no such provider, or a file of one is wrong."""
    where = places.places(os.environ)
    known = recognition.load(where)
    names = known.names() if name is None else (known.require(name).provider_name,)
    if as_json:
        rows = [document(known.require(one)) for one in names]
        messages.show(json.dumps(rows[0] if name is not None else rows, indent=2))
    elif name is not None:
        messages.show("\n".join(printable(line, len(line)) for line in paragraphs(known.require(name))))
    else:
        _list(known)
        own = recognition.own_directory(where)
        messages.show(f"\nyour own: {printable(own)}/*.toml; paddock providers NAME explains one")
    return 0


def _list(known: SandboxTranslationRegistry) -> None:
    rows = []
    for name in known.names():
        found = known.require(name)
        if isinstance(found, DeclaredStrategy):
            spec = found.spec
            shown = [word for word in (*spec.commands, *spec.adapters) if not word.startswith("@")]
            rows.append((name, spec.title, ", ".join(shown)))
        else:
            rows.append((name, "(a plug-in's own strategy)", ""))
    messages.show("\n".join(table.lines(("PROVIDER", "AGENT", "RECOGNISED BY"), rows)))
