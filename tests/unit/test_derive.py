"""What one launch may do is decided from facts alone: a table stands for the machine, each decision has a source."""

from types import SimpleNamespace
from typing import Any

import pytest

from policy import promises
from policy.derive import canonical_form
from tests.support.derived import (
    CHECKOUT,
    GUARD,
    LINKED,
    MAIN,
    MOUNTS,
    OWN,
    ROOT,
    RULES,
    STATE,
    Table,
    access,
    context,
    plan,
    refused,
)


def test_every_grant_says_where_it_comes_from() -> None:
    """No grant, exception or hand-off file is without a source."""
    found = plan(
        read=(("/srv/data", "--ro"),), write=(("/srv/objects", "/etc/paddock/config.toml filesystem.write"),),
        deny=(("/srv/data/inner", "--deny"),),
    )  # fmt: skip
    assert all(source for _, _, source in found.grants)
    sources = {path: source for path, _, source in found.grants}
    assert sources[ROOT] == "worktree"
    assert sources["/usr"] == "default"
    assert sources["/srv/data"] == "--ro"
    assert sources["/srv/objects"] == "/etc/paddock/config.toml filesystem.write"
    assert dict(found.denied)["/srv/data/inner"] == "--deny"
    assert all(source for _, source in (*found.denied, *found.read_only))


def test_a_rule_that_leaves_no_address_for_names_is_a_warning() -> None:
    """The range itself; a part of it, one around it and a denial of it leave some."""
    for rule, warned in (("198.18.0.0/15:80", True), ("[2001:2::/48]", True), ("198.18.0.0/16", False),
                         ("192.0.0.0/2", False), ("good.example", False)):  # fmt: skip
        found = plan(net="proxy", domains=((rule, "--allow-domain"),), domains_denied=(("198.18.0.0/15", "--deny"),))
        assert any(rule in text and "--proxy-env yes" in text for text in found.warnings) == warned, rule


def test_what_is_not_there_is_not_granted() -> None:
    """Missing system trees and devices are passed over."""
    granted = {path for path, _, _ in plan().grants}
    assert not granted & {"/missing", "/dev/gone"}


def test_a_link_is_granted_by_its_target_and_kept_as_a_link() -> None:
    """`/bin` leads to `/usr/bin`: the rule is on the latter, the view shows the former."""
    found = plan()
    assert ("/bin", "usr/bin") in found.links
    assert "/bin" not in {path for path, _, _ in found.grants}


def test_a_grant_by_command_line_must_exist() -> None:
    """A typing error would silently grant nothing."""
    error = refused(read=(("/srv/dta", "--ro"),))
    assert error.reference == "grant-missing"
    assert "/srv/dta" in error.message
    assert "--ro" in error.context


def test_what_configuration_grants_may_be_missing() -> None:
    """It is written for many worktrees: a warning says what there is none of here."""
    found = plan(read=(("/srv/dta", "config.toml filesystem.read"), ("/srv/data", "config.toml filesystem.read")))
    assert "config.toml filesystem.read /srv/dta: it does not exist, so there is nothing to grant" in found.warnings
    assert "/srv/data" in {path for path, _, _ in found.grants}


@pytest.mark.parametrize("option", ["read", "write"])
@pytest.mark.parametrize("path", [f"{ROOT}/out", "/srv/to/inner"])
def test_a_link_in_the_worktree_grants_nothing(option: str, path: str) -> None:
    """An agent may have put it there, since the user last saw where it leads; one that stays inside opens nothing."""
    links = {f"{ROOT}/out": "-> /srv/data", "/srv/to": f"-> {ROOT}/out"}
    outside: dict[str, Any] = {option: ((path, "--x"),)}
    inside: dict[str, Any] = {option: ((f"{ROOT}/link", "--x"),)}
    error = refused(more=links, **outside)
    assert (error.reference, "/srv/data" in error.message) == ("grant-leaves-worktree", True)
    if option == "write":
        plan(**inside)
    else:  # read-only would be what the link says at the moment
        assert refused(**inside).reference == "grant-behind-link"


@pytest.mark.parametrize("support", [MOUNTS, GUARD], ids=["mounts", "guard"])
@pytest.mark.parametrize("option", ["read", "write"])
def test_deny_beats_every_grant(support: object, option: str) -> None:
    """Whichever is named first, and whichever is deeper."""
    grants: dict[str, Any] = {option: (("/srv/data", "--x"), ("/srv/data/inner", "--x"))}
    both = plan(support=support, **grants,
                deny=(("/srv/data/inner", "--deny"),), about=context(freeze_root=True))  # fmt: skip
    assert access(both, "/srv/data/inner/x") == ""
    assert "r" in access(both, "/srv/data/y")


def test_deny_of_a_link_denies_where_it_leads() -> None:
    """The name and its target are one thing."""
    assert access(plan(deny=((f"{ROOT}/link", "--deny"),)), f"{ROOT}/secret/key") == ""


def test_deny_of_something_missing_warns() -> None:
    """It is not an error, and not silent."""
    assert any("/srv/none" in text for text in plan(deny=(("/srv/none", "--deny"),)).warnings)


@pytest.mark.parametrize("path", [ROOT, "/home/u", "/"])
def test_the_worktree_itself_cannot_be_denied(path: str) -> None:
    """Nothing would be left to work in."""
    assert refused(deny=((path, "--deny"),)).reference == "deny-worktree"


