"""Everyday work with Python runs in a jail as it does without one."""

import subprocess
from pathlib import Path

import pytest

from policy import promises
from tests.kernel.conftest import ROOT_ONCE
from tests.support.install import base_python
from tests.support.programs.scene import PROGRAMS, Scene

WORK = PROGRAMS / "pieces.py"
"""Each piece of work is a function without arguments; what raises is reported by name."""

EVERYWHERE = (
    *("pool_with_fork", "pool_with_spawn", "pool_with_forkserver", "semaphores_and_locks", "shared_values", "manager"),
    *("shared_memory", "executors", "asyncio_subprocess", "asyncio_signals_and_threads", "subprocesses", "databases"),
    *("temporary_files", "socket_pairs", "sockets_in_the_temporary_directory", "threads_and_timers", "mappings"),
    *("terminals", "forked_terminal", "polling", "own_affinity", "environments", "own_home", "inotify"),
    *("logging_and_archives", "renames_between_directories"),
)
WITH_NAMESPACES = ("a_web_server_of_its_own", "datagrams")
"""What the guard refuses: TCP servers without a network, and datagram sockets, each of which carries an address."""


@ROOT_ONCE
def test_python_programmes(scene: Scene) -> None:
    """Processes, threads, shared memory, sockets, terminals and files of the standard library work."""
    program = scene.area / "work.py"
    program.write_text(WORK.read_text())
    scene.own(program)
    names = [*EVERYWHERE, *(WITH_NAMESPACES if promises.has_mounts(scene.backend) else ())]
    ended = scene.run([base_python(), "work.py", *names], timeout=240)
    assert "FAILED" not in ended.stdout, ended.stdout
    assert f"all done {len(names)}" in ended.stdout, ended.stderr


def wheel(directory: Path) -> Path:
    """A package with a command, as a wheel made by hand (a zip with metadata)."""
    import zipfile

    path = directory / "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("greeting/__init__.py", 'def main():\n    print("hello from a wheel")\n')
        archive.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(
            "greeting-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("greeting-1.0.dist-info/entry_points.txt", "[console_scripts]\ngreet = greeting:main\n")
        archive.writestr("greeting-1.0.dist-info/RECORD", "")
    return path


@pytest.mark.parametrize("scene_of_user", [promises.GUARD], indirect=True)  # which has most to say about files
def test_pip_installs_a_wheel_into_an_environment_of_the_worktree(scene_of_user: Scene) -> None:
    """venv, pip install of a local wheel into it without the network, and the command it brings.

    That venv brings a pip of its own would be the same once more, with a larger wheel.
    """
    scene = scene_of_user
    path = wheel(scene.area)
    scene.own(path)
    program = """
    set -e
    "$1" -m venv --without-pip environment
    . environment/bin/activate
    "$1" -m pip --python environment install --disable-pip-version-check --no-index --quiet "$2"
    greet
    "$1" -m pip --python environment uninstall --yes --quiet greeting
    test -e environment/bin/greet || echo gone
    """
    ended = scene.run(["sh", "-c", program, "-", base_python(), path], timeout=240)
    assert (ended.returncode, ended.stdout) == (0, "hello from a wheel\ngone\n"), ended.stderr


SUITE = """
import asyncio, multiprocessing, os, subprocess, pytest
def double(n):
    return 2 * n
def test_processes():
    with multiprocessing.Pool(2) as pool:
        assert pool.map(double, [1, 2]) == [2, 4]
def test_asyncio():
    assert asyncio.run(asyncio.sleep(0, 3)) == 3
def test_files(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert os.listdir() == ["a"]
def test_output(capfd):
    subprocess.run(["echo", "x"], check=True)
    assert capfd.readouterr().out == "x\\n"
@pytest.mark.parametrize("number", range(20))
def test_many(number):
    assert number >= 0
"""


@pytest.mark.parametrize("scene_of_user", [promises.BUBBLEWRAP], indirect=True)
def test_pytest_runs_a_suite(scene_of_user: Scene, public_dir: Path) -> None:
    """pytest with its cache, temporary directories, captured output and multiprocessing."""
    scene = scene_of_user
    import importlib.metadata
    import shutil

    vendored = public_dir / "vendored"
    vendored.mkdir()
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in importlib.metadata.files(name) or ():
            source = Path(str(file.locate()))
            target = vendored / str(file)
            if ".." not in file.parts and (source.suffix in (".py", ".txt") or ".dist-info" in str(file)):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
    (scene.area / "test_suite.py").write_text(SUITE)
    scene.own(scene.area / "test_suite.py")
    scene.own(vendored)
    ended = scene.run(
        [base_python(), "-m", "pytest", "-q", "test_suite.py"],
        *("--ro", vendored, "--env", f"PYTHONPATH={vendored}"),
        timeout=240,
    )
    assert "24 passed" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.parametrize("scene_of_user", promises.BACKENDS[:1], indirect=True)
def test_the_pieces_of_python_work_do_run_without_a_jail(scene_of_user: Scene) -> None:
    """The same programme succeeds outside: what fails inside fails because of the jail."""
    scene = scene_of_user
    place = scene.place / "work"
    place.mkdir()
    (place / "work.py").write_text(WORK.read_text())
    scene.own(place)
    names = (*EVERYWHERE, *WITH_NAMESPACES)
    environment = scene.who.environment({"TMPDIR": str(place), "PYTHONDONTWRITEBYTECODE": "1"})
    ended = subprocess.run(
        scene.who.command([base_python(), "work.py", *names]),
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "FAILED" not in ended.stdout, ended.stdout
    assert f"all done {len(names)}" in ended.stdout, ended.stderr
