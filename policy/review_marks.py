"""What a person who reviews an agent's work should see first: what would run on his machine, and what looks secret.

Pure. Nothing is hidden or refused by it: a mark says where to look.
"""

import re
from collections.abc import Iterable

from policy.handoff import PROTECT, REPORT, Patterns

_REASONS: tuple[tuple[str, str], ...] = (
    (
        "a shell or its environment manager runs it on entering the directory",
        ".envrc .direnv .mise.toml mise.toml .mise .autoenv.zsh .autoenv",
    ),
    (
        "an editor runs tasks, or loads settings and extensions from it, when the directory is opened",
        ".vscode *.code-workspace .idea .run .fleet .zed .theia .nova *.sublime-project .devcontainer "
        ".devcontainer.json .vimrc .exrc .nvimrc .nvim.lua .lvimrc .dir-locals.el .dir-locals-2.el .gitpod.yml",
    ),
    (
        "an agent outside of a jail starts servers, hooks or commands from it",
        ".mcp.json .claude .codex .gemini .qwen .cursor .windsurf .continue .roo .kilocode .opencode opencode.json "
        "opencode.jsonc .vibe .goose .copilot .aider.conf.yml .amazonq .kiro .junie",
    ),
    (
        "git runs hooks from it at a commit, a checkout or a push",
        ".git/hooks .husky .githooks .pre-commit-config.yaml lefthook.yml .lefthook.yml",
    ),
    ("git obeys it", ".git/config .git/config.worktree .git/info/attributes .gitattributes .gitmodules .lfsconfig"),
    (
        "a package manager loads code or takes its servers from it, whatever it is called for",
        ".npmrc .yarnrc .yarnrc.yml .yarn .pnpmfile.cjs .cargo",
    ),
    (
        "CI runs it, with the secrets that it has there, once it is pushed",
        ".github/workflows .github/actions .gitlab-ci.yml .gitlab .circleci .travis.yml .drone.yml .woodpecker.yml "
        ".woodpecker .buildkite .forgejo .gitea .ci azure-pipelines.yml bitbucket-pipelines.yml appveyor.yml "
        "cloudbuild.yaml Jenkinsfile",
    ),
    (
        "its scripts run when the project is installed, built or tested",
        "package.json deno.json composer.json Gemfile Rakefile *.gemspec Makefile makefile GNUmakefile CMakeLists.txt "
        "meson.build justfile Justfile .justfile Taskfile.yml build.gradle build.gradle.kts settings.gradle "
        "settings.gradle.kts gradlew gradle/wrapper pom.xml .mvn mvnw build.rs setup.py setup.cfg pyproject.toml "
        "conftest.py noxfile.py tox.ini tasks.py dodo.py flake.nix shell.nix default.nix .bazelrc WORKSPACE "
        "MODULE.bazel .tool-versions",
    ),
    (
        "containers and machines are made by it",
        "Dockerfile Containerfile compose.yaml compose.yml docker-compose.yml Vagrantfile Procfile",
    ),
    ("programmes that are started here get its variables", ".env"),
    (
        "the next agent takes it for instructions",
        "AGENTS.md CLAUDE.md GEMINI.md .cursorrules .windsurfrules .clinerules .goosehints "
        ".github/copilot-instructions.md",
    ),
)
_KNOWN = Patterns((name, reason) for reason, names in _REASONS for name in names.split())
_OTHERS = "other tools execute or obey it"
_GITS = "git obeys it, wherever it lies"

_EXECUTABLE, _LINK, _SUBMODULE = "100755", "120000", "160000"


def reason(path: str) -> str:
    """What happens with a hand-off file outside of a jail, in a few words."""
    found = _KNOWN.mode(path)
    return _GITS if found in (PROTECT, REPORT) else found or _OTHERS


def reason_of_mode(before: str, after: str) -> str:
    """What a change of a file's mode means, as git's six digits have it; "" where it means nothing."""
    if before == after:
        return ""
    return {
        _EXECUTABLE: "it can be executed now",
        _LINK: "it is a symbolic link now: what it points to is read in its place",
        _SUBMODULE: "it is another repository now",
    }.get(after, "")


_SECRETS: tuple[tuple[str, str], ...] = (
    ("a private key", r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"),
    ("a GitHub token", r"\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_[A-Za-z0-9_]{22}"),
    ("a GitLab token", r"\bgl(?:pat|dt|rt|ptt|cbt)-[\w-]{20}"),
    ("an AWS key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a Google key", r"\bAIza[\w-]{35}|\bya29\.[\w-]{20}"),
    ("a Slack token", r"\bxox[abeoprs]-[0-9A-Za-z-]{10}|\bxapp-\d-[0-9A-Za-z-]{10}"),
    ("an Anthropic key", r"\bsk-ant-[\w-]{20}"),
    ("an OpenAI key", r"\bsk-(?:proj-|svcacct-)?[A-Za-z0-9_]{20}"),
    ("a Stripe key", r"\b[rs]k_live_[0-9A-Za-z]{16}"),
    ("an npm token", r"\bnpm_[A-Za-z0-9]{36}"),
    ("a PyPI token", r"\bpypi-AgE[\w-]{50}"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{30}"),
    ("a signed token (JWT)", r"\beyJ[\w-]{10,400}\.eyJ[\w-]{10,4000}\.[\w-]{10}"),
    ("a password in an address", r"\b[a-z][a-z+]{1,10}://[^/\s:@]{1,100}:[^/\s:@]{3,100}@"),
)
"""Shapes of well-known tokens; every repetition has a bound, so that no line costs more than a few looks at it."""
_SECRET = re.compile("|".join(f"({shape})" for _, shape in _SECRETS), re.ASCII)
_MOST_SEARCHED = 64 << 10


def secret_in(line: str) -> str:
    """What a line holds that looks secret, in words; "" for nothing. Of a long line its first 64 KiB are searched."""
    found = _SECRET.search(line, 0, _MOST_SEARCHED)
    return "" if found is None or found.lastindex is None else _SECRETS[found.lastindex - 1][0]


def first(changes: Iterable[tuple[str, str]], patterns: Patterns) -> dict[str, tuple[str, str]]:
    """Hand-off files among changed ones, by their paths.

    Args:
        changes: paths, and what a change of the mode means ("" for nothing).
        patterns: of hand-off files.

    Returns:
        How each is treated (``protect``, ``report``; "" for one that only became executable, a link or a repository),
        and what runs or obeys it.
    """
    found = {}
    for path, of_mode in changes:
        mode = patterns.mode(path)
        if mode is not None or of_mode:
            found[path] = (mode or "", reason(path) if mode is not None else of_mode)
    return found
