"""`paddock batch`: a command for each row of a file, each on a clean copy of a commit."""

import contextlib
import os
import sys
import time
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from launcher import cli
from launcher.engines.driver import Batch, Ended, Engine, Progress, Results, jobs_of
from launcher.engines.local import Local
from launcher.engines.row import RESULTS, Cause, Row
from launcher.service.ticket_schema import check_for_nodes
from launcher.session import messages, places
from launcher.vcs import checkout, worktree_words
from launcher.vcs.disk import Present
from launcher.vcs.git import Git
from launcher.verbs import table
from launcher.verbs.table import counted
from policy.config import layer
from policy.errors import Refusal, in_rows, printable

_MOST_BYTES = 1 << 30
_MOST_TOLD = 10
_HINT = 'a row is {"command": ["make", "test"], "commit": "HEAD"}; paddock batch --help'
_NODE_LOST = 3
"""How often a row is run again whose node was lost, by default: that says nothing of the row."""

_NOT_IN_ROWS = (*cli.UNUSED, "--worktree", "--directory", "--cow", "--review", "--git", "--help")
"""Options of `paddock run` that a batch decides."""

_FORMS = {
    "command": 'it must be a list of words, as ["make", "test"], or a text for sh -c, and not empty',
    "policy": 'it must be a list of words, as ["--net", "none"]',
    "env": 'it must be an object of texts, as {"CI": "1"}',
    "resources": 'it must be an object of numbers, as {"gpu": 1}',
    "memory": 'it must be a size in bytes, as 2147483648 or "2G"',
    "timeout": "it must be a number of seconds, more than 0, at most 2592000",
}
"""What a key of a row takes, where that is more than one word."""

_SAID = ("value_error", "string_too_long")
"""Kinds of mistakes whose own text says more than `_FORMS`."""

_WORDS = {
    Cause.EXITED: "exited", Cause.SIGNAL: "ended by a signal", Cause.TIMEOUT: "timed out", Cause.REFUSED: "refused",
    Cause.ENDED: "ended with the sandbox", Cause.NODE: "lost with a node", Cause.ENGINE: "failed",
}  # fmt: skip
_WIDTH = 20


def batch(
    file: str,
    *,
    results: str | None,
    parallel: int | None,
    timeout: float | None,
    retry: list[str],
    quiet: bool,
    engine: str,
    address: str | None,
    as_json: bool,
) -> int:
    """Exit status 0 when every command ran; 1 when some could not be run."""
    retries = _retries(retry)
    if address is not None and engine != "ray":
        raise cli.usage("--address is for --engine ray", "batch")
    rows = read_rows(file, timeout, here=engine == "local")
    path = _results_of(file, results)
    rows = resolved(rows, file)
    with Results(path) as log:
        work = Batch(jobs_of(rows, log.prefix), log, retries)
        _say_before(work, log)
        if not work.todo:
            log.finish()  # a driver that was killed after its last row did not come to it
        bar = _Bar(quiet=quiet or as_json)
        try:
            ended = work.run(_engine(engine, address, parallel), bar.show) if work.todo else Ended(0, [])
        finally:
            bar.end()
        return _shown(work, log, ended, as_json=as_json)


def _engine(name: str, address: str | None, parallel: int | None) -> Engine:
    if name == "local":
        return Local(parallel or len(os.sched_getaffinity(0)))
    from launcher.engines.ray import Ray

    return Ray(address, parallel)


def _results_of(file: str, given: str | None) -> str:
    if given is not None:
        return given
    if file == "-":
        raise cli.usage("rows from standard input need --results FILE", "batch")
    return f"{file.removesuffix('.jsonl')}.results.jsonl"


def _retries(given: list[str]) -> dict[Cause, int]:
    found = {Cause.NODE: _NODE_LOST}
    causes = [cause.value for cause in _WORDS]
    for each in given:
        name, _, number = each.partition("=")
        if name not in causes or not number.isdecimal() or int(number) > 1000:
            raise cli.usage(f"--retry takes CAUSE=N, not {each}; causes: {', '.join(causes)}", "batch")
        found[Cause(name)] = int(number)
    return found


# Reading and checking all rows before anything starts: a mistake has its line.


