"""Harbor's environment interface over a sandbox: ``harbor run --env`` takes the class by its name."""

import os
import re
import tempfile
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.options import EnvironmentOptions
from harbor.models.task.config import NetworkMode
from pydantic import Field

from launcher.api import AsyncSandbox

_MOST_FILE = 1 << 30
_IN = 'cd -- "$1" && exec bash -c "$2"'


class PaddockOptions(EnvironmentOptions):  # type: ignore[misc]  # Harbor is not where types are checked
    """What ``--ek NAME=VALUE`` sets.

    Attributes:
        root: directory of the unpacked image that commands see a copy of; "{name}" in it is the task's name.
        options: further ones of ``paddock run``.
    """

    root: str
    options: list[str] = Field(default_factory=list)


class PaddockEnvironment(BaseEnvironment):  # type: ignore[misc]
    """One live sandbox for a trial. Its files are a copy of the image; all that is written goes with it."""

    options_model = PaddockOptions
    options: PaddockOptions
    _box: AsyncSandbox | None = None

    @staticmethod
    def type() -> str:
        """What messages call it."""
        return "paddock"

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Memory is bounded; processors are not."""
        return EnvironmentResourceCapabilities(memory_limit=True, fractional_cpus=True)

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """All of Harbor's network policies, as they are at the start."""
        kinds = ("hostnames", "wildcard_hostnames", "ipv4_addresses", "ipv6_addresses", "ipv4_cidrs", "ipv6_cidrs")
        allowed = {f"network_allowlist_{kind}": True for kind in kinds}
        return EnvironmentCapabilities(disable_internet=True, network_allowlist=True, **allowed)

    def _validate_definition(self) -> None:
        self._image = self.options.root.replace("{name}", self.environment_name.rpartition("/")[2])
        if not os.path.isdir(self._image):
            raise FileNotFoundError(f"{self._image} is not a directory; --ek root=DIR names an unpacked image")
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise ValueError("a task of several containers (docker-compose.yaml) cannot run in a Paddock sandbox")
        if self._host_mounts:
            raise ValueError('a Paddock sandbox mounts nothing; --ek options=\'["--ro", "DIR"]\' shows a directory')
        self._directory = self.task_env_config.workdir or _workdir(self.environment_dir / "Dockerfile")

    @property
    def _rules(self) -> list[str]:
        """The task's network policy and resources, as options of ``paddock run``."""
        policy = self.network_policy
        net = {NetworkMode.NO_NETWORK: "none", NetworkMode.PUBLIC: "open", NetworkMode.ALLOWLIST: "proxy"}
        rules = ["--net", net[policy.network_mode]]
        for host in policy.allowed_hosts:
            rules += ["--allow-domain", f"[{host}]" if ":" in host else host]
        for name, megabytes in (("memory", self._effective_memory_mb), ("disk", self._effective_storage_mb)):
            rules += ["--limit", f"{name}={megabytes}M"] if megabytes else []
        return rules + self.options.options

    @property
    def _open(self) -> AsyncSandbox:
        if self._box is None:
            raise RuntimeError("the environment is not started")
        return self._box

    async def start(self, force_build: bool) -> None:
        """Makes the sandbox; nothing is built. Refusals as of ``paddock run``."""
        del force_build
        self._place = tempfile.TemporaryDirectory(prefix="harbor-")  # stays empty: commands see a copy
        self._box = await AsyncSandbox(self._place.name, self._rules, cow=True, root=self._image).open()
        made = await self._open.exec(["mkdir", "-p", "--", self._directory, *self._mount_targets(writable_only=True)])
        if made.status:
            raise RuntimeError(f"cannot make {self._directory}: {made.stderr.decode(errors='replace')}")
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Ends all that runs in it; what was written is gone, whether it is to be deleted or not."""
        del delete
        if self._box is not None:
            await self._box.close()
            self._place.cleanup()
            self._box = None

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command to its end; at its timeout it is ended with all that it has started. 0 is no timeout.

        Raises:
            RuntimeError: the timeout, as of Harbor's own environments.
            ValueError: a user other than the jail's only one, who counts as root.
        """
        if (wanted := self._resolve_user(user)) not in (None, "root", 0, "0"):
            raise ValueError(f"there is one user in a Paddock sandbox: no command can run as {wanted!r}")
        words = ["bash", "-c", _IN, "bash", cwd or self._directory, command]
        done = await self._open.exec(words, env=self._merge_env(env), timeout=timeout_sec or None)
        if done.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        stderr = done.stderr.decode("utf-8", "replace")
        return ExecResult(stdout=done.text, stderr=stderr, return_code=done.status)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copies a file of this machine, with its mode."""
        await self._open.write(target_path, Path(source_path).read_bytes())
        await self._open.exec(["chmod", f"{os.stat(source_path).st_mode & 0o777:o}", "--", target_path])

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copies what a directory of this machine holds."""
        await self._open.upload(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copies a file out: its content alone."""
        content = await self._open.read(source_path, _MOST_FILE)
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(content)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copies what a directory holds out, but for links out of it, and pipes: Harbor would follow them, or wait."""
        top = os.path.realpath(target_dir)
        await self._open.download(source_dir, top)
        for place, directories, files in os.walk(top):
            for path in (os.path.join(place, name) for name in (*directories, *files)):
                inside = Path(os.path.realpath(path)).is_relative_to(top)
                if not inside or not (os.path.isfile(path) or os.path.isdir(path)):
                    os.unlink(path)


def _workdir(dockerfile: Path) -> str:
    """Where commands start, by a Dockerfile's last stage."""
    directory = "/"
    text = dockerfile.read_text() if dockerfile.exists() else ""
    for word, value in re.findall(r"(?im)^[ \t]*(FROM|WORKDIR)[ \t]+(\S+)", text):
        directory = "/" if word.upper() == "FROM" else os.path.join(directory, value)
    return directory
