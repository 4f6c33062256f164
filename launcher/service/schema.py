"""What goes over the control API. The OpenAPI document, the store's JSON and `--json` are made of it."""

import inspect
import logging
import re
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from launcher.session import state
from policy.errors import Refusal

# The life of a session as the service sees it, and how it may move on.


class SessionState(StrEnum):
    """Where a session is."""

    CREATED = "created"
    """Accepted; waits for its turn, or to be started again."""
    STARTING = "starting"
    """A helper makes its plan and its jail."""
    RUNNING = "running"
    """Its command runs."""
    STOPPING = "stopping"
    """It was asked to end."""
    ENDED = "ended"
    """Its command came to its end with status 0, or because somebody asked for it."""
    FAILED = "failed"
    """It could not be started, or its command ended otherwise."""
    LOST = "lost"
    """Its own processes were killed, and nobody saw how it ended."""
    UNHARVESTED = "unharvested"
    """It is over, and its commits wait in its private git directory: the harvest was refused, and is tried again."""

    @property
    def final(self) -> bool:
        """Whether nothing comes after it."""
        return self in FINAL


FINAL = frozenset({SessionState.ENDED, SessionState.FAILED, SessionState.LOST, SessionState.UNHARVESTED})

_C, _S, _R, _T = SessionState.CREATED, SessionState.STARTING, SessionState.RUNNING, SessionState.STOPPING

TRANSITIONS: dict[SessionState, frozenset[SessionState]] = {
    _C: frozenset({_S, *FINAL}),
    # Back to the beginning: it is to be started again.
    _S: frozenset({_R, _T, _C, *FINAL}),
    _R: frozenset({_T, _C, *FINAL}),
    _T: FINAL,
    **dict.fromkeys(FINAL, frozenset()),
    SessionState.UNHARVESTED: frozenset({SessionState.ENDED, SessionState.FAILED, SessionState.LOST}),
}
"""Where each state may lead."""


def check(name: str, before: SessionState, after: SessionState) -> None:
    """Refuses a move that the table does not have.

    Refusals: session-transition.
    """
    if after not in TRANSITIONS[before]:
        raise Refusal(
            "session-transition",
            f"session {name} is {before} and cannot become {after}",
            context=f"{before} can become: {', '.join(sorted(TRANSITIONS[before])) or 'nothing'}",
        )


log = logging.getLogger("paddock.service")

MOST_WORDS = 4_096
MOST_TEXT = 128 << 10  # MAX_ARG_STRLEN (execve(2))


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("it contains a NUL, which no argument or variable can")
    return text


def _session_name(text: str) -> str:
    if not state.valid_name(text):
        raise ValueError(state.NAME_RULE)
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("it is not an absolute path")
    return text


def _variable(text: str) -> str:
    if not text or "=" in text:
        raise ValueError("the name of a variable is empty, or holds an equals sign")
    return text


Word = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(_no_nul)]
SessionName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_session_name)]
Directory = Annotated[str, Field(min_length=1, max_length=4_096), AfterValidator(_no_nul), AfterValidator(_absolute)]
Variable = Annotated[str, Field(min_length=1, max_length=1_024), AfterValidator(_no_nul), AfterValidator(_variable)]


_ATTRIBUTE = re.compile(r"^ *(\w+): (.+?)(?=^ *\w+: |\Z)", re.DOTALL | re.MULTILINE)


def documented(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Puts what docstrings say of a model and its attributes into its JSON schema, for the OpenAPI document."""
    said: dict[str, str] = {}
    for each in reversed(model.__mro__):
        said.update(_ATTRIBUTE.findall((inspect.getdoc(each) or "").partition("Attributes:")[2]))
    schema["description"] = " ".join((inspect.getdoc(model) or "").partition("Attributes:")[0].split())
    for name, field in schema.get("properties", {}).items():
        if name in said:
            field.setdefault("description", " ".join(said[name].split()))


class Frozen(BaseModel):
    """Immutable, strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=documented)


class Told(BaseModel):
    """What another part of Paddock answers; it may have more attributes than are named here."""

    model_config = ConfigDict(frozen=True, extra="allow", json_schema_extra=documented)


class Input(StrEnum):
    """What a session has for its standard input."""

    NULL = "null"
    """/dev/null."""
    PIPE = "pipe"
    """A pipe that stays open until a client or a stop closes it."""
    TERMINAL = "terminal"
    """A pseudo terminal of its own, which is its standard output and error, too."""


