"""Programmes that start another one which their arguments name: `env`, `npx`, `node`, `uvx` and their like.

What a command line really starts decides which provider it is, so a Plan for one of them depends on that word too.
On the launch path for them only (`launcher.session.cache.RUNNERS`): no imports.
"""

_JAVASCRIPT = (".js", ".mjs", ".cjs")
_SCRIPTS = (*_JAVASCRIPT, ".ts", ".mts", ".cts", ".tsx", ".jsx")
_ENV = ("-u", "--unset", "-C", "--chdir", "-a", "--argv0")
_NODE = ("-r", "--require", "--import", "--loader", "--experimental-loader", "-C", "--conditions", "--title",
         "--env-file", "--env-file-if-exists", "--inspect-port")  # fmt: skip
_NPM = ("-p", "--package", "--prefix", "--registry", "--cache", "-w", "--workspace", "--userconfig", "--loglevel")
_UV = ("--from", "--with", "-p", "--python", "--index-url", "--directory", "--project", "--with-requirements", "-w")

TABLE = {
    # name: (options that take a value in the next word, words of its own in front, options that end the search)
    "env": (_ENV, (), ("-S", "--split-string")),
    "nice": (("-n", "--adjustment"), (), ()),
    "nohup": ((), (), ()),
    "setsid": ((), (), ()),
    "stdbuf": (("-i", "-o", "-e"), (), ()),
    "timeout": (("-s", "--signal", "-k", "--kill-after"), ("*",), ()),
    "node": (_NODE, (), ("-e", "--eval", "-p", "--print", "-i", "--interactive")),
    "npx": (_NPM, (), ("-c", "--call")),
    "pnpx": (_NPM, (), ("-c", "--shell-mode")),
    "bunx": (("-p", "--package"), (), ()),
    "npm": (_NPM, ("exec", "x"), ("-c", "--call")),
    "pnpm": (_NPM, ("dlx", "exec"), ("-c", "--shell-mode")),
    "yarn": (("-p", "--package"), ("dlx", "exec"), ()),
    "bun": ((), ("x", "run", ""), ("-e", "--eval", "-p", "--print")),
    "deno": (("-c", "--config", "--import-map"), ("run", "x"), ()),
    "uvx": (_UV, (), ()),
    "uv": (_UV, ("tool run", "run"), ("-m", "--module")),
    "pipx": (("--spec", "--python", "--index-url", "--pip-args"), ("run",), ()),
}
"""Documented in env(1), nice(1), timeout(1), node(1), npm-exec(1) and the manuals of bun, deno, uv and pipx."""

FETCHING = frozenset(("npx", "pnpx", "bunx", "npm", "pnpm", "yarn", "bun", "uvx", "uv", "pipx"))
"""Those that look for a package at its registry when they are started."""

_NAMED = {
    **dict.fromkeys(("npx", "npm", "bunx", "yarn"), ("-p", "--package")),
    **dict.fromkeys(("pnpx", "pnpm", "bun"), ("--package",)),
    **dict.fromkeys(("uvx", "uv"), ("--from",)),
    "pipx": ("--spec",),
}
"""Their options that name the package, where the command has another name."""

_INTERPRETERS = frozenset(("node", "bun", "deno"))
_MOST = 8  # runners behind one another


def started(argv: "list[str] | tuple[str, ...]") -> int:
    """The index in `argv` of the word that names what is started; 0 without a runner, or in doubt.

    A script of an interpreter counts when it lies among installed packages or is named by an absolute path. Any other
    is a programme of the project, and no plan depends on it.
    """
    return _road(argv)[-1]


