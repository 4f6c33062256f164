"""Agents at work for the features: real git repositories, real worktrees, real jails, and the workflow between them."""

import functools
import hashlib
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from launcher.bridges.files.router import Router, Sessions
from launcher.service import ticket_work
from launcher.session import harvesting
from launcher.session.places import places
from launcher.vcs.merge import work
from launcher.vcs.merge.descriptors import AgentMergeStatus, MergeDescriptor
from launcher.vcs.worktrees.worktree_service import ChildWorktrees
from launcher.workflow.flow import Workflow, build_workflow
from launcher.workflow.graph import InMemoryGraphRepository, Node
from launcher.workflow.request_context import PromptContext, ToolContext
from launcher.workflow.requests import (
    REQUEST_TYPES,
    AgentRequest,
    AgentResult,
    AgentType,
    ArtifactKey,
    DiscoveryAgentRequest,
    DiscoveryAgentRequests,
    DiscoveryAgentResult,
    DiscoveryAgentResults,
    DispatchRequest,
    OrchestratorRequest,
    OwnWorktreeRequest,
    PlanningAgentRequest,
    PlanningAgentRequests,
    PlanningAgentResult,
    PlanningAgentResults,
    ResultsRequest,
    TicketAgentRequest,
    TicketAgentRequests,
    TicketAgentResult,
    TicketAgentResults,
)
from launcher.workflow.worktrees import run_options, worktree_of_session
from policy.sandbox import SandboxValidationResult, WorktreeSandbox
from policy.sandbox_context import WorktreeSandboxContext
from tests.support import file_tools, repository, warmed
from tests.support.identity import Who
from tests.support.install import Installed
from tests.support.workflow import Contexts

RUN = ArtifactKey("run")
DISPATCH = RUN.child("dispatch")
ORCHESTRATOR = "the orchestrator"
RECEIVER = "the receiver"

REQUESTS: dict[str, type[AgentRequest]] = {kind.__name__: kind for kind in REQUEST_TYPES}


class Family(NamedTuple):
    """The messages of one kind of dispatch."""

    single: type[OwnWorktreeRequest]
    dispatch: type[DispatchRequest]
    result: type[AgentResult]
    results: type[ResultsRequest]


FAMILIES = {
    "Ticket": Family(TicketAgentRequest, TicketAgentRequests, TicketAgentResult, TicketAgentResults),
    "Planning": Family(PlanningAgentRequest, PlanningAgentRequests, PlanningAgentResult, PlanningAgentResults),
    "Discovery": Family(DiscoveryAgentRequest, DiscoveryAgentRequests, DiscoveryAgentResult, DiscoveryAgentResults),
}

# What a command inside does; the path is its first argument.
COMMANDS = {
    "READ": 'if [ -d "$1" ]; then ls -- "$1"; else cat -- "$1"; fi >/dev/null',
    "WRITE": 'printf "%s\n" written > "$1"',
    "EDIT": 'text=$(cat -- "$1") && printf "%s edited\n" "$text" > "$1"',
    "DELETE": 'mv -- "$1" "$1.gone"',
}

# What a file tool is asked for, besides the path.
TOOLS: dict[str, Callable[[str], dict[str, object]]] = {
    "read": lambda path: {"file_path": path},
    "write": lambda path: {"file_path": path, "content": "written\n"},
    "edit": lambda path: {"file_path": path, "old_string": "e", "new_string": "E", "replace_all": True},
    "list": lambda path: {"directory": path},
    "shell": lambda path: {"command": "pwd", "directory": path},
}

_SCRIPT = """
git() { command git -c init.defaultBranch=main -c protocol.file.allow=always "$@"; }
fill() { mkdir "$1/dir"; echo "$1" > "$1/file"; echo deep > "$1/dir/file"; git -C "$1" add .; }
identify() { git -C "$1" config user.name Tester; git -C "$1" config user.email tester@example.invalid; }
for name in "$@"; do
    git init -q "up-$name"; identify "up-$name"; fill "up-$name"; git -C "up-$name" commit -q -m 'First.'
done
git init -q app; identify app; fill app
for name in "$@"; do git -C app submodule --quiet add "../up-$name" "$name"; identify "app/$name"; done
git -C app commit -q -m 'app: First.'
"""