class RestartPolicy(StrEnum):
    """When a session is started again."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    """When its command ended with another status than 0, by a signal or a limit, and nobody had asked for that."""


class Restart(Frozen):
    """Whether a session is started again.

    Attributes:
        policy: when.
        most: how often at most.
    """

    policy: RestartPolicy = RestartPolicy.NEVER
    most: int = Field(5, ge=0, le=1_000_000)


class SessionRequest(Frozen):
    """A session that somebody wants.

    Attributes:
        command: its words.
        options: of `paddock run`, as on its command line, without --session, --report, --dry-run and --help.
        directory: the current directory, in the worktree.
        name: its name; random when there is none.
        environment: the launcher's whole environment, of which the plan lets some through; the service's own when
            there is none. Its values are never written down.
        stdin: what it has for its standard input.
        window: rows and columns of its terminal, until a client attaches with others.
        umask: of the command, such as 18 for 0022.
        restart: whether it is started again.
        bridge: "acp" for an agent of the Agent Client Protocol: `options` are those of `paddock acp`, and editors
            attach with mode=acp. Needs stdin "pipe". "remote" for a ticket's agent that works on a node of a cluster.
        wait_for_client: it is started when the first client is attached, so that it misses no output.
        labels: for who asks; they mean nothing here.
    """

    command: list[Word] = Field(min_length=1, max_length=MOST_WORDS)
    options: list[Word] = Field(default_factory=list, max_length=MOST_WORDS)
    directory: Directory
    name: SessionName | None = None
    environment: dict[Variable, Word] | None = Field(None, max_length=MOST_WORDS)
    stdin: Input = Input.NULL
    window: tuple[Annotated[int, Field(ge=1, le=65_535)], Annotated[int, Field(ge=1, le=65_535)]] = (24, 80)
    umask: int = Field(0o022, ge=0, le=0o777)
    restart: Restart = Field(default_factory=lambda: Restart.model_validate({}))
    bridge: Literal["acp", "remote"] | None = None
    wait_for_client: bool = False
    labels: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=1_024)]] = Field(
        default_factory=dict, max_length=32
    )

    @model_validator(mode="after")
    def _has_input(self) -> "SessionRequest":
        if self.bridge == "acp" and self.stdin is not Input.PIPE:
            raise ValueError('a bridge needs stdin "pipe"')
        return self

    def words(self, *own: str) -> list[str]:
        """The words of `paddock run`, or behind "acp" those of `paddock acp`, with `own` options in front; behind
        "remote" those of the session that takes in the work.
        """
        return [*([self.bridge] if self.bridge else []), *own, *self.options, "--", *self.command]


class Reason(StrEnum):
    """Why a session came to its end."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    LIMIT = "limit"
    REFUSED = "refused"
    STOPPED = "stopped"
    """Somebody asked for it."""
    SERVICE_STOPPED = "service-stopped"
    IDLE = "idle"
    """An agent that no editor was attached to for `agent_idle_seconds`."""
    LOST = "lost"


class Outcome(Frozen):
    """How a session, or one attempt at it, ended.

    Attributes:
        reason: why.
        status: exit status as `paddock run` gives it: the command's own, 128+N after signal N, 125 when refused.
        signal: name of the signal that ended the command.
        limit: the limit that was passed.
        denials: how often it was refused something, as far as was heard.
        refusal: the Refusal, when it was refused.
        harvest: what became of its commits.
        handoff: (what happened, path, mode) of hand-off files that have changed.
        notes: what the launcher had to tell at the end.
    """

    reason: Reason
    status: int | None = None
    signal: str | None = None
    limit: str | None = None
    denials: int = 0
    refusal: dict[str, Any] | None = None
    harvest: dict[str, Any] | None = None
    handoff: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()


class Usage(Frozen):
    """What a session used when somebody looked last.

    Attributes:
        time: when, in seconds since the epoch.
        processes: how many, without Paddock's own.
        threads: of those.
        memory: bytes of resident memory, shared pages counted in each process.
        cpu_seconds: processor time of the processes that live.
        cpu_percent: of one processor, since the look before.
        read_bytes: from storage.
        written_bytes: to storage.
        tokens: that requests with keys that stay outside have taken, in and out.
        token_budget: of these, once there was such a request; 0 without a bound.
    """

    time: float
    processes: int
    threads: int
    memory: int
    cpu_seconds: float
    cpu_percent: float
    read_bytes: int
    written_bytes: int
    tokens: int = 0
    token_budget: int = 0


class Transition(Frozen):
    """One move of a session from state to state.

    Attributes:
        time: when, in seconds since the epoch.
        before: the state that it left.
        after: the state that it came to.
        attempt: the number of the attempt.
        why: what made it move.
    """

    time: float
    before: SessionState
    after: SessionState
    attempt: int
    why: str


class Process(Frozen):
    """One process of a session.

    Attributes:
        pid: its process id, as the service sees it.
        parent: its parent's.
        name: of what it executes.
        status: what it does: running, sleeping ...
        memory: bytes of its resident memory.
        cpu_seconds: processor time.
    """

    pid: int
    parent: int
    name: str
    status: str
    memory: int
    cpu_seconds: float


