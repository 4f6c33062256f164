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

import re
from enum import StrEnum

from policy import keys
from policy.errors import Refusal, in_rows
from policy.hosts import parse_rule
from policy.tables import (
    Choice,
    Many,
    Mistake,
    Mistakes,
    Pairs,
    Part,
    Version,
    boolean,
    checked,
    key,
    matching,
    names,
    string,
    toml_type,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
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


def home_relative(value: object) -> str:
    """A path that starts with ``~/``, names something below it and holds no ``..``; ValueError otherwise."""
    path = string(value)
    if not path.startswith("~/") or path == "~/" or ".." in path.split("/") or "\0" in path:
        raise ValueError("must start with ~/, name something below it and hold no ..")
    return path.rstrip("/")


def _below(value: object) -> str:
    path = string(value)
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError("must be a path below a directory, without any ..")
    return path


_dotted = matching(r"[^.]+(\.[^.]+)*", "a dotted path")
_path = matching(r"/[A-Za-z0-9._~/:-]*", "a URL's path")
_use = matching(r"(POST )?/[A-Za-z0-9._~/:-]*", "a URL's path, with or without POST")
_variable = matching(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name")


def _api(value: object) -> str:
    url = string(value)
    keys.api(url)
    return url


def _plain(value: object) -> str | bool | int:
    if isinstance(value, str | bool | int):
        return value
    raise ValueError(f"must be a string, a number, true or false, not {toml_type(value)}")


def _plain_or_list(value: object) -> str | bool | int | list[str]:
    return [string(each) for each in value] if isinstance(value, list) else _plain(value)


class LoginPhantom(Part):
    """How a login stays outside, where TLS for the vendor's hosts ends at the proxy (`policy.phantoms.Phantom`)."""

    refresh_url: str = key(_api)
    """Where new tokens are asked for."""
    request: dict[str, str] = key(Pairs(string, string), {})
    """Of that request, besides its type and the refresh token: name -> value, ``{PATH}`` for one of the entry."""
    answer: dict[str, str] = key(Pairs(string, string), {})
    """Of the answer that the agent gets, besides tokens and times; in the same way."""
    access: str = key(_dotted)
    """Below the entry: the token that the API wants as a bearer token."""
    refresh: str = key(_dotted)
    """The token that new ones are asked for with."""
    tokens: dict[str, tuple[str, str]] = key(Pairs(_dotted, Many(string, least=2, most=2)))
    """All of them: path -> its name in an answer, and what phantoms begin with where tokens do."""
    times: dict[str, str] = key(Pairs(_dotted, string), {})
    """Path of a time in milliseconds -> name of the seconds in an answer; the access token's first."""
    stamp: str | None = key(_dotted, None)
    """Path of the time of the last refresh, in words."""
    plain: tuple[str, ...] = key(Many(_dotted), ())
    """What else of the entry is copied in. Nothing is that is not named."""
    apis: dict[str, tuple[str, ...]] = key(Pairs(_api, Many(_use, least=1), least=1))
    """URL of an API -> paths that a phantom is good for, each with what lies below it: for reading, or as POST says."""
    trust: tuple[str, ...] = key(Many(_variable, least=1))
    """Variables by which the programme is told of further authorities."""

    def consistent(self) -> None:
        """See the class."""
        if missing := {self.access, self.refresh} - self.tokens.keys():
            raise ValueError(f"tokens has no {', '.join(sorted(missing))}")

    def as_planned(self) -> "Phantom":
        """The same as a Plan has it."""
        from policy.phantoms import Phantom

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


class ProviderFile(Part):
    """One such file. It is copied in when a session starts, and what was refreshed in it is copied back at the end."""

    path: str = key(home_relative)
    """Where it lies when nothing moves it."""
    moved: str | None = key(_below, None)
    """Where it lies below the directory that the provider's state variable names; none: that does not move it."""
    format: str = key(Choice("json", "text", "toml"), "json")
    """A text is copied in, and never back. Of TOML only `brought` and `only` pass, inwards."""
    entry: str = key(matching(r"(\*|[^.*]+(\.[^.*]+)*)?", "a dotted path, or *"), "")
    """Dotted path of the object that holds one login; "" is the whole document, ``*`` each object in it."""
    refreshed: tuple[str, ...] = key(Many(_dotted), ())
    """Below an entry: what a refresh replaces. Nothing else is ever copied back; nothing at all without."""
    newer: str | None = key(_dotted, None)
    """That of them which grows with each refresh: a time."""
    account: tuple[str, ...] = key(Many(_dotted), ())
    """Below an entry: what tells the account. Where it differs, in any file of the provider's, nothing goes back."""
    proofs: dict[str, tuple[str, ...]] = key(Pairs(_dotted, Many(string)), {})
    """Below an entry: JSON Web Tokens, and their claims that tell the account."""
    only: tuple[str, ...] = key(Many(_dotted), ())
    """What of the document is copied in; none: all of it."""
    brought: tuple[str, ...] = key(Many(_dotted), ())
    """What is copied in besides where the user brings his agents' things: MCP servers, never logins. Of a file that has
    nothing else but its place, that is all."""
    put: dict[str, str | bool | int] = key(Pairs(_dotted, _plain), {})
    """Dotted path -> value that the copy is given besides, whatever the user's own file says."""
    unattended: dict[str, str | bool | int] = key(Pairs(_dotted, _plain), {})
    """The same where the provider's questions are off; what was put so is taken away where they are kept."""
    keyed: dict[str, str | bool | int | list[str]] = key(Pairs(_dotted, _plain_or_list), {})
    """The same where a key stays outside: else some ask again for each phantom."""
    phantom: LoginPhantom | None = key(LoginPhantom, None)
    """How the login in it stays outside; none: it cannot."""

    def consistent(self) -> None:
        """See the class."""
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


SCHEMA = 1

RESERVED = ("auto", "none")
"""What `--provider` takes besides the names of providers."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def _home_or_below(value: object) -> str:
    return "~" if value == "~" else home_relative(value)


def _below_or_nothing(value: object) -> str:
    return "" if value == "" else _below(value)


def _base_name(name: str) -> str:
    if not name or "/" in name or name in {".", ".."}:
        raise ValueError("must be a base name, without any /")
    return name


def _programme(value: object) -> str:
    """A base name, or an npm package with its scope."""
    name = string(value)
    scope, slash, rest = name.partition("/")
    if scope.startswith("@") and slash:
        if len(scope) == 1:
            raise ValueError("must name a scope after the @")
        _base_name(rest)
        return name
    return _base_name(name)


_plain_name = matching(r"[a-z0-9]+(-[a-z0-9]+)*", "lower case, digits and dashes")


def provider_name(value: object) -> str:
    """The name of a provider: lower case, digits and dashes; ValueError for any other."""
    name = _plain_name(value)
    if name in RESERVED:
        raise ValueError(f"must be none of {', '.join(RESERVED)}")
    return name


_host = matching(r"(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?", "a host, with or without a port")


def _domain(value: object) -> str:
    domain = _host(value)
    try:
        parse_rule(domain)
    except Refusal as refusal:
        raise ValueError(refusal.message) from None
    return domain


_word = matching(r"(?s)[a-z].*", "a word that begins with a small letter")
_flag = matching(r"(?s)--?[A-Za-z].*", "a flag")
_not_empty = matching(r"(?s).+", "a text")


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


class State(Part):
    """Where the provider keeps its state."""

    directories: tuple[str, ...] = key(Many(home_relative), ())
    """Directories below the home directory."""
    files: tuple[str, ...] = key(Many(home_relative), ())
    """Single files below the home directory, outside those directories."""
    variable: str | None = key(_variable, None)
    """Environment variable that moves the state elsewhere. In the jail it always does: into the private home."""
    root: str | None = key(_home_or_below, None)
    """Where that variable leads in the private home; left out: to the first of `directories`."""
    xdg: bool = key(boolean, False)
    """Whether the user's own state follows XDG_CONFIG_HOME, XDG_DATA_HOME and XDG_STATE_HOME."""
    executable: bool = key(boolean, False)
    """Whether programmes are run from the state directory (no `noexec` there, and not below /tmp)."""

    @property
    def home(self) -> str | None:
        """Where `variable` leads in the private home, as a path below ``~``; None without a place."""
        return self.root or next(iter(self.directories), None)


class Credentials(Part):
    """What proves who the user is. Names only: no value ever enters a spec or a Plan."""

    environment: tuple[str, ...] = key(Many(_variable), ())
    """Names of the environment variables that are passed through when they are set."""


_part_of_key = matching(r"[A-Za-z0-9_-]*", "a part of a key")


class Inject(Part):
    """A key that stays outside, where the provider can be told the URL of its vendor's API.

    In `environment` and `arguments`, ``{url}`` stands for the URL that the jail sees. Where the caller has set one of
    the variables himself, his words count and the key passes as it is; not so `base`, whose value is the API then.
    """

    variable: str = key(_variable)
    """Holds the key outside, and a phantom in the jail."""
    url: str = key(_api)
    """Of the API, where `base` says nothing else."""
    base: str | None = key(_variable, None)
    """One of `settings`: the URL of the API."""
    header: str = key(matching(r"[a-z][a-z0-9-]*", "a header's name"), "authorization")
    """In which the API wants the key."""
    format: str = key(matching(r"([!-~]+ )?\{key\}", "{key}, perhaps behind a word"), "Bearer {key}")
    """Of the header's value."""
    prefix: str = key(_part_of_key, "")
    """What a phantom begins with, where clients look at it."""
    suffix: str = key(_part_of_key, "")
    """What it ends with, where clients remember that."""
    methods: tuple[str, ...] = key(Many(matching(r"[A-Z]+", "a method")), tuple(keys.METHODS))
    """What a phantom is good for: methods."""
    paths: tuple[str, ...] = key(Many(_path, least=1))
    """And paths below the API's, each with what lies below it."""
    environment: dict[str, str] = key(Pairs(_variable, string), {})
    """Further variables of the jail."""
    arguments: tuple[str, ...] = key(Many(string), ())
    """Given where the dialect's arguments go, in the native dialect."""
    flags: tuple[str, ...] = key(Many(_flag), ())
    """Flags of the programme in whose values the caller may name the variable, and use the key in a way of his own."""


class Temp(Part):
    """What the provider needs of its temporary directory."""

    variable: str | None = key(_variable, None)
    """Environment variable of its own that names it, besides TMPDIR."""
    executable: bool = key(boolean, False)
    """Whether programmes are unpacked and run there."""


class Switch(Part):
    """What turns off a precaution of the provider's own that the jail around it makes pointless, or breaks."""

    environment: dict[str, str] = key(Pairs(_variable, string), {})
    """Variable -> value."""
    arguments: tuple[str, ...] = key(Many(string), ())
    """Given where the dialect's arguments go, behind them."""
    unless: tuple[str, ...] = key(Many(_flag), ())
    """Flags of the caller that stand in the place of `arguments`, which are left out then."""
    silences_adapters: bool = key(boolean, False)
    """Whether ACP adapters ask nothing any more with it, whatever else they are told."""

    def consistent(self) -> None:
        """See the class."""
        for text in (*self.environment.values(), *self.arguments):
            if "\0" in text:
                raise ValueError(f"NUL in {text!r}")


class Dialect(Part):
    """Variables and flags that tell the provider about its sandbox.

    ``{worktree}`` stands for the root of the main worktree, ``{submodule}`` for that of one granted submodule.
    """

    environment: dict[str, str] = key(Pairs(_variable, string), {})
    """Variable -> value; ``{worktree}`` may be used."""
    arguments: tuple[str, ...] = key(Many(string), ())
    """Given once; ``{worktree}`` may be used."""
    submodule_arguments: tuple[str, ...] = key(Many(string), ())
    """Given once for every granted submodule; ``{worktree}`` and ``{submodule}`` may be used."""
    arguments_position: ArgumentsPosition = key(Choice(*ArgumentsPosition), ArgumentsPosition.APPEND)
    """Where both kinds of arguments go."""
    unknown_to: tuple[str, ...] = key(Many(_word), ())
    """Sub-commands that do not know the arguments and would end with an error: there they are left out."""
    sandbox_off: Switch = key(Switch, Switch())
    """Turns off its own sandbox. Only ever used where Paddock's jail holds the process."""
    prompts_off: Switch = key(Switch, Switch())
    """Turns off its own questions. Only ever used where Paddock's jail holds the process, and not to be kept."""

    def consistent(self) -> None:
        """See the class."""
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


class ProviderSpec(Part):
    """One provider. The module's docstring shows the file format."""

    schema_: int = key(Version(SCHEMA))
    """Version of the file format; 1 is the only one so far."""
    name: str = key(provider_name)
    """What `--provider` takes."""
    title: str = key(_not_empty)
    """The name that people know."""
    commands: tuple[str, ...] = key(Many(_programme), ())
    """Its command line programme, which takes the dialect's arguments: base names, npm packages with their scope."""
    adapters: tuple[str, ...] = key(Many(_programme), ())
    """ACP adapters, in the same way. They ignore unknown arguments silently, so `native` gives them none."""
    acp: str = key(string, "")
    """How its ACP server is started, for people."""
    supports_sandbox: bool = key(boolean, True)
    """False: the provider has no idea of a sandbox, and nothing is translated."""
    override: bool = key(boolean, False)
    """In a user's file: replaces the built-in of the same name instead of being refused as a duplicate."""
    domains: tuple[str, ...] = key(Many(_domain), ())
    """Hosts that it must reach, for `--net proxy`."""
    settings: tuple[str, ...] = key(Many(_variable), ())
    """Names of variables without secrets that pass through: model, base URL."""
    endpoints: tuple[str, ...] = key(Many(_variable), ())
    """Those of `settings` whose value is a URL: with `--net proxy` its host may be reached too."""
    session_secrets: tuple[str, ...] = key(Many(_variable), ())
    """Variables that get a random value in each session: passwords of servers that it opens on the loopback."""
    notes: tuple[str, ...] = key(Many(string), ())
    """What people should know."""
    state: State = key(State, State())
    """Where it keeps its state."""
    credentials: Credentials = key(Credentials, Credentials())
    """What proves who the user is."""
    files: tuple[ProviderFile, ...] = key(Many(ProviderFile), ())
    """Logins and settings that pass between the user's home and the worktree's private one."""
    inject: tuple[Inject, ...] = key(Many(Inject), ())
    """Keys that stay outside of the jail."""
    bring: dict[str, str] = key(Pairs(home_relative, _below_or_nothing), {})
    """The user's instructions, skills, commands and agents for it: path -> where below the directory that the state
    variable names, "" for what that does not move. With ``/*`` behind both: each thing in a directory, which stays
    the agent's own to write."""
    temp: Temp = key(Temp, Temp())
    """What it needs of its temporary directory."""
    quiet: dict[str, str] = key(Pairs(_variable, string), {})
    """Variables with the values that switch telemetry and self-updates off."""
    native: Dialect = key(Dialect)
    """What the real programme accepts."""
    contract: Dialect = key(Dialect)
    """Exactly the specification's variables and flags."""

    def dialect(self, name: DialectName) -> Dialect:
        """The words of one dialect."""
        return self.native if name is DialectName.NATIVE else self.contract


def filled(template: str, **values: str) -> str:
    """`template` with its placeholders replaced in one pass, so that braces inside a value stay what they are."""
    return _PLACEHOLDER.sub(lambda found: values[found.group(1)], template)


def parse_spec(text: str, source: str) -> ProviderSpec:
    """Reads one provider's file."""
    import tomllib  # of agents alone

    try:
        return checked(ProviderSpec, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise Refusal("provider-invalid", f"{source} is not valid TOML", context=str(error)) from error
    except Mistakes as error:
        raise Refusal(
            "provider-invalid",
            f"{source} does not describe a provider",
            context=in_rows(*map(_problem, error.found)),
        ) from error


def _problem(mistake: Mistake) -> str:
    where = ".".join(map(str, mistake.place)) or "the file"
    if mistake.owner is None:
        return f"{where}: {mistake.text}"
    from difflib import get_close_matches

    near = get_close_matches(mistake.keys[-1], names(mistake.owner), n=1)
    return f"{where}: unknown key" + (f", did you mean {near[0]}?" if near else "")
