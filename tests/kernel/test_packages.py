"""What `make deb` builds: the same bytes twice, and a package that goes from installation to purge in a clean root."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.install import CALLER, ROOT, STABLE, locked, public_root

pytestmark = pytest.mark.timeout(600)  # a root is made once, of some hundred packages

ENTER = Path(__file__).parents[1] / "support/programs/enter_root.sh"
PROFILE = ROOT / "packaging/debian/apparmor"
USERNS = "profile paddock { userns, }"
"""What AppArmor before 4.0 cannot read."""

SERVED = """set -e
serve() { paddock serve 2>/dev/null & until paddock status >/dev/null 2>&1; do sleep 0.05; done; }
"""
FIRST_DAY = f"""{SERVED}
paddock doctor >/dev/null
git config --global user.name Alice; git config --global user.email alice@example.org; echo key >key
git init -q project; cd project
git commit -q --allow-empty -m 'project: First.'
paddock worktree add tabs; cd ../project-tabs
paddock run -- sh -c 'echo tabs >parser.py; git add .; git commit -qm "parser: Tabs."; cat /home/alice/key; true'
serve; paddock run --detach --session first -- true >/dev/null; kill $!; wait $! || :
"""
NEXT_DAY = f"""{SERVED}
cd project-tabs
git log --format=%s; paddock run -- cat parser.py
serve; paddock ps --all; kill $!; wait $! || :
"""
PRESENT = """set -e
paddock service status --system
ls /usr/share/man/man1/paddock.1.gz /usr/share/man/man5/paddock-config.5.gz /usr/share/man/man8/paddock.service.8.gz
ls /usr/share/zsh/vendor-completions/_paddock /usr/share/fish/vendor_completions.d/paddock.fish
. /usr/share/bash-completion/completions/paddock; complete -p paddock
ls /usr/lib/paddock/lib/python3*/site-packages/launcher/__pycache__/launch.*.bundle
! find /etc/systemd -name '*paddock*' | grep .
"""
LATER = ("pygments", "mcp", "acp", "jsonschema")
"""Libraries that the older package does without: nobody needs them that day, and to compile them takes seconds."""

OTHERS = ("home/alice/", "tmp/", "run/", "var/lib/dpkg/", "var/lib/apt/", "var/cache/", "var/log/", "etc/ld.so.cache")
"""What packages leave behind in any case: dpkg's and apt's own records; and what Alice has made."""


def call(*words: str | Path, **more: str) -> str:
    """The output of a command, which must succeed."""
    ended = subprocess.run(
        [*map(str, words)], cwd=ROOT, env=CALLER | more, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, f"{words} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def make(place: Path, **more: str) -> Path:
    """Builds everything below `place`, with the tools of this environment; the directory of what was built.

    The libraries' wheels, whose digests are written down, are fetched once and kept between runs.
    """
    pinned = hashlib.sha256((ROOT / "packaging/requirements.txt").read_bytes()).hexdigest()
    kept = public_root(STABLE) / f"wheels-{pinned[:12]}"
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(kept)} if kept.exists() else {}
    call("make", f"--old-file={sys.prefix}/.tools", f"VENV={sys.prefix}", f"BUILD={place}", "deb", **offline, **more)
    with locked(public_root(STABLE) / "wheels.lock"):
        if not kept.exists():
            making = kept.with_suffix(".making")
            shutil.copytree(place / "deb/paddock/wheels", making, dirs_exist_ok=True)
            making.rename(kept)
    return place / "dist"


def mirror() -> tuple[str, str]:
    """This machine's release, and where its packages come from."""
    name = next(line for line in Path("/etc/os-release").read_text().splitlines() if "VERSION_CODENAME=" in line)
    release = name.partition("=")[2]
    found = call(
        "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages", "Component: main"
    )
    return release, next(line.split()[1] for line in found.splitlines() if line.split()[0] == release)


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[Path]:
    """A directory with a root: this machine's release, what the package depends on, and Alice; kept between runs."""
    need("debian")
    release, address = mirror()
    names = "python3,git"
    kept = public_root(STABLE) / f"root-{release}-{names.replace(',', '+')}"  # a comma would end an option of the mount
    with locked(public_root(STABLE) / "root.lock"):
        if not kept.exists():
            making = kept.with_suffix(".making")
            shutil.rmtree(making, ignore_errors=True)
            # In a mount namespace: what it mounts meanwhile would be taken for what tests beside it leave behind.
            call(
                "unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={names}", release, making, address
            )
            call("chroot", making, "useradd", "--create-home", "--uid=1000", "alice")
            making.rename(kept)
    (tmp_path / "lower").symlink_to(kept)
    yield tmp_path
    shutil.rmtree(tmp_path / "work", ignore_errors=True)  # there is none where nothing was entered


def inside(clean: Path, *words: str | Path, alice: bool = False) -> str:
    """The output of a command in the root."""
    user = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
            "env", "--chdir=/home/alice", "HOME=/home/alice", "PATH=/usr/bin:/bin")  # fmt: skip
    enter = ("unshare", "--mount", "--pid", "--fork", "--kill-child", ENTER, (clean / "lower").resolve(), clean)
    return call(*enter, *(user if alice else ()), *words)


def left(clean: Path) -> set[str]:
    """Every file that differs from the root as it was."""
    changed = clean / "changed"
    files = {str(Path(place, name).relative_to(changed)) for place, _, names in os.walk(changed) for name in names}
    return {name for name in files if not name.startswith(OTHERS)}


