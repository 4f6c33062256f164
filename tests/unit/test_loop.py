"""The proxy's event loop: tasks, timers, timeouts, threads, and descriptors whose numbers are used again."""

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable

import pytest

from launcher.loop import Cancelled, Loop, Signal, Task, Threads, Timeout, current, forget, receive, running, sleep
from tests.support.proxied import PATIENCE, looped


def test_a_timeout_ends_what_takes_long_and_nothing_else() -> None:
    """What is done in time goes on, an inner timeout ends its own block only, and whoever was ended may wait again."""

    async def test() -> list[str]:
        said = []
        with Timeout(PATIENCE):
            try:
                with Timeout(0.01):
                    await Signal()
            except TimeoutError:
                said.append("inner")
            await sleep(0.02)
            said.append("outer goes on")
        with pytest.raises(TimeoutError), Timeout(0.01), Timeout(PATIENCE):
            await Signal()
        with pytest.raises(TimeoutError), Timeout(0):
            await sleep(PATIENCE)
        return said

    assert looped(test()) == ["inner", "outer goes on"]


def test_a_cancelled_task_ends_where_it_waits() -> None:
    """Its cleaning up runs, no timeout of its own takes the cancelling for its own, and it is no error."""
    said: list[str] = []

    async def waiting(name: str) -> None:
        try:
            with Timeout(PATIENCE):
                await Signal()
        except TimeoutError:
            said.append("never")
        finally:
            said.append(name)

    async def test() -> None:
        tasks = [running().spawn(waiting(name)) for name in ("first", "second")]
        never_run = running().spawn(waiting("third"))
        never_run.cancel()
        await sleep(0)
        for task in tasks:
            task.cancel()
            task.cancel()
        await sleep(0)
        await sleep(0)
        assert [(task.done, task.error) for task in (*tasks, never_run)] == [(True, None)] * 3
        tasks[0].cancel()

    looped(test())
    assert said == ["first", "second"]


def test_what_a_cancelled_task_waited_for_can_be_closed_at_once() -> None:
    """A new socket with the number of the closed one is heard. Two tasks that end each other end once."""

    async def hear(sock: socket.socket) -> None:
        heard.append(await receive(sock, 9))

    async def both(mine: int) -> None:
        try:
            await hear(pairs[mine][0])
        finally:
            tasks[1 - mine].cancel()
            said.append(mine)

    async def test() -> None:
        tasks.extend(running().spawn(both(number)) for number in (0, 1))
        await sleep(0)
        numbers = [one.fileno() for one, _ in pairs]
        tasks[0].cancel()
        assert said == [1, 0]
        assert [task.done for task in tasks] == [True, True]
        for one, other in pairs:
            one.close()
            other.close()
        again = [socket.socketpair() for _ in pairs]
        assert {one.fileno() for one, _ in again} & set(numbers)
        listeners = []
        for one, other in again:
            one.setblocking(False)
            listeners.append(running().spawn(hear(one)))
            await sleep(0)
            other.send(b"word")
        with Timeout(PATIENCE):
            while not all(task.done for task in listeners):
                await sleep(0.01)
        assert [task.error for task in listeners] == [None, None]
        for one, other in again:
            one.close()
            other.close()

    heard: list[bytes] = []
    said: list[int] = []
    tasks: list[Task] = []
    pairs = [socket.socketpair() for _ in range(2)]
    for one, _ in pairs:
        one.setblocking(False)
    looped(test())
    assert heard == [b"word", b"word"]


def test_what_happens_late_wakes_nobody_else() -> None:
    """A task that has given up waiting is not woken by what it waited for, when it waits for something else."""

    async def test() -> None:
        late, other = Signal(), Signal()
        with pytest.raises(TimeoutError), Timeout(0.01):
            await late
        running().call_later(0.01, late.set)
        running().call_later(0.03, other.set)
        await other
        assert other.happened
        await late

    looped(test())


def test_a_fault_in_a_callback_is_told_and_the_loop_goes_on() -> None:
    """The others have their turn; a task's error is kept with the task, and `run` ends all that is left."""
    faults: list[BaseException] = []
    loop = Loop(faults.append)
    ended: list[str] = []

    def fault() -> None:
        raise ValueError("callback")

    async def failing() -> None:
        raise ValueError("task")

    async def staying() -> None:
        try:
            await Signal()
        except Cancelled:
            ended.append("staying")
            raise

    failed = loop.spawn(failing())
    loop.spawn(staying())
    loop.call_soon(fault)
    loop.call_later(0.01, fault)
    loop.call_later(0.02, loop.stop)
    loop.run()
    assert [str(error) for error in faults] == ["callback"] * 2
    assert str(failed.error) == "task"
    assert ended == ["staying"]
    loop.stop()  # late, as by a second signal


def test_cancelled_timers_do_not_pile_up() -> None:
    """However many timeouts are not needed, and those that are left come in their order."""
    loop = Loop(lambda _: None)
    came: list[int] = []

    def note(number: int) -> Callable[[], None]:
        return lambda: came.append(number)

    for number in (3, 1, 2):
        loop.call_later(number / 100, note(number))
    for _ in range(10_000):
        loop.call_later(PATIENCE, note(0)).cancel()
    assert len(loop._timers) < 300
    loop.call_later(0.05, loop.stop)
    loop.run()
    assert came == [1, 2, 3]


def test_a_signal_ends_the_loop_while_it_waits() -> None:
    """A handler of Python's is not enough: it runs when the loop wakes up. Later signals write to no number of its."""
    loop = Loop(lambda _: None)
    before = signal.signal(signal.SIGUSR1, lambda *_: loop.stop())
    loop.hear_signals()
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        loop.run()
    finally:
        waker = signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, before)
    assert waker == -1