class Session(Frozen):
    """A session as the service knows it.

    Attributes:
        name: its name.
        state: where it is.
        attempt: how often it was started.
        command: its words.
        options: of `paddock run`; values of --env are left out.
        directory: where it was asked for.
        stdin: what it has for its standard input.
        bridge: "acp" for an agent that editors attach to.
        labels: as given.
        client_uid: user id of who asked for it.
        created: seconds since the epoch.
        started: when its command ran first.
        ended: when it was over.
        worktree: root of its worktree, as soon as it is known.
        worktree_id: id of that.
        backend: what holds its jail.
        network: none, proxy or open.
        pid: of its launcher, while it lives.
        spawn_seconds: from the hand-over to a helper to the execution of its command.
        attached: clients that are attached.
        usage: what it uses.
        outcome: how it ended; of the last attempt when it is to be started again.
        frozen: whether nothing of it may run at present.
    """

    name: str
    state: SessionState
    attempt: int
    command: list[str]
    options: list[str]
    directory: str
    stdin: Input
    bridge: str | None
    labels: dict[str, str]
    client_uid: int
    created: float
    started: float | None
    ended: float | None
    worktree: str
    worktree_id: str
    backend: str
    network: str
    pid: int | None
    spawn_seconds: float | None
    attached: int = 0
    usage: Usage | None = None
    outcome: Outcome | None = None
    frozen: bool = False


class SessionDetails(Session):
    """All about one session.

    Attributes:
        transitions: its life.
        processes: what runs in it.
        log_note: what is wrong with its log.
    """

    transitions: list[Transition] = []
    processes: list[Process] = []
    log_note: str = ""


class Condition(Frozen):
    """Something that is wrong with the service.

    Attributes:
        id: stable identifier, in kebab-case.
        subject: what it concerns, where there can be several: a worktree, a directory.
        what: is wrong.
        since: when that was found, in seconds since the epoch.
        hint: what to do.
    """

    id: str
    subject: str = ""
    what: str
    since: float
    hint: str


class EventKind(StrEnum):
    """What an event is about."""

    SERVICE = "service"
    """The service begins or ends."""
    SESSION = "session"
    """A session has moved to another state; `data` has the state, and how it ended."""
    DENIALS = "denials"
    """A session has ended that was refused something; `data` has how often."""
    HARVEST = "harvest"
    """Commits of a worktree were taken over, or were refused; `data` has the result."""
    TICKET = "ticket"
    """A step of a ticket run."""
    CONDITION = "condition"
    """Something is wrong with the service, or is mended: `data` is a reason of `GET /v1/health`, and `raised`."""
    MISSED = "missed"
    """Events after the one that the client names are not kept any more: ask for the present state instead."""


class Event(Frozen):
    """Something that has happened.

    Attributes:
        id: grows from event to event, with gaps, over restarts of the service, too.
        time: when, in seconds since the epoch.
        kind: what it is about.
        session: whose it is; "" for none.
        data: what there is to say, by its kind.
    """

    id: int
    time: float
    kind: EventKind
    session: str = ""
    data: dict[str, Any]


class Error(Told):
    """The one shape of every refusal (`policy.errors.Refusal`).

    Attributes:
        error: always true.
        errorType: stable identifier, in kebab-case.
        message: what is refused.
        context: where and why.
        hint: what to do next.
        exitCode: the status that the command line ends with.
    """

    error: bool = True
    errorType: str
    message: str
    context: str
    hint: str
    exitCode: int


# What is wrong with the service at present: raised by whoever finds it, cleared by whoever finds it mended.
#
# `GET /v1/health` and `paddock status` list the conditions; as long as there is one, the service is degraded.

_MOST_LISTED = 100


class Conditions:
    """The conditions of one service, by id and subject. Used from the service's one thread.

    Attributes:
        changed: called with a condition, and whether it was raised just now; None for nobody.
    """

    def __init__(self) -> None:
        """Nothing is wrong yet."""
        self._raised: dict[tuple[str, str], Condition] = {}
        self.changed: Callable[[Condition, bool], None] | None = None

    def raise_(self, name: str, what: str, hint: str, subject: str = "") -> None:
        """Raises a condition, or renews its text."""
        known = self._raised.get((name, subject))
        since = time.time() if known is None else known.since
        raised = Condition(id=name, subject=subject, what=what, since=since, hint=hint)
        self._raised[name, subject] = raised
        if known is None:
            log.warning("degraded: %s (%s)", what, hint, extra={"fields": {"condition": name}})
            self._tell(raised, now=True)

    def clear(self, name: str, subject: str = "") -> None:
        """Takes a condition back, if it was raised."""
        known = self._raised.pop((name, subject), None)
        if known is not None:
            log.info("mended: %s", known.what, extra={"fields": {"condition": name}})
            self._tell(known, now=False)

    def _tell(self, condition: Condition, *, now: bool) -> None:
        if self.changed is not None:
            self.changed(condition, now)

    def raised(self, name: str, subject: str = "") -> bool:
        """Whether a condition is raised."""
        return (name, subject) in self._raised

    def names(self) -> list[str]:
        """The ids of what is wrong, each once."""
        return sorted({name for name, _ in self._raised})

    def listed(self) -> list[Condition]:
        """What is wrong, the oldest first, not more of it than anybody reads."""
        return sorted(self._raised.values(), key=lambda each: each.since)[:_MOST_LISTED]

    def number(self, name: str) -> int:
        """How many conditions of a name there are."""
        return sum(1 for known, _ in self._raised if known == name)
