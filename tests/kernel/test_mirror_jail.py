"""A company's mirror: with its bundle, pip and npm use it in a jail as outside; without, it is not reached."""

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from policy import promises
from tests.support.features import need, need_backend
from tests.support.identity import Who
from tests.support.paddock import Paddock
from tests.support.programs.scene import SWITCHES
from tests.support.proxied import ONE_ATTEMPT, World

Ended = subprocess.CompletedProcess[str]

PIP = "python3 -m pip install -q --disable-pip-version-check --no-deps --target lib demo && echo reached $(ls lib)"
NPM = "npm install --silent --no-audit --no-fund demo && echo reached $(ls node_modules)"
USUAL = {"python": PIP, "node": NPM}


@pytest.fixture
def who(user: Who) -> Who:
    """An ordinary user: whose settings are read does not depend on rights, and the jail is the same."""
    return user


@pytest.fixture(scope="module")
def served(world: World) -> World:
    """A world whose private hosts serve a wheel and a package."""
    simple = world.directory / "www/simple/demo"
    simple.mkdir(parents=True)
    with zipfile.ZipFile(simple / "demo-1.0-py3-none-any.whl", "w") as file:
        file.writestr("demo_package.py", "")
        file.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        file.writestr(
            "demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("demo-1.0.dist-info/RECORD", "")
    (simple / "index.html").write_text('<a href="demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a>')
    directory = world.directory / "www/npm"
    directory.mkdir()
    manifest = json.dumps({"name": "demo", "version": "1.0.0"}).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(manifest)
        tar.addfile(entry, io.BytesIO(manifest))
    (directory / "demo-1.0.0.tgz").write_bytes(packed.getvalue())
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    dist = {"tarball": "http://private.example/npm/demo-1.0.0.tgz", "integrity": integrity}
    version = json.loads(manifest) | {"dist": dist}
    document = {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (directory / "demo").write_text(json.dumps(document))
    return world


@pytest.fixture(params=promises.BACKENDS)
def jailed(request: pytest.FixtureRequest, served: World, paddock: Paddock) -> Callable[..., Ended]:
    """Runs a line of sh(1) in a jail of each backend."""
    need("landlock")
    need_backend(request.param)
    env, choice = SWITCHES[request.param]

    def run(line: str, *options: str, **variables: str) -> Ended:
        words = paddock.words("run", *choice, "--git=readonly", *ONE_ATTEMPT, *options, "--", "sh", "-euc", line)
        plain = {"PATH": "/usr/local/bin:/usr/bin:/bin", **env, **variables}
        return served.run(paddock.who, words, cwd=paddock.worktree, env=plain)

    return run


def settings(paddock: Paddock, host: str) -> None:
    """The user's own pip.conf and .npmrc name a host, with credentials."""
    pip = paddock.who.home / ".config/pip/pip.conf"
    pip.parent.mkdir(parents=True, exist_ok=True)
    name = host.partition(":")[0]
    pip.write_text(f"[global]\nindex-url = http://me:swordfish@{host}/simple\ntrusted-host = {name}\n")
    npm = paddock.who.home / ".npmrc"
    npm.write_text(f"registry=http://{host}/npm/\n//{host}/npm/:_authToken=swordfish\n")
    for path in (pip.parent.parent, pip.parent, pip, npm):
        paddock.who.give(path)


@pytest.mark.parametrize("jailed", [promises.NAMESPACES], indirect=True)
def test_a_project_and_scripts_see_npm_as_outside(paddock: Paddock, jailed: Callable[..., Ended]) -> None:
    """A scope's registry is known below a shell, too; the worktree's own file beats the user's; what was told goes."""
    settings(paddock, "private.example")
    with (paddock.who.home / ".npmrc").open("a") as file:
        file.write("@corp:registry=http://10.1.2.3:4873/\n")
    line = "npm config get @corp:registry; npm config get registry; ls -A ~"
    scope, registry, *names = jailed(line, "--allow-domain=@node").stdout.splitlines()
    assert (scope, registry) == ("http://10.1.2.3:4873/", "http://private.example/npm/")
    assert ".npmrc" in names
    (paddock.worktree / ".npmrc").write_text("registry=http://project.example/\n")
    paddock.who.give(paddock.worktree / ".npmrc")
    assert jailed(line, "--allow-domain=@node").stdout.splitlines()[:2] == [scope, "http://project.example/"]
    scope, _, *names = jailed(line).stdout.splitlines()
    assert scope == "undefined"
    assert ".npmrc" not in names


@pytest.mark.parametrize("jailed", [promises.NAMESPACES, promises.GUARD], indirect=True)  # homes are shown in two ways
def test_what_a_command_has_in_its_home_is_its_own(paddock: Paddock, jailed: Callable[..., Ended]) -> None:
    """Its own file stays, and a link that it leaves there leads no writing of ours anywhere."""
    settings(paddock, "private.example")
    target = paddock.place / "target"
    target.write_text("precious")
    paddock.who.give(target)
    jailed("echo own=1 >~/.npmrc")
    ended = jailed("cat ~/.npmrc", "--allow-domain=@node")
    assert ended.stdout == "own=1\n"
    assert "~/.npmrc of the private home is the command's own" in ended.stderr
    jailed(f"ln -sf {target} ~/.npmrc; ln -s {paddock.place} ~/.cargo")
    (paddock.who.home / ".cargo").mkdir()
    (paddock.who.home / ".cargo/config.toml").write_text('[registries.a]\nindex = "https://crates.example/"\n')
    paddock.who.give(paddock.who.home / ".cargo")
    paddock.who.give(paddock.who.home / ".cargo/config.toml")
    ended = jailed("cat ~/.cargo/config.toml", "--allow-domain=@node", "--allow-domain=@rust")
    assert 'registries.a.index = "https://crates.example/"' in ended.stdout, ended
    jailed("true")
    assert target.read_text() == "precious"
    assert not (paddock.place / "config.toml").exists()


def test_the_user_can_ask_what_is_a_mirror(paddock: Paddock) -> None:
    """`why` names the bundle, and `explain` shows hosts, variables and files with their sources, no credential."""
    settings(paddock, "private.example:8081")
    note = json.loads(paddock.call("why", "private.example:8081", "--json").stdout)["allow"]["note"]
    assert note.startswith("@python allows private.example:8081")
    asked = json.loads(paddock.call("why", "private.example:8081", "--json", "--allow-domain", "@node").stdout)
    assert (asked["allowed"], asked["source"]) == (True, "@node: registry in ~/.npmrc")
    shown = paddock.call(
        "explain", "--plan", "--allow-domain", "@python", "--allow-domain", "@node"
    ).stdout.splitlines()
    for line in (
        "allowed   private.example:8081  [@python: index-url in ~/.config/pip/pip.conf]",
        "private   private.example:8081  [its address may be private]",
        "env       PIP_INDEX_URL=http://private.example:8081/simple",
        "file      ~/.npmrc  [registry=http://private.example:8081/npm/]",
    ):
        assert line in shown
    assert not any("swordfish" in line for line in shown)


@pytest.mark.parametrize(
    ("jailed", "bundle"),
    [(promises.GUARD, "python"), (promises.NAMESPACES, "node")],
    indirect=["jailed"],
)  # who judges is reached in two ways
def test_a_newcomer_with_a_mirror_only_allows_the_bundle(
    served: World, paddock: Paddock, jailed: Callable[..., Ended], bundle: str
) -> None:
    """The mirror has a private address, and is reached; without the bundle nothing is, and no credential enters."""
    settings(paddock, "private.example")
    before = len(served.seen())
    denied = jailed(USUAL[bundle], "--allow-domain=good.example")
    assert denied.returncode != 0
    assert "reached" not in denied.stdout
    assert not [entry for entry in served.seen(before) if entry["kind"] == "request"]
    ended = jailed(f"{USUAL[bundle]}; env; ! grep -rs swordfish ~ /proc/self/environ", f"--allow-domain=@{bundle}")
    assert ended.returncode == 0, ended
    assert "reached" in ended.stdout, ended
    assert "swordfish" not in ended.stdout + ended.stderr
    assert "private.example:80 needs a credential, which does not enter the jail" in ended.stderr
    assert {e["address"] for e in served.seen(before) if e["kind"] == "request"} == {"10.9.9.9"}


def written(paddock: Paddock, **files: str) -> None:
    """The user's own pip.conf, and a file of constraints."""
    for name, text in files.items():
        place = paddock.who.home / {"conf": ".config/pip/pip.conf", "pins": "pins.txt"}[name]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        for path in (place.parent.parent, place.parent, place):
            paddock.who.give(path)


@pytest.mark.parametrize("jailed", [promises.NAMESPACES], indirect=True)
def test_pip_asks_nobody_else_and_keeps_to_its_constraints(
    served: World, paddock: Paddock, jailed: Callable[..., Ended]
) -> None:
    """`no-index`, `find-links` and `constraint` of the user's file count as outside."""
    conf = "[global]\nno-index = true\nfind-links = http://private.example/simple/demo/\nconstraint = ~/pins.txt\n"
    conf += "trusted-host = private.example\n"
    written(paddock, conf=conf, pins="demo==1.0\n")
    before = len(served.seen())
    ended = jailed(f"{PIP}; ! {PIP.replace('demo &&', 'other &&')}", "--allow-domain=@python")
    assert ended.returncode == 0, ended
    assert "reached" in ended.stdout, ended
    assert {e["address"] for e in served.seen(before) if e["kind"] == "request"} == {"10.9.9.9"}
    assert "pypi" not in ended.stderr
    written(paddock, pins="demo==2.0\n")
    ended = jailed(PIP, "--allow-domain=@python")
    assert ended.returncode != 0, ended
    assert "conflicting dependencies" in ended.stderr


@pytest.mark.parametrize("jailed", [promises.NAMESPACES], indirect=True)
def test_what_protects_a_tool_holds_and_a_broken_file_leaves_it_nothing(
    served: World, paddock: Paddock, jailed: Callable[..., Ended]
) -> None:
    """pip wants hashes and npm runs no scripts, as outside; of a file that cannot be read nobody knows what it said."""
    settings(paddock, "private.example")
    for name in (".config/pip/pip.conf", ".npmrc"):
        with (paddock.who.home / name).open("a") as file:
            file.write("require-hashes = true\n" if name.endswith("conf") else "ignore-scripts=true\n")
    bundles = ("--allow-domain=@python", "--allow-domain=@node")
    ended = jailed(f"npm config get ignore-scripts; ! {{ {PIP}; }}", *bundles)
    assert (ended.returncode, ended.stdout) == (0, "true\n"), ended
    assert "versions pinned with ==" in ended.stderr
    written(paddock, conf="[global\n")
    (paddock.who.home / ".npmrc").write_text("=\n")
    before = len(served.seen())
    ended = jailed(f"export PIP_RETRIES=0; npm config get registry; ! {{ {PIP}; }}", *bundles)
    assert (ended.returncode, ended.stdout) == (0, "https://passed-over.invalid/\n"), ended
    assert "~/.config/pip/pip.conf is passed over: it is not a file of pip; the public registry" in ended.stderr
    assert not [entry for entry in served.seen(before) if entry["kind"] in ("dns", "tcp", "request")]
    asked = json.loads(paddock.call("why", "passed-over.invalid", "--json").stdout)["allow"]
    assert asked["flag"] == ""
    assert "~/.npmrc is passed over" in asked["note"]


@pytest.mark.parametrize("jailed", [promises.NAMESPACES], indirect=True)
def test_an_index_that_is_a_directory_is_not_replaced_by_the_public_one(
    served: World, paddock: Paddock, jailed: Callable[..., Ended]
) -> None:
    """It is read where it is granted, and nothing is asked in its place where it is not, nor for what is refused."""
    simple = served.directory / "www/simple"
    written(paddock, conf=f"[global]\nindex-url = file://{simple}\n")
    ended = jailed(PIP, "--allow-domain=@python")
    assert ended.returncode != 0, ended
    assert f"--ro {simple}" in ended.stderr
    assert "pypi" not in ended.stdout + ended.stderr
    link = paddock.place / "simple/demo"
    link.mkdir(parents=True)
    (link / "demo-1.0-py3-none-any.whl").write_bytes((simple / "demo/demo-1.0-py3-none-any.whl").read_bytes())
    (link / "index.html").write_text((simple / "demo/index.html").read_text())
    for path in (link.parent, link, *link.iterdir()):
        paddock.who.give(path)
    written(paddock, conf=f"[global]\nindex-url = file://{link.parent}\n")
    ended = jailed(PIP, "--allow-domain=@python", f"--ro={link.parent}")
    assert ended.returncode == 0, ended
    assert "passed" not in ended.stderr
    line = "curl -fsS -m 20 $PIP_INDEX_URL"
    ended = jailed(line, "--allow-domain=@python", PIP_INDEX_URL="http://169.254.169.254/simple")
    assert ended.returncode != 0, ended
    assert "169.254.169.254 is " in ended.stderr


@pytest.mark.parametrize("jailed", [promises.NAMESPACES, promises.GUARD], indirect=True)  # reached in two ways
def test_a_mirror_on_this_machine_is_reached_at_its_port(
    served: World, paddock: Paddock, jailed: Callable[..., Ended]
) -> None:
    """As with --reach; another port of the loopback is not."""
    settings(paddock, "127.0.0.1:8000")
    before = len(served.seen())
    ended = jailed(f"{PIP}; ! curl -sS --noproxy '*' http://127.0.0.1:80/", "--allow-domain=@python")
    assert ended.returncode == 0, ended
    assert "reached" in ended.stdout, ended
    seen = [entry for entry in served.seen(before) if entry["kind"] == "request"]
    assert {(entry["side"], entry["port"]) for entry in seen} == {("machine", 8000)}


REBOUND = ("metadata", "metadata-shared", "private6", "loop", "loop6", "mapped", "nat", "zero", "own", "own6")


@pytest.mark.parametrize("jailed", [promises.GUARD], indirect=True)
def test_a_mirrors_name_leads_to_no_other_special_address(
    served: World, paddock: Paddock, jailed: Callable[..., Ended]
) -> None:
    """Who answers for the name leads no jail to this machine or a metadata service; the twins are reached."""
    before = len(served.seen())
    twins = ("private", "private-c", "ula")
    urls = " ".join(f"http://{name}.example:8000/" for name in (*REBOUND, *twins))
    line = 'for url in $PIP_EXTRA_INDEX_URL; do curl -sS -m 20 "$url"; done >/dev/null 2>&1; echo done'
    ended = jailed(line, "--allow-domain=@python", PIP_EXTRA_INDEX_URL=urls)
    assert ended.stdout == "done\n", ended
    seen = [entry for entry in served.seen(before) if entry["kind"] in ("tcp", "request")]
    assert {entry["address"] for entry in seen} == {"10.9.9.9", "192.168.77.1", "fd00:77::2"}


@pytest.mark.parametrize("jailed", [promises.NAMESPACES], indirect=True)
def test_a_changed_setting_is_not_answered_from_the_cache(paddock: Paddock, jailed: Callable[..., Ended]) -> None:
    """File or variable: the next launch has the new one, and no cached plan holds a credential."""
    line = "echo $PIP_INDEX_URL"
    settings(paddock, "one.example")
    assert jailed(line, "--allow-domain=@python").stdout == "http://one.example/simple\n"
    assert jailed(line, "--allow-domain=@python").stdout == "http://one.example/simple\n"
    settings(paddock, "two.example")
    assert jailed(line, "--allow-domain=@python").stdout == "http://two.example/simple\n"
    for host in ("three", "four"):
        url = f"https://me:swordfish@{host}.example/simple"
        assert jailed(line, "--allow-domain=@python", PIP_INDEX_URL=url).stdout == f"https://{host}.example/simple\n"
    plans = [path.read_bytes() for path in Path(paddock.cache, "plans").iterdir()]
    assert any(b"four.example" in plan for plan in plans)
    assert not any(b"swordfish" in plan for plan in plans)
