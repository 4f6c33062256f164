"""`paddock batch`: what is said of rows and options that are wrong, and what is told of a batch before and after it."""

from pathlib import Path

import pytest

from launcher.engines import row
from launcher.engines.driver import Batch, Ended, Results, jobs_of
from launcher.engines.row import Cause, Job, Outcome, Row
from launcher.verbs import batch, forms
from policy.errors import Refusal


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"command": 5}', 'command: it must be a list of words, as ["make", "test"], or a text for sh -c'),
        ('{"command": []}', "command: it must be a list of words, "),
        ('{"command": ""}', "command: it must be a list of words, "),
        ('{"command": ["a", 5]}', "command: it must be a list of words, "),
        ('{"command": "tr\\u0000ue"}', "command: it contains a NUL"),
        ('{"command": ["a\\u0000"]}', "command: it contains a NUL"),
        ('{"comand": "y"}', "there is no key comand; did you mean command?"),
        ('{"command": "y", "zzz": 1}', "there is no key zzz; known: id, repository, "),
        ("{}", "command is missing"),
        ("5", "it must be a JSON object"),
        ('{"command": "y",}', "Invalid JSON: trailing comma at column 17"),
        ('{"command": "y", "env": {"A": 1}}', "env: A: it must be a text"),
        ('{"command": "y", "env": {"A=": "1"}}', "env: A=: the name of a variable is empty, or holds an equals sign"),
        ('{"command": "y", "env": {"": "1"}}', "env: a name: it must not be empty"),
        ('{"command": "y", "env": []}', 'env: it must be an object of texts, as {"CI": "1"}'),
        ('{"command": "y", "policy": "--net none"}', 'policy: it must be a list of words, as ["--net", "none"]'),
        ('{"command": "y", "policy": ["--worktree", "/"]}', "policy: --worktree is not for rows"),
        ('{"command": "y", "policy": ["--nett", "none"]}', "policy: unknown option --nett (did you mean --net?)"),
        ('{"command": "y", "policy": ["--", "x"]}', "policy: x is not an option of paddock run"),
        ('{"command": "y", "policy": ["--net", "foo"]}', "policy: --net "),
        ('{"command": "y", "policy": ["--limit", "memory=x"]}', "policy: --limit memory "),
        ('{"command": "y", "timeout": 0}', "timeout: it must be a number of seconds, more than 0, at most 2592000"),
        ('{"command": "y", "timeout": NaN}', "timeout: it must be a number of seconds"),
        ('{"command": "y", "timeout": "5m"}', "timeout: it must be a number of seconds"),
        ('{"command": "y", "memory": "2X"}', "memory: a size in bytes"),
        ('{"command": "y", "memory": 1.5}', "memory: it must be a size in bytes"),
        ('{"command": "y", "cpus": -1}', "cpus: it must be greater than or equal to 0"),
        ('{"command": "y", "id": 5}', "id: it must be a text"),
        ('{"command": "y", "commit": ""}', "commit: it must not be empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_row_is_said_in_the_words_of_its_file(tmp_path: Path, line: str, said: str) -> None:
    """With the number of its line, and nothing of the library's that reads it."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(Refusal) as caught:
        batch.read_rows(str(path), None)
    assert caught.value.reference == "rows-invalid"
    assert caught.value.message.startswith(f"{path}: line 2: {said}")


def test_what_to_bring_is_not_judged_by_the_home_directory_of_another_machine(tmp_path: Path) -> None:
    """A node of a cluster has its own."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"command": "y", "policy": ["--bring", "/home/of/nobody/.x"]}\n')
    with pytest.raises(Refusal, match="--bring"):
        batch.read_rows(str(path), None)
    assert batch.read_rows(str(path), None, here=False)


@pytest.mark.parametrize(
    "words",
    [
        *(("--timeout", each) for each in ("0", "-1", "nan", "inf", "5m", "2592001")),
        *(("--parallel", each) for each in ("0", "-1", "1.5")),
        *(("--retry", each) for each in ("node=-1", "node", "bad=1", "cancelled=1", "node=1001")),
    ],
)
def test_a_value_that_an_option_does_not_take_is_a_matter_of_usage(tmp_path: Path, words: tuple[str, str]) -> None:
    """The value is in the message, and nothing is written."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"command": "true"}\n')
    with pytest.raises(Refusal) as caught:
        forms.call(["batch", str(path), f"{words[0]}={words[1]}"])
    assert (caught.value.reference, caught.value.hint) == ("usage", "paddock batch --help")
    assert caught.value.message.startswith(f"{words[0]} takes ")
    assert caught.value.message.endswith(f", not {words[1]}") or words[0] == "--retry"
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


class _Ends:
    """An engine whose rows end in one way each."""

    name = "ends"
    room = 1

    def __init__(self, *causes: Cause) -> None:
        self.notes = ["a node has joined"]
        self._causes = list(causes)
        self._jobs: list[Job] = []

    def prepare(self, jobs: list[Job], prefix: str) -> list[str]:
        return []

    def submit(self, job: Job) -> None:
        self._jobs.append(job)

    def next(self, seconds: float) -> Outcome | None:
        return row.failed(self._jobs.pop(), self._causes.pop(0), Refusal("why", "it is so"), 0.0)

    def cancel(self) -> None:
        pass

    def close(self, prefix: str) -> list[str]:
        return []


def _batch(log: Results, number: int = 3) -> Batch:
    rows = [(each, Row(command=f"echo {each}", commit="0" * 40, env={}, resources={})) for each in range(1, number + 1)]
    return Batch(jobs_of(rows, log.prefix), log, {})


@pytest.mark.parametrize(
    ("causes", "continues", "fix"),
    [
        ((Cause.EXITED, Cause.EXITED, Cause.EXITED), False, ""),
        ((Cause.REFUSED, Cause.EXITED, Cause.REFUSED), False, "2 rows"),
        ((Cause.NODE, Cause.EXITED, Cause.EXITED), True, ""),
        ((Cause.EXITED, Cause.ENDED, Cause.REFUSED), True, "1 row"),
    ],
)
def test_what_to_do_next_depends_on_what_another_try_could_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], causes: tuple[Cause, ...], continues: bool, fix: str
) -> None:
    """A refusal ends in the same way until its reason is gone. Each line names its session."""
    path = tmp_path / "results.jsonl"
    with Results(str(path)) as log:
        work = _batch(log)
        ended = work.run(_Ends(*causes), lambda _: None)
        batch._shown(work, log, ended, as_json=False)
    said = capsys.readouterr().out
    assert ("next: run the same command again: it continues" in said) is continues
    assert f"next: fix what refused {fix}, " in said if fix else "next: fix" not in said
    sessions = {row.read_outcome(line).session for line in path.read_bytes().splitlines()}
    assert sessions == {f"{log.prefix}-{number}-1" for number in (1, 2, 3)}
    assert [each.name for each in tmp_path.iterdir()] == ["results.jsonl"]


def test_what_is_tried_again_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the summary as in the notes before it; the last line of a key counts; the file beside it goes at the end."""
    path = tmp_path / "results.jsonl"
    begun = tmp_path / "results.jsonl.begun"
    with Results(str(path)) as log:
        work = _batch(log)
        work.run(_Ends(Cause.REFUSED, Cause.EXITED, Cause.CANCELLED), lambda _: None)
        log.begin(work.todo[0])
        log.begin(work.todo[2])
    assert begun.exists(), "what was begun is known as long as a row has no result"
    with Results(str(path)) as log:
        work = _batch(log)
        batch._shown(work, log, Ended(0, []), as_json=True)
        assert '"again": 2' in capsys.readouterr().out
        assert (work.failures, work.unfinished, work.skipped) == (1, 1, 1)
        work.run(_Ends(Cause.EXITED, Cause.EXITED), lambda _: None)
    assert not begun.exists()
    begun.touch()
    with Results(str(path)) as log:
        assert not _batch(log).todo
    assert not begun.exists()
