"""Runs a verb that Typer parses, so that its mistakes look like every other Refusal."""

from collections.abc import Callable

import typer

from policy.errors import Refusal


def run(verb: str, command: Callable[..., int], argv: list[str], *, examples: tuple[tuple[str, str], ...]) -> int:
    """Parses `argv` after the signature of `command`, calls it, and returns its exit status.

    Args:
        verb: the verb's name, as in ``paddock VERB``.
        command: a function with Typer annotations; its docstring is the help text.
        argv: the words after the verb.
        examples: (command line, what it does), shown by ``--help``.

    Raises:
        Refusal: ``usage`` for words that the verb does not take; and whatever `command` refuses.
    """
    before = argv[: argv.index("--")] if "--" in argv else argv
    if "--help" in before or "-h" in before:
        from launcher.verbs import typer_page

        print(typer_page.page(verb, command, examples))
        return 0
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        result = app(args=argv, prog_name=f"paddock {verb}", standalone_mode=False)
    except SystemExit:
        # Typer's own answer to EPIPE, and to nothing else when it does not stand alone.
        raise BrokenPipeError from None
    except Exception as error:
        # ClickException, by its shape: newer releases of Typer carry a Click of their own.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        raise _mistake(verb, str(explain())) from None
    return int(result or 0)


def _mistake(verb: str, text: str) -> Refusal:
    """What Typer says of words that a verb does not take, as a Refusal that says what next."""
    missing = text.removeprefix("Missing argument '").removesuffix("'.").removesuffix("...")
    if missing == text:
        return Refusal("usage", text, hint=f"paddock {verb} --help")
    listed = "paddock ps --all lists the sessions; " if missing == "SESSION" else ""
    return Refusal("usage", f"{missing} is missing", hint=f"{listed}paddock {verb} --help")
