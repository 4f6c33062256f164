"""Which of the user's own things a jail is shown: a table stands for the machine."""

from collections.abc import Mapping

import pytest

from policy import bring
from policy.bring import AGENTS, FLAG, Decided, Secrets
from policy.errors import Refusal
from tests.support.derived import GUARD, MOUNTS, ROOT, Table, plan, refused

HOME = "/home/u"
SECRETS = Secrets(
    {f"{HOME}/.ssh": "keys", f"{HOME}/.agent/auth.json": "a login", f"{HOME}/.config/gh": "a token"},
    (".npmrc", "id_rsa"),
)
CONFIGURED = "config.toml"


def decided(
    *files: str,
    declared: tuple[str, ...] = (),
    entries: dict[str, str] | None = None,
    written: tuple[str, ...] = (),
    denied: tuple[str, ...] = (),
    source: str = FLAG,
    links: Mapping[str, int] = {},
) -> Decided:
    return bring.decide(
        [(f"~/{name}", source) for name in files],
        [(f"{HOME}/{name}", name) for name in declared],
        secrets=SECRETS,
        root=ROOT,
        host=Table(
            {f"{HOME}/{name}": text for name, text in (entries or {}).items()},
            links_of={f"{HOME}/{name}": number for name, number in links.items()},
        ),
        written=written,
        denied=denied,
    )


def test_what_is_there_is_shown_where_it_lies_and_a_link_by_its_target() -> None:
    """Dotfile managers link ~/.bashrc; what is not there is noted where the user named it, else passed over."""
    entries = {".bashrc": "-> dotfiles/bashrc", "dotfiles/bashrc": "file", ".agent/skills/one/SKILL.md": "file"}
    declared = (".agent/skills", ".agent/commands")
    found = decided(".bashrc", ".vimrc", declared=declared, entries=entries, source=CONFIGURED)
    assert found.brought == (
        (f"{HOME}/.agent/skills", ".agent/skills", AGENTS),
        (f"{HOME}/dotfiles/bashrc", ".bashrc", CONFIGURED),
        ("", ".vimrc", CONFIGURED),
    )
    assert (found.grants, found.warnings) == ((), ())


@pytest.mark.parametrize("name", [".vimrc", "-x", ".pipe"])
def test_what_an_option_names_must_be_there(name: str) -> None:
    """A configuration is for many machines, an option is for one run."""
    with pytest.raises(Refusal) as caught:
        decided(name, entries={".pipe": "fifo"})
    assert caught.value.reference == "bring-missing"
    assert decided(name, entries={".pipe": "fifo"}, source=CONFIGURED).warnings == ()


def test_secrets_in_a_directory_are_looked_for() -> None:
    """What the user names is refused; of what a table names, or a link leads to, the rest is brought."""
    entries = {
        ".agent/skills/env/lib/.env": "file",
        ".agent/skills/good/SKILL.md": "file",
        ".agent/skills/good/.git/config": "file",
        ".agent/skills/linked": "-> ../../other",
        "other/id_rsa": "-> ../.ssh/id",
        "other/SKILL.md": "file",
        ".agent/skills/.env.example": "file",
    }
    secrets = f"{HOME}/.agent/skills/env/lib/.env: passwords and keys that programmes read when they start"
    for name in (".agent/skills", ".agent/skills/env", ".agent/skills/env/lib"):
        with pytest.raises(Refusal) as caught:
            decided(name, entries=entries)
        assert (caught.value.reference, secrets in caught.value.context) == ("bring-secret", True)
    found = decided(declared=(".agent/skills",), entries=entries)
    assert [inside for _, inside, _ in found.brought] == [
        ".agent/skills/.env.example", ".agent/skills/good", ".agent/skills/linked/SKILL.md",
    ]  # fmt: skip
    assert found.warnings == (
        f"{HOME}/.agent/skills/env is not brought into the jail ({AGENTS}): {secrets}",
        f"{HOME}/.agent/skills/linked/id_rsa is not brought into the jail ({AGENTS}): {HOME}/other/id_rsa: "
        "files of this name contain credentials",
    )