def read_rows(path: str, timeout: float | None, *, here: bool = True) -> list[tuple[int, Row]]:
    """The rows of a file, each behind the number of its line. Empty lines are none.

    Args:
        path: of the file; "-" for standard input.
        timeout: of rows that have none.
        here: they run on this machine, not on nodes of a cluster, whose ports no command may reach.

    Raises:
        Refusal: rows-unreadable, rows-invalid.
    """
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise Refusal("rows-unreadable", f"{path} cannot be read", context=error.strerror or str(error),
                      hint=_HINT) from None  # fmt: skip
    if len(content) > _MOST_BYTES:
        raise Refusal("rows-unreadable", f"{path} is too large", context=f"the limit is {_MOST_BYTES >> 30} GiB",
                      hint="split it into several batches")  # fmt: skip
    rows: list[tuple[int, Row]] = []
    wrong: list[str] = []
    checked: dict[tuple[str, ...], str] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = Row.model_validate_json(line)
        except ValidationError as error:
            wrong.append(f"line {number}: {_mistake(error.errors())}")
            continue
        if row.policy not in checked:
            checked[row.policy] = _policy(row.policy, here=here)
        if checked[row.policy]:
            wrong.append(f"line {number}: policy: {checked[row.policy]}")
        rows.append((number, row if row.timeout is not None else row.model_copy(update={"timeout": timeout})))
    _refuse(path, wrong)
    if not rows:
        raise Refusal("rows-invalid", f"{path} has no rows", hint=_HINT)
    return rows


def _refuse(path: str, wrong: list[str]) -> None:
    if wrong:
        more = f"and {len(wrong) - _MOST_TOLD} more" if len(wrong) > _MOST_TOLD else ""
        raise Refusal("rows-invalid", f"{path}: {wrong[0]}", context=in_rows(*wrong[1:_MOST_TOLD], more), hint=_HINT)


