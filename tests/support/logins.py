"""A login on a real disk: the user's file, and a private home that an agent has prepared."""

import json
import stat
from pathlib import Path
from typing import Any

from launcher.session.credentials import Logins
from policy.logins import Login
from policy.plan import VERSION, Plan


class Ground:
    """A user's file, a private home, and what is between."""

    def __init__(self, place: Path) -> None:
        self.user = place / "user"
        self.home = place / "home"
        self.inside = self.home / ".agent/auth.json"
        self.elsewhere = place / "elsewhere"
        for directory in (self.user, self.home, self.elsewhere):
            directory.mkdir(mode=0o700)
        self.host = self.user / "auth.json"
        self.host.write_text(json.dumps(document("old", 1)))
        login = Login(
            str(self.host), ".agent/auth.json", refreshed=("token", "time"), newer="time", account=("account",)
        )
        fields: dict[str, Any] = dict.fromkeys(Plan.FIELDS, ())
        self.plan = Plan(**(fields | {"version": VERSION, "provider": "agent", "logins": (tuple(login),)}))

    def logins(self) -> Logins:
        return Logins(self.plan, str(self.home))

    def refresh(self, token: str = "new", time: int = 2, account: str = "me") -> None:
        self.inside.write_text(json.dumps(document(token, time, account)))

    def kept(self) -> Any:  # noqa: ANN401  # JSON
        return json.loads(self.host.read_text())


def document(token: str, time: int, account: str = "me") -> dict[str, object]:
    return {"account": account, "token": token, "time": time}


def brought_in(place: Path) -> Ground:
    """With the login brought in once."""
    made = Ground(place)
    assert made.logins().bring() == []
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
