"""The programmes that Paddock starts as processes of their own: `python -I [-S] helper.py PROGRAMME ARGUMENTS...`.

    jails DESCRIPTOR PARENT     commands in jails, one for each message of a socket (`launcher.jail.confined`)
    shim DESCRIPTOR PREFIX      the process that a supervised session belongs to (`launcher.service.shim`)
    launchers DESCRIPTOR PREFIX what the launchers of a programme's sandboxes are forked from (`launcher.sandbox`)
    jobs DESCRIPTOR PARENT      what the service's jobs are forked from (`launcher.service.job`); without `-S`
    screen PARENT LINES         what a terminal showed, so many lines of it (`launcher.service.screen`)
    patches PARENT LINES        a diff, so many lines of each file (`launcher.vcs.worktrees.patches`)
    engine SOCKET RUN           who talks to a cluster for a ticket run (`launcher.engines.broker`); the same
    paddock PREFIX WORDS...     a command line, as the `paddock` script starts it

Started by path: see `launcher.programmes`.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def main() -> int:
    """Runs the programme; returns the exit status."""
    root = __file__.rpartition("/")[0].rpartition("/")[0]
    programme, first, *rest = sys.argv[1:]
    if programme == "paddock":
        sys.path.append(root)  # behind Python's own modules, as the script has it
        from launcher import start

        sys.prefix = sys.exec_prefix = first
        start.start(["paddock", *rest])
    sys.path.insert(0, root)
    (second,) = rest
    if programme == "jobs":
        from launcher.service import job

        return job.serve(int(first), int(second))
    if programme == "screen":
        from launcher.jail import processes
        from launcher.service import screen

        processes.tie_to_parent(int(first))
        screen.serve(follow=False, tail=int(second), times=False)
    if programme == "patches":
        from launcher.jail import processes
        from launcher.vcs.worktrees import patches

        processes.tie_to_parent(int(first))
        patches.serve(int(second))
    if programme == "engine":
        from launcher.engines import broker

        return broker.main(first, second)
    from launcher import start

    # The finder of `launcher.start` halves the time to import what a jail is made of.
    sys.meta_path.insert(0, start.CompiledModules)
    if programme in ("shim", "launchers"):
        sys.prefix = sys.exec_prefix = second
        start.load_bundle()
        # What most launches need, loaded once: everything that is forked from here shares these pages.
        from launcher.session import private_git as private_git
        from launcher.verbs import run as run

        if programme == "launchers":
            from launcher.sandbox import launchers

            launchers.main(int(first), supervised)
        from launcher.service.shim.main import main as shim

        shim(int(first), supervised)
    from launcher.jail import confined

    confined.serve(int(first), int(second))


def supervised(words: list[str], observer: "Callable[[str, Any], None]") -> int:
    """A session's launcher, which a shim has forked: `paddock run WORDS...`; after the word ``acp``, `paddock acp`;
    after ``remote``, what takes in the work of another machine.

    Args:
        words: the command line, without programme and verb.
        observer: see `launcher.session.running.run`.
    """
    if words and words[0] == "acp":
        from launcher.session import packages

        packages.enable()
        from launcher.verbs import acp

        return acp.launch(words[1:], observer)
    from launcher import cli
    from launcher.verbs import run

    if words and words[0] == "remote":
        from launcher.session import packages

        packages.enable()
        from launcher.engines import relay

        options, command = cli.parse(words[1:], verb="run")
        return relay.launch(options, command, run.launch, observer)
    options, command = cli.parse(words, verb="run")
    return run.launch(options, command, observer)


if __name__ == "__main__":
    sys.exit(main())
