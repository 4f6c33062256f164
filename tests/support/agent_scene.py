"""A real agent at work under a scripted model: what it is told to do, and what has become of it, seen from outside."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from policy import egress_rules
from tests.support import acp_editor, agent_packages, identity
from tests.support import paddock as paddocks
from tests.support.acp_editor import Conversation
from tests.support.identity import Who, Word
from tests.support.install import Installed
from tests.support.models.script import Read, Run, Step, Write
from tests.support.models.server import ModelServer, serving
from tests.support.paddock import Paddock
from tests.support.proxied import CompanyProxy, company_proxy

SECRET = "the-secret-of-the-outside"
KEY = "key-of-the-user"
ELSEWHERE = "elsewhere.example"
EXECUTED = "executed-4-times"
_SURVIVOR = "setsid sleep 1000 >/dev/null 2>&1 </dev/null &"
_TOOL = "#!/bin/sh\necho executed-$((2 + 2))-times\n"


@dataclass(frozen=True)
class Scene:
    """A worktree, things beyond it worth reaching, a model and the way to it.

    Attributes:
        paddock: the command with its worktree.
        outside: a directory of the same user, beside the worktree: `secret`, and `tool`, an executable file.
        model: the only host that the agent may reach.
        elsewhere: another server on the same loopback.
        company: what leaves the machine goes through it.
    """

    paddock: Paddock
    outside: Path
    model: ModelServer
    elsewhere: ModelServer
    company: CompanyProxy

    @property
    def worktree(self) -> Path:
        """Where the agent works."""
        return self.paddock.worktree

    @property
    def beside(self) -> Path:
        """A file that nobody makes, in the directory that holds the worktree: a jail shows that directory."""
        return self.worktree.parent / "by-file-tool"

    @property
    def who(self) -> Who:
        """Who starts the agent."""
        return self.paddock.who

    @property
    def environment(self) -> dict[str, str]:
        """What a user of these agents would have exported, the way to the model included."""
        return {
            "PATH": f"{agent_packages.programs()}:{identity.SYSTEM_PATH}",
            "ANTHROPIC_BASE_URL": self.model.url,
            "ANTHROPIC_API_KEY": KEY,
            "OPENAI_API_KEY": KEY,
            "GEMINI_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": self.model.url,
            **self.company.environment,
        }

    @property
    def codex_settings(self) -> tuple[str, ...]:
        """Lines of codex's configuration: the way to the model, and no plug-ins fetched at the start."""
        where = f'base_url="{self.model.url}/v1"'
        return (
            f'model_providers.ours={{name="ours",{where},env_key="OPENAI_API_KEY",wire_api="responses"}}',
            'model_provider="ours"',
            "features.plugins=false",
        )

    def words(self, *words: Word, verb: str = "run") -> list[str]:
        """`paddock run WORDS...`, or another verb, with the port of the model open."""
        return self.paddock.words(verb, "--reach", str(self.model.port), *words)

    def run(self, *words: Word, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs `paddock run WORDS...` in the worktree to its end, with the port of the model open."""
        return self.who.run(self.words(*words), cwd=self.worktree, env=self.environment | dict(env or {}), timeout=120)

    def script(self, *, survivor: bool = True) -> list[Step]:
        """Everyday work, then attacks with the file tool and with the shell.

        Args:
            survivor: whether the shell leaves a process that wants to outlive its session.
        """
        return [
            Write(f"{self.worktree}/made.txt", "made by the file tool\n"),
            Read(f"{self.worktree}/made.txt"),
            Run(
                "./tool && echo made by the shell >shell.txt"
                " && git add -A && git commit -qm 'agent: Work.' && git log -1"
            ),
            Write(f"{self.outside}/by-file-tool", "x\n"),
            Write(str(self.beside), "x\n"),
            Read(f"{self.outside}/secret"),
            Run(
                f"echo x >{self.outside}/by-shell; cat {self.outside}/secret; {self.outside}/tool;"
                f" bash -c ': </dev/tcp/127.0.0.1/{self.elsewhere.port}'; curl -sS https://{ELSEWHERE}/;"
                f" {_SURVIVOR if survivor else ''} echo came to the end"
            ),
        ]

    def judge(self, script: Sequence[Step], *, commits: bool = True, hosts: Set[str] = frozenset()) -> None:
        """Everyday work has happened, and nothing else.

        Args:
            script: what the agent was told, from `script`.
            commits: whether this jail lets it commit; where not, git must have refused.
            hosts: hosts that it asks for of its own accord. Those of its vendor are let out.
        """
        results = self.model.results
        assert len(results) == len(script), f"the agent left the script after {len(results)} steps: {results}"
        told = [str(request.body) for request in self.model.requests]

        assert (self.worktree / "made.txt").read_text() == "made by the file tool\n"
        assert (self.worktree / "shell.txt").read_text() == "made by the shell\n"
        assert "made by the file tool" in results[1]
        assert EXECUTED in results[2]
        assert ("agent: Work." in results[2]) is commits, results[2]
        assert (self.git("log", "-1", "--format=%s", "one") == "agent: Work.") is commits
        if commits:
            assert {"made.txt", "shell.txt"} <= set(self.git("ls-tree", "--name-only", "one").split())

        assert sorted(path.name for path in self.outside.iterdir()) == ["secret", "tool"]
        assert not self.beside.exists()
        assert not [text for text in told if SECRET in text], "what lies outside was read"
        assert EXECUTED not in "".join(results[3:]), "what lies outside was executed"
        assert "came to the end" in results[-1]
        assert (self.elsewhere.requests, self.elsewhere.unknown, self.elsewhere.connections) == ([], [], 0)
        assert {line.split()[1].partition(":")[0] for line in self.company.asked} <= hosts, "it was let out"
        denials = map(json.loads, self.paddock.call("denials", "--json").stdout.splitlines())
        refused = {(denial["host"], denial["port"]) for denial in denials if denial["host"]}
        # By its name, before any port is asked for, or by the proxy; the loopback is heard by the guard alone.
        attacks = {(ELSEWHERE, None), (ELSEWHERE, 443), ("127.0.0.1", self.elsewhere.port)}
        assert {(ELSEWHERE, None), (ELSEWHERE, 443)} & refused
        asked = {host.partition(":")[0] for host, _ in refused - attacks}
        assert asked <= hosts, f"it has started to ask for more: {asked - hosts}"
        assert self.paddock.left() == []

    def git(self, *words: str) -> str:
        """What git says in the main checkout, from outside of any jail."""
        ended = self.who.run(["git", *words], cwd=self.paddock.main)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()


@contextmanager
def scene(place: Path, installed: Installed) -> Iterator[Scene]:
    """A scene in an empty directory that an ordinary user can reach. That user acts.

    Args:
        place: not below /tmp, where codex wants no state.
        installed: the command.
    """
    who = identity.user(place / "home")
    for name in ("work", "outside"):
        (place / name).mkdir()
    outside = place / "outside"
    (outside / "secret").write_text(SECRET)
    (outside / "tool").write_text(_TOOL)
    (outside / "tool").chmod(0o755)
    who.give(outside)
    made = paddocks.make(who, installed, who.give(place / "work"))
    tool = made.worktree / "tool"
    tool.write_text(_TOOL)
    tool.chmod(0o755)
    who.give(tool)
    with serving() as model, serving() as elsewhere, company_proxy() as company:
        yield Scene(made, outside, model, elsewhere, company)


# How a user would have set up each real agent for the model server, and one prompt to it over ACP.

PROVIDER_OF_OURS = "ours"
PACKAGES = frozenset(rule.partition(":")[0] for rule in egress_rules.require("@node").rules)


THROUGH_EDITOR = ("--fs", "editor")
"""Options for agents whose file tool uses the editor's: the default is tried where their keys are."""


@dataclass(frozen=True)
class Agent:
    """How a user would have set up one agent for the model server.

    Attributes:
        command: what speaks ACP; the provider is found from it.
        environment: what the user would have exported.
        login: the method that an editor authenticates with.
        hosts: what it asks for of its own accord, for plug-ins and packages. Nobody can switch it off for a session.
        options: of `paddock`.
        through_editor: whether its file tool uses an editor that offers to read and write.
        through_terminal: whether its shell is the editor's terminal, which the bridge has in the jail beside it.
    """

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    login: str = ""
    hosts: frozenset[str] = frozenset()
    options: tuple[str, ...] = ()
    through_editor: bool = False
    through_terminal: bool = False


def claude(_scene: Scene) -> Agent:
    return Agent(("claude-agent-acp",))


def codex(scene: Scene) -> Agent:
    model = {"name": "Ours", "base_url": f"{scene.model.url}/v1", "env_key": "OPENAI_API_KEY", "wire_api": "responses"}
    settings = {"model_provider": PROVIDER_OF_OURS, "model_providers": {PROVIDER_OF_OURS: model}}
    environment = {"CODEX_CONFIG": json.dumps(settings)}
    return Agent(("codex-acp",), environment, hosts=frozenset({"chatgpt.com", "github.com", "api.github.com"}))


def opencode(scene: Scene) -> Agent:
    options = {"baseURL": f"{scene.model.url}/v1", "apiKey": KEY}
    model = {"npm": "@ai-sdk/openai-compatible", "name": "Ours", "options": options, "models": {"m": {"name": "M"}}}
    settings = {
        "model": f"{PROVIDER_OF_OURS}/m",
        "provider": {PROVIDER_OF_OURS: model},
    }
    environment = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    return Agent(("opencode", "acp"), environment, hosts=PACKAGES)


def goose(scene: Scene) -> Agent:
    environment = {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "m", "OPENAI_HOST": scene.model.url}
    environment["GOOSE_MODE"] = "approve"  # it asks nobody by itself, so here its user wants to be asked
    return Agent(("goose", "acp", "--with-builtin", "developer"), environment, through_terminal=True)


def gemini(scene: Scene) -> Agent:
    environment = {
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": scene.model.url,
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }
    options = (*THROUGH_EDITOR, *once(environment))
    return Agent(("gemini", "--acp"), environment, login="gemini-api-key", through_editor=True, options=options)


def qwen(scene: Scene) -> Agent:
    environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{scene.model.url}/v1", **qwen_settings(scene)}
    command, options = ("qwen", "--acp", "--auth-type", "openai"), (*THROUGH_EDITOR, *once(environment))
    return Agent(command, environment, login="openai", through_editor=True, options=options)


def qwen_settings(scene: Scene) -> dict[str, str]:
    """Qwen's model, and that it neither remembers a conversation nor suggests what could follow, for which it would ask
    its model once more, with the script.
    """
    memory = dict.fromkeys(("enableManagedAutoMemory", "enableManagedAutoDream", "enableAutoSkill"), False)
    file = scene.worktree / "qwen.json"
    file.write_text(json.dumps({"memory": memory, "ui": {"enableFollowupSuggestions": False}}))
    return {"OPENAI_MODEL": "m", "QWEN_CODE_NO_RELAUNCH": "true", "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(file)}


def once(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Options that pass on what shortens an agent's work: that it need not start itself once more, for other limits of
    its memory, and qwen's settings. Each start takes seconds; it is tried where Gemini's questions are kept.
    """
    names = ("GEMINI_CLI_NO_RELAUNCH", "QWEN_CODE_NO_RELAUNCH", "QWEN_CODE_SYSTEM_DEFAULTS_PATH")
    return tuple(word for name in names if name in environment for word in ("--env", name))


def copilot(scene: Scene) -> Agent:
    environment = {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_BASE_URL": f"{scene.model.url}/v1",
        "COPILOT_PROVIDER_API_KEY": KEY,
        "COPILOT_MODEL": "m",
    }
    return Agent(("copilot", "--acp"), environment)


def talk(
    scene: Scene,
    agent: Agent,
    script: list[Step],
    log: Path,
    *,
    verb: str = "acp",
    environment: Mapping[str, str] | None = None,
) -> Conversation:
    """One prompt to the agent in a jail, by an editor that offers everything.

    Args:
        scene: where.
        agent: who.
        script: what its model does.
        log: file for what is said on standard error.
        verb: of `paddock`: with the bridge, or `run`, a mere prefix.
        environment: in the place of the scene's.
    """
    scene.model.script = script
    grace = ("--grace", str(acp_editor.PATIENCE)) if verb == "acp" else ()
    return acp_editor.converse(
        scene.who.command(scene.words(*grace, *agent.options, "--", *agent.command, verb=verb)),
        cwd=scene.worktree,
        env=scene.who.environment({**(scene.environment if environment is None else environment), **agent.environment}),
        login=agent.login,
        stderr=log,
    )


AGENTS: tuple[Callable[[Scene], Agent], ...] = (claude, codex, copilot, goose, opencode, gemini, qwen)
