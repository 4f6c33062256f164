"""What a session's phantoms are used for: requests, bytes and tokens, counted and bounded.

Vendors say in their answers how many tokens a request took (Anthropic's Messages, OpenAI's Responses and Chat
Completions, Gemini). The last word of an answer counts, before the client has it. Of a stream that says nothing, or
that nobody read to its end, the tokens are estimated from its size, and of a request whose answer nobody waited for
those of its content.

With a budget of tokens, requests pass that only read, and those of which an answer is known to report what they took:
not what a vendor works on in the background. The answer is read to its end, also when its client is not there any more,
because a model's hidden thoughts are in no size. What it does not report counts as what has been set aside for it.

What a request will take is known afterwards. So that many at once do not pass together, each that is under way has so
many tokens of the budget set aside as it could take: one for each byte of its content, and the largest answer there is.
What does not fit beside the others waits, and goes alone in the end: a budget is exceeded by one request at most, and
by what a vendor reads that is not in the content (files it has been given before, say).
"""

import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from launcher.loop import Signal, Timeout
from policy.egress_rules import Request, normal_path

_MINUTE = 60.0
_LONGEST = 1 << 20
"""Bytes of an answer, or of a line of a stream, that are looked at."""

_PER_TOKEN = 4
"""Bytes, where tokens are estimated."""

_ANSWER = 128_000
"""Tokens of the largest answer that a vendor makes."""

_HELD = 300.0
"""Seconds in which a request waits for others to be over."""

_AGAIN = 10.0
"""Seconds after which a client may ask again that has waited for so long."""

_MOST = 1 << 40
_ERROR = 400
_WIDTH = 300
"""Of the file's one line, so that a shorter one covers a longer one."""

_COUNTS = ("requests", "input", "output", "estimated", "upload", "refused")

_READING = (b"GET", b"HEAD")
_COUNTING = re.compile(rb"(/messages/count_tokens|/responses/input_tokens|:countTokens)$")

_REPORTING = re.compile(
    rb"(/messages|/responses(/compact)?|(?<!/async/chat)/completions|/embeddings|:(generate|streamGenerate)Content)$"
)
"""Where a vendor's answer says what the request took. Nothing else is known to: not batches, files, runs of assistants,
images, speech, videos, fine-tuning."""

_LATER = ("background", "deferred")
"""In a request's content (OpenAI's, xAI's): the answer is a receipt, and the work goes on without it."""

_SEVERAL = ("n", "best_of", "candidatecount", "candidate_count")
"""In small letters: how many answers are made of one request (OpenAI's, Gemini's), each as long as one can be."""

_WITHIN = ("generationconfig", "generation_config")
"""Where Gemini has that."""

LARGEST = 1 << 25
"""Bytes of content that are looked at as a whole; agents send less, and Anthropic takes no more (32 MB)."""

_DONE, _LAST = b"[DONE]", ("message_stop", "response.completed")
"""The last event of a stream, as a whole or by its type; some clients hang up then."""

_TELLING = re.compile(rb"\"usage|message_stop|response\.completed|response\.failed|\"error\"")
"""In whatever event says something here. Whether it does, its JSON tells: a model's text can hold these words, too."""

_FAILED = ("error", "response.failed")
"""Types of events by which a vendor ends a stream that it cannot go on with."""

_LINE_END = re.compile(rb"\r\n|\n|\r")

_INPUT = ("input_tokens", "prompt_tokens", "promptTokenCount", "toolUsePromptTokenCount")
_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")
_OUTPUT = ("output_tokens", "completion_tokens", "candidatesTokenCount")
_THOUGHT = ("thoughtsTokenCount",)
_TOTAL = ("total_tokens", "totalTokenCount")

_SAYING = (("input_tokens", *_TOTAL), ("output_tokens", *_TOTAL))
"""What tells of all tokens in, and of all out. A client can have Google report some kinds alone (`fields=`), and others
leave thoughts out of the answer's tokens: but for Anthropic, who has no total, that alone tells of them all."""


class Exceeded(Exception):
    """A bound is reached; `wait` is the number of seconds after which another request may be made, 0 for never."""

    def __init__(self, text: str, wait: float = 0.0) -> None:
        super().__init__(text)
        self.wait = wait


