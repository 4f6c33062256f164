"""What is known about one provider, as data: `ProviderSpec`, read from TOML.

A file looks like this (all keys except ``schema``, ``name``, ``title``, ``native`` and ``contract`` may be left out)::

    schema = 1                          # version of this format
    name = "claude-code"                # lower case, digits and dashes
    title = "Claude Code"
    commands = ["claude"]               # its command line programme: base names, npm packages with their scope
    adapters = ["claude-agent-acp"]     # ACP adapters, in the same way: they take no flags of ours
    acp = "claude-agent-acp"            # how its ACP server is started, for people
    supports_sandbox = true             # false: neither variables nor flags are given
    override = false                    # true, in a user's file only: replaces the built-in of the same name
    domains = ["api.anthropic.com"]     # hosts it needs, HOST or *.HOST, optionally :PORT
    settings = ["ANTHROPIC_MODEL"]      # names of plain (not secret) variables that pass through
    endpoints = ["ANTHROPIC_BASE_URL"]  # those of them that hold the URL of a host it must reach
    session_secrets = ["X_PASSWORD"]    # variables that get a value of their own in each session
    notes = ["..."]                     # what bites, for people

    [state]                             # see `State`
    [credentials]                       # see `Credentials`
    [[files]]                           # see `ProviderFile`
    [[inject]]                          # see `Inject`: keys that stay outside of the jail
    [bring]                             # see `ProviderSpec.bring`
    [temp]                              # see `Temp`
    [quiet]                             # variables that switch telemetry and self-updates off
    [native]                            # see `Dialect`: what the real programme accepts
    [native.sandbox_off]                # see `Switch`: turns off its own sandbox, where Paddock's jail holds it
    [native.prompts_off]                # see `Switch`: the same for its own questions, unless --keep-prompts
    [contract]                          # see `Dialect`: exactly the specification, contracts.md section 2a

A user's own file lies in ``$XDG_CONFIG_HOME/paddock/providers/``; a plug-in gives a `ProviderSpec` or a strategy object
through the entry point group ``paddock.providers`` (`policy.providers.registry`).
"""

import difflib
import re
import tomllib
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from policy import keys
from policy.errors import Refusal
from policy.hosts import parse_rule
from policy.phantoms import Phantom

# Files of a provider's that pass between the user's home and a worktree's private one: the keys of ``[[files]]``.
#
# Example::
#
#     [[files]]
#     path = "~/.codex/auth.json"         # where it lies by default
#     moved = "auth.json"                 # where below the directory that the provider's state variable names
#     refreshed = ["tokens.access_token", "last_refresh"]
#     newer = "last_refresh"
#     account = ["tokens.account_id"]
#     proofs = { "tokens.id_token" = ["sub"] }


def home_relative(path: str) -> str:
    """`path` if it starts with ``~/``, names something below it and holds no ``..``; ValueError otherwise."""
    if not path.startswith("~/") or path == "~/" or ".." in path.split("/") or "\0" in path:
        raise ValueError("must start with ~/, name something below it and hold no ..")
    return path.rstrip("/")


def _below(path: str) -> str:
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError("must be a path below a directory, without any ..")
    return path


Dotted = Annotated[str, Field(pattern=r"^[^.]+(\.[^.]+)*$")]
HomePath = Annotated[str, AfterValidator(home_relative)]
Below = Annotated[str, AfterValidator(_below)]


_Path = Annotated[str, Field(pattern=r"^/[A-Za-z0-9._~/:-]*$")]
_Use = Annotated[str, Field(pattern=r"^(POST )?/[A-Za-z0-9._~/:-]*$")]


def _api(url: str) -> str:
    keys.api(url)
    return url


