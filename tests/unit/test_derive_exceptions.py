"""Exceptions inside grants, hand-off files, the environment: decided from a table that stands for the machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy import promises
from policy.derive import derive
from policy.ingredients import merged, narrowed
from policy.launch import Command, Translation
from policy.plan import beneath
from policy.toolchains import NOTHING
from tests.support.derived import (
    COMMAND,
    GUARD,
    LINKED,
    MACHINE,
    MOUNTS,
    OWN,
    ROOT,
    RULES,
    Table,
    access,
    context,
    plan,
    refused,
    submodule,
)

SUBMODULES = (f"{ROOT}/lib", f"{ROOT}/lib/deep")


@pytest.mark.parametrize("support", [MOUNTS, GUARD], ids=["mounts", "guard"])
def test_an_ungranted_submodule_is_closed_with_its_git_directory(support: object) -> None:
    """Its worktree and the objects below the main repository; what lies beside it stays open."""
    about = context(submodule("lib", SUBMODULES[0], granted=False), freeze_root=True)
    found = plan(about=about, support=support)
    assert access(found, f"{ROOT}/lib/one.c") == ""
    assert access(found, f"{OWN}/modules/lib/HEAD") == ""
    assert "w" in access(found, f"{ROOT}/src/a.py")


@pytest.mark.parametrize("support", [MOUNTS, GUARD], ids=["mounts", "guard"])
def test_a_granted_submodule_inside_one_that_is_not_stays_open(support: object) -> None:
    """The deepest root wins; its grant is not lost among those above it."""
    about = context(
        submodule("lib", SUBMODULES[0], granted=False), submodule("deep", SUBMODULES[1], granted=True), freeze_root=True
    )
    found = plan(about=about, support=support)
    assert (SUBMODULES[1], "rwx", promises.NESTED) in found.grants
    assert access(found, f"{ROOT}/lib/deep/two.c") == "rwx"
    assert access(found, f"{ROOT}/lib/one.c") == ""


@pytest.mark.parametrize("support", [MOUNTS, GUARD], ids=["mounts", "guard"])
@pytest.mark.parametrize("path", [f"{ROOT}/lib/deep/inner", f"{ROOT}/lib/deep", f"{ROOT}/lib"])
def test_deny_beats_a_granted_submodule(support: object, path: str) -> None:
    """Inside it, at its root and above it; what the rules say is what Landlock would make of them."""
    about = context(
        submodule("lib", SUBMODULES[0], granted=False), submodule("deep", SUBMODULES[1], granted=True), freeze_root=True
    )
    found = plan(about=about, support=support, deny=((path, "--deny"),))
    assert access(found, f"{ROOT}/lib/deep/inner/three.c") == ""
    if support is GUARD:
        reached = [where for where, _, _ in found.grants if beneath(f"{ROOT}/lib/deep/inner/three.c", where)]
        assert reached == []
    if path.endswith("inner"):
        assert access(found, f"{ROOT}/lib/deep/two.c") == "rwx"


def test_without_mounts_an_exception_needs_the_users_word() -> None:
    """The refusal names the path, why, and both ways out."""
    error = refused(support=GUARD, deny=((f"{ROOT}/secret", "--deny"),))
    assert error.reference == "exception-in-writable-tree"
    assert f"{ROOT}/secret" in error.message
    assert "--freeze-root" in error.hint


def test_without_mounts_no_rule_reaches_an_exception() -> None:
    """The union of all rules above it gives nothing, as Landlock would count."""
    found = plan(support=GUARD, deny=((f"{ROOT}/secret", "--deny"),), about=context(freeze_root=True))
    assert not [path for path, _, _ in found.grants if beneath(f"{ROOT}/secret/key", path)]
    assert [path for path, _, _ in found.grants if beneath(f"{ROOT}/src/a.py", path)]


def test_git_pointers_cannot_be_replaced() -> None:
    """Where mounts can hold it: the worktree's own and its granted submodules'."""
    about = context(submodule("lib", SUBMODULES[0], granted=True))
    assert {f"{ROOT}/.git", f"{ROOT}/lib/.git"} <= set(dict(plan(about=about).read_only))
    assert dict(plan(support=GUARD).read_only) == {}


def test_handoff_files_are_those_that_exist() -> None:
    """With their mode; a link is left alone, and so is what is read-only anyway."""
    assert plan().handoff == ((f"{ROOT}/.envrc", "protect"), (f"{ROOT}/src/a.py", "report"))
    assert plan(more={f"{ROOT}/.envrc": "-> /srv/data/y"}).handoff == ((f"{ROOT}/src/a.py", "report"),)


def test_a_programme_outside_all_grants_is_granted_alone() -> None:
    """Or with the packages that it belongs to."""
    alone = Command("x", "/srv/x/bin/x", "/srv/x/bin/x", ROOT)
    found = plan(command=alone, more={"/srv/x/bin/x": "file", "/srv/x/bin/y": "file"})
    assert access(found, "/srv/x/bin/x") == "rx"
    assert access(found, "/srv/x/bin/y") == ""
    node = Command("n", "/srv/n/node_modules/n/cli.js", "/srv/n/node_modules/n/cli.js", ROOT)
    packaged = plan(command=node, more={node.path: "file", "/srv/n/node_modules/m/x.js": "file"})
    assert access(packaged, "/srv/n/node_modules/m/x.js") == "rx"
    on_path = NOTHING._replace(grants=((node.path, "rx", "PATH"),))
    reached = plan(command=node, more={node.path: "file", "/srv/n/node_modules/m/x.js": "file"}, toolchains=on_path)
    assert access(reached, "/srv/n/node_modules/m/x.js") == "rx", "a link in PATH grants no more than what it leads to"


def test_a_plan_holds_names_of_variables_and_no_callers_value() -> None:
    """Values of the caller are put in at launch; those of configuration and provider are no secrets of his."""
    table = {"TOKEN": "s3cret-value", "PATH": "/s3cret-value"}
    host = Table(dict(MACHINE), table)
    found = derive(
        context(), LINKED, COMMAND, RULES._replace(env_pass=("PATH", "TOKEN")), MOUNTS, host,
        toolchains=NOTHING, provider=Translation(provider="p", credentials=("API_KEY",)), own=(),
    )  # fmt: skip
    assert {"PATH", "TOKEN", "API_KEY"} <= set(found.env_pass)
    assert "s3cret-value" not in repr(found.to_data())


def test_the_users_environment_beats_the_providers_and_ours() -> None:
    """In this order: ours, toolchains', provider's, user's."""
    found = plan(
        env_set=(("A", "user"),),
        provider=Translation(environment=(("A", "provider"), ("B", "provider"), ("HOME", "/x"))),
        toolchains=NOTHING._replace(env_set=(("B", "tool"), ("C", "tool"))),
    )
    values = dict(found.env_set)
    assert (values["A"], values["B"], values["C"], values["HOME"]) == ("user", "provider", "tool", "/x")
    assert values["TMPDIR"] == "${tmp}"


