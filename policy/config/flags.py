"""Command-line options as the topmost layer of configuration."""

from collections.abc import Mapping

from pydantic import ValidationError

from policy.config.layer import Kind, Layer, known_keys, nearest, sentence
from policy.config.model import Base, Configuration
from policy.errors import Refusal

FLAG_OF = {
    "filesystem.read": "--ro",
    "filesystem.write": "--rw",
    "filesystem.deny": "--deny",
    "filesystem.freeze_root": "--freeze-root",
    "network.mode": "--net",
    "network.allow_domains": "--allow-domain",
    "network.deny_domains": "--deny-domain",
    "network.reach": "--reach",
    "network.publish": "--publish",
    "environment.pass": "--env",
    "environment.set": "--env",
    "git.mode": "--git",
    "git.sign": "--sign",
    "git.submodules": "--submodule",
    "limits": "--limit",
    "backend.choice": "--backend",
    "provider.name": "--provider",
    "provider.dialect": "--dialect",
    "provider.keep_prompts": "--keep-prompts",
    "provider.logins": "--logins",
}
"""The option that says the same as a key (`git.submodules` is no key: only the option exists)."""


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
        if flag in options and flag not in ("--env", "--limit", "--submodule"):
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
    limits = tables["limits"] = {}
    for item in _many(options, "--limit"):
        name, equals, value = item.partition("=")
        if not equals:
            raise _usage(f"--limit {item} needs a value", f"--limit {name}=VALUE")
        limits[name] = value
    submodules = tuple(_many(options, "--submodule"))
    if "" in submodules:
        raise _usage("--submodule needs a name", "git submodule status")
    try:
        content = Configuration.model_validate(tables, context=Base(cwd, home))
    except ValidationError as error:
        raise _refused(error) from None
    return Layer(Kind.FLAGS, "", content, True, submodules)


def flag_of(key: str) -> str:
    """The option for a dotted key, ``limits.NAME`` and ``environment.set.NAME`` included."""
    return next(flag for known, flag in FLAG_OF.items() if key == known or key.startswith(known + "."))


def _many(options: Mapping[str, str | list[str] | bool], flag: str) -> list[str]:
    value = options.get(flag, [])
    assert isinstance(value, list), f"{flag} may be repeated, so it comes as a list"
    return value


def _refused(error: ValidationError) -> Refusal:
    detail = error.errors(include_url=False)[0]
    keys = [part for part in detail["loc"] if isinstance(part, str) and part != "[key]"]
    flag = flag_of(".".join(keys))
    if detail["type"] == "extra_forbidden":  # only --limit has names of its own
        known = ", ".join(known_keys(("limits",)))
        near = nearest(keys).removeprefix("limits.")
        return _usage(f"{flag}: there is no limit {keys[-1]}" + (f"; did you mean {near}?" if near else ""), known)
    text = sentence(detail)
    name = ".".join(keys)
    return _usage(flag + (f" {keys[-1]}" if flag == "--limit" else "") + text.removeprefix(name), "paddock run --help")


def _usage(message: str, hint: str) -> Refusal:
    return Refusal("usage", message, hint=hint)