class LoginPhantom(BaseModel):
    """How a login stays outside, where TLS for the vendor's hosts ends at the proxy (`policy.phantoms.Phantom`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    refresh_url: Annotated[str, AfterValidator(_api)]
    """Where new tokens are asked for."""
    request: dict[str, str] = {}
    """Of that request, besides its type and the refresh token: name -> value, ``{PATH}`` for one of the entry."""
    answer: dict[str, str] = {}
    """Of the answer that the agent gets, besides tokens and times; in the same way."""
    access: Dotted
    """Below the entry: the token that the API wants as a bearer token."""
    refresh: Dotted
    """The token that new ones are asked for with."""
    tokens: dict[Dotted, Annotated[list[str], Field(min_length=2, max_length=2)]]
    """All of them: path -> its name in an answer, and what phantoms begin with where tokens do."""
    times: dict[Dotted, str] = {}
    """Path of a time in milliseconds -> name of the seconds in an answer; the access token's first."""
    stamp: Dotted | None = None
    """Path of the time of the last refresh, in words."""
    plain: list[Dotted] = []
    """What else of the entry is copied in. Nothing is that is not named."""
    apis: Annotated[
        dict[Annotated[str, AfterValidator(_api)], Annotated[list[_Use], Field(min_length=1)]], Field(min_length=1)
    ]
    """URL of an API -> paths that a phantom is good for, each with what lies below it: for reading, or as POST says."""
    trust: Annotated[list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]], Field(min_length=1)]
    """Variables by which the programme is told of further authorities."""

    @model_validator(mode="after")
    def _names_its_tokens(self) -> Self:
        if missing := {self.access, self.refresh} - self.tokens.keys():
            raise ValueError(f"tokens has no {', '.join(sorted(missing))}")
        return self

    def as_planned(self) -> Phantom:
        """The same as a Plan has it."""
        return Phantom(
            refresh_url=self.refresh_url,
            request=tuple(self.request.items()),
            access=self.access,
            refresh=self.refresh,
            tokens=tuple((path, prefix, name) for path, (name, prefix) in self.tokens.items()),
            times=tuple(self.times.items()),
            stamp=self.stamp or "",
            plain=tuple(self.plain),
            answer=tuple(self.answer.items()),
            apis=tuple((url, keys.uses(url, texts)) for url, texts in self.apis.items()),
            trust=tuple(self.trust),
        )


class ProviderFile(BaseModel):
    """One such file. It is copied in when a session starts, and what was refreshed in it is copied back at the end."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: HomePath
    """Where it lies when nothing moves it."""
    moved: Below | None = None
    """Where it lies below the directory that the provider's state variable names; none: that does not move it."""
    format: Literal["json", "text", "toml"] = "json"
    """A text is copied in, and never back. Of TOML only `brought` and `only` pass, inwards."""
    entry: Annotated[str, Field(pattern=r"^(\*|[^.*]+(\.[^.*]+)*)?$")] = ""
    """Dotted path of the object that holds one login; "" is the whole document, ``*`` each object in it."""
    refreshed: list[Dotted] = []
    """Below an entry: what a refresh replaces. Nothing else is ever copied back; nothing at all without."""
    newer: Dotted | None = None
    """That of them which grows with each refresh: a time."""
    account: list[Dotted] = []
    """Below an entry: what tells the account. Where it differs, in any file of the provider's, nothing goes back."""
    proofs: dict[Dotted, list[str]] = {}
    """Below an entry: JSON Web Tokens, and their claims that tell the account."""
    only: list[Dotted] = []
    """What of the document is copied in; none: all of it."""
    brought: list[Dotted] = []
    """What is copied in besides where the user brings his agents' things: MCP servers, never logins. Of a file that has
    nothing else but its place, that is all."""
    put: dict[Dotted, str | bool | int] = {}
    """Dotted path -> value that the copy is given besides, whatever the user's own file says."""
    unattended: dict[Dotted, str | bool | int] = {}
    """The same where the provider's questions are off; what was put so is taken away where they are kept."""
    keyed: dict[Dotted, str | bool | int | list[str]] = {}
    """The same where a key stays outside: else some ask again for each phantom."""
    phantom: LoginPhantom | None = None
    """How the login in it stays outside; none: it cannot."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if bool(self.refreshed) != (self.newer is not None):
            raise ValueError("refreshed and newer go together")
        if self.newer is not None and self.newer not in self.refreshed:
            raise ValueError("newer must be one of refreshed")
        if set(self.account) & set(self.refreshed):
            raise ValueError("what identifies the account is never refreshed")
        returning = self.refreshed or self.account or self.proofs
        if self.format == "toml" and (returning or not (self.only or self.brought)):
            raise ValueError("of TOML, parts are copied in (only, brought), and nothing comes back")
        if self.brought and returning and not self.only:
            raise ValueError("where parts are brought, only says what is copied in besides")
        detailed = returning or self.only or self.brought or self.put or self.unattended or self.keyed
        if self.phantom is not None and (not self.refreshed or self.entry == "*" or self.format != "json"):
            raise ValueError("a phantom is of one login, in JSON, that is refreshed")
        if self.format == "text" and detailed:
            raise ValueError("for a text file, only path and moved can be set")
        return self


SCHEMA = 1

RESERVED = ("auto", "none")
"""What `--provider` takes besides the names of providers."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def _home_or_below(path: str) -> str:
    return path if path == "~" else home_relative(path)


