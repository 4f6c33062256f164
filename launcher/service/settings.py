"""What the service itself obeys: quotas, patience, sizes. Rules for jails are not among it.

`/etc/paddock/service.toml`, then `$XDG_CONFIG_HOME/paddock/service.toml`; the second wins, key by key. Read at the
start and at every reload (SIGHUP); sessions that live go on under what they were started with.
"""

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launcher.service.schema import documented
from launcher.session.places import Places
from policy.errors import Refusal

SYSTEM = Path("/etc/paddock/service.toml")
NAME = "service.toml"
_MOST_BYTES = 1 << 20


class Settings(BaseModel):
    """The service's settings.

    Attributes:
        helpers: warm helpers kept ready.
        most_starting: sessions that may be starting at the same time.
        most_sessions: live sessions in all.
        most_sessions_of_client: live sessions that one client's user may have.
        most_records: ended sessions that are remembered, with their logs; the oldest are forgotten first.
        keep_seconds: how long they are remembered at most.
        log_bytes: size at which a session's log is rotated.
        log_files: how many rotated files are kept beside the present one.
        most_log_bytes: size of all logs together; those of the sessions that ended first are removed first.
        replay_bytes: output kept in memory for clients that attach later.
        stdin_seconds: patience between closing standard input and SIGTERM.
        term_seconds: patience between SIGTERM and the kill.
        end_seconds: patience for a killed session's ending (harvest), before its helper is killed too.
        agent_idle_seconds: how long an agent that editors attach to may have none, and nothing to do; 0: for ever.
        sample_seconds: time between two looks at what sessions use, and (1 to 5 s) at whether all is well.
        restart_seconds: the first pause before a restart; it doubles up to `most_restart_seconds`.
        most_restart_seconds: the longest pause.
        most_connections: connections to the control socket at the same time.
        request_bytes: size of a request's body.
        request_seconds: time within which a request must have arrived.
        harvest_seconds: time between two attempts to take over commits that wait.
        least_free_bytes: room on the disk of its state below which the service says that it is degraded.
        collect_seconds: time between two collections of what is gone.
        most_tickets: tickets in one run.
        most_ticket_runs: ticket runs at the same time.
        gone_days: how long a worktree is missing before its private home and git directory are removed.
        merge_days: how long merges can be taken back, and backups are kept.
        most_merges: merges of each repository that can be taken back; and backups of each worktree.
        lost_days: how long work is kept that no branch has any more.
        most_ticket_records: ended ticket runs that are remembered, for `keep_seconds` at most.
        most_contexts: agents' request contexts that are remembered, for `keep_seconds` at most.
        notify: a line for sh(1), run at home when a session has ended, or a merge of a ticket run conflicts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, json_schema_extra=documented)

    helpers: int = Field(4, ge=0, le=64)
    most_starting: int = Field(8, ge=1, le=256)
    most_sessions: int = Field(256, ge=1, le=10_000)
    most_sessions_of_client: int = Field(256, ge=1, le=10_000)
    most_records: int = Field(2_000, ge=0, le=1_000_000)
    keep_seconds: float = Field(30 * 86_400.0, gt=0)
    log_bytes: int = Field(8 << 20, ge=4_096, le=1 << 40)
    log_files: int = Field(2, ge=0, le=100)
    most_log_bytes: int = Field(2 << 30, ge=0, le=1 << 50)
    replay_bytes: int = Field(256 << 10, ge=0, le=64 << 20)
    stdin_seconds: float = Field(1.0, ge=0, le=3_600)
    term_seconds: float = Field(10.0, ge=0, le=3_600)
    end_seconds: float = Field(120.0, gt=0, le=86_400)
    agent_idle_seconds: float = Field(86_400.0, ge=0, le=365 * 86_400)
    sample_seconds: float = Field(5.0, ge=0.05, le=3_600)
    restart_seconds: float = Field(1.0, ge=0.01, le=3_600)
    most_restart_seconds: float = Field(60.0, ge=0.01, le=86_400)
    most_connections: int = Field(512, ge=8, le=100_000)
    request_bytes: int = Field(4 << 20, ge=4_096, le=1 << 30)
    request_seconds: float = Field(15.0, gt=0, le=3_600)
    harvest_seconds: float = Field(60.0, gt=0)
    least_free_bytes: int = Field(256 << 20, ge=0, le=1 << 60)
    collect_seconds: float = Field(3_600.0, gt=0)
    most_tickets: int = Field(200, ge=1, le=10_000)
    most_ticket_runs: int = Field(8, ge=1, le=1_000)
    gone_days: float = Field(7.0, ge=0, le=36_500)
    merge_days: float = Field(30.0, ge=0, le=36_500)
    most_merges: int = Field(100, ge=0, le=1_000_000)
    lost_days: float = Field(90.0, ge=0, le=36_500)
    most_ticket_records: int = Field(500, ge=0, le=1_000_000)
    most_contexts: int = Field(20_000, ge=0, le=10_000_000)
    notify: str = Field("", max_length=4_096)


def load(places: Places, system: Path = SYSTEM) -> Settings:
    """The settings of the user's file and of the machine's; a mistake is refused with file and key."""
    values: dict[str, Any] = {}
    origin: dict[str, Path] = {}
    for path in (system, Path(places.config, NAME)):
        found = _read(path)
        values |= found
        origin |= dict.fromkeys(found, path)
    try:
        return Settings.model_validate(values, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        near = get_close_matches(key, Settings.model_fields, n=1)
        unknown = first["type"] == "extra_forbidden"
        raise Refusal(
            "service-settings",
            f"{origin[key]}: {key}: {'no such setting' if unknown else first['msg']}",
            context=f"did you mean {near[0]}?" if unknown and near else "",
            hint=f"known: {', '.join(Settings.model_fields)}" if unknown and not near else "",
        ) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.loads(file.read(_MOST_BYTES).decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Refusal("service-settings", f"{path} cannot be read", context=str(error)) from None