class Spending:
    """The counts of one session.

    Attributes:
        requests: how many went to a vendor.
        input, output: tokens.
        estimated: how many of these were not reported.
        upload: bytes of the requests.
        refused: requests that a bound refused.
    """

    def __init__(self, bounds: Mapping[str, int], path: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        """Opens the file, where one is given, and goes on from what an earlier attempt at the session left there.

        Args:
            bounds: ``tokens``, ``requests`` (in a minute) and ``upload``, each where there is one.
            path: of the file.
            clock: seconds.
        """
        self._bounds = dict(bounds)
        self._clock = clock
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if path else -1
        self._recent: deque[float] = deque()
        self._aside = 0
        self._waiting: list[Signal] = []
        self.requests = self.input = self.output = self.estimated = self.upload = self.refused = 0
        if earlier := json.loads((path and os.pread(self._fd, 4096, 0)) or b"{}"):
            for name in _COUNTS:
                setattr(self, name, earlier[name])
            self.output += earlier["aside"]  # what was under way took all that it could
            self.estimated += earlier["aside"]
            self._recent.extend([clock()] * earlier["recent"])

    @property
    def bounded(self) -> bool:
        """Whether nothing may go uncounted."""
        return bool(self._bounds)

    @property
    def counts_tokens(self) -> bool:
        """Whether what cannot be counted has to be refused."""
        return "tokens" in self._bounds

    def reads(self, method: bytes, target: bytes) -> bool:
        """Whether a request only asks for what is there; vendors count tokens for nothing, too, at plain paths."""
        return method in _READING or _ends(target, _COUNTING)

    def counts(self, wanted: Request) -> bool:
        """Whether a budget of tokens can bound a request: it takes none, or its answer is known to tell how many."""
        method, target = wanted.method.encode(), normal_path(wanted.path).encode()
        if method in _READING:
            return not wanted.content
        return self.reads(method, target) or (method == b"POST" and _ends(target, _REPORTING))

    async def begin(self, method: bytes, headers: Mapping[bytes, bytes]) -> int:
        """Counts a request that is to be made, and may wait until there is room beside those that are under way.

        Args:
            method: of the request.
            headers: of the request, names in lower case.

        Returns:
            What `end` is to be told once it is over.

        Raises:
            Exceeded: a bound forbids it.
        """
        most = self._could_take(method, headers)
        try:
            with Timeout(_HELD):
                while True:
                    self._check()
                    if not most or not self._aside or self._aside + most <= self._left:
                        break
                    over = Signal()
                    self._waiting.append(over)
                    await over
        except TimeoutError:
            self._refuse("requests that are under way could use up the session's budget of tokens", _AGAIN)
        self._recent.append(self._clock())
        self.requests += 1
        self._aside += most
        self._write()
        return most

    def end(self, aside: int) -> None:
        """A request is over, and what it took is counted."""
        self._aside -= aside
        self._write()
        waiting, self._waiting = self._waiting, []
        for over in waiting:
            over.set()

    def _could_take(self, method: bytes, headers: Mapping[bytes, bytes]) -> int:
        """Tokens, as far as the head of a request tells; none for what only reads."""
        if not self.counts_tokens or method in _READING:
            return 0
        if b"transfer-encoding" in headers:
            return self._bounds["tokens"]
        return int(headers.get(b"content-length", 0)) + _ANSWER

    @property
    def _left(self) -> int:
        return self._bounds.get("tokens", _MOST) - self.input - self.output

    def _check(self) -> None:
        """Raises `Exceeded` where a bound forbids a request."""
        now = self._clock()
        while self._recent and self._recent[0] <= now - _MINUTE:
            self._recent.popleft()
        if self._left <= 0:
            most, tokens = self._bounds["tokens"], self.input + self.output
            self._refuse(f"the session's budget of {most:,} tokens is used up: {tokens:,} used")
        if self.upload >= (bytes_ := self._bounds.get("upload", _MOST)):
            self._refuse(f"the session's budget of {bytes_:,} bytes to send is used up")
        if len(self._recent) >= (rate := self._bounds.get("requests", _MOST)):
            self._refuse(f"the session may make {rate:,} requests in a minute", self._recent[0] + _MINUTE - now)

    def _refuse(self, text: str, wait: float = 0.0) -> NoReturn:
        self.refused += 1
        self._write()
        raise Exceeded(text, wait)

    def sent(self, size: int) -> None:
        """Counts a request's head, or a piece of its content. Raises `Exceeded` in the middle of what is too much."""
        self.upload += size
        self._write()
        if self.upload > (most := self._bounds.get("upload", _MOST)):
            self._refuse(f"the session's budget of {most:,} bytes to send is used up")

    def add(self, tally: "Tally", *, last: bool = True) -> None:
        """Counts an answer, complete or not; what it says so far, while it is not the `last` word."""
        found = tally.end() if last else tally.told
        if last or found != tally.counted:
            self.input += found[0] - tally.counted[0]
            self.output += found[1] - tally.counted[1]
            self.estimated += found[2] - tally.counted[2]
            tally.counted = found
            self._write()

    def _write(self) -> None:
        if self._fd == -1:
            return
        bound = {"budget": self._bounds["tokens"]} if self.counts_tokens else {}
        rest = {"aside": self._aside, "recent": len(self._recent)}
        text = json.dumps({name: getattr(self, name) for name in _COUNTS} | rest | bound)
        try:
            os.pwrite(self._fd, f"{text:<{_WIDTH}}\n".encode(), 0)
        except OSError:  # the disk is full: the counts hold all the same
            return


class Tally:
    """One request's bytes, and its answer's tokens.

    Attributes:
        sent: bytes of the request's content that the vendor has so far.
        left: the client does not wait for the answer.
        begun: the answer's head is there.
        strict: what the answer does not report took the most that it could have; else a whole one took nothing then.
        counted: what `Spending.add` has counted of it: as `end` has it.
    """

    def __init__(self, *, strict: bool = False) -> None:
        """Nothing is known yet."""
        self.sent = 0
        self.left = self.begun = False
        self.strict = strict
        self.counted = (0, 0, 0)
        self._stream = self._readable = self._complete = self._free = self._failed = False
        self._events = Events()
        self._text = b""
        self._size = 0
        self._tokens = [0, 0]
        self._said = [False, False]

    def answered(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """The head of the answer; header names in lower case."""
        self.begun = True
        self._stream = headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        self._readable = headers.get(b"content-encoding", b"identity") == b"identity"
        self._readable &= status < _ERROR
        self._free = status >= _ERROR

    def feed(self, data: bytes) -> None:
        """The answer's next bytes."""
        self._size += len(data)
        if not self._readable:
            return
        if self._stream:
            for event in self._events.feed(data):
                self._hear(event)
            return
        self._text += data
        if data.rstrip().endswith(b"]" if self._text.startswith(b"[") else b"}"):
            self._look(self._text)
        if len(self._text) > _LONGEST:
            self._text, self._readable = b"", False

    def complete(self) -> None:
        """The answer has ended as it should."""
        self._complete = True
        if self._stream:
            for event in self._events.feed(b"\n\n"):  # the vendor may have left its last event open
                self._hear(event)
        elif self._readable:
            self._look(self._text)

    @property
    def awaited(self) -> bool:
        """Whether the answer is read to its end, whoever waits for it; a stream costs more then."""
        return self._readable and (self.strict or not self._stream)

    @property
    def told(self) -> tuple[int, int, int]:
        """What the answer has said so far, as `end` has it."""
        return (self._tokens[0], self._tokens[1], 0) if all(self._said) else (0, 0, 0)

    def end(self) -> tuple[int, int, int]:
        """Tokens in, tokens out, and how many of them are estimated."""
        known = any(self._tokens)
        if known and all(self._said) and (self._complete or not self._stream) and not self._failed:
            return self.told
        silent = not self.strict and self._readable and not self._stream and self._complete and not known
        nothing = not self._size and not (self.left and self.sent) and not (self.strict and self.begun)
        if self._free or nothing or silent:
            return 0, 0, 0  # an error, a list of models, a count of tokens
        most = self.strict and not self._failed
        given = self._tokens[0] or self.sent // (1 if most else _PER_TOKEN)
        made = max(self._tokens[1], self._size // _PER_TOKEN, _ANSWER if most else 0)
        return given, made, made + (0 if self._tokens[0] else given)

    def _hear(self, event: bytes) -> None:
        """Counts what an event of a stream says."""
        if event.strip() == _DONE:
            self._complete = True
        elif _TELLING.search(event):
            found = self._look(event)
            self._complete |= isinstance(found, dict) and found.get("type") in _LAST

    def _look(self, text: bytes) -> Any:  # noqa: ANN401  # JSON
        """Counts what a text reports, and returns what it is; None without JSON."""
        try:
            found = json.loads(text) if _TELLING.search(text) else None
        except (ValueError, RecursionError):
            return None
        for one in _dicts(found if isinstance(found, list) else [found]):  # Gemini's stream is a list without `alt=sse`
            self._failed |= one.get("type") in _FAILED or isinstance(one.get("error"), dict)
            for top in _dicts([one, one.get("message"), one.get("response")]):
                for usage in _dicts([top.get("usage"), top.get("usageMetadata")]):
                    self._count(usage, _dicts(top.get("tool_usage")))
        return found

    def _count(self, usage: dict[str, Any], tools: list[dict[str, Any]]) -> None:
        """Counts a report, and what is reported beside it. Of several, as those of a stream, the largest counts."""
        # Anthropic's sum leaves out what a summary of the conversation took, or another model's advice.
        turns = _dicts(usage.get("iterations"))
        for part in range(2):
            whole = max(_taken(usage)[part], sum(_taken(turn)[part] for turn in turns))
            self._tokens[part] = max(self._tokens[part], whole + sum(_taken(tool)[part] for tool in tools))
            self._said[part] |= any(type(usage.get(name)) is int for name in _SAYING[part])


class Events:
    """Server-sent events (HTML Standard, section 9.2), from pieces of any size."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._line = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that is whole now. One that is too long is passed over."""
        text = self._line + piece
        whole = text.endswith(b"\r")  # what follows may be the rest of this line's end
        *lines, self._line = _LINE_END.split(text[:-1] if whole else text)
        self._line += b"\r" if whole else b""
        found = []
        for line in lines:
            if not line:
                if self._data and self._size <= _LONGEST:
                    found.append(b"\n".join(self._data))
                self._data, self._size = [], 0
                continue
            self._size += len(line)
            name, _, value = line.partition(b":")
            if name == b"data" and self._size <= _LONGEST:
                self._data.append(value.removeprefix(b" "))
        if len(self._line) > _LONGEST:
            self._size += len(self._line)
            self._line = b":"  # the rest of it is no line of its own
        return found


def unbounded(content: bytes | bytearray) -> str:
    """Why no budget could bound a request with this content; "" where one can."""
    try:
        found = json.loads(content.decode(), object_pairs_hook=_kept)
    except (ValueError, RecursionError, MemoryError):
        return "the content cannot be read as JSON, so no budget could tell what it asks for"
    names = found.names if isinstance(found, _Object) else ()
    if late := next((name for name in names if name.casefold() in _LATER), ""):
        return f"work in the background ({late}), whose tokens no answer reports"
    return f"several answers to one request ({names[0]}), of which one is set aside for" if names else ""


class _Object(NamedTuple):
    """Of an object, nothing but the names that count here: a large one takes no memory, and of two none is hidden."""

    names: tuple[str, ...]


def _kept(pairs: list[tuple[str, Any]]) -> _Object:
    found: list[str] = []
    for name, value in pairs:
        key = name.casefold()
        if key in _WITHIN and isinstance(value, _Object):
            found += value.names
        elif (
            (key in _LATER and value not in (None, False))
            or (key in _SEVERAL and value not in (None, 0, 1))
            or (key == "prompt" and isinstance(value, list) and any(not isinstance(each, int) for each in value[1:]))
        ):  # several texts; numbers are the tokens of one
            found.append(name)
    return _Object(tuple(found))


def _ends(target: bytes, form: re.Pattern[bytes]) -> bool:
    """Whether a request's path ends so, in plain letters."""
    path = target.partition(b"?")[0]
    return form.search(path) is not None and not re.search(b"[;%]", path)


def _dicts(found: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # JSON
    """The objects in a list, or those that are an object's values."""
    values = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    return [one for one in values if isinstance(one, dict)]


def _taken(usage: dict[str, Any]) -> tuple[int, int]:
    """Tokens in and out, as a report has them."""
    given = _sum(usage, _INPUT) + _sum(usage, _CACHED)
    return given, max(_sum(usage, _OUTPUT) + _sum(usage, _THOUGHT), _sum(usage, _TOTAL) - given)


def _sum(usage: dict[str, Any], names: tuple[str, ...]) -> int:
    values = (usage.get(name) for name in names)
    return sum(value for value in values if type(value) is int and 0 <= value < _MOST)