def _base_name(name: str) -> str:
    if not name or "/" in name or name in {".", ".."}:
        raise ValueError("must be a base name, without any /")
    return name


def _programme(name: str) -> str:
    """A base name, or an npm package with its scope."""
    scope, slash, rest = name.partition("/")
    if scope.startswith("@") and slash:
        if len(scope) == 1:
            raise ValueError("must name a scope after the @")
        _base_name(rest)
        return name
    return _base_name(name)


def _no_reserved(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"must be none of {', '.join(RESERVED)}")
    return name


def _rule(domain: str) -> str:
    try:
        parse_rule(domain)
    except Refusal as refusal:
        raise ValueError(refusal.message) from None
    return domain


Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$"), AfterValidator(_no_reserved)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Domain = Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$"), AfterValidator(_rule)]
HomeOrBelow = Annotated[str, AfterValidator(_home_or_below)]
Programme = Annotated[str, AfterValidator(_programme)]
Word = Annotated[str, Field(pattern=r"^[a-z]")]
Flag = Annotated[str, Field(pattern=r"^--?[A-Za-z]")]


class DialectName(StrEnum):
    """Which words are used towards the provider."""

    NATIVE = "native"
    """The specification's variables (harmless to all), and flags that the real programme accepts."""
    CONTRACT = "contract"
    """The specification's variables and flags, for wrappers that understand them."""


class ArgumentsPosition(StrEnum):
    """Where a dialect's arguments go."""

    AFTER_PROGRAM = "after-program"
    """Directly behind the provider's own programme: global options, in front of any sub-command."""
    APPEND = "append"
    """Behind all of the caller's arguments, as the specification says."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class State(_Frozen):
    """Where the provider keeps its state."""

    directories: list[HomePath] = []
    """Directories below the home directory."""
    files: list[HomePath] = []
    """Single files below the home directory, outside those directories."""
    variable: Variable | None = None
    """Environment variable that moves the state elsewhere. In the jail it always does: into the private home."""
    root: HomeOrBelow | None = None
    """Where that variable leads in the private home; left out: to the first of `directories`."""
    xdg: bool = False
    """Whether the user's own state follows XDG_CONFIG_HOME, XDG_DATA_HOME and XDG_STATE_HOME."""
    executable: bool = False
    """Whether programmes are run from the state directory (no `noexec` there, and not below /tmp)."""

    @property
    def home(self) -> str | None:
        """Where `variable` leads in the private home, as a path below ``~``; None without a place."""
        return self.root or next(iter(self.directories), None)


class Credentials(_Frozen):
    """What proves who the user is. Names only: no value ever enters a spec or a Plan."""

    environment: list[Variable] = []
    """Names of the environment variables that are passed through when they are set."""


