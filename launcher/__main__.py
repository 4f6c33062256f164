"""`paddock`: dispatch to a verb, and the one place where a Refusal becomes text and an exit status.

Start it as `paddock` or `python -I -m launcher`: without `-I`, Python would import `launcher` from the current
directory, which is where the jailed agent writes.
"""

import sys

from launcher import cli
from launcher.session import messages
from policy.errors import EXIT_REFUSED, Refusal

BROKEN_PIPE = 141
"""As if SIGPIPE had ended it: what pipelines expect when their reader leaves early."""


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and returns its exit status.

    Args:
        argv: as `sys.argv`: the name Paddock was called by, then the words. Under another name than ``paddock``
            (a link called ``claude``, say) it runs the real programme of that name in a jail.
    """
    called, *words = sys.argv if argv is None else argv
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_streams()
    try:
        status = _dispatch(called, words)
        messages.show()
        return status
    except Refusal as error:
        refusal = error
    except BrokenPipeError:
        messages.drop(1)
        return BROKEN_PIPE
    except Exception as error:  # nobody foresaw it; people get one clear text all the same
        from launcher.jail import init

        refusal = init.failure("paddock failed unexpectedly", error)
    try:
        messages.show()
    except (Refusal, BrokenPipeError):
        messages.drop(1)  # what went wrong first is what is told
    messages.say(str(refusal))
    return refusal.exit_code


def _dispatch(called: str, words: list[str]) -> int:
    name = called.rpartition("/")[2]
    if name not in ("paddock", "__main__.py"):
        from launcher.verbs import run

        return run.under_another_name(called, words)
    if words[:1] == ["help"] and len(words) > 1 and words[1] not in cli.VERBS:
        from launcher.verbs import pages

        return pages.show(words[1])
    if words[:1] == ["help"] and len(words) > 1:
        from launcher.verbs import forms, pages

        status = forms.show_help("run") if words[1] == "run" else forms.call([*words[1:], "--help"])
        if words[1] in pages.topics():
            print(f"\nThe page of the manual: paddock help {words[1]}.md")
        return status
    if not words or words[0] in ("-h", "--help", "help"):
        from launcher.verbs import forms

        print(forms.overview())
        return 0 if words else EXIT_REFUSED
    verb = words[0]
    if verb == "run":
        from launcher.verbs import run

        return run.main(words[1:])
    if verb in ("--version", "version"):
        print(f"paddock {cli.version()}")
        return 0
    if verb not in cli.VERBS:
        raise cli.unknown_verb(verb)
    from launcher.session import packages

    packages.enable()
    from launcher.verbs import forms

    return forms.call(words)


def _open_streams() -> None:
    """Gives closed standard streams a place: the next file to be opened would become one of them."""
    from launcher.jail import hygiene

    hygiene.fill_standard_fds()
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # as long as the process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