class Outcome(NamedTuple):
    """What became of some operations: what the validator answered to each, and how the commands in the jail ended."""

    said: tuple[SandboxValidationResult, ...]
    ended: "subprocess.CompletedProcess[str]"
    changed: frozenset[str]
    """Owners of worktrees whose files are different now."""

    @property
    def statuses(self) -> list[int]:
        """Exit status of each command; 125 for all where there was no jail to run them in."""
        if self.ended.returncode == 125:
            return [125] * len(self.said)
        return [int(line) for line in self.ended.stdout.splitlines() if line.isdecimal()]


class Scene:
    """One scenario.

    Args:
        who: acts.
        installed: the command.
        place: an empty directory of theirs.
        submodules: of the repository.
        stack: ends what the scenario has started.
    """

    def __init__(
        self, who: Who, installed: Installed, place: Path, submodules: Sequence[str], stack: ExitStack
    ) -> None:
        self.who = who
        self.stack = stack
        self.installed = installed
        self.main = place / "app"
        self.submodules = submodules
        repository.grow(who, place, _SCRIPT, *submodules)
        where = places(who.environment())
        self.keeper = ticket_work.service(where)
        self.worktrees = ChildWorktrees(self.keeper)
        self.contexts = Contexts()
        self.graph = InMemoryGraphRepository()
        self.flow: Workflow = build_workflow(
            self.contexts,
            self.graph,
            self.worktrees,
            harvesting.by_contexts(where, who.environment()),
            lambda _: ToolContext(),
        )
        self.told: dict[str, AgentRequest] = {}
        self.family = FAMILIES["Ticket"]
        self.dispatch: DispatchRequest | None = None
        self.results: dict[str, AgentResult] = {}
        self.heads: dict[str, str] = {}
        self.collected: ResultsRequest | None = None
        self.outcome: Outcome | None = None
        self.prompt = ""
        self.answers: list[str] = []
        self.untouched = True

    # What is given

    def orchestrate(self, granted: Sequence[str] | None = None) -> None:
        """An orchestrator, in a worktree made from the main checkout."""
        made = self.keeper.add(self.main, "orchestrator")
        self.graph.save(
            Node(
                node_id=RUN.value,
                agent_type=AgentType.ORCHESTRATOR,
                worktree_id=made.worktree_id,
                granted_submodules=None if granted is None else tuple(granted),
            )
        )
        self.told[ORCHESTRATOR] = self.flow.request(OrchestratorRequest(context_id=RUN))

    def orchestrate_without_worktree(self) -> None:
        """An orchestrator whose worktree does not exist yet."""
        self.graph.save(Node(node_id=RUN.value, agent_type=AgentType.ORCHESTRATOR))
        self.told[ORCHESTRATOR] = self.flow.request(OrchestratorRequest(context_id=RUN))

    def send_out(self, family: str, names: Sequence[str]) -> None:
        """Agents of one family, each in a worktree of its own; each has got its request."""
        self.family = FAMILIES[family]
        requests = [self.family.single(context_id=DISPATCH.child(name), goal=name) for name in names]
        dispatch = self.family.dispatch.model_validate({"context_id": DISPATCH, "requests": requests})
        sent = self.dispatch = self.flow.request(dispatch, self.told[ORCHESTRATOR])
        for name, child in zip(names, sent.children, strict=True):
            self.told[name] = self.flow.request(child, sent)

    def share(self, name: str, other: str) -> None:
        """One agent works in the worktree of another from now on."""
        place = self.worktree(other)
        self.told[name] = self.told[name].with_worktree_context(place)
        self.contexts.update(self.told[name].context_id, lambda before: before.evolve(worktree_context=place))

    def commit(self, name: str, path: str, content: str) -> None:
        """The agent's work, in its jail: one commit, and one in the submodule first when the file lies there."""
        head, _, rest = path.partition("/")
        inside, outside = (
            (f"git -C {head} add {rest}; git -C {head} commit -q -m Work.;", head)
            if head in self.submodules
            else ("", path)
        )
        script = f'echo "$1" >{path}; {inside} git add {outside}; git commit -q -m Work.'
        options = ["--quiet", "--git", "private", *run_options(self.worktree(name))]
        ended = self._jailed([*options, "--", "sh", "-euc", script, "sh", content], self.root(name))
        assert ended.returncode == 0, ended.stderr

    def _jailed(self, words: Sequence[str], root: Path) -> "subprocess.CompletedProcess[str]":
        return warmed.launch(self.who, self.installed.python, ("run", *words), cwd=root)

    def delete(self, name: str) -> None:
        """The worktree is gone, without a word to anybody."""
        self.who.run(["rm", "-rf", "--", str(self.root(name))]).check_returncode()

    # What happens

    def send(self, sender: str, kind: str) -> None:
        """A request flows to a new receiver."""
        last = self.told[sender]
        self.told[RECEIVER] = self.flow.request(REQUESTS[kind](context_id=last.context_id.child("next")), last)

    def send_all(self) -> None:
        """Each type of request, but the orchestrator's own, to a receiver of its own."""
        for kind in REQUEST_TYPES:
            if kind is not OrchestratorRequest:
                request = kind(context_id=RUN.child(kind.__name__))
                self.told[kind.__name__] = self.flow.request(request, self.told[ORCHESTRATOR])

    def act(self, name: str, acts: Sequence[tuple[str, str]]) -> None:
        """The agent tries operations on paths: file tools would ask the validator, and commands do it in a jail."""
        boundaries = self.resolved(self.told[name].session_id)
        assert boundaries is not None
        box = WorktreeSandbox()
        said = tuple(box.validate_in_context(path, boundaries, operation) for operation, path in acts)
        before = self._contents()
        root = boundaries.worktree_path
        script = " ".join(
            f"sh -c {shlex.quote(COMMANDS[operation])} sh {shlex.quote(path)}; echo $?;" for operation, path in acts
        )
        words = ["--git", "readonly", *run_options(boundaries), "--", "sh", "-c", script]
        ended = self._jailed(words, root if root.is_dir() else self.main)
        after = self._contents()
        changed = frozenset(owner for owner, content in before.items() if after[owner] != content)
        self.outcome = Outcome(said, ended, changed)

    def call(self, session: str, calls: Sequence[tuple[str, str]]) -> None:
        """File tools are called in the name of a session, as its header would be; each works in a jail."""
        before = self._contents()
        said = [self.router.call(tool, TOOLS[tool](path), session, None) for tool, path in calls]
        self.answers = [json.loads(each.text)["errorType"] if each.failed else "done" for each in said]
        self.untouched = self._contents() == before

    def answer(self) -> None:
        """All agents answer, their results are collected."""
        for name in self.told:
            if name != ORCHESTRATOR:
                self.bring(name)
        self.collect()

    def bring(self, name: str) -> None:
        """One agent answers."""
        self.heads |= {each: self.git(each, "rev-parse", "HEAD") for each in self.told if each not in self.heads}
        request = self.told[name]
        self.results[name] = self.flow.result(self.family.result(context_id=request.context_id), request)

    def resolve(self, name: str, content: str) -> None:
        """The agent merges the trunk in its jail, as its descriptor tells it to, and solves the conflict."""
        found = self.results[name].merge_descriptor
        assert found is not None
        assert found.merge_commands
        (path,) = found.conflict_files
        script = (
            f'{found.merge_commands}; grep -q "<<<<" {path}; echo "$1" >{path}; git add {path}; git commit -qm Both.'
        )
        options = ["--quiet", "--git", "private", *run_options(self.worktree(name))]
        ended = self._jailed([*options, "--", "sh", "-uc", script, "sh", content], self.root(name))
        assert ended.returncode == 0

    def collect(self) -> None:
        """The results of all agents that have answered go to the dispatch."""
        assert self.dispatch is not None
        whole = self.family.results.model_validate({"context_id": DISPATCH, "results": list(self.results.values())})
        self.collected = self.flow.results(whole, self.dispatch)

    def make_prompt(self, agent_type: str) -> None:
        """The contributed part of the prompt that an agent gets, after all that has been said so far."""
        last = self.collected or self.told[ORCHESTRATOR]
        self.prompt = self.flow.prompt(
            PromptContext.model_validate(
                {
                    "agent_type": AgentType[agent_type],
                    "current_request": last,
                    "previous_request": self.told[ORCHESTRATOR],
                }
            )
        )

    @functools.cached_property
    def router(self) -> Router:
        """Leads the calls of all sessions to their jails, until the scenario ends."""
        jails = self.stack.enter_context(file_tools.jails(self.installed, self.who.home))
        made = Router(Sessions.of_workflow(self.contexts, self.graph, self.worktrees), jails.enter)
        self.stack.callback(made.close)
        return made

    # What can be looked at

    def worktree(self, name: str) -> WorktreeSandboxContext:
        """Where an agent was told to work."""
        found = self.told[name].worktree_context
        assert found is not None
        return found

    def root(self, name: str) -> Path:
        """The root of that worktree."""
        return self.worktree(name).worktree_path

    def filled(self, path: str) -> str:
        """`path` with ``{one}`` and ``{one.name}`` replaced by the worktree of agent `one` and its name."""
        path = path.replace("{main}", str(self.main))
        for name in self.told:
            if self.told[name].worktree_context is not None:
                root = self.root(name)
                path = path.replace(f"{{{name}}}", str(root)).replace(f"{{{name}.name}}", root.name)
        return path

    def resolved(self, session: str) -> WorktreeSandboxContext | None:
        """The boundaries that a tool finds for a session id."""
        return worktree_of_session(session, self.contexts, self.graph, self.worktrees)

    def merged(self, name: str) -> MergeDescriptor | None:
        """How bringing an agent's work to the trunk went."""
        assert self.collected is not None
        told = self.collected.merge_aggregation
        assert told is not None
        (status,) = [each for each in (*told.merged, told.conflicted) if each and _last(each.agent_result_id) == name]
        return status.merge_descriptor

    def placed(self) -> tuple[list[str], list[str], list[str]]:
        """Which agents are merged, conflicted and pending."""
        assert self.collected is not None
        told = self.collected.merge_aggregation
        assert told is not None
        conflicted = [told.conflicted] if told.conflicted is not None else []
        return _names(told.merged), _names(conflicted), _names(told.pending)

    def descriptor(self, which: str, name: str) -> tuple[MergeDescriptor, str]:
        """What phase one ("result") or two ("merge") came to for an agent, and whose worktree it merged into."""
        found = self.results[name].merge_descriptor if which == "result" else self.merged(name)
        assert found is not None
        return found, name if which == "result" else ORCHESTRATOR

    def git(self, name: str, *words: str) -> str:
        """What git says in somebody's worktree; "" where that is gone."""
        return self.who.run(["git", *words], cwd=self.root(name)).stdout.strip() if self.root(name).is_dir() else ""

    def holds(self, name: str, commit: str) -> bool:
        """Whether a commit is in somebody's history."""
        ended = self.who.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=self.root(name))
        return ended.returncode == 0

    def moved(self, run_id: str) -> list[str]:
        """What a merge has moved, in this order: names of submodules, "" for the repository itself."""
        state = places(self.who.environment()).state
        run = work.journal_of(state, ticket_work.common_dir_of(str(self.main))).read(run_id)
        return [move.name for move in run.moves]

    def _contents(self) -> dict[str, str]:
        """A digest of all files of each worktree, git's own excepted."""
        places = {"main": self.main} | {
            name: self.root(name) for name, request in self.told.items() if request.worktree_context is not None
        }
        return {name: _digest(place) for name, place in places.items()}


def _names(statuses: Iterable[AgentMergeStatus]) -> list[str]:
    return [_last(status.agent_result_id) for status in statuses]


def _last(result_id: str) -> str:
    return result_id.rpartition("/")[2]


def _digest(place: Path) -> str:
    found = hashlib.sha256()
    for directory, names, files in os.walk(place):
        names[:] = sorted(name for name in names if name != ".git")
        for name in sorted(files):
            path = Path(directory, name)
            found.update(os.fsencode(path) + (os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()))
        found.update(os.fsencode(directory))
    return found.hexdigest()
