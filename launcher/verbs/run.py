"""`paddock run`: parse, call, print. Launch path: nothing is imported here that a warm launch does not need."""

import sys

from launcher import cli
from launcher.lean import os
from launcher.session import cache, messages, places, running
from policy import promises
from policy.errors import Refusal, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from policy.asking import Question


def main(argv: list[str]) -> int:
    """Runs a command in a jail; returns the exit status for the shell."""
    options, command = cli.parse(argv, verb="run")
    if "--help" in options:
        from launcher.session import packages

        packages.enable()
        from launcher.verbs import forms

        return forms.show_help("run")
    if not command:
        raise cli.usage("there is no command to run", "run")
    if "--new" in options:
        from launcher.session import packages

        packages.enable()
        from launcher.verbs import new

        return new.run(options, command, launch)
    if lone := next((name for name in ("--from", "--copy", "--merge", "--rm") if name in options), None):
        raise cli.usage(f"{lone} needs --new", "run")
    return launch(options, command)


def launch(
    options: cli.Parsed,
    command: list[str],
    observer: "Callable[[str, Any], None] | None" = None,
) -> int:
    """One launch from parsed options: the cached Plan if it still holds, else a new one.

    Args:
        options: as `cli.parse` gives them.
        command: the command's words.
        observer: see `launcher.session.running.run`.
    """
    where = places.places(os.environ)
    if "--supervised" in options or "--detach" in options:
        from launcher.session import packages

        packages.enable()
        from launcher.verbs import session_request

        return session_request.run_supervised(options, command, places.current_directory())
    entry, given = planned(options, command, where)
    if entry is None:
        return 0
    asker = -1
    if observer is None and any(os.isatty(fd) for fd in (0, 1, 2)):
        from launcher.session import own_terminal

        plan = entry.plan
        hints = "--quiet" not in options and os.isatty(2) and promises.has_mounts(plan.backend)

        def after_failure(output: bytes) -> None:
            from launcher.session import packages

            packages.enable()
            from launcher.session import view_denials

            view_denials.say(plan, command[1:], output, where)

        def allow(question: "Question") -> str:
            from launcher.session import answers

            return answers.allow_always(where, plan.worktree, question)

        asker = own_terminal.enter(after_failure if hints else None, allow if plan.ask != "no" else None)
    return running.run(
        entry,
        tuple(command[1:]),
        where,
        given=given,
        name=_text(options, "--session"),
        report=_text(options, "--report"),
        verbose="--verbose" in options,
        quiet="--quiet" in options,
        strict="--strict-handoff" in options,
        observer=observer,
        asker=asker,
    )


def planned(
    options: cli.Parsed, command: list[str], where: places.Places
) -> "tuple[cache.Entry | None, dict[str, str]]":
    """The Plan, and the values given with `--env`; None when it was only to be shown (`--dry-run`), and was."""
    words, given = cache.key_words(options, command)
    if "--dry-run" not in options:
        return cache.entry(words, options, command, where), given
    from launcher.session import packages

    packages.enable()
    from launcher.session import planning
    from launcher.verbs import why

    plan = planning.make(options, command, places.current_directory(), where).plan
    messages.show("\n".join(printable(line) for line in why.plan_lines(plan)))
    return None, given


def _text(options: cli.Parsed, name: str) -> str | None:
    value = options.get(name)
    return value if isinstance(value, str) else None


def under_another_name(called: str, words: list[str]) -> int:
    """Stands in a provider's place: a link `claude` -> `paddock` runs the real `claude` in a jail.

    Args:
        called: the path or name of the link.
        words: the arguments, all of them the command's.
    """
    name = called.rpartition("/")[2]
    real = _next_in_path(name)
    if real is None:
        raise Refusal(
            "alias-without-command",
            f"paddock was called as {name}, but there is no other {name} in PATH",
            hint=f"install {name}, or call paddock by its own name: paddock run -- COMMAND",
            exit_code=127,
        )
    try:
        return launch({"--provider": "auto"}, [real, *words])
    except Refusal as refusal:
        if refusal.reference == "not-a-worktree":
            refusal.hint = (
                f"cd into a git worktree: {name} is confined to it (git init makes one); without a jail: {real}"
            )
        raise


def _next_in_path(name: str) -> str | None:
    """The first executable `name` in PATH that is no Paddock, as an absolute path.

    Another installation is passed over too: it would find this one again, one jail deeper each time.
    """
    own = os.path.realpath(os.path.join(os.path.dirname(sys.executable), "paddock"))
    for directory in os.environ.get("PATH", os.defpath).split(":"):
        path = os.path.join(directory, name)
        if not directory.startswith("/") or not os.access(path, os.X_OK) or os.path.isdir(path):
            continue
        if os.path.realpath(path) != own and _beginning(path) != _beginning(own):
            return path
    return None


def _beginning(path: str) -> bytes:
    """The first 80 bytes of a file: for Paddock's script they reach into its second line, which no other has."""
    from launcher.safefs import walk

    try:
        descriptor = walk.open_regular(path, follow=True)
        if descriptor is None:
            return os.fsencode(path)
        try:
            return os.read(descriptor, 80)
        finally:
            os.close(descriptor)
    except OSError:
        return os.fsencode(path)  # what cannot be read is like nothing else