def test_a_search_has_an_end_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of entries, and of levels."""
    monkeypatch.setattr(bring, "_MOST_LOOKED", 50)
    for entries in ({f"d/{number}": "file" for number in range(51)}, {f"d/{'x/' * 12}.env": "file"}):
        found = decided("d", entries=entries)
        assert [line.partition(" were searched")[1] for line in found.warnings] == [" were searched"]
        assert [inside for _, inside, _ in found.brought] == ["d"]


def test_other_names_of_what_is_brought_are_told() -> None:
    """A hard link has no path that would tell what it holds."""
    entries = {".bashrc": "file", ".agent/skills/a/x": "file", ".agent/skills/a/y": "file"}
    links = {".bashrc": 2, ".agent/skills/a/x": 3, ".agent/skills/a/y": 2}
    found = decided(".bashrc", declared=(".agent/skills",), entries=entries, links=links)
    assert [line.partition(" can be reached")[0] for line in found.warnings] == [
        f"{HOME}/.bashrc is brought ({FLAG}): {HOME}/.bashrc",
        f"{HOME}/.agent/skills is brought ({AGENTS}): {HOME}/.agent/skills/a/x and 1 more files",
    ]
    assert len(found.brought) == 2


def test_a_refusal_names_what_is_there_and_what_works() -> None:
    """Not a login that this machine does not have."""
    texts = []
    for entries in ({}, {".config/gh/hosts.yml": "file"}):
        with pytest.raises(Refusal) as caught:
            decided(".config", entries=entries)
        texts.append(caught.value.context)
    assert [f"it contains {HOME}/.config/gh" in text for text in texts] == [False, True]
    with pytest.raises(Refusal) as caught:
        decided(".npmrc", entries={".npmrc": "file"})
    assert f"--ro {HOME}/.npmrc --env NPM_CONFIG_USERCONFIG={HOME}/.npmrc" in caught.value.hint


@pytest.mark.parametrize(
    "name",
    [
        ".ssh/config",
        ".ssh",
        ".agent/auth.json",
        ".agent",
        ".config",
        ".config/gh/hosts.yml",
        "sub/.npmrc",
        ".foorc",
        "x/.env",
    ],
)
def test_secrets_are_refused_by_name_by_what_lies_in_them_and_behind_links(name: str) -> None:
    """There or not."""
    with pytest.raises(Refusal) as caught:
        decided(name, entries={".foorc": "-> .ssh/id", ".ssh/id": "file"})
    assert caught.value.reference == "bring-secret"
    assert FLAG in caught.value.context


def test_what_lies_beside_secrets_is_shown() -> None:
    """The twin of the above."""
    entries = {".config/git/ignore": "file", ".agent/AGENTS.md": "file", ".bashrc": "file"}
    assert [inside for _, inside, _ in decided(*entries, entries=entries).brought] == sorted(entries)


def test_a_secret_that_a_table_or_a_link_leads_to_is_left_out() -> None:
    """With a warning: the user has not named it."""
    entries = {".agent/skills/x": "-> ../../.ssh", ".ssh/id": "file", ".agent/rules": "-> ../.ssh/id"}
    found = decided(declared=(".agent/skills", ".agent/rules"), entries=entries)
    assert [inside for _, inside, _ in found.brought] == [".agent/skills"]
    assert found.grants == ()
    assert [line for line in found.warnings if "keys" in line] == list(found.warnings)
    assert len(found.warnings) == 2


def test_links_in_a_directory_lead_to_the_same_in_the_jail() -> None:
    """Relative ones below the private home, absolute ones at their own path; those that stay inside need nothing."""
    entries = {
        ".agent/skills/two": "-> ../../.agents/skills/two",
        ".agents/skills/two/SKILL.md": "file",
        ".agent/skills/three": f"-> {HOME}/src/three",
        "src/three/more": "-> ../four",
        "src/four/x": "file",
        ".agent/skills/same": "-> two",
        ".agent/skills/deep/a.md": "-> ../../b.md",
        ".agent/b.md": "file",
        ".agent/skills/lost": "-> nowhere",
    }
    found = decided(declared=(".agent/skills",), entries=entries)
    assert {inside: source for source, inside, _ in found.brought} == {
        ".agent/skills": f"{HOME}/.agent/skills",
        ".agents/skills/two": f"{HOME}/.agents/skills/two",
        ".agent/b.md": f"{HOME}/.agent/b.md",
    }
    assert {path for path, _, _ in found.grants} == {f"{HOME}/src/three", f"{HOME}/src/four"}


def test_links_that_an_agent_may_have_made_bring_nothing() -> None:
    """Those in the worktree, and in trees that jails could write once."""
    for tree in (f"{ROOT}/dot", f"{HOME}/old"):
        entries = {".vimrc": f"-> {tree}/vimrc"}
        more = {f"{tree}/vimrc".removeprefix(f"{HOME}/"): f"-> {HOME}/other/file"}
        with pytest.raises(Refusal) as caught:
            decided(".vimrc", entries=entries | more | {"other/file": "file"}, written=(f"{HOME}/old",))
        assert caught.value.reference.startswith("grant-")


def test_what_is_denied_stays_denied() -> None:
    """Itself, or something in it."""
    entries = {".agent/skills/a/b": "file", ".bashrc": "file"}
    found = decided(
        ".bashrc", declared=(".agent/skills",), entries=entries, denied=(f"{HOME}/.agent/skills/a", f"{HOME}/.bashrc")
    )
    assert found.brought == ()
    assert ["is denied" in line for line in found.warnings] == [True, True]


def test_what_lies_in_something_brought_is_shown_there() -> None:
    """A mount of its own would need a place that is not the jail's to make."""
    entries = {".vim/vimrc": "file", ".vim/a/b": "file"}
    assert [inside for _, inside, _ in decided(".vim", ".vim/vimrc", entries=entries).brought] == [".vim"]


def test_a_plan_carries_it_on_every_backend() -> None:
    """With its source, and in words that tell a copy from the thing itself."""
    more = {f"{HOME}/.bashrc": "file"}
    for support, words in ((MOUNTS, "shows"), (GUARD, "copy of")):
        found = plan(bring=(("~/.bashrc", FLAG),), more=more, support=support)
        assert found.brought == ((f"{HOME}/.bashrc", ".bashrc", FLAG),)
        assert f"bring     ~/.bashrc  [{words} {HOME}/.bashrc; {FLAG}]" in found.describe()
    assert refused(bring=(("~/.ssh/id", FLAG),), secrets=SECRETS).reference == "bring-secret"
