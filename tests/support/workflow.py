"""The workflow with services that only remember what they were asked, for tests of the workflow's own rules."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from launcher.service.database import Database
from launcher.service.tables import StoredRequestContexts
from launcher.vcs.merge.descriptors import (
    AgentMergeStatus,
    MergeAggregation,
    MergeDescriptor,
    MergeDirection,
    MergeResult,
)
from launcher.workflow.flow import Workflow, build_workflow
from launcher.workflow.graph import InMemoryGraphRepository, Node
from launcher.workflow.request_context import ToolContext
from launcher.workflow.requests import AgentRequest, AgentType, ArtifactKey
from policy.errors import Refusal
from policy.sandbox_context import MainWorktreeContext, SubmoduleWorktreeContext, WorktreeSandboxContext

TOOLS = ToolContext(tools=("read", "write"))
ROOT = ArtifactKey("run")
COMMIT = "c" * 40


def worktree(
    name: str, *, granted: Iterable[str] = (), closed: Iterable[str] = (), parent: str | None = None
) -> WorktreeSandboxContext:
    """The worktree `name` at /trees/NAME with these submodules."""
    root = Path("/trees") / name

    def module(submodule: str, *, grant: bool) -> SubmoduleWorktreeContext:
        return SubmoduleWorktreeContext(
            submodule_name=submodule,
            worktree_id=f"{name}.{submodule}",
            worktree_path=root / submodule,
            main_worktree_id=name,
            granted=grant,
        )

    opened = tuple(module(submodule, grant=True) for submodule in granted)
    shut = tuple(module(submodule, grant=False) for submodule in closed)
    return WorktreeSandboxContext(
        main_worktree=MainWorktreeContext(
            worktree_id=name,
            worktree_path=root,
            submodule_worktree_ids=tuple(each.worktree_id for each in opened + shut),
            parent_worktree_id=parent,
        ),
        submodule_worktrees=opened,
        ungranted_submodules=shut,
    )


class Contexts(StoredRequestContexts):
    """The service's request contexts, in a database of their own."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        place = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        super().__init__(Database(f"{place}/service.db"), now=now)


@dataclass
class Worktrees:
    """A `WorktreeService` that makes no files.

    Args:
        known: worktrees by id.
        fails_at: a name that cannot be made.
        holds_work: ids that cannot be discarded.
    """

    known: dict[str, WorktreeSandboxContext] = field(default_factory=dict)
    fails_at: str = ""
    holds_work: frozenset[str] = frozenset()
    discarded: list[str] = field(default_factory=list)

    def add(self, context: WorktreeSandboxContext) -> WorktreeSandboxContext:
        """Makes it known."""
        self.known[context.worktree_id] = context
        return context

    def worktree_context(self, worktree_id: str) -> WorktreeSandboxContext | None:
        """As it was added."""
        return self.known.get(worktree_id)

    def create_child(self, parent: WorktreeSandboxContext, name: str) -> WorktreeSandboxContext:
        """A sibling with all submodules granted."""
        if name == self.fails_at:
            raise Refusal("worktree-failed", f"no room for {name}")
        modules = [each.submodule_name for each in (*parent.submodule_worktrees, *parent.ungranted_submodules)]
        unique = f"{name}-{len(self.known)}"
        return self.add(worktree(unique, granted=modules, parent=parent.worktree_id))

    def discard_child(self, worktree_id: str) -> None:
        """Forgets it."""
        if worktree_id in self.holds_work:
            raise Refusal("worktree-busy", f"{worktree_id} holds work")
        del self.known[worktree_id]
        self.discarded.append(worktree_id)


def descriptor(direction: MergeDirection, *conflicts: str, error: str | None = None) -> MergeDescriptor:
    """A merge that succeeded, or that failed with these conflict files or this error."""
    if conflicts or error:
        return MergeDescriptor(
            merge_direction=direction, successful=False, conflict_files=conflicts, error_message=error
        )
    done = MergeResult(source="a", target="b", successful=True, commit_id=COMMIT, previous_commit_id="d" * 40)
    return MergeDescriptor(merge_direction=direction, successful=True, main_worktree_merge_result=done)


@dataclass
class Merges:
    """A `MergeService` that merges nothing.

    Args:
        conflicts: ids of worktrees whose work conflicts in both directions.
    """

    conflicts: frozenset[str] = frozenset()
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def merge_trunk_to_child(self, trunk: WorktreeSandboxContext, child: WorktreeSandboxContext) -> MergeDescriptor:
        """Phase 1."""
        self.asked.append((trunk.worktree_id, child.worktree_id))
        files = ("src/file",) if child.worktree_id in self.conflicts else ()
        return descriptor(MergeDirection.TRUNK_TO_CHILD, *files)

    def merge_children_to_trunk(
        self, children: Sequence[AgentMergeStatus], trunk: WorktreeSandboxContext
    ) -> MergeAggregation:
        """Phase 2, up to the first conflict."""
        merged: list[AgentMergeStatus] = []
        for index, status in enumerate(children):
            place = status.worktree_context
            if place is None:
                merged.append(status)
                continue
            self.asked.append((place.worktree_id, trunk.worktree_id))
            files = ("src/file",) if place.worktree_id in self.conflicts else ()
            tried = status.model_copy(update={"merge_descriptor": descriptor(MergeDirection.CHILD_TO_TRUNK, *files)})
            if files:
                rest = tuple(children[index + 1 :])
                return MergeAggregation(merged=tuple(merged), conflicted=tried, pending=rest)
            merged.append(tried)
        return MergeAggregation(merged=tuple(merged))


@dataclass
class World:
    """A workflow in which the orchestrator `run` works in the worktree `main`."""

    contexts: Contexts = field(default_factory=Contexts)
    graph: InMemoryGraphRepository = field(default_factory=InMemoryGraphRepository)
    worktrees: Worktrees = field(default_factory=Worktrees)
    merges: Merges = field(default_factory=Merges)

    def __post_init__(self) -> None:
        self.main = self.worktrees.add(worktree("main", granted=("lib", "doc")))
        self.graph.save(Node(node_id=ROOT.value, agent_type=AgentType.ORCHESTRATOR, worktree_id="main"))

    @property
    def flow(self) -> Workflow:
        """The decorators over these services."""
        return build_workflow(self.contexts, self.graph, self.worktrees, self.merges, _tools)


def _tools(request: AgentRequest) -> ToolContext:
    return TOOLS
