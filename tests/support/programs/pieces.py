"""Pieces of everyday work in Python, each in a process and a directory of its own. Names come as arguments."""

import asyncio
import concurrent.futures
import ctypes
import http.server
import logging
import mmap
import multiprocessing
import multiprocessing.shared_memory
import os
import pathlib
import pty
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
import venv
import zipfile
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from typing import Any


def square(number: int) -> int:
    return number * number


def child_says(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with context.Pool(3) as pool:
        assert pool.map(square, range(20)) == [n * n for n in range(20)]
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=answer, args=(questions, answers))
    process.start()
    questions.put(6)
    assert answers.get(timeout=20) == 36
    process.join(20)
    assert process.exitcode == 0


def answer(questions: "multiprocessing.Queue[int]", answers: "multiprocessing.Queue[int]") -> None:
    answers.put(square(questions.get()))


def pool_with_fork() -> None:
    child_says("fork")


def pool_with_spawn() -> None:
    child_says("spawn")


def pool_with_forkserver() -> None:
    child_says("forkserver")


def semaphores_and_locks() -> None:
    semaphore, lock, event = multiprocessing.Semaphore(2), multiprocessing.Lock(), multiprocessing.Event()
    with semaphore, lock:
        event.set()
    assert event.wait(1)
    barrier = multiprocessing.Barrier(1)
    assert barrier.wait(5) == 0


def shared_values() -> None:
    value, array = multiprocessing.Value("i", 3), multiprocessing.Array("d", 4)
    process = multiprocessing.Process(target=add, args=(value, array))
    process.start()
    process.join(20)
    assert (value.value, array[1]) == (4, 1.5)


def add(value: "Synchronized[int]", array: "SynchronizedArray[float]") -> None:
    value.value += 1
    array[1] = 1.5


def manager() -> None:
    with multiprocessing.Manager() as made:
        shared = made.dict(a=1)
        shared["b"] = 2
        assert dict(shared) == {"a": 1, "b": 2}


def shared_memory() -> None:
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
    assert memory.buf is not None
    memory.buf[5] = 7
    again = multiprocessing.shared_memory.SharedMemory(memory.name)
    assert again.buf is not None
    assert again.buf[5] == 7
    again.close()
    memory.close()
    memory.unlink()


def executors() -> None:
    for kind in (concurrent.futures.ProcessPoolExecutor, concurrent.futures.ThreadPoolExecutor):
        with kind(3) as pool:
            assert sum(pool.map(square, range(10))) == 285


def asyncio_subprocess() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        out, _ = await process.communicate(b"hello")
        assert out == b"hello"
        shell = await asyncio.create_subprocess_shell("exit 5")
        assert await shell.wait() == 5
        reading, writing = await asyncio.open_unix_connection("asyncio.sock")
        writing.write(b"x")
        assert await reading.read(1) == b"x"
        writing.close()

    async def serve() -> None:
        async def echo(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
            writing.write(await reading.read(1))
            await writing.drain()
            writing.close()

        async with await asyncio.start_unix_server(echo, "asyncio.sock"):
            await main()

    asyncio.run(serve())


def asyncio_signals_and_threads() -> None:
    async def main() -> None:
        loop, got = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, got.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(got.wait(), 10)
        assert await asyncio.to_thread(square, 4) == 16

    asyncio.run(main())


def subprocesses() -> None:
    assert subprocess.run(["sh", "-c", "cat; exit 3"], input=b"x", capture_output=True).returncode == 3
    assert subprocess.check_output([sys.executable, "-c", "print(1)"]) == b"1\n"
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    with subprocess.Popen(["sort"], stdin=-1, stdout=-1, preexec_fn=os.setsid) as sort:
        assert sort.communicate(b"b\na\n")[0] == b"a\nb\n"


def temporary_files() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "a")
        path.write_text("x")
        path.chmod(0o600)
        shutil.copytree(directory, directory + "-copy")
        shutil.rmtree(directory + "-copy")
    spooled = tempfile.SpooledTemporaryFile(1)  # noqa: SIM115  # entered below
    with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryFile() as unnamed, spooled:
        for each in (file, unnamed, spooled):
            each.write(b"xx")
    assert tempfile.gettempdir() == os.environ["TMPDIR"]


def renames_between_directories() -> None:
    for name in ("a", "b"):
        os.mkdir(name)
    pathlib.Path("a/x").write_text("x")
    os.mkdir("a/d")
    os.rename("a/x", "b/y")
    os.rename("a/d", "b/d")
    os.link("b/y", "a/z")
    os.rename("b/y", "a/z-")
    assert sorted(os.listdir("a")) == ["z", "z-"]