PATHS = st.sampled_from(["/a", "/a/b", "/a/b/c", "/ab", "/tmp", "/tmp/x", "/dev", "/dev/null", "@home", "/"])
GRANTS = st.lists(st.tuples(PATHS, st.sampled_from(["r", "rx", "rwx", "rwi", "w"]), st.sampled_from("st")), max_size=8)
PRIVATE = ("/tmp", "/var/tmp", "/dev", "/proc")


@given(grants=GRANTS)
def test_merging_never_loses_access(grants: list[tuple[str, str, str]]) -> None:
    """Every granted path keeps what it was given, from a grant that shows the disk there; and none comes twice."""
    result = merged(grants)
    assert len({path for path, _, _ in result}) == len(result)
    for path, letters, _ in grants:
        kept = {
            letter
            for where, left, _ in result
            if where == path or (beneath(path, where) and where not in PRIVATE and not path.startswith("@"))
            for letter in left
        }
        assert set(letters) <= kept


@given(grants=GRANTS)
def test_merging_never_adds_access(grants: list[tuple[str, str, str]]) -> None:
    """What comes out at a path was put in there."""
    for path, letters, _ in merged(grants):
        assert set(letters) == {
            letter for where, given_letters, _ in grants if where == path for letter in given_letters
        }


@pytest.mark.parametrize(
    ("read", "write", "expected"),
    [
        ([(ROOT, "--ro")], [], [(ROOT, "r", "--ro")]),
        ([(f"{ROOT}/src", "--ro")], [(ROOT, "--rw")], [(f"{ROOT}/src", "r", "--ro")]),
        ([(ROOT, "--ro")], [(f"{ROOT}/src", "--rw")], [(ROOT, "r", "--ro"), (f"{ROOT}/src", "w", "--rw")]),
        ([(f"{ROOT}/src", "--ro")], [(f"{ROOT}/src", "--rw")], [(f"{ROOT}/src", "r", "--ro")]),
        ([(f"{ROOT}/src", "user filesystem.read")], [(f"{ROOT}/src", "--rw")], []),
        ([(f"{ROOT}/src", "user filesystem.read")], [], [(f"{ROOT}/src", "r", "user filesystem.read")]),
        ([(ROOT, "user filesystem.read")], [], []),
        ([("/usr", "--ro")], [], []),
    ],
)
def test_what_is_named_for_reading_in_a_writable_tree_is_read_only(
    read: list[tuple[str, str]], write: list[tuple[str, str]], expected: list[tuple[str, str, str]]
) -> None:
    """The longest path counts; a tie goes to --ro, else to writing; a file's word does not close the worktree."""
    asked = [(path, "rx", source) for path, source in read] + [(path, "rwx", source) for path, source in write]
    found, warnings = narrowed(ROOT, asked)
    assert list(found) == expected
    assert bool(warnings) is (read[0] == (ROOT, "user filesystem.read"))


@pytest.mark.parametrize("support", [MOUNTS, GUARD], ids=["mounts", "guard"])
def test_a_read_only_worktree_is_one_on_every_backend(support: object) -> None:
    """Its grant loses writing, what --rw names in it keeps it; --deny beats both."""
    rules = RULES._replace(
        read=((ROOT, "--ro"),), write=((f"{ROOT}/src", "--rw"),), deny=((f"{ROOT}/src/a.py", "--deny"),)
    )
    found = plan(about=context(freeze_root=True), support=support, rules=rules)
    expected = {f"{ROOT}/lib/one.c": "rx", f"{ROOT}/src": "rwx" if support is MOUNTS else "", f"{ROOT}/src/a.py": ""}
    assert {path: access(found, path) for path in expected} == expected
