"""The few steps that all features share, and the tags that name what of the specification they show."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pytest_bdd import given, parsers, then, when

from launcher.workflow.requests import REQUEST_TYPES
from tests.support import identity
from tests.support.agents import ORCHESTRATOR, Scene
from tests.support.features import need
from tests.support.install import Installed
from tests.support.traceability import IDS, MARKER


def pytest_bdd_apply_tag(tag: str, function: Callable[..., object]) -> bool | None:
    """Ids of the specification become `spec` markers; other tags are markers of their own."""
    if tag in IDS:
        getattr(pytest.mark, MARKER)(tag)(function)
        return True
    return None


def listed(text: str) -> list[str]:
    """The words of a list in quotation marks, which may be empty."""
    return [word.strip() for word in text.split(",") if word.strip()]


@given(parsers.parse('a repository with the submodules "{names}"'), target_fixture="scene")
@given(parsers.re('a repository with the submodules "(?P<names>)"'), target_fixture="scene")
def _repository(names: str, installed: Installed, public_dir: Path, user: identity.Who) -> Iterator[Scene]:
    need("landlock")
    who = identity.root(public_dir / "home-of-root") if os.geteuid() == 0 else user
    place = public_dir / "place"
    place.mkdir()
    with ExitStack() as stack:
        yield Scene(who, installed, place, listed(names), stack)


@given("an orchestrator in a worktree of its own")
def _orchestrator(scene: Scene) -> None:
    scene.orchestrate()


@given(parsers.parse('an orchestrator in a worktree of its own that is granted "{names}"'))
def _confined_orchestrator(scene: Scene, names: str) -> None:
    scene.orchestrate(listed(names))


@given("an orchestrator without a worktree")
def _early_orchestrator(scene: Scene) -> None:
    scene.orchestrate_without_worktree()


@given(parsers.parse('the "{family}" agents "{names}" in worktrees of their own'))
def _agents(scene: Scene, family: str, names: str) -> None:
    scene.send_out(family, listed(names))


@given(parsers.parse('"{name}" commits "{content}" to "{path}"'))
def _commits(scene: Scene, name: str, content: str, path: str) -> None:
    scene.commit(name, path, content)


@given(parsers.parse('"{name}" works in the worktree of "{other}"'))
def _shares(scene: Scene, name: str, other: str) -> None:
    scene.share(name, other)


@given(parsers.parse('a symbolic link "{link}" to "{target}" in the worktree of "{name}"'))
def _link(scene: Scene, link: str, target: str, name: str) -> None:
    (scene.root(name) / link).symlink_to(scene.filled(target))


@given(parsers.parse('the worktree of "{name}" is deleted'))
def _deleted(scene: Scene, name: str) -> None:
    scene.delete(name)


@given(parsers.parse('the session of "{name}" has ended'))
def _ended(scene: Scene, name: str) -> None:
    assert scene.contexts.clear(scene.told[name].session_id) is not None


@when(parsers.re('(?P<sender>the orchestrator|the receiver) sends "(?P<kind>.+)"'))
def _sends(scene: Scene, sender: str, kind: str) -> None:
    scene.send(sender, kind)


@when("the orchestrator sends every type of request")
def _sends_all(scene: Scene) -> None:
    scene.send_all()


@when(parsers.parse('agent "{name}" does'))
def _acts(scene: Scene, name: str, datatable: list[list[str]]) -> None:
    scene.act(name, [(operation, scene.filled(path)) for operation, path in datatable[1:]])


@when(parsers.parse('session "{session}" calls'))
def _calls(scene: Scene, session: str, datatable: list[list[str]]) -> None:
    scene.call(session, [(tool, scene.filled(path)) for tool, path in datatable[1:]])


@when(parsers.parse('the result of "{name}" comes in'))
def _result(scene: Scene, name: str) -> None:
    scene.bring(name)


@when(parsers.parse('"{name}" resolves it in its jail with "{content}"'))
def _resolves(scene: Scene, name: str, content: str) -> None:
    scene.resolve(name, content)


@when("the results are collected")
def _collected(scene: Scene) -> None:
    scene.collect()


@when("the results come in")
def _results(scene: Scene) -> None:
    scene.answer()


@when(parsers.parse('the prompt of "{agent_type}" is made'))
def _prompt(scene: Scene, agent_type: str) -> None:
    scene.make_prompt(agent_type)


@then(parsers.parse('"{name}" is told the orchestrator\'s worktree with "{names}"'))
def _told_the_orchestrators(scene: Scene, name: str, names: str) -> None:
    assert scene.worktree(name) == scene.worktree(ORCHESTRATOR)
    _told(scene, name, names)


@then(parsers.parse('every receiver is told the orchestrator\'s worktree with "{names}"'))
def _all_told(scene: Scene, names: str) -> None:
    assert len(scene.told) == len(REQUEST_TYPES)
    for name in scene.told:
        _told_the_orchestrators(scene, name, names)


@then(parsers.parse('"{name}" is told its own worktree with "{names}"'))
def _told_its_own(scene: Scene, name: str, names: str) -> None:
    others = {scene.worktree(other).worktree_id for other in scene.told if other != name}
    assert scene.worktree(name).worktree_id not in others
    _told(scene, name, names)


def _told(scene: Scene, name: str, names: str) -> None:
    found = scene.worktree(name)
    assert (found.worktree_path / "file").is_file()
    assert {module.submodule_name for module in found.submodule_worktrees} == set(listed(names))
    main = found.main_worktree
    for module in found.submodule_worktrees:
        assert (module.worktree_path / "file").is_file()
        assert module.worktree_id in main.submodule_worktree_ids
        assert module.main_worktree_id == main.worktree_id
    assert scene.contexts.get_worktree_context(scene.told[name].session_id) == found


@then(parsers.parse('"{name}" is told no worktree'))
def _told_none(scene: Scene, name: str) -> None:
    assert scene.told[name].worktree_context is None
    assert scene.resolved(scene.told[name].session_id) is None


@then("all of it is allowed")
def _allowed(scene: Scene) -> None:
    assert scene.outcome is not None
    assert all(said.allowed for said in scene.outcome.said), scene.outcome.said
    assert scene.outcome.statuses == [0] * len(scene.outcome.said), scene.outcome.ended


@then("all of it is denied")
def _denied(scene: Scene) -> None:
    """By the validator with path and boundary, by the jail, and without an effect on anybody's files."""
    assert scene.outcome is not None
    for said in scene.outcome.said:
        assert not said.allowed
        shown = json.loads(said.to_error_json())
        assert shown["error"] is True
        assert (shown["attemptedPath"], shown["sandboxRoot"]) == (said.attempted_path, said.sandbox_root)
    assert len(scene.outcome.statuses) == len(scene.outcome.said), scene.outcome.ended
    assert 0 not in scene.outcome.statuses, scene.outcome.ended
    assert scene.outcome.changed == frozenset()