def _mistake(errors: list[ErrorDetails]) -> str:
    """What is wrong with a line, in the words of the file."""
    # A misspelt key makes another one missing, and a command has an error for each of its two forms.
    error = min(errors, key=lambda each: (each["type"] != "extra_forbidden", each["type"] not in _SAID))
    kind = error["type"]
    if kind == "json_invalid":
        return error["msg"].replace(" at line 1 column ", " at column ")
    if not error["loc"]:
        return "it must be a JSON object"
    key, *inner = map(str, error["loc"])
    if kind == "extra_forbidden":
        near = get_close_matches(key, Row.model_fields, n=1)
        rest = f"did you mean {near[0]}?" if near else f"known: {', '.join(Row.model_fields)}"
        return f"there is no key {key}; {rest}"
    if kind == "missing":
        return f"{key} is missing"
    said = error["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    said = said.replace("String should", "it must").replace("a valid string", "a text").replace("a valid n", "a n")
    said = "it must not be empty" if kind in ("too_short", "string_too_short") else said
    if inner and key in ("env", "resources"):
        return f"{key}: {inner[0] or 'a name'}: {said}"
    return f"{key}: {_FORMS[key] if key in _FORMS and kind not in _SAID else said}"


def _policy(words: tuple[str, ...], *, here: bool) -> str:
    """What is wrong with the options of a row; "" for nothing."""
    try:
        options, further = cli.parse(list(words), verb="run")
        # Only its refusal counts. What --bring takes depends on the home directory, and nodes have other ones.
        values = options if here else {name: value for name, value in options.items() if name != "--bring"}
        layer.layer(values, cwd=places.current_directory(), home=places.places(os.environ).home)
        if not here:
            check_for_nodes(options)
    except Refusal as refusal:
        return f"{refusal.message} ({refusal.context})" if refusal.context else refusal.message
    if further:
        return f"{further[0]} is not an option of paddock run"
    return next((f"{name} is not for rows" for name in options if name in _NOT_IN_ROWS), "")


def resolved(rows: list[tuple[int, Row]], path: str) -> list[tuple[int, Row]]:
    """Rows with absolute repositories, and the object ids of their commits.

    Raises:
        Refusal: rows-invalid: one names no repository, or a commit that it has not.
    """
    here = places.current_directory()
    found: dict[tuple[str, str], tuple[str, str] | Refusal] = {}
    wrong: list[str] = []
    named: list[tuple[int, Row]] = []
    for number, row in rows:
        asked = (os.path.join(here, row.repository), row.commit)
        if asked not in found:
            found[asked] = _commit(*asked)
        answer = found[asked]
        if isinstance(answer, Refusal):
            wrong.append(f"line {number}: {answer.message}")
        else:
            named.append((number, row.model_copy(update={"repository": answer[0], "commit": answer[1]})))
    _refuse(path, wrong)
    return named


def _commit(repository: str, name: str) -> tuple[str, str] | Refusal:
    try:
        root = checkout.find(worktree_words.directory(repository, "/"), Present(), exact=False).root
        commit = Git.open(root).commit_of(name)
    except Refusal as refusal:
        return refusal
    return (root, commit) if commit else Refusal("commit-unknown", f"there is no commit {name} in {root}")


# What people see: what is continued, a bar, and what came of it.


def _say_before(work: Batch, log: Results) -> None:
    notes = [
        (work.skipped, "has its result already", "have their results already"),
        (work.failures, "could not be run before, and is run again", "could not be run before, and are run again"),
        (work.unfinished, "was begun before and has no result: it is run again",
         "were begun before and have no result: they are run again"),
    ]  # fmt: skip
    for number, one, several in notes:
        if number:
            messages.say(f"paddock: {counted(number, 'row', 'rows')} {one if number == 1 else several}")
    if log.torn:
        messages.say(f"paddock: the last line of {printable(log.path)} was half written, and is dropped")
    if work.strange:
        kept = counted(work.strange, "result", "results")
        messages.say(f"paddock: {kept} in {printable(log.path)} of other rows than these: kept, and not counted")


class _Bar:
    """How far a batch is, and how long it will take at this pace."""

    def __init__(self, *, quiet: bool) -> None:
        self._line = table.Line(quiet=quiet)
        self._begun = time.monotonic()
        self._first: int | None = None

    def show(self, progress: Progress) -> None:
        """Shows it."""
        for note in progress.notes:
            self._line.end()
            messages.say(f"paddock: {printable(note)}")
        if self._first is None:
            self._first = progress.done
        full = _WIDTH * progress.done // progress.rows
        told = [f"{progress.done} of {counted(progress.rows, 'row', 'rows')}", f"{progress.running} running"]
        told += [f"{number} {_WORDS[cause]}" for cause, number in progress.causes.items() if cause is not Cause.EXITED]
        told += [f"{counted(progress.retried, 'retry', 'retries')}"] if progress.retried else []
        since = progress.done - self._first
        if since and progress.running:
            rest = (time.monotonic() - self._begun) / since * (progress.rows - progress.done)
            told.append(f"some {table.ago(0, rest)} left")
        over = not progress.running and progress.done == progress.rows
        self._line.show(f"[{'#' * full}{'.' * (_WIDTH - full)}] {', '.join(told)}", now=over)

    def end(self) -> None:
        """Leaves the terminal's line free."""
        self._line.end()


def _shown(work: Batch, log: Results, ended: Ended, *, as_json: bool) -> int:
    causes = work.causes()
    nonzero = sum(each.cause is Cause.EXITED and each.status != 0 for each in work.outcomes())
    failures = [each for each in work.outcomes() if each.cause not in RESULTS]
    total = work.skipped + len(work.todo)
    status = 128 + ended.signal if ended.signal else int(bool(failures))
    for line in ended.left:
        messages.say(f"paddock: not removed: {printable(line)}")
    if as_json:
        table.show_json(
            {
                "rows": total, "results": log.path, "skipped": work.skipped,
                "again": work.failures + work.unfinished,
                "causes": dict(causes), "nonzero": nonzero, "left": ended.left, "signal": ended.signal,
            }
        )  # fmt: skip
        return status
    told = [f"{number} {_WORDS[cause]}" for cause, number in causes.items()]
    if nonzero and Cause.EXITED in causes:
        told[list(causes).index(Cause.EXITED)] += f" ({nonzero} of them not with 0)"
    if missing := total - sum(causes.values()):
        told.append(f"{missing} without a result")
    lines = [f"{counted(total, 'row', 'rows')}: {', '.join(told)}", f"results: {log.path}"]
    if failures:
        why = failures[0].refusal or {}
        lines.append(f"line {failures[0].number}: {why.get('message')} [{why.get('errorType')}]")
        lines += [f"  why:  {why['context']}"] if why.get("context") else []
        lines += [f"  hint: {why['hint']}"] if why.get("hint") else []
    refused = [each for each in failures if each.cause is Cause.REFUSED]
    if missing or len(refused) < len(failures):
        lines.append("next: run the same command again: it continues")
    if refused:
        what = f"what refused {counted(len(refused), 'row', 'rows')}, in the file of rows or on this machine"
        lines.append(f"next: fix {what}, then run the same command again")
    messages.show("\n".join(printable(line) for text in lines for line in text.splitlines()))
    return status