def test_a_callback_is_not_called_for_the_next_owner_of_its_number() -> None:
    """Two sockets become ready at once, the first callback closes the second socket, and a new one gets its number."""

    async def test() -> None:
        loop, pairs, called = running(), [socket.socketpair() for _ in range(2)], []
        fresh: list[socket.socket] = []

        def take(mine: int) -> Callable[[], None]:
            def callback() -> None:
                called.append(mine)
                for at, (here, _) in enumerate(pairs):
                    loop.remove_reader(here.fileno())
                    if at != mine:
                        number = here.fileno()
                        here.close()
                        fresh.extend(socket.socketpair())
                        assert number in (sock.fileno() for sock in fresh)
                        loop.add_reader(number, lambda: called.append(-1))

            return callback

        for at, (here, there) in enumerate(pairs):
            there.send(b"x")
            loop.add_reader(here.fileno(), take(at))
        await sleep(0.05)
        assert len(called) == 1
        for sock in (*fresh, *(sock for pair in pairs for sock in pair)):
            loop.remove_reader(sock.fileno())
            sock.close()

    looped(test())


def test_who_stops_waiting_for_a_socket_leaves_the_next_owner_of_its_number_alone() -> None:
    """The number may have another owner before the task that waited has its turn."""

    async def test() -> None:
        loop = running()
        here, there = socket.socketpair()
        here.setblocking(False)

        async def wait() -> None:
            await receive(here, 1)

        task = loop.spawn(wait())
        await sleep(0)
        await sleep(0)
        number = here.fileno()
        loop.remove_reader(number)
        here.close()
        task.cancel()
        mine, others = socket.socketpair()
        assert mine.fileno() == number
        got = Signal()
        loop.add_reader(number, got.set)
        await sleep(0)
        assert task.done
        others.send(b"x")
        with Timeout(PATIENCE):
            await got
        loop.remove_reader(number)
        for sock in (mine, others, there):
            sock.close()

    looped(test())


def test_blocking_calls_wait_for_their_turn() -> None:
    """So many at a time, in their order; who has left in between is passed over, and errors are the caller's."""
    gate = threading.Event()
    said: list[str] = []

    def work(name: str) -> Callable[[], str]:
        def call() -> str:
            said.append(name)
            assert gate.wait(PATIENCE)
            if name == "bad":
                raise OSError(errno.ENOENT, name)
            return name

        return call

    async def test() -> list[str]:
        threads = Threads(2, 2)
        found: list[str] = []

        async def ask(name: str) -> None:
            try:
                found.append(await threads.run(work(name), "group"))
            except OSError as error:
                found.append(str(error.strerror))

        tasks = [running().spawn(ask(name)) for name in ("a", "bad", "left", "b")]
        while len(said) < 2:
            await sleep(0.01)
        tasks[2].cancel()
        await sleep(0.02)
        assert said in (["a", "bad"], ["bad", "a"])
        gate.set()
        while not all(task.done for task in tasks):
            await sleep(0.01)
        return found

    assert sorted(looped(test())) == ["a", "b", "bad"]
    assert "left" not in said


def test_a_thread_that_ends_late_writes_to_no_other_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop ends in the moment in which a thread wakes it: the number of its pipe is nobody else's by then."""
    loop, begun, write = Loop(lambda error: pytest.fail(str(error))), threading.Event(), os.write
    pipe = os.fstat(loop.waker).st_ino
    found: list[int] = []

    def slow(fd: int, data: bytes) -> int:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            over.wait(0.3)  # the end of the loop is awaited, and has to wait
            found.append(os.fstat(fd).st_ino)
        return write(fd, data)

    over = threading.Event()
    late = threading.Thread(target=loop.post, args=(lambda: None,))
    monkeypatch.setattr(os, "write", slow)
    late.start()
    assert begun.wait(PATIENCE)
    loop.call_soon(loop.stop)
    loop.run()
    taken = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
    over.set()
    late.join()
    loop.post(lambda: None)  # of one that is over nobody is woken
    for fd in taken:
        os.close(fd)
    assert found == [pipe]


def test_no_further_thread_is_an_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As any other failure of a resolver, and the next call has its turn."""
    import _thread

    start = _thread.start_new_thread

    def refuse(*_arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    async def test() -> int:
        threads = Threads(1, 1)
        monkeypatch.setattr(_thread, "start_new_thread", refuse)
        with pytest.raises(OSError, match="no further thread"):
            await threads.run(lambda: 1, "")
        monkeypatch.setattr(_thread, "start_new_thread", start)
        return await threads.run(lambda: 2, "")

    assert looped(test()) == 2


def test_one_loop_runs_at_a_time() -> None:
    """And outside of it there is none, nor a task."""

    async def test() -> None:
        assert current() in running().tasks
        with pytest.raises(RuntimeError, match="running already"):
            Loop(lambda _: None).run()

    looped(test())
    with pytest.raises(RuntimeError, match="no loop"):
        running()


def test_the_child_of_a_fork_can_have_a_loop_of_its_own() -> None:
    """Its parent's runs on: a session's launcher is forked from within one, and has a proxy with another."""

    async def test() -> int:
        child = os.fork()
        if child == 0:
            try:
                forget()
                with pytest.raises(RuntimeError, match="no loop"):
                    running()
                own = Loop(lambda _: None)
                own.call_soon(own.stop)
                own.run()
                os._exit(7)
            finally:
                os._exit(1)
        await sleep(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert looped(test()) == 7