class Inject(_Frozen):
    """A key that stays outside, where the provider can be told the URL of its vendor's API.

    In `environment` and `arguments`, ``{url}`` stands for the URL that the jail sees. Where the caller has set one of
    the variables himself, his words count and the key passes as it is; not so `base`, whose value is the API then.
    """

    variable: Variable
    """Holds the key outside, and a phantom in the jail."""
    url: Annotated[str, AfterValidator(_api)]
    """Of the API, where `base` says nothing else."""
    base: Variable | None = None
    """One of `settings`: the URL of the API."""
    header: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")] = "authorization"
    """In which the API wants the key."""
    format: Annotated[str, Field(pattern=r"^([!-~]+ )?\{key\}$")] = "Bearer {key}"
    """Of the header's value."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]*$")] = ""
    """What a phantom begins with, where clients look at it."""
    suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]*$")] = ""
    """What it ends with, where clients remember that."""
    methods: list[Annotated[str, Field(pattern=r"^[A-Z]+$")]] = list(keys.METHODS)
    """What a phantom is good for: methods."""
    paths: Annotated[list[_Path], Field(min_length=1)]
    """And paths below the API's, each with what lies below it."""
    environment: dict[Variable, str] = {}
    """Further variables of the jail."""
    arguments: list[str] = []
    """Given where the dialect's arguments go, in the native dialect."""
    flags: list[Flag] = []
    """Flags of the programme in whose values the caller may name the variable, and use the key in a way of his own."""


class Temp(_Frozen):
    """What the provider needs of its temporary directory."""

    variable: Variable | None = None
    """Environment variable of its own that names it, besides TMPDIR."""
    executable: bool = False
    """Whether programmes are unpacked and run there."""


class Switch(_Frozen):
    """What turns off a precaution of the provider's own that the jail around it makes pointless, or breaks."""

    environment: dict[Variable, str] = {}
    """Variable -> value."""
    arguments: list[str] = []
    """Given where the dialect's arguments go, behind them."""
    unless: list[Flag] = []
    """Flags of the caller that stand in the place of `arguments`, which are left out then."""
    silences_adapters: bool = False
    """Whether ACP adapters ask nothing any more with it, whatever else they are told."""

    @model_validator(mode="after")
    def _no_nul(self) -> Self:
        for text in (*self.environment.values(), *self.arguments):
            if "\0" in text:
                raise ValueError(f"NUL in {text!r}")
        return self


class Dialect(_Frozen):
    """Variables and flags that tell the provider about its sandbox.

    ``{worktree}`` stands for the root of the main worktree, ``{submodule}`` for that of one granted submodule.
    """

    environment: dict[Variable, str] = {}
    """Variable -> value; ``{worktree}`` may be used."""
    arguments: list[str] = []
    """Given once; ``{worktree}`` may be used."""
    submodule_arguments: list[str] = []
    """Given once for every granted submodule; ``{worktree}`` and ``{submodule}`` may be used."""
    arguments_position: ArgumentsPosition = Field(default=ArgumentsPosition.APPEND, strict=False)
    """Where both kinds of arguments go."""
    unknown_to: list[Word] = []
    """Sub-commands that do not know the arguments and would end with an error: there they are left out."""
    sandbox_off: Switch = Switch()
    """Turns off its own sandbox. Only ever used where Paddock's jail holds the process."""
    prompts_off: Switch = Switch()
    """Turns off its own questions. Only ever used where Paddock's jail holds the process, and not to be kept."""

    @model_validator(mode="after")
    def _placeholders_are_known(self) -> Self:
        for where, texts, known in (
            ("environment", self.environment.values(), {"worktree"}),
            ("arguments", self.arguments, {"worktree"}),
            ("submodule_arguments", self.submodule_arguments, {"worktree", "submodule"}),
        ):
            for text in texts:
                unknown = set(_PLACEHOLDER.findall(text)) - known
                if unknown:
                    raise ValueError(f"{where}: unknown placeholder {{{min(unknown)}}} in {text!r}")
                if "\0" in text:
                    raise ValueError(f"{where}: NUL in {text!r}")
        return self