@then(parsers.parse('every answer is "{kind}"'))
def _answers(scene: Scene, kind: str) -> None:
    """An error has no effect on anybody's files."""
    assert scene.answers == [kind] * len(scene.answers)
    assert scene.answers
    assert scene.untouched or kind == "done"


@then(parsers.parse('only the worktree of "{name}" has changed'))
def _only(scene: Scene, name: str) -> None:
    assert (scene.root(name) / "file").read_text() == "written\n"
    for other in (scene.main, *(scene.root(each) for each in scene.told if each != name)):
        assert (other / "file").read_text() == "app\n"


@then("the worktrees lie beside the original")
def _beside(scene: Scene) -> None:
    assert {scene.root(name).parent for name in scene.told} == {scene.main.parent}


@then(parsers.parse('the worktree of session "{session}" is that of "{name}"'))
def _that_of(scene: Scene, session: str, name: str) -> None:
    assert scene.resolved(session) == scene.worktree(name)


@then(parsers.parse('session "{session}" has no worktree'))
def _none(scene: Scene, session: str) -> None:
    assert scene.resolved(session) is None


@then("it names the orchestrator's worktree")
def _named(scene: Scene) -> None:
    assert f"`{scene.root(ORCHESTRATOR)}`" in scene.prompt


@then(parsers.re('the (?P<which>result|merge) of "(?P<name>[^"]+)" has arrived'))
def _arrived(scene: Scene, which: str, name: str) -> None:
    """The target is at the commit that the descriptor names, which holds both sides."""
    found, place = scene.descriptor(which, name)
    main = found.main_worktree_merge_result
    assert found.successful
    assert main is not None
    assert main.commit_id
    assert scene.holds(place, main.commit_id)
    assert all(scene.holds(place, head) for head in (scene.heads[name], scene.heads[ORCHESTRATOR]))