def test_the_package_is_the_same_bytes_twice_and_installed_upgraded_and_removed(clean: Path) -> None:
    """One test, because a build takes as long as all the rest, and workers would each make their own."""
    built = make(clean / "built")
    _same_bytes(built, clean / "again")
    _from_installation_to_purge(built, clean)


def _same_bytes(built: Path, place: Path) -> None:
    """The second one in another place and time zone, for oneself alone, and without a network."""
    umask = os.umask(0o077)
    try:
        again = make(place, TZ="Asia/Tokyo", VALIDATION="--no-validate")
    finally:
        os.umask(umask)
    first, second = ({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.iterdir()}
                     for place in (built, again))  # fmt: skip
    assert first == second
    assert sorted(Path(name).suffix for name in first) == ["", ".deb", ".gz", ".json", ".whl"]
    call("env", f"--chdir={built}", "sha256sum", "--quiet", "--check", "SHA256SUMS")


def _from_installation_to_purge(built: Path, clean: Path) -> None:
    """A new user works with an older one, goes on with this one, and what is left at the end is hers."""
    (package,) = built.glob("*.deb")
    (clean / "changed/tmp").mkdir(parents=True)
    (clean / "changed/tmp").chmod(0o1777)
    tree = clean / "tree"
    call("dpkg-deb", "--raw-extract", package, tree)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("Version: ", "Version: 0.0~"))
    for name in LATER:
        shutil.rmtree(next(tree.glob(f"usr/lib/paddock/lib/python3*/site-packages/{name}")))
    call("dpkg-deb", "-Zgzip", "-z1", "--build", tree, clean / "changed/tmp/old.deb")
    shutil.copy(package, clean / "changed/tmp/new.deb")
    apt = ("apt-get", "--yes", "--no-install-recommends")

    inside(clean, *apt, "install", "/tmp/old.deb")
    inside(clean, "bash", "-c", PRESENT)
    said = inside(clean, "bash", "-c", f"({FIRST_DAY}) 2>&1", alice=True)
    assert "1 commit harvested to agent/tabs" in said
    assert "cat: /home/alice/key: No such file or directory" in said
    inside(clean, *apt, "install", "/tmp/new.deb")
    inside(clean, "bash", "-c", PRESENT)
    said = inside(clean, "bash", "-c", NEXT_DAY, alice=True)
    assert said.startswith("parser: Tabs.\nproject: First.\ntabs\n")
    assert "first  " in said

    inside(clean, *apt, "remove", "paddock")
    assert left(clean) <= {"etc/apparmor.d/paddock", "etc/apparmor.d/local/paddock"}
    inside(clean, "dpkg", "--purge", "paddock")
    assert left(clean) == set()
    assert (clean / "changed/home/alice/.local/state/paddock").is_dir()


def _fetch(place: Path, tmp_path: Path) -> None:
    """Has Debian's stable parser and its library in a place, by way of another one."""
    (tmp_path / "sources").write_text(f"deb {mirror()[1]} stable main\n")
    for name in ("lists/partial", "archives/partial"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "apt.conf").write_text(
        f'Dir {{ State::Lists "{tmp_path}/lists"; State::Status "/dev/null"; Cache "{tmp_path}"; '
        f'Etc {{ SourceList "{tmp_path}/sources"; SourceParts "-"; }} }}; '
        'APT::Sandbox::User "root"; Acquire::Languages "none";'
    )
    call("apt-get", "--quiet", "update", APT_CONFIG=f"{tmp_path}/apt.conf")
    fetch = ("env", f"--chdir={tmp_path}", "apt-get", "--quiet", "download", "apparmor", "libc6")
    call(*fetch, APT_CONFIG=f"{tmp_path}/apt.conf")
    for package in tmp_path.glob("*.deb"):
        call("dpkg-deb", "--extract", package, place)


@pytest.fixture
def parsed(tmp_path: Path) -> Callable[[str], str]:
    """What a parser that knows user namespaces says of a profile: the machine's own, else Debian's stable one, which is
    kept between runs.
    """
    need("debian")
    words: list[str | Path] = ["apparmor_parser"]

    def say(profile: str) -> str:
        check = [*map(str, words), "--skip-kernel-load", "--skip-cache", "--skip-read-cache"]
        ended = subprocess.run(check, input=profile, capture_output=True, text=True, check=False)
        return ended.stderr if ended.returncode else ""

    if say(USERNS):
        kept = public_root(STABLE) / "apparmor-stable"
        with locked(public_root(STABLE) / "apparmor.lock"):
            if not kept.exists():
                making = kept.with_suffix(".making")
                shutil.rmtree(making, ignore_errors=True)
                _fetch(making, tmp_path)
                making.rename(kept)
        (loader,) = kept.glob("usr/lib/*/ld-linux-*")
        parser = next(kept.glob("**/sbin/apparmor_parser"))
        words = [loader, "--library-path", loader.parent, parser, f"--base={kept}/etc/apparmor.d"]
    return say


def test_the_profile_is_accepted_by_apparmors_own_parser(parsed: Callable[[str], str]) -> None:
    """And one with a mistake is not."""
    profile = PROFILE.read_text()
    assert parsed(profile) == ""
    assert "syntax error" in parsed(profile.replace("userns,", "usernss,"))
