"""The file of `paddock tickets run`: read and checked before the service is asked, so that a mistake has its place."""

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from launcher.service.ticket_models import Ticket, TicketRequest
from policy.errors import Refusal

_MOST_BYTES = 4 << 20
_HINT = 'a ticket is: [[tickets]], then ticket = "PROJ-17", then command = ["claude", "-p", "Mend it."]'


def read(path: str) -> dict[str, Any]:
    """What is in the file, as the service is to be told.

    Raises:
        Refusal: tickets-unreadable.
    """
    kind = "JSON" if path.endswith(".json") else "TOML"
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise Refusal("tickets-unreadable", f"{path} cannot be read", context=error.strerror or str(error),
                      hint="paddock tickets run --help says what is in it") from None  # fmt: skip
    if len(content) > _MOST_BYTES:
        raise Refusal("tickets-unreadable", f"{path} is too large", context=f"at most {_MOST_BYTES >> 20} MiB are read",
                      hint="several runs, one after the other")  # fmt: skip
    try:
        found = json.loads(content) if kind == "JSON" else tomllib.loads(content.decode())
    except ValueError as error:
        raise Refusal("tickets-unreadable", f"{path} is no {kind}", context=str(error), hint=_HINT) from None
    if not isinstance(found, dict):
        raise Refusal("tickets-unreadable", f"{path} holds no table", hint=_HINT)
    return found


def check(path: str, body: Mapping[str, Any]) -> None:
    """Looks whether a run can be asked for with `body`, which was made of the file at `path`.

    Raises:
        Refusal: tickets-invalid, with the place in the file.
    """
    try:
        TicketRequest.model_validate(body)
    except ValidationError as error:
        lines = [_line(each["loc"], each["type"], each["msg"], body) for each in error.errors()]
        more = f"\nand {len(lines) - 10} more" if len(lines) > 10 else ""
        raise Refusal("tickets-invalid", f"{path}: {lines[0]}", context="\n".join(lines[1:10]) + more,
                      hint=_HINT) from None  # fmt: skip


def _line(where: tuple[int | str, ...], kind: str, message: str, body: Mapping[str, Any]) -> str:
    """One mistake in the words of the file."""
    words = [str(word) for word in where]
    known = TicketRequest.model_fields
    place = ""
    if len(where) > 1 and where[0] == "tickets" and isinstance(where[1], int):
        known = Ticket.model_fields
        table = body["tickets"][where[1]]
        name = table.get("ticket") if isinstance(table, dict) else None
        place = f"ticket {where[1] + 1}" + (f" ({name})" if isinstance(name, str) else "")
        words = words[2:]
    key = words[0] if words else ""
    if kind == "extra_forbidden":
        near = get_close_matches(key, known, n=1)
        text = f"there is no key {key}" + (f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}")
    elif kind == "missing":
        text = f"{key} is missing"
    else:
        said = message.removeprefix("Value error, ")
        said = said.replace("Input should be a valid list", 'it must be a list of words, as ["make", "test"]')
        text = f"{key}: {said.replace('Input should be', 'it must be')}" if key else said.replace("Input", "it")
    return f"{place}: {text}" if place else text
