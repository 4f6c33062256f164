"""One configuration file as pydantic models. Field names are the keys of the TOML file."""

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationInfo, model_validator

from policy.config import values

SCHEMA = 1


class Base(NamedTuple):
    """What paths in one layer are relative to; None where the form has no meaning."""

    directory: str | None
    home: str | None


def _path(value: object, info: ValidationInfo) -> str:
    base = info.context
    assert isinstance(base, Base), "layers are validated with a Base as context"
    return values.path(value, base.directory, base.home)


def _checked(check: Callable[[object], str]) -> PlainValidator:
    return PlainValidator(check)


def _true_or_false(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {values.toml_type(value)}")
    return value


# PlainValidator keeps pydantic's own string check away: it refuses file names that are not UTF-8.
Path = Annotated[str, PlainValidator(_path)]
Boolean = Annotated[bool, PlainValidator(_true_or_false)]


class Part(BaseModel):
    """What all tables share: nothing unknown, nothing converted, nothing changed later."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, populate_by_name=False, hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, data: object) -> object:
        """TOML has lists; the models keep tuples."""
        if not isinstance(data, dict):
            raise ValueError(f"must be a table, not {values.toml_type(data)}")
        return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


class Filesystem(Part):
    """Grants and exceptions. `deny` beats every grant, whichever layer it comes from."""

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    deny: tuple[Path, ...] = ()
    freeze_root: Boolean | None = None


class Network(Part):
    """How far connections reach."""

    mode: Literal["none", "auto", "proxy", "open"] | None = None
    allow_domains: tuple[Annotated[str, _checked(values.domain)], ...] = ()
    deny_domains: tuple[Annotated[str, _checked(values.domain)], ...] = ()
    server_name: Literal["match", "require"] | None = None
    reach: tuple[Annotated[str, _checked(values.loopback)], ...] = ()
    publish: tuple[Annotated[str, _checked(values.published)], ...] = ()


class Environment(Part):
    """Variables that pass, by name or prefix, and variables that are set."""

    pass_: tuple[Annotated[str, _checked(values.variable_pattern)], ...] = Field(default=(), alias="pass")
    set_: dict[Annotated[str, _checked(values.variable)], Annotated[str, _checked(values.variable_value)]] = Field(
        default={}, alias="set"
    )


class Git(Part):
    """Access to the repository's git data."""

    mode: Literal["auto", "private", "readonly", "shared"] | None = None
    sign: Boolean | None = None


Bytes = Annotated[int | None, PlainValidator(values.size)]
Seconds = Annotated[int | None, PlainValidator(values.seconds)]
Count = Annotated[int | None, PlainValidator(values.count)]


class Limits(Part):
    """Upper bounds; a key that is set to None was written as 'unlimited'."""

    processes: Count = None
    memory: Bytes = None
    open_files: Count = None
    file_size: Bytes = None
    disk: Bytes = None
    cpu_time: Seconds = None


class Backend(Part):
    """What holds the jail."""

    choice: Literal["auto", "landlock", "bubblewrap"] | None = None


class Provider(Part):
    """The agent whose own flags and environment are derived too."""

    name: Annotated[str, _checked(values.text)] | None = None
    dialect: Literal["native", "contract"] | None = None
    keep_prompts: Boolean | None = None
    logins: Literal["none", "copy", "exchange"] | None = None


class Handoff(Part):
    """Files that another tool would execute later; see `policy.config.rules` for the patterns."""

    protect: tuple[Annotated[str, _checked(values.pattern)], ...] = ()
    report: tuple[Annotated[str, _checked(values.pattern)], ...] = ()

    @model_validator(mode="after")
    def _one_mode_each(self) -> "Handoff":
        if twice := sorted({*self.protect} & {*self.report}):
            raise ValueError(f"names {twice[0]!r} under both protect and report")
        return self


class System(Part):
    """What every programme of this operating system needs."""

    read_trees: tuple[Path, ...] = ()
    etc_files: tuple[Annotated[str, _checked(values.absolute_pattern)], ...] = ()
    kernel_files: tuple[Path, ...] = ()
    devices: dict[Annotated[str, _checked(values.absolute_pattern)], Annotated[str, _checked(values.access)]] = {}


class Configuration(Part):
    """A whole file."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    filesystem: Filesystem = Filesystem()
    network: Network = Network()
    environment: Environment = Environment()
    git: Git = Git()
    limits: Limits = Limits()
    backend: Backend = Backend()
    provider: Provider = Provider()
    handoff: Handoff = Handoff()
    system: System = System()