def socket_pairs() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"x")
    assert theirs.recv(1) == b"x"
    socket.send_fds(ours, [b"f"], [0])
    assert socket.recv_fds(theirs, 1, 1)[1]


def sockets_in_the_temporary_directory() -> None:
    path = os.path.join(tempfile.mkdtemp(), "s")
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    os.chdir(os.path.dirname(path))
    server.bind("s")
    server.listen()
    client.connect("s")


def threads_and_timers() -> None:
    fired = threading.Event()
    threading.Timer(0.01, fired.set).start()
    assert fired.wait(10)
    got: list[int] = []
    signal.signal(signal.SIGALRM, lambda *_: got.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.sigtimedwait([], 0.2)
    time.sleep(0.05)
    assert got


def databases() -> None:
    base = sqlite3.connect("base.sqlite")
    base.execute("pragma journal_mode=wal")
    base.execute("create table t (a)")
    base.execute("insert into t values (1)")
    base.commit()
    assert base.execute("select a from t").fetchone() == (1,)
    base.close()


def mappings() -> None:
    with open("mapped", "w+b") as file:
        file.truncate(8192)
        with mmap.mmap(file.fileno(), 8192) as memory:
            memory[0:3] = b"abc"
    assert pathlib.Path("mapped").read_bytes()[:3] == b"abc"
    mmap.mmap(-1, 1 << 20)
    assert ctypes.CDLL(None).getpid() == os.getpid()


def terminals() -> None:
    said: list[bytes] = []

    def read(descriptor: int) -> bytes:
        block = os.read(descriptor, 1000)
        said.append(block)
        return block

    status = pty.spawn([sys.executable, "-c", "import os; print(os.isatty(1), os.ttyname(0))"], read, lambda _: b"")
    assert status == 0
    assert b"True /dev/pts/" in b"".join(said), said


def forked_terminal() -> None:
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", "stty size; read -r x; echo got $x"])
    os.write(descriptor, b"word\n")
    found = b""
    try:
        while block := os.read(descriptor, 1000):
            found += block
    except OSError:
        pass
    assert b"got word" in found, found
    os.waitpid(pid, 0)


def polling() -> None:
    reading, writing = os.pipe()
    poll = select.epoll()
    poll.register(reading, select.EPOLLIN)
    os.write(writing, b"x")
    assert poll.poll(5)
    assert os.eventfd(1) > 2
    assert os.memfd_create("x") > 2
    os.pidfd_open(os.getpid())


def own_affinity() -> None:
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.nice(1)


def environments() -> None:
    venv.create("environment", with_pip=False, symlinks=True)
    said = subprocess.check_output(["environment/bin/python", "-c", "import sys; print(sys.prefix)"])
    assert said.strip().endswith(b"environment")


def own_home() -> None:
    path = pathlib.Path.home() / ".cache/tool"
    path.mkdir(parents=True, exist_ok=True)
    (path / "x").write_text("x")
    assert pathlib.Path("~").expanduser() == pathlib.Path(os.environ["HOME"])


def inotify() -> None:
    libc = ctypes.CDLL(None)
    descriptor = libc.inotify_init()
    assert libc.inotify_add_watch(descriptor, b".", 0x100) > 0
    open("watched", "w").close()
    assert os.read(descriptor, 1000)


def logging_and_archives() -> None:
    logging.basicConfig(filename="log.txt", force=True)
    logging.error("x")
    logging.shutdown()
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.write("log.txt")
    assert zipfile.ZipFile("a.zip").namelist() == ["log.txt"]


def a_web_server_of_its_own() -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    assert opener.open(url, timeout=10).status == 200
    server.shutdown()


def datagrams() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.send(b"x")
    assert theirs.recv(1) == b"x"


def main() -> None:
    failed, place, names = {}, os.getcwd(), sys.argv[1:]
    for name in names:
        directory = os.path.join(place, "of-" + name)
        os.mkdir(directory)
        os.chdir(directory)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            try:
                globals()[name]()
            except BaseException:
                with open(directory + "/failure", "w") as file:
                    traceback.print_exc(file=file)
                os._exit(1)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        if status:
            failure = directory + "/failure"
            failed[name] = pathlib.Path(failure).read_text() if os.path.exists(failure) else f"status {status}"
    for name, text in failed.items():
        print(f"FAILED {name}\n{text}")
    print("all done", len(names))


if __name__ == "__main__":
    main()