def fetched(argv: "list[str] | tuple[str, ...]") -> list[str]:
    """The packages in which a runner of `FETCHING` looks for what `started` finds, as they are written.

    Those that an option of the runner names, else the word itself; none without such a runner.
    """
    *road, at = _road(argv)
    if not road or at == 0 or (name := argv[road[-1]].rpartition("/")[2]) not in FETCHING:
        return []
    options = _NAMED[name]
    found = []
    for place in range(road[-1] + 1, at):
        option, equals, value = argv[place].partition("=")
        if option in options:
            found.append(value if equals else argv[place + 1])
    return found or [argv[at]]


def is_published(word: str) -> bool:
    """Whether a package is named by its name: what an address, a repository or an alias leads to may be anybody's.

    Source: package specifiers of npm (npm-package-arg) and of PyPI (PEP 508), whose ``owner/name`` and ``name @ URL``
    are such. A path is the caller's own.
    """
    word = word.removeprefix("npm:")
    if ":" in word:
        return False
    return "/" not in word or word.startswith(("/", "./", "../")) or (word.startswith("@") and word.count("/") == 1)


def _road(argv: "list[str] | tuple[str, ...]") -> list[int]:
    """Where the runners stand, from the first on, and behind them the place that `started` gives."""
    at = 0
    road: list[int] = []
    for _ in range(_MOST):
        if at >= len(argv):
            return [0]
        runner = TABLE.get(argv[at].rpartition("/")[2])
        if runner is None:
            return [*road, at]
        road.append(at)
        interpreter = argv[at].rpartition("/")[2]
        found = _behind(argv, at + 1, runner)
        if found == 0:
            return [0]
        word = argv[found]
        if interpreter == "node" or (interpreter in _INTERPRETERS and ("/" in word or word.endswith(_SCRIPTS))):
            package = interpreter != "node" and word.startswith(("@", "npm:"))
            return [*road, found if package or word.startswith("/") or "node_modules/" in word else 0]
        at = found
    return [0]


def _behind(
    argv: "list[str] | tuple[str, ...]", at: int, runner: "tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]"
) -> int:
    """The place of the first word after `at` that is neither an option, an option's value nor the runner's own."""
    valued, own, ending = runner
    pending = [words.split() for words in own if words]
    needed = bool(own) and "" not in own
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return at + 1 if at + 1 < len(argv) and not needed else 0
        if word.startswith("-") and word != "-":
            if word.partition("=")[0] in ending:
                return 0
            at += 2 if word in valued else 1
            continue
        if pending and (pending == [["*"]] or any(words[0] == word for words in pending)):
            rest = [words[1:] for words in pending if words[0] in (word, "*")]
            pending = [words for words in rest if words]
            needed = bool(pending) and [] not in rest
            at += 1
            continue
        if needed:
            return 0
        name, equals, _ = word.partition("=")
        if not equals or "/" in name or valued is not _ENV:
            return at
        at += 1  # NAME=VALUE of env(1)
    return 0


def name_of(word: str) -> str:
    """What a word calls a programme or a package.

    A package with a scope keeps it, for anybody may publish one of the same name in another: `@scope/name@1.2` and
    `/x/node_modules/@scope/name/dist/index.js` are ``@scope/name``. The rest is `base_name`.
    """
    word = word.removeprefix("npm:")
    _, marker, package = word.rpartition("node_modules/")
    if marker and not package.startswith(".bin/"):
        parts = package.split("/")
        return "/".join(parts[: 2 if parts[0].startswith("@") else 1])
    scope, slash, name = word.partition("/")
    if scope.startswith("@") and slash and "/" not in name:
        return f"{scope}/{name.partition('@')[0]}"
    return base_name(word)


def base_name(word: str) -> str:
    """A programme's name without directory, npm scope, version (`@` or `==`), extras and JavaScript suffix."""
    name = word.rpartition("/")[2]
    name = name[:1] + name[1:].partition("@")[0]
    for mark in ("==", "[", ">", "<", "~=", "!="):  # of PEP 508
        name = name.partition(mark)[0] or name
    for suffix in _JAVASCRIPT:
        name = name.removesuffix(suffix)
    return name