class ProviderSpec(_Frozen):
    """One provider. The module's docstring shows the file format."""

    schema_version: int = Field(alias="schema", ge=SCHEMA, le=SCHEMA)
    """Version of the file format; 1 is the only one so far."""
    name: Name
    """What `--provider` takes."""
    title: str = Field(min_length=1)
    """The name that people know."""
    commands: list[Programme] = []
    """Its command line programme, which takes the dialect's arguments: base names, npm packages with their scope."""
    adapters: list[Programme] = []
    """ACP adapters, in the same way. They ignore unknown arguments silently, so `native` gives them none."""
    acp: str = ""
    """How its ACP server is started, for people."""
    supports_sandbox: bool = True
    """False: the provider has no idea of a sandbox, and nothing is translated."""
    override: bool = False
    """In a user's file: replaces the built-in of the same name instead of being refused as a duplicate."""
    domains: list[Domain] = []
    """Hosts that it must reach, for `--net proxy`."""
    settings: list[Variable] = []
    """Names of variables without secrets that pass through: model, base URL."""
    endpoints: list[Variable] = []
    """Those of `settings` whose value is a URL: with `--net proxy` its host may be reached too."""
    session_secrets: list[Variable] = []
    """Variables that get a random value in each session: passwords of servers that it opens on the loopback."""
    notes: list[str] = []
    """What people should know."""
    state: State = State()
    """Where it keeps its state."""
    credentials: Credentials = Credentials()
    """What proves who the user is."""
    files: list[ProviderFile] = []
    """Logins and settings that pass between the user's home and the worktree's private one."""
    inject: list[Inject] = []
    """Keys that stay outside of the jail."""
    bring: dict[HomePath, Literal[""] | Below] = {}
    """The user's instructions, skills, commands and agents for it: path -> where below the directory that the state
    variable names, "" for what that does not move. With ``/*`` behind both: each thing in a directory, which stays
    the agent's own to write."""
    temp: Temp = Temp()
    """What it needs of its temporary directory."""
    quiet: dict[Variable, str] = {}
    """Variables with the values that switch telemetry and self-updates off."""
    native: Dialect
    """What the real programme accepts."""
    contract: Dialect
    """Exactly the specification's variables and flags."""

    def dialect(self, name: DialectName) -> Dialect:
        """The words of one dialect."""
        return self.native if name is DialectName.NATIVE else self.contract


def filled(template: str, **values: str) -> str:
    """`template` with its placeholders replaced in one pass, so that braces inside a value stay what they are."""
    return _PLACEHOLDER.sub(lambda found: values[found.group(1)], template)


def parse_spec(text: str, source: str) -> ProviderSpec:
    """Reads one provider's file."""
    try:
        return ProviderSpec.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise Refusal("provider-invalid", f"{source} is not valid TOML", context=str(error)) from error
    except ValidationError as error:
        problems = [_problem([str(part) for part in item["loc"]], item["msg"], item["type"]) for item in error.errors()]
        raise Refusal(
            "provider-invalid", f"{source} does not describe a provider", context="\n".join(problems)
        ) from error


_TABLES: dict[str, type[BaseModel]] = {
    "state": State,
    "credentials": Credentials,
    "temp": Temp,
    "native": Dialect,
    "contract": Dialect,
    "files": ProviderFile,
    "inject": Inject,
    "sandbox_off": Switch,
    "prompts_off": Switch,
}


def _problem(location: list[str], message: str, kind: str) -> str:
    where = ".".join(location) or "file"
    if kind != "extra_forbidden":
        return f"{where}: {message.removeprefix('Value error, ')}"
    table = next((part for part in reversed(location[:-1]) if not part.isdigit()), "")
    owner = _TABLES.get(table, ProviderSpec)
    known = [field.alias or name for name, field in owner.model_fields.items()]
    near = difflib.get_close_matches(location[-1], known, n=1)
    return f"{where}: unknown key" + (f", did you mean {near[0]}?" if near else "")
