"""Where a provider's files lie, on the user's side and in the private home, and which of them may pass."""

from pathlib import Path

import pytest

from launcher.session import recognition
from launcher.session.machine import Machine
from policy.config import layer
from policy.config.layer import Kind, parse
from policy.config.settings import Settings, resolve
from policy.config.values import Base
from policy.ingredients import closed_logins
from policy.logins import Login
from policy.promises import OWN_TMP
from policy.providers.model import ProviderSpec
from policy.providers.registry import load_registry

REGISTRY = load_registry()
DEFAULT = Path(recognition.__file__).parents[2] / "policy/default.toml"


def settings(**options: str | bool) -> Settings:
    """The default with these options."""
    shipped = parse(DEFAULT.read_bytes(), Kind.DEFAULT, "default", Base("/", "/"))
    given = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    return resolve([shipped, layer.layer(given, cwd="/", home="/")])


def spec(name: str) -> ProviderSpec:
    """A built-in one."""
    found = REGISTRY.spec(name)
    assert found is not None
    return found


def found(
    name: str, environ: dict[str, str], *, unattended: bool = True, keyed: bool = False, **options: str | bool
) -> dict[str, Login]:
    """Place in the private home -> the file."""
    machine = Machine(environ)
    chosen = settings(**options)
    mode = chosen.logins.value
    rows = recognition.files_of(spec(name), chosen, machine, mode, unattended=unattended, keyed=keyed)
    return {login.inside: login for login in (Login(*row) for row in rows)}  # type: ignore[arg-type]  # plain tuples


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With the directories of all providers."""
    for name in REGISTRY.names():
        for directory in spec(name).state.directories:
            (tmp_path / directory[2:]).mkdir(parents=True, exist_ok=True)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "host", "inside"),
    [
        ("claude-code", ".claude/.credentials.json", ".claude/.credentials.json"),
        ("claude-code", ".claude.json", ".claude/.claude.json"),
        ("codex", ".codex/auth.json", ".codex/auth.json"),
        ("gemini", ".gemini/oauth_creds.json", ".gemini/oauth_creds.json"),
        ("goose", ".config/goose/secrets.yaml", ".goose/config/secrets.yaml"),
        ("mistral-vibe", ".vibe/.env", ".vibe/.env"),
        ("opencode", ".local/share/opencode/auth.json", ".local/share/opencode/auth.json"),
        ("qwen", ".qwen/oauth_creds.json", ".qwen/oauth_creds.json"),
    ],
)
def test_a_file_is_taken_from_its_usual_place_to_where_the_jail_looks(
    home: Path, name: str, host: str, inside: str
) -> None:
    """There the provider's variable is set, which moves some of them."""
    assert found(name, {"HOME": str(home)})[inside].host == f"{home}/{host}"


@pytest.mark.parametrize(
    ("name", "variable", "file", "inside"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json", ".claude/.claude.json"),
        ("codex", "CODEX_HOME", "auth.json", ".codex/auth.json"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/oauth_creds.json", ".gemini/oauth_creds.json"),
        ("goose", "GOOSE_PATH_ROOT", "config/secrets.yaml", ".goose/config/secrets.yaml"),
        ("goose", "XDG_CONFIG_HOME", "goose/secrets.yaml", ".goose/config/secrets.yaml"),
        ("opencode", "XDG_DATA_HOME", "opencode/auth.json", ".local/share/opencode/auth.json"),
    ],
)
def test_the_users_own_variable_says_where_it_lies(
    home: Path, name: str, variable: str, file: str, inside: str
) -> None:
    """An absolute one; where it leads to nothing, there is nothing to copy."""
    (home / "moved" / file).parent.mkdir(parents=True)
    environ = {"HOME": str(home), variable: f"{home}/moved"}
    assert found(name, environ)[inside].host == f"{home}/moved/{file}"
    assert found(name, environ | {variable: "relative"})[inside].host.startswith(f"{home}/.")
    gone = found(name, environ | {variable: f"{home}/nowhere"})
    assert inside not in gone or gone[inside].host == ""


def test_a_link_on_the_way_is_resolved_when_the_plan_is_made(home: Path) -> None:
    """So that the plan's grants and the place are spoken of by the same name."""
    (home / ".codex").rename(home / "dotfiles")
    (home / ".codex").symlink_to("dotfiles")
    assert found("codex", {"HOME": str(home)})[".codex/auth.json"].host == f"{home}/dotfiles/auth.json"


def test_what_passes_is_what_was_chosen(home: Path) -> None:
    """exchange: both ways; copy: inwards; none: only what Paddock itself puts there, and the user's tokens go."""
    environ = {"HOME": str(home)}
    assert found("codex", environ)[".codex/auth.json"].refreshed
    copied = found("codex", environ, logins="copy")[".codex/auth.json"]
    assert copied.host
    assert copied.refreshed == ()
    none = found("codex", environ, logins="none")
    assert list(none) == [".codex/", ".codex/auth.json", ".codex/config.toml"]
    assert "tokens.refresh_token" in none[".codex/auth.json"].kept_out
    assert found("goose", environ, logins="none")[".goose/config/secrets.yaml"].kept_out == ("",)
    kept = found("gemini", environ, logins="none")
    assert [(login.host != "", login.kept_out != (), login.put != ()) for login in kept.values()] == [
        (True, True, False),
        (True, False, True),
    ]


def test_settings_that_switch_questions_off_are_taken_away_where_they_are_kept(home: Path) -> None:
    """And with the dialect of the specification there are none."""
    environ = {"HOME": str(home)}
    off = found("claude-code", environ)[".claude/settings.json"]
    assert ("permissions.defaultMode", "bypassPermissions") in off.put
    assert off.drop == ()
    kept = found("claude-code", environ, unattended=False)[".claude/settings.json"]
    assert (kept.put, kept.drop) == ((), off.put)
    contract = found("claude-code", environ, dialect="contract")[".claude/settings.json"]
    assert (contract.put, contract.drop) == ((), ())


def test_a_file_in_a_tree_that_the_jail_may_write_does_not_pass() -> None:
    """What lies there is the agent's word. The jail's own /tmp is another one than the machine's."""
    rows = [tuple(Login(host, "x")) for host in ("/home/u/.codex/auth.json", "/tmp/h/auth.json", "")]
    grants = [("/home/u", "rwx", "--rw"), ("/tmp", "rwx", OWN_TMP), ("/", "rx", "--ro"), ("@home", "rwx", "home")]
    assert [row[0] for row in closed_logins(rows, grants)] == ["/tmp/h/auth.json", ""]
