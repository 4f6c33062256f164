"""What a user gets: the content of the wheel and of the environment it is installed in."""

import email
import email.message
import os
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support import man_pages
from tests.support.features import need
from tests.support.install import ROOT, Installed, source_files

METADATA = re.compile(r"paddock_launcher-[^/]+\.dist-info/METADATA")


@pytest.fixture(scope="module")
def names(installed: Installed) -> list[str]:
    """Names of all members of the wheel."""
    with zipfile.ZipFile(installed.wheel) as wheel:
        return wheel.namelist()


@pytest.fixture(scope="module")
def metadata(installed: Installed, names: list[str]) -> email.message.Message:
    """The wheel's METADATA."""
    (name,) = filter(METADATA.fullmatch, names)
    with zipfile.ZipFile(installed.wheel) as wheel:
        return email.message_from_bytes(wheel.read(name))


def test_the_top_level_is_the_two_packages_and_nothing_else(names: list[str]) -> None:
    """Names like `tests` in site-packages would collide with other distributions."""
    tops = {name.partition("/")[0] for name in names}
    version = project()["version"]
    stem = f"paddock_launcher-{version}"
    assert tops == {"launcher", "policy", f"{stem}.dist-info", f"{stem}.data"}


def test_every_source_and_data_file_is_in_the_wheel(names: list[str]) -> None:
    """TOML data and type markers are shipped with the code, and nothing that the sources do not hold."""
    wanted = {str(path) for path in source_files() if path.parts[0] in ("launcher", "policy")} - {
        "launcher/paddock",
        *(str(page.relative_to(ROOT)) for page in man_pages.PAGES),
    }
    wanted |= {f"launcher/{path}" for path in source_files() if path.parts[0] in ("systemd", "docs")}
    assert "launcher/systemd/system/paddock@.service" in wanted
    assert {name for name in names if name.startswith(("launcher/", "policy/"))} == wanted
    assert {"launcher/py.typed", "policy/py.typed"} <= wanted


def test_providers_ship_their_data(names: list[str]) -> None:
    """The built-in providers are TOML files beside the code that reads them."""
    built_in = {str(path.relative_to(ROOT)) for path in (ROOT / "policy/providers/builtin").glob("*.toml")}
    assert built_in
    assert built_in <= set(names)


def test_the_command_is_a_script_and_no_entry_point(installed: Installed, names: list[str]) -> None:
    """pip's wrapper would start Python with `site` and the caller's PYTHON* variables."""
    data = f"paddock_launcher-{project()['version']}.data"
    assert sorted(name for name in names if ".data/" in name) == [
        *(f"{data}/data/share/man/man{page.suffix[1:]}/{page.name}" for page in man_pages.PAGES),
        f"{data}/scripts/paddock",
    ]
    assert not [name for name in names if name.endswith("entry_points.txt")]
    assert installed.paddock.read_bytes() == (ROOT / "launcher/paddock").read_bytes()
    assert os.access(installed.paddock, os.X_OK)


def test_metadata_says_what_it_is(metadata: email.message.Message) -> None:
    """Name, licence, supported Pythons and extras are as documented."""
    assert metadata["Name"] == "paddock-launcher"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert "test" in (metadata.get_all("Provides-Extra") or [])
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_licence_text_is_whole(names: list[str], installed: Installed) -> None:
    """The Apache licence is shipped with its terms and its appendix."""
    (name,) = [name for name in names if name.endswith("/licenses/LICENSE")]
    with zipfile.ZipFile(installed.wheel) as wheel:
        text = wheel.read(name).decode()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_runtime_dependencies_are_all_installed(installed: Installed) -> None:
    """Every module of both packages can be imported with the declared dependencies alone, but for the adapters."""
    program = (
        "import importlib, pkgutil, launcher, policy\n"
        "for package in (launcher, policy):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not module.name.startswith('launcher.adapters.'):\n"
        "            importlib.import_module(module.name)\n"
        "            print(module.name)\n"
    )
    ended = subprocess.run(
        [installed.python, "-I", "-c", program], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "launcher.cli" in ended.stdout.split()
    assert "policy.plan" in ended.stdout.split()


def test_nothing_but_the_command_is_installed_beside_the_interpreter(installed: Installed) -> None:
    """The wheel brings one programme."""
    interpreters = re.compile(r"python[\d.]*t?|[Aa]ctivate(\..*)?|𝜋thon")
    assert [path.name for path in (installed.prefix / "bin").iterdir() if not interpreters.fullmatch(path.name)] == [
        "paddock"
    ]


def test_man_finds_the_pages_by_the_command(installed: Installed, tmp_path: Path) -> None:
    """man(1) looks beside the directories of PATH: a virtual environment's, and a home with README's links."""
    need("man")
    local = tmp_path / ".local"
    (local / "bin").mkdir(parents=True)
    (local / "bin/paddock").symlink_to(installed.paddock)
    (link,) = re.findall(r"(?m)^\$ (cp .*/share/man .*?)(?:  #.*)?$", Path(ROOT, "README.md").read_text())
    words = link.replace("~/.local/share/paddock", str(installed.prefix)).replace("~", str(tmp_path)).split()
    (local / "share").mkdir()
    subprocess.run(words, check=True)
    for place in (installed.prefix, local):
        env = {"PATH": f"{place}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
        for source in man_pages.PAGES:
            page = installed.prefix / f"share/man/man{source.suffix[1:]}" / source.name
            found = subprocess.run(["man", "-w", source.stem], env=env, capture_output=True, text=True, check=False)
            assert Path(found.stdout.rstrip("\n")).samefile(page), found.stderr


def project() -> dict[str, str]:
    """The [project] table of pyproject.toml."""
    table: dict[str, str] = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]
    return table