def test_paddocks_own_directories_are_denied() -> None:
    """Even below a grant of the whole home directory, and even when they do not exist yet."""
    found = plan(read=(("/home/u", "--ro"),), own=(STATE, "/home/u/.cache/paddock"))
    assert access(found, f"{STATE}/sessions") == ""
    assert access(found, "/home/u/.cache/paddock/plans") == ""
    assert "r" in access(found, "/home/u/main")


def test_nobody_may_write_where_the_rules_are() -> None:
    """A writable grant that holds Paddock's own directories is refused, a read-only one is not."""
    error = refused(write=(("/home/u", "--rw"),))
    assert error.reference == "grant-covers-state"
    assert "--rw" in error.context
    assert refused(write=(("/", "--rw"),)).reference == "grant-covers-state"


def test_a_worktree_inside_paddocks_own_directory_is_refused() -> None:
    """Its files would be denied and granted at once."""
    assert refused(own=("/home/u",)).reference == "worktree-in-state"


def test_own_directories_behind_a_link_are_found() -> None:
    """XDG_STATE_HOME may lead through a link, and the last parts may be missing."""
    table = Table({"/state": "-> /srv/deep", "/srv/deep/x": "dir"})
    assert canonical_form("/state/x/new/one", table) == "/srv/deep/x/new/one"
    assert canonical_form("/nowhere/at/all", table) == "/nowhere/at/all"
    assert canonical_form("/", table) == "/"


def test_private_directories_exist_where_mounts_do() -> None:
    """With mounts /tmp is the jail's own; without, only TMPDIR is."""
    mounts = {path for path, _, _ in plan().grants}
    assert {"/tmp", "/var/tmp", "/dev"} <= mounts
    assert "/dev/ptmx" not in mounts
    guard = {path for path, _, _ in plan(support=GUARD).grants}
    assert not guard & {"/tmp", "/var/tmp", "/dev"}
    assert "@home" in mounts & guard
    assert "@tmp" in guard - mounts


def test_a_linked_worktree_reads_its_repository() -> None:
    """And writes none of it. What it says it borrows from is told, and not granted: a jail may have written that."""
    found = plan()
    for path in (MAIN, OWN, f"{MAIN}/objects/relative"):
        assert access(found, path) == "r", path
    for path in ("/home/u/main/file", "/srv/objects/pack"):
        assert access(found, path) == "", path
    assert [text for text in found.warnings if "/srv/objects," in text]


def test_a_main_checkout_cannot_write_its_git_directory() -> None:
    """With mounts it is read-only; without, that freezes the root, which the user has to accept."""
    more = {f"{ROOT}/.git": "dir", f"{ROOT}/.git/HEAD": "file"}
    found = plan(git=CHECKOUT, more=more)
    assert dict(found.read_only)[f"{ROOT}/.git"] == "--git readonly"
    assert access(found, f"{ROOT}/.git/HEAD") == "rx"
    error = refused(git=CHECKOUT, more=more, support=GUARD)
    assert error.reference == "exception-in-writable-tree"
    assert "paddock run --new" in error.hint
    frozen = plan(git=CHECKOUT, more=more, support=GUARD, about=context(freeze_root=True))
    assert "w" not in access(frozen, f"{ROOT}/.git/HEAD")
    assert access(frozen, ROOT) == "rx"
    assert "w" in access(frozen, f"{ROOT}/src/a.py")


def test_shared_git_is_writable_and_warned_about() -> None:
    """The user is told what that means."""
    found = plan(git=LINKED, rules=RULES._replace(git="shared"))
    assert "w" in access(found, MAIN)
    assert any("hooks" in text for text in found.warnings)


def test_a_backend_that_cannot_be_had_refuses() -> None:
    """It never silently does less, and says what to do instead."""
    error = refused(rules=RULES._replace(backend="bubblewrap"))
    assert error.reference == "bubblewrap-missing"
    assert error.hint


@pytest.mark.parametrize(
    ("lacking", "reference"),
    [
        ({"seccomp": False}, "seccomp-missing"),
        ({"landlock_abi": 0}, "landlock-missing"),
        ({"userns": False, "landlock_abi": 5}, "landlock-too-old"),
    ],
)
def test_a_machine_that_cannot_hold_a_jail_is_refused(lacking: dict[str, object], reference: str) -> None:
    """With what is missing and what to do."""
    error = refused(support=SimpleNamespace(**(vars(MOUNTS) | lacking)))
    assert error.reference == reference
    assert error.hint


def test_the_backend_follows_the_machine_and_requires_what_it_holds() -> None:
    """Namespaces where they exist; each backend's required rows are those that its table says are held."""
    for support, backend in ((MOUNTS, promises.NAMESPACES), (GUARD, promises.GUARD)):
        found = plan(support=support)
        assert found.backend == backend
        assert set(found.required) == set(promises.required_rows(backend))


def test_without_a_fresh_proc_visibility_is_not_promised() -> None:
    """It is left out of what must hold, and said."""
    found = plan(support=SimpleNamespace(**(vars(MOUNTS) | {"fresh_proc": False, "fresh_proc_why": "a container"})))
    assert "visibility" not in found.required
    assert any("a container" in text for text in found.warnings)
