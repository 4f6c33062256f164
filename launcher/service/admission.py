"""Whether a session is accepted: its words and the quotas, before anything is written down or started."""

from collections.abc import Callable, Sequence

from launcher.service.models import SessionRequest
from launcher.service.settings import Settings
from policy.errors import Refusal

Parse = Callable[[list[str]], tuple[dict[str, str | list[str] | bool], list[str]]]
"""Understands `SessionRequest.words`: options by name, and the command."""

_NOT_HERE = ("--session", "--supervised", "--detach", "--report", "--dry-run", "--help")


def options_of(request: SessionRequest, parse: Parse) -> dict[str, str | list[str] | bool]:
    """The options of a request. Refuses what `paddock run` would refuse at once, and what means nothing here.

    Raises:
        Refusal: usage.
    """
    options, command = parse(request.words())
    if command != list(request.command):
        raise _usage("the options hold a word that is no option")
    for name in _NOT_HERE:
        if name in options:
            raise _usage(f"{name} means nothing for a session of the service")
    return options


def _usage(message: str) -> Refusal:
    return Refusal("usage", message, hint="paddock run --help; options of the command itself belong to the command")


def check_quotas(clients: Sequence[int], client_uid: int, settings: Settings) -> None:
    """Refuses one session more than there may be.

    Args:
        clients: user ids of those who have asked for the live sessions, one for each.
        client_uid: who asks for another.
        settings: the bounds.

    Raises:
        Refusal: quota-sessions, quota-client.
    """
    if len(clients) >= settings.most_sessions:
        raise Refusal(
            "quota-sessions",
            f"the service has as many live sessions as it may: {settings.most_sessions}",
            hint="paddock ps; stop some, or raise most_sessions in service.toml",
        )
    if clients.count(client_uid) >= settings.most_sessions_of_client:
        raise Refusal(
            "quota-client",
            f"user {client_uid} has as many live sessions as one client may: {settings.most_sessions_of_client}",
            hint="paddock ps; stop some, or raise most_sessions_of_client in service.toml",
        )