@then(
    parsers.re(
        'the (?P<which>result|merge) of "(?P<name>[^"]+)" has arrived, and "(?P<module>[^"]+)" came before the rest'
    )
)
def _module_first(scene: Scene, which: str, name: str, module: str) -> None:
    """The main commit names the submodule's merge, which must have been there then; the journal moved it first, too."""
    found, place = scene.descriptor(which, name)
    (part,) = found.submodule_merge_results
    main = found.main_worktree_merge_result
    assert (found.successful, part.submodule_name) == (True, module)
    assert part.merge_result is not None
    assert main is not None
    assert scene.git(place, "rev-parse", f"{main.commit_id}:{module}") == part.merge_result.commit_id
    assert found.run_id is not None
    moved = scene.moved(found.run_id)
    assert moved.index(f"{module}") < moved.index("")


@then(parsers.re('the (?P<which>result|merge) of "(?P<name>[^"]+)" conflicts in "(?P<path>[^"]+)" and moves nothing'))
def _conflicts(scene: Scene, which: str, name: str, path: str) -> None:
    found, place = scene.descriptor(which, name)
    assert (found.successful, found.conflict_files, found.run_id) == (False, (path,), None)
    assert scene.git(place, "rev-parse", "HEAD") == scene.heads[place]
    assert scene.git(place, "status", "--porcelain") == ""


@then(parsers.re('the (?P<which>result|merge) of "(?P<name>[^"]+)" fails and moves nothing'))
def _fails(scene: Scene, which: str, name: str) -> None:
    found, place = scene.descriptor(which, name)
    assert (found.successful, found.conflict_files) == (False, ())
    assert found.error_message
    assert scene.git(place, "rev-parse", "HEAD") == scene.heads[place]


@then(parsers.re('the (?P<which>result|merge) of "(?P<name>[^"]+)" brings nothing new'))
def _nothing_new(scene: Scene, which: str, name: str) -> None:
    found, place = scene.descriptor(which, name)
    assert (found.successful, found.no_op) == (True, True)
    if which == "result":
        assert scene.git(place, "rev-parse", "HEAD") == scene.heads[place]


@then(
    parsers.re('the dispatch says "merged: (?P<merged>.*); conflicted: (?P<conflicted>.*); pending: (?P<pending>.*)"')
)
def _dispatch(scene: Scene, merged: str, conflicted: str, pending: str) -> None:
    assert scene.placed() == (listed(merged), listed(conflicted), listed(pending))


@then(parsers.parse('"{path}" of "{name}" holds "{content}"'))
def _holds(scene: Scene, path: str, name: str, content: str) -> None:
    assert (scene.root(name) / path).read_text() == f"{content}\n"


@then(parsers.parse('"{path}" of "{name}" is missing'))
def _missing(scene: Scene, path: str, name: str) -> None:
    assert not (scene.root(name) / path).exists()


@then(parsers.parse('the routing model is told "{words}"'))
def _routing(scene: Scene, words: str) -> None:
    scene.make_prompt("TICKET_AGENT_DISPATCH")
    places = [scene.prompt.index(word) for word in listed(words)]
    assert len(places) == len(listed(words))
