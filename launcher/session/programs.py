"""Finding the file that a command's name means, as execvp(3) would, without trusting relative PATH entries."""

import os

from policy.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Refusal
from policy.host import Host
from policy.launch import Command
from policy.pasted import quoted

_KINDS = {"dir": "directory", "char": "device", "block": "device"}


def find_command(name: str, cwd: str, directory: str, host: Host) -> Command:
    """The command called `name`.

    Args:
        name: as the caller wrote it; with a slash it is a path, relative to `cwd`.
        cwd: the caller's directory.
        directory: where the command will start.
        host: answers; every place that was looked at becomes an input of the Plan.

    Refusals: command-not-found (127), command-not-executable (126).
    """
    if "\0" in name or not name:
        raise Refusal("command-not-found", "the command's name is empty or holds a NUL", exit_code=EXIT_NOT_FOUND)
    if "/" in name:
        # As it is where `..` may go through a link; a slash at the end means a directory and nothing else.
        path = os.path.join(cwd, name)
        candidates = [path if ".." in name or name.endswith("/") else os.path.normpath(path)]
    else:
        # A relative or empty entry means the current directory: that is where the agent writes.
        entries = (host.env("PATH") or os.defpath).split(":")
        candidates = [f"{entry.rstrip('/')}/{name}" for entry in entries if entry.startswith("/")]
    seen = ""
    for path in candidates:
        canonical = host.resolve(path)
        if canonical is None or (host.kind(canonical) == "dir" and "/" not in name):
            continue
        if host.executable(path):
            return Command(name, path, canonical, directory)
        seen = seen or path
    if seen:
        kind = host.kind(host.resolve(seen) or seen) or "name that has disappeared"
        file = kind == "file"
        raise Refusal(
            "command-not-executable",
            f"{seen} cannot be executed",
            context="it has no execute permission for this user" if file else f"it is a {_KINDS.get(kind, kind)}",
            hint=f"chmod +x {quoted(seen)}, or start it through its interpreter" if file else "",
            exit_code=EXIT_NOT_EXECUTABLE,
        )
    raise Refusal(
        "command-not-found",
        f"{name}: command not found",
        context="looked in: " + (":".join(os.path.dirname(path) for path in candidates) or "nowhere, PATH is empty"),
        hint="check the spelling and PATH",
        exit_code=EXIT_NOT_FOUND,
    )
