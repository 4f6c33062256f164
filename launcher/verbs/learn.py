"""`paddock learn`: run a command in its jail, watch what it wants, propose the smallest set of grants."""

import json
import os

from launcher import cli
from launcher.ledger import enforcement
from launcher.session import cache, messages, own_terminal, places, teach
from launcher.session.machine import Machine
from launcher.vcs import checkout, disk, worktree_words, written
from launcher.verbs import forms
from policy import remedy
from policy.errors import printable
from policy.pasted import joined, quoted
from policy.remedy import Standing

_NAMED = 3
"""Failed programmes that are named."""


def learn(argv: list[str]) -> int:
    """Exit status 0 when the command succeeds with what is proposed or needs nothing; 1 when it failed all the same."""
    own = forms.form("learn").options
    options, command = cli.parse(argv, verb="learn", options=(*own, *cli.OPTIONS))
    if "--help" in options:
        return forms.show_help("learn")
    if not command:
        raise cli.usage("there is no command to run", "learn")
    if "--root" in options:
        raise cli.usage(
            "with --root no grant of this machine's files is missing: the image is there as a whole", "learn"
        )
    written = options.get("--write")
    target = enforcement.Target(written, worktree_words.is_agents) if isinstance(written, str) else None
    _, given = cache.key_words(options, command)
    where = places.places(os.environ)
    own_options = {row.name for row in own} | set(cli.UNUSED)
    launch = {name: value for name, value in options.items() if name not in own_options}
    own_terminal.enter()
    teacher = teach.Teacher(launch, command, places.current_directory(), where, given)
    lesson = teacher.by_trying() if "--try" in options else teacher.once()
    text = remedy.configuration(lesson.lines, _heading(command, lesson))
    if target is not None:
        target.write(text)
    if "--json" in options:
        messages.show(json.dumps(_document(command, lesson), indent=2))
    elif target is None:
        messages.show(text.rstrip("\n"))
    _tell(lesson)
    if isinstance(written, str):
        _tell_written(written, launch, command, lesson)
    return 0 if lesson.status == 0 or _proposed(lesson) else 1


def _heading(command: list[str], lesson: teach.Lesson) -> list[str]:
    shown = joined(command)
    lines = [f"What {shown} needs beyond its jail, as `paddock learn` saw it."]
    untried = _of(lesson, Standing.UNTRIED)
    if lesson.tried:
        lines.append(f"Found by trial, in {lesson.runs} run{'' if lesson.runs == 1 else 's'}: " + (
            "it failed even with all of these." if lesson.status != 0 and not untried
            else "it failed; what it did not try may be what is missing." if lesson.status != 0
            else "it succeeds with these grants, and needs no others." if _proposed(lesson)
            else "it succeeded in its jail as it is, and no grant made a difference."))  # fmt: skip
    elif lesson.status == 0:
        lines.append("It succeeded in its jail as it is, so it needs nothing.")
    else:
        lines.append(
            f"It exited with status {lesson.status}, perhaps at the first obstacle: "
            "run `paddock learn` again with this file."
        )
    lines += [f"Even so, {_failed(lesson)}."] if lesson.status == 0 and lesson.failed else []
    lines += [f"It tried to reach {host}, port {port}: see --allow-domain." for host, port in lesson.hosts[:20]]
    return lines


def _of(lesson: teach.Lesson, standing: Standing) -> list[remedy.Line]:
    return [line for line in lesson.lines if line.standing is standing]


def _proposed(lesson: teach.Lesson) -> bool:
    return bool(_of(lesson, Standing.PROPOSED))


def _failed(lesson: teach.Lesson) -> str:
    """The programmes that failed, in words."""
    ends = [f"{os.path.basename(program) or 'a programme'} (status {status})"
            for program, status in sorted(lesson.failed)]  # fmt: skip
    more = f" and {len(ends) - _NAMED} more" if len(ends) > _NAMED else ""
    return printable(f"{', '.join(ends[:_NAMED])}{more} failed")


def _document(command: list[str], lesson: teach.Lesson) -> dict[str, object]:
    return {
        "command": command,
        "status": lesson.status,
        "tried": lesson.tried,
        "runs": lesson.runs,
        "failed": [{"program": program, "status": status} for program, status in sorted(lesson.failed)],
        "grants": [
            {
                "key": line.key,
                "path": line.path,
                "standing": line.standing.value,
                "flag": f"{line.flag} {quoted(line.path)}",
                "reason": line.reason,
                "risk": line.risk,
                "prepare": line.prepare,
            }
            for line in lesson.lines
        ],
        "hosts": [{"host": host, "port": port} for host, port in lesson.hosts],
    }


def _tell(lesson: teach.Lesson) -> None:
    """The commands that have to come first, and what was withheld, on standard error."""
    for line in lesson.lines:
        if line.standing is Standing.PROPOSED and line.prepare:
            words = "mkdir -p" if line.prepare == "directory" else "touch"
            messages.say(f"paddock: first: {words} {quoted(line.path, own=False)}")
    denied = len(_of(lesson, Standing.OPTIONAL))
    if lesson.status == 0 and denied and not _proposed(lesson):
        hidden = f", though {_failed(lesson)}" if lesson.failed else ""
        paths = "1 path" if denied == 1 else f"{denied} paths"
        after = "no grant made a difference" if lesson.tried else "--try finds out whether grants make a difference"
        messages.say(f"paddock: the command exited with status 0 without {paths} that it requested{hidden}")
        messages.say(f"paddock: the proposal lists them as comments: {after}")
    if untried := _of(lesson, Standing.UNTRIED):
        messages.say("paddock: --try does not grant these by itself; add the options that you mean:")
        for line in untried:
            messages.say(f"paddock:   {line.flag} {quoted(line.path, own=False)}")
    withheld = len(_of(lesson, Standing.WITHHELD))
    if withheld:
        paths = "1 path is left out because of what it" if withheld == 1 else (
            f"{withheld} paths are left out because of what they")  # fmt: skip
        messages.say(f"paddock: {paths} would grant")


def _tell_written(path: str, options: cli.Parsed, command: list[str], lesson: teach.Lesson) -> None:
    """What was written, and the commands that make use of it, on standard error."""
    file = quoted(path)
    messages.say(f"paddock: written to {file}")
    if not _proposed(lesson):
        return
    words: list[str] = []
    for name, value in options.items():
        if name != "--config":  # one file is all it takes
            values = value if isinstance(value, list) else [value]
            words += [word for one in values for word in ((name, one) if isinstance(one, str) else (name,))]
    first = f"paddock trust {file} && " if _in_worktree(path, options) else ""
    use = f"{first}paddock run {joined([*words, '--config', path, '--', *command])}"
    messages.say(f"paddock: read it, then: {use}")


def _in_worktree(path: str, options: cli.Parsed) -> bool:
    """Whether a file lies where the command, or another one, can write, so that `--config` wants it trusted first."""
    trees = (_root(options), *written.trees(places.places(os.environ).state, os.path.abspath(path)))
    return any(disk.in_hands_of(tree, os.path.abspath(path)) for tree in trees)


def _root(options: cli.Parsed) -> str:
    """Root of the worktree that the command is held to."""
    named = options.get("--worktree")
    start = named if isinstance(named, str) else places.current_directory()
    found = checkout.find(
        os.path.abspath(start), Machine(os.environ), exact=isinstance(named, str), hint=checkout.WITH_OPTION
    )
    return found.root
