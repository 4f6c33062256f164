"""systemctl(1) and systemd-tmpfiles(8), for one scope."""

import os
import shutil
import subprocess
from collections.abc import Mapping

from launcher.service.units.templates import Scope
from policy.errors import Refusal

SHOWN = ("ActiveState", "SubState", "StatusText", "MainPID", "UnitFileState", "NRestarts")
_SECONDS = 120.0


class Manager:
    """A running service manager, spoken to by `systemctl`.

    Args:
        scope: whose.
        environment: of the caller: systemctl finds the bus and the user's runtime directory by it.
        seconds: patience with each call.
    """

    def __init__(self, scope: Scope, environment: Mapping[str, str], seconds: float = _SECONDS) -> None:
        self.scope = scope
        self._seconds = seconds
        self._environment = dict(environment)

    def runs(self) -> bool:
        """Whether there is one (sd_booted(3); a user's has a socket in the runtime directory)."""
        if not shutil.which("systemctl", path=self._environment.get("PATH")):
            return False
        if self.scope is Scope.SYSTEM:
            return os.path.isdir("/run/systemd/system")
        runtime = self._environment.get("XDG_RUNTIME_DIR", "")
        return runtime.startswith("/") and os.path.exists(f"{runtime}/systemd/private")

    def call(self, *words: str) -> str:
        """Runs ``systemctl WORDS`` and returns what it prints.

        Raises:
            Refusal: service-manager: it says no.
        """
        user = ("--user",) if self.scope is Scope.USER else ()
        return self._run("systemctl", *user, "--no-pager", "--no-ask-password", *words)

    def make_directories(self, configuration: str) -> None:
        """Makes at once what tmpfiles.d(5) makes at boot.

        Raises:
            Refusal: service-manager.
        """
        self._run("systemd-tmpfiles", "--create", configuration)

    def units(self, *patterns: str) -> dict[str, dict[str, str]]:
        """Unit names that match and are loaded -> their properties among `SHOWN`."""
        listed = self.call("list-units", "--all", "--plain", "--no-legend", *patterns)
        names = [line.split()[0] for line in listed.splitlines() if line.split() and " not-found " not in line]
        found = {}
        for name in names:
            shown = self.call("show", name, *(f"--property={key}" for key in SHOWN))
            found[name] = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        return found

    def failed(self, *names: str) -> list[str]:
        """Those of the units that have failed, and are not started again before somebody says so; [] in doubt."""
        try:
            shown = self.call("show", "--property=Id", "--property=ActiveState", *names)
        except Refusal:
            return []
        units = [dict(line.partition("=")[::2] for line in each.splitlines()) for each in shown.split("\n\n")]
        return [unit["Id"] for unit in units if unit.get("ActiveState") == "failed" and "Id" in unit]

    def _run(self, *argv: str) -> str:
        line = " ".join(argv)
        try:
            ended = subprocess.run(
                argv, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=self._seconds, check=False,
            )  # fmt: skip
        except OSError as error:
            raise _refused(line, error.strerror or str(error)) from None
        except subprocess.TimeoutExpired:
            raise _refused(line, f"no answer within {self._seconds:.0f} seconds") from None
        if ended.returncode != 0:
            raise _refused(line, ended.stderr.strip() or f"it ended with {ended.returncode}")
        return ended.stdout


def _refused(line: str, why: str) -> Refusal:
    return Refusal(
        "service-manager",
        "the service manager did not do what it was asked",
        context=f"{line}: {why}",
        hint="paddock service status says what is in place; journalctl -xe what the manager did",
    )
