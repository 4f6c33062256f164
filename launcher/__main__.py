"""`paddock`: dispatch to a verb, and the one place where a Refusal becomes text and an exit status.

Start it as `paddock` or `python -I -m launcher`: without `-I`, Python would import `launcher` from the current
directory, which is where the jailed agent writes.
"""

import sys

from launcher import cli
from policy.errors import EXIT_REFUSED, Refusal


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and returns its exit status.

    Args:
        argv: as `sys.argv`: the name Paddock was called by, then the words. Under another name than ``paddock``
            (a link called ``claude``, say) it runs the real programme of that name in a jail.
    """
    called, *words = sys.argv if argv is None else argv
    try:
        return _dispatch(called, words)
    except Refusal as refusal:
        sys.stdout.flush()
        sys.stderr.write(str(refusal) + "\n")
        return refusal.exit_code
    except BrokenPipeError:
        _silence_stdout()
        return 141


def _dispatch(called: str, words: list[str]) -> int:
    name = called.rpartition("/")[2]
    if name not in ("paddock", "__main__.py"):
        from launcher.verbs import run

        return run.under_another_name(called, words)
    if not words or words[0] in ("-h", "--help", "help"):
        print(cli.overview())
        return 0 if words else EXIT_REFUSED
    verb = words[0]
    if verb == "run":
        from launcher.verbs import run

        return run.main(words[1:])
    if verb in ("--version", "version"):
        from launcher.verbs import version

        return version.main(words[1:])
    if verb not in cli.VERBS:
        raise cli.unknown_option(verb, tuple(cli.VERBS), "")
    _import_everything()
    module = __import__(cli.VERBS[verb][0], fromlist=["main"])
    status: int = module.main(words[1:])
    return status


def _import_everything() -> None:
    """Lets other verbs than `run` import the environment's packages; see `session.packages`."""
    from launcher.session import packages

    packages.enable()


def _silence_stdout() -> None:
    """Keeps the interpreter from complaining about the closed pipe once more while it ends."""
    import os

    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
