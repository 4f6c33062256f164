"""The examples on the pages, and a shell in which they are typed one after the other.

`examples.txt` beside this file says what an example needs around it. Its first part is done for every one; a further
part is named after a page and the first line that is typed there, and may hold, besides bash:

    #= STATUS LINE       the typed line ends with this status instead of 0
    #> LINE => OTHER     OTHER is run in place of the typed line; the comment above says why
"""

import re
import selectors
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.verbs import forms
from tests.support.identity import Who
from tests.support.manual import PAGES, ROOT
from tests.support.recording import of_a_home

PATIENCE = 60.0
HOME = "/home/me"
"""The user's home directory on the pages."""

_BLOCK = re.compile(r"(?ms)^( *)```(\w+)\n(.*?)^ *```$")
_ID = r"\d{8}-\d{6}-[0-9a-f]{6}|(?<![\w/-])(?=[a-f]*\d)[0-9a-f]{8,40}(?:\.\.\.)?(?!\w)"
_END = "\x1ended"


class Example(NamedTuple):
    """A block of code on a page."""

    page: str
    language: str
    text: str

    @property
    def steps(self) -> list[tuple[str, list[str]]]:
        """Of a console: each line that is typed, without its comment, and the lines that it shows."""
        steps: list[tuple[str, list[str]]] = []
        for line in self.text.replace(" \\\n   ", "").splitlines():
            if line.startswith("$ "):
                steps.append((re.sub(r" +# .*", "", line[2:]), []))
            else:
                steps[-1][1].append(line)
        return steps

    def is_part_of(self, other: "Example") -> bool:
        """Whether a longer example has its lines, which show the same, in this order: to run that one is enough."""
        rest = iter(other.steps)
        return len(other.steps) > len(self.steps) and all(step in rest for step in self.steps)

    @property
    def name(self) -> str:
        """The page, and the first line."""
        first = self.steps[0][0] if self.language == "console" else self.text.splitlines()[0]
        return f"{self.page}: {first.partition(' http://')[0]}"


def examples(*languages: str) -> list[Example]:
    """All of these languages, or of any, page by page."""
    return [
        Example(str(page.relative_to(ROOT)), language, re.sub(rf"(?m)^{indent}", "", text))
        for page in PAGES
        for indent, language, text in _BLOCK.findall(page.read_text(encoding="utf-8"))
        if not languages or language in languages
    ]


def of_help(*verbs: str) -> list[Example]:
    """The examples in the help of verbs: one for each form."""
    known = [forms.form(name) for name in forms.texts() if name.partition(" ")[0] in verbs]
    return [
        Example(f"help {form.name}", "console", "".join(f"$ {line}  # {text}\n" for line, text in form.examples))
        for form in known
        if form.examples and not (forms.subcommands(form.name) and not form.options)
    ]


def scenes() -> dict[str, str]:
    """The parts of `examples.txt`; the first one has no name."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    return {name: body for name, _, body in (part.partition("\n") for part in f"\n{text}".split("\n### "))}


def statuses(scene: str) -> dict[str, int]:
    """What lines of the example end with, if not with 0."""
    return {line: int(status) for status, line in re.findall(r"(?m)^#= (\d+) (.*)$", scene)}


def replaced(scene: str) -> dict[str, str]:
    """What is run in place of lines of the example."""
    return dict(re.findall(r"(?m)^#> (.*?) => (.*)$", scene))


class Shell:
    """A bash of a user's; use it as a context manager, which ends what it has started."""

    def __init__(self, who: Who, cwd: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            who.command(["bash", "--norc", "--noprofile"]), cwd=cwd, env=who.environment(environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._known: dict[str, str] = {}

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        self.run("kill $(jobs -p) 2>/dev/null; wait")
        self._process.communicate(timeout=PATIENCE)

    def run(self, line: str) -> tuple[str, int]:
        """What a line shows, and its status. Ids that `same` has met stand for those of this run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for shown, real in self._known.items():
            line = line.replace(shown, real)
        self._process.stdin.write(f"eval {_quoted(line)} </dev/null\nprintf '{_END} %d\\n' $?\n".encode())
        self._process.stdin.flush()
        seen, deadline = b"", time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not (found := re.search(rf"{_END} (\d+)\n$", text := seen.decode(errors="replace"))):
                assert selector.select(deadline - time.monotonic()), f"{line}: no end: {text}"
                more = self._process.stdout.read1()  # type: ignore[attr-defined]  # a BufferedReader
                assert more, f"{line}: the shell ended: {text}"
                seen += more
        return of_a_home(text[: found.start()].replace("\r\n", "\n")), int(found[1])

    def same(self, expected: list[str], shown: str) -> bool:
        """Whether a page's lines were shown; ``...`` stands for any lines, and ids, times and sizes differ."""
        real = shown.splitlines()
        at = 0
        for number, line in enumerate(expected):
            if line == "...":
                following = [_plain(each) for each in expected[number + 1 : number + 2]]
                while at < len(real) and [_plain(real[at])] != following:
                    at += 1
                continue
            if at == len(real) or _plain(real[at]) != _plain(line):
                return False
            self._known |= dict(zip(re.findall(_ID, line), re.findall(_ID, real[at]), strict=True))
            at += 1
        return at == len(real)


def _plain(line: str) -> str:
    line = re.sub(rf"{_ID}|\b\d{{4}}-\d\d-\d\d\b", "#", line)
    line = re.sub(r'"[\w-]{20,}"', '"..."', re.sub(r"(127\.0\.0\.1):\d+", r"\1:#", line))
    line = re.sub(r"\b\d+(\.\d+)?(ms|[smhdKMG%])(?!\w)|\bin \d+ runs", "#", line)
    return re.sub(r"  +", "  ", line.rstrip())


def _quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"
