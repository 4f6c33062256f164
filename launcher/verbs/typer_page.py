"""`--help` of a verb that Typer parses, in the form of all others: made from the signature that Typer reads."""

import enum
import inspect
import types
import typing
from collections.abc import Callable

from typer.models import ArgumentInfo, OptionInfo

from launcher import cli
from launcher.verbs import help_page


class Parameters(typing.NamedTuple):
    """What a verb takes.

    Attributes:
        arguments: (name as a synopsis shows it, help).
        options: in the shape of `cli.OPTIONS`.
    """

    arguments: tuple[tuple[str, str], ...]
    options: tuple[help_page.Row, ...]

    def synopsis(self) -> str:
        """All of it on one line, as manuals have it."""
        words = []
        for row in self.options:
            words.append(f"[{help_page.notation(row)}]" + ("..." if row[1] == cli.MANY else ""))
        return " ".join([*words, *(name for name, _ in self.arguments)])


def page(verb: str, command: Callable[..., int], examples: tuple[tuple[str, str], ...]) -> str:
    """What ``paddock VERB --help`` prints.

    Args:
        verb: as in ``paddock VERB``.
        command: a function with Typer annotations; its docstring says what it does.
        examples: (command line, what it does).
    """
    taken = parameters(command)
    summary, _, about = (inspect.getdoc(command) or "").partition("\n\n")
    words = ["[options]"] if taken.options else []
    return help_page.of_verb(
        verb,
        " ".join([*words, *(name for name, _ in taken.arguments)]),
        examples,
        summary=" ".join(summary.split()),
        about=about,
        arguments=taken.arguments,
        options=taken.options,
        statuses="",
    )


def parameters(command: Callable[..., int]) -> Parameters:
    """What a function with Typer annotations takes from the command line."""
    hints = typing.get_type_hints(command, include_extras=True)
    arguments, options = [], []
    for name, parameter in inspect.signature(command).parameters.items():
        kind, info = typing.get_args(hints[name])
        values = _single(kind)
        many = typing.get_origin(values) is list
        if isinstance(info, ArgumentInfo):
            shown = (info.metavar or name.upper()).strip("[]").removesuffix("...")
            shown = shown if parameter.default is inspect.Parameter.empty else f"[{shown}]"
            arguments.append((shown + ("..." if many else ""), _sentence(info.help)))
            continue
        assert isinstance(info, OptionInfo), f"{command} takes {name} from nowhere"
        # In an annotation the first name of an option stands where its default would stand elsewhere.
        names = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
        long = next((word for word in names if word.startswith("--")), "--" + name.replace("_", "-"))
        short = [word for word in names if not word.startswith("--")]
        text = _sentence(info.help) + _more(parameter.default, info, short)
        if values is bool:
            options.append((long, cli.FLAG, "", text))
        else:
            options.append((long, cli.MANY if many else cli.ONE, _value(values, info, name), text))
    return Parameters(tuple(arguments), tuple(options))


def _single(kind: object) -> object:
    """A type without ``| None``."""
    if isinstance(kind, types.UnionType):
        (kind,) = (each for each in typing.get_args(kind) if each is not type(None))
    return kind


def _value(values: object, info: OptionInfo, name: str) -> str:
    if isinstance(values, type) and issubclass(values, enum.Enum):
        return "|".join(str(each.value) for each in values)
    return info.metavar or name.upper()


def _sentence(text: str | None) -> str:
    """Help as rows have it: no capital at its beginning, no full stop at its end."""
    text = (text or "").removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _more(default: object, info: OptionInfo, short: list[str]) -> str:
    """Default, range and short form, in brackets."""
    facts = []
    if isinstance(default, enum.Enum):
        facts.append(f"default: {default.value}")
    elif isinstance(default, int | float) and not isinstance(default, bool):
        facts.append(f"default: {default:g}" if isinstance(default, float) else f"default: {default}")
    if info.max is not None:
        facts.append(f"{info.min or 0:g} to {info.max:g}")
    facts += [f"short: {word}" for word in short]
    return f" ({', '.join(facts)})" if facts else ""
