"""`paddock serve`: one process, one thread, from the lock to the last session's end."""

import asyncio
import contextlib
import faulthandler
import hashlib
import logging
import os
import resource
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil

from launcher.jail.processes import parent
from launcher.service import instance, packets, settings, systemd, upkeep
from launcher.service.api import app as application
from launcher.service.api.app import ControlProtocol, Door
from launcher.service.api.context import Context, Followers
from launcher.service.database import LOOP_PATIENCE, Database
from launcher.service.instance import Directories
from launcher.service.jobs import Jobs
from launcher.service.kernel_audit import Exchange as Audit
from launcher.service.notices import Notices
from launcher.service.schema import Reason
from launcher.service.shims import Groups
from launcher.service.supervisor import Parse, Registration, Supervisor
from launcher.service.tables import SessionStore, StoredRequestContexts
from launcher.service.ticket_runs import TicketRuns
from launcher.service.upkeep import Sampler, Watch
from launcher.session.places import Places
from launcher.session.state import control_address
from policy.errors import Refusal, unusable

if TYPE_CHECKING:
    from launcher.service.page.listener import Listener as PageListener

# The control socket: handed over by the service manager, or made here, in a directory that is only ours.


_BACKLOG = 1_024


class Listener:
    """A listening socket. `close` ends it, and takes its name away if this service has made it."""

    def __init__(self, own: Directories, given: list[socket.socket]) -> None:
        """Takes the first of `given`, else makes one. The instance's lock is held.

        Refusals: service-socket, state-unusable.
        """
        self._made: tuple[str, int] | None = None
        if given:
            self.socket, *rest = given
            for more in rest:
                more.close()
        else:
            self.socket = self._listening(own)

    def _listening(self, own: Directories) -> socket.socket:
        if instance.check_socket(own.socket):
            # Nobody answers there: whoever did would hold the lock.
            os.unlink(own.socket)
        directory = os.open(own.runtime, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            made.bind(control_address(directory, instance.SOCKET))
            made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            raise unusable(own.socket, error) from None
        finally:
            os.umask(before)
            os.close(directory)
        self._made = (own.socket, os.lstat(own.socket).st_ino)
        return made

    def renewed(self, own: Directories) -> socket.socket | None:
        """Makes the service's socket anew after it was removed; None while it exists.

        A runtime directory goes with everything in it when its user logs out, and is made anew at the next login.

        Refusals: the directory cannot be made, or must not be used; see `Directories`.
        """
        if self._made is None or os.path.lexists(own.socket):
            return None
        own.make()
        own.record()
        self.socket = self._listening(own)
        return self.socket

    def close(self) -> None:
        """Stops listening."""
        self.socket.close()
        if self._made is not None:
            path, inode = self._made
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(path).st_ino == inode:
                    os.unlink(path)


log = logging.getLogger("paddock.service")

_KEEP_ALIVE = 75
_MOST_DESCRIPTORS = 65_536
_LEAST_DESCRIPTORS = 1_024
_STATUS_SECONDS = 5.0
_AGAIN_SECONDS = 0.1
"""Until sessions that did not answer are asked again."""
_LONG_SECONDS = 20.0
"""More than an end takes where nothing is wrong."""


class Server(application.Server):
    """The control API's."""

    async def listen_also(self, listening: socket.socket) -> None:
        """Serves what comes in over another socket, too."""
        state = self.lifespan.state

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = ControlProtocol(self.config, self.server_state, state)
            return made

        self.servers.append(await asyncio.get_running_loop().create_server(protocol, sock=listening))


async def serve(places: Places, version: str, parse: Parse, *, audit: int = -1, port: int | None = None) -> int:
    """Runs the service until it is asked to end (SIGTERM, SIGINT), and its sessions with it, but for SIGUSR1 before.

    SIGHUP reads the settings again.

    Args:
        places: of the user whom it serves.
        parse: understands the words of `paddock run`.
        audit: a socket that hears the kernel's audit (`audit.join`), owned by this call; -1 for none.
        port: where the page listens from the start, 0 for any that is free; None: once somebody asks for it.

    Returns:
        The exit status.

    Refusals: service-running, service-settings, service-socket, database-version and the like; nothing runs then.
    """
    own = Directories(places)
    own.make()
    lock = own.lock()
    listener = database = None
    try:
        own.record()
        wanted = settings.load(places)
        open_files = _raise_descriptors()
        listener = Listener(own, systemd.listen_sockets())
        database = Database(own.database, patience=LOOP_PATIENCE)
        service = Service(places, own, wanted, database, open_files, parse)
        await service.run(listener, version, Audit(audit, parent, os.geteuid()) if audit != -1 else None, port)
    finally:
        if database is not None:
            database.close()
        if listener is not None:
            listener.close()
        os.close(lock)
    return 0


class Service:
    """The parts of a running service, put together."""

    def __init__(
        self, places: Places, own: Directories, wanted: settings.Settings, database: Database, opened: int, parse: Parse
    ) -> None:
        """Args: where; its rooms, settings and record; the soft limit of descriptors that sessions get; see `serve`."""
        self._places = places
        self._own = own
        label = hashlib.sha256(os.fsencode(places.state)).hexdigest()[:12]
        self.groups = Groups(label)
        self.store = SessionStore(database)
        self.supervisor = Supervisor(
            self.store, wanted, self.groups, Registration(StoredRequestContexts(database), database.later),
            own=own, environment=os.environ, open_files=opened, parse=parse,
            declared=upkeep.declared_credentials(places),
        )  # fmt: skip
        self.sampler = Sampler(f"{places.state}/sessions")
        self.jobs = Jobs()
        self.tickets = TicketRuns(database, self.supervisor, self.jobs)
        self.collector = upkeep.Collector(self.supervisor, places, self.jobs, self.tickets)
        self.supervisor.harvest = self.collector.wake
        self.context = Context(
            self.supervisor, self.sampler, places, self.jobs, self.tickets, Followers(), time.time(),
            psutil.Process().create_time(), list(database.notes), self.collector,
        )  # fmt: skip
        self.conditions = database.conditions
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft < _LEAST_DESCRIPTORS:
            what = f"the service may have {soft} open files (RLIMIT_NOFILE): about {max(0, soft - 30) // 8} sessions"
            hint = "run ulimit -n 65536 before it starts; in a unit of systemd, LimitNOFILE=65536"
            self.conditions.raise_("descriptors-few", what, hint)
        self.watch = Watch(self.supervisor, self.sampler, {"state": places.state, "runtime": own.runtime})
        self._doorkeepers = ThreadPoolExecutor(2, "peers")  # so many at most read /proc for who connects
        self.recovery = upkeep.Recovery(self.supervisor, own, self.groups, places)
        self._ending = asyncio.Event()
        self._keeps = False
        self._page: PageListener | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, listener: Listener, version: str, audit: Audit | None, port: int | None = None) -> None:
        """Serves until the end is asked for, and ends everything in order."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ending.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        loop.add_signal_handler(signal.SIGUSR1, self._keep)
        self.context.listen = self.listen
        if port is not None:
            log.info("the page listens on port %d; paddock page prints its address", self.listen(port).port)
        self.recovery.run()
        merging = self.tickets.recover()
        server = self._server(version)
        self.supervisor.start()
        serving = loop.create_task(server.serve([listener.socket]), name="api")
        self._tasks = [
            loop.create_task(self._sample(), name="samples"),
            loop.create_task(self.collector.run(merging), name="collector"),
            loop.create_task(self._tell(server, listener), name="status"),
            loop.create_task(self.watch.run(), name="watch"),
            loop.create_task(Notices(self.supervisor, self._places).run(), name="notices"),
        ]
        if audit is not None:
            self._tasks.append(loop.create_task(self._hear(audit), name="audit"))
        ending = loop.create_task(self._ending.wait())
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        systemd.ready(self.status())
        log.info("the service is running: process %d, user %d", os.getpid(), os.geteuid())
        try:
            await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            systemd.stopping()
            loop.call_later(_LONG_SECONDS, self._tell_what_is_left)
            self.context.listen = None
            log.info(
                "the service is ending: %d session%s live", live := len(self.supervisor.live), "" if live == 1 else "s"
            )
            if self._keeps:
                await self.tickets.close()
                await self.supervisor.leave()
            else:
                self.supervisor.closing = Reason.SERVICE_STOPPED
                # At the same time: runs tell what became of their agents, which are the supervisor's to end.
                await asyncio.gather(self.tickets.close(), self.supervisor.close(Reason.SERVICE_STOPPED))
            if self._page is not None:
                await self._page.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.jobs.close()
            self.supervisor.events.close()
            server.should_exit = True
            await serving
            ending.cancel()
            if audit is not None:
                audit.close()
            self.groups.close()
            self._doorkeepers.shutdown(wait=False, cancel_futures=True)

    def _tell_what_is_left(self) -> None:
        """Says what an end waits for that takes long, as nobody could find out afterwards."""
        tasks = "; ".join(f"{task.get_name()}: {_awaits(task.get_coro())}" for task in asyncio.all_tasks())
        log.warning("the service is still ending: live sessions %s; tasks %s", [*self.supervisor.live], tasks)
        faulthandler.dump_traceback()

    def listen(self, port: int) -> "PageListener":
        """Where the page listens, from now on where it did not; `port`: 0 for any.

        Refusals: page-port.
        """
        if self._page is None:
            # What renders it is loaded with the first look only.
            from launcher.service.page.listener import Listener as PageListener

            self._page = PageListener(self.context, port)
        elif port not in (0, self._page.port):
            raise Refusal("page-port", f"the page listens on port {self._page.port} already",
                          hint="leave --port out, or restart the service")  # fmt: skip
        return self._page

    def _keep(self) -> None:
        """Sessions are to go on without this service (SIGUSR1): it is to be restarted."""
        self._keeps = True

    def _server(self, version: str) -> Server:
        app = application.build(self.context, version)
        door = Door(self._admit, self._upgrade, lambda: self.supervisor.settings.request_seconds,
                    lambda refusal: self.supervisor.counters.refused(refusal.as_dict()))  # fmt: skip
        bounded = application.Bounded(app, lambda: self.supervisor.settings.request_bytes)
        return Server(application.config_of(door.application(bounded), _KEEP_ALIVE))

    async def _admit(self, connection: Any, number: int, _abort: object) -> packets.Peer:  # noqa: ANN401  # see `Door`
        if number + self.supervisor.attached > self.supervisor.settings.most_connections:
            raise Refusal("connections-exhausted", "the service's limit of connections is reached",
                          context=f"{self.supervisor.settings.most_connections} at the same time")  # fmt: skip
        peer, launchers = packets.of(connection), self.supervisor.launchers()
        await asyncio.get_running_loop().run_in_executor(
            self._doorkeepers, packets.check, peer, os.geteuid(), lambda: launchers
        )
        return peer

    async def _upgrade(self, path: str, query: str, ahead: bytes, connection: int) -> None:
        before, _, rest = path.partition("/v1/sessions/")
        name, slash, what = rest.partition("/")
        if before or not slash or what != "attach":
            raise Refusal("route-unknown", f"there is no stream {path}", hint="/v1/sessions/NAME/attach")
        await self.supervisor.attach(name, query, ahead, connection)

    def reload(self) -> None:
        """Reads the settings again. Wrong ones change nothing."""
        systemd.reloading()
        try:
            self.supervisor.reload(settings.load(self._places))
            log.info("settings reloaded")
            self.conditions.clear("settings-wrong")
        except Refusal as refusal:
            log.error("settings are unchanged: %s (%s)", refusal.message, refusal.context)
            self.conditions.raise_("settings-wrong", f"settings are unchanged: {refusal.message}",
                                   f"{refusal.context or refusal.hint or 'fix the file'}; then reload the service"
                                   " (SIGHUP)")  # fmt: skip
        systemd.ready(self.status())

    def status(self) -> str:
        """One line for the service manager."""
        live = len(self.supervisor.live)
        degraded = ", ".join(self.conditions.names())
        return f"{live} session{'' if live == 1 else 's'} live, {len(self.supervisor.pool)} helpers ready" + (
            f"; degraded: {degraded}" if degraded else ""
        )

    async def _tell(self, server: Server, listener: Listener) -> None:
        """Keeps the manager informed, and its watchdog quiet, and writes down what could not be before.

        From this loop, so that a stuck one is noticed.
        """
        watchdog = systemd.watchdog_seconds()
        pause = _STATUS_SECONDS if watchdog is None else min(_STATUS_SECONDS, watchdog / 3)
        told = ""
        while True:
            systemd.ping()
            self.supervisor.write_again()
            self.recovery.again()
            try:
                if (renewed := listener.renewed(self._own)) is not None:
                    await server.listen_also(renewed)
                    log.warning("the control socket was missing, and has been created again: %s", self._own.socket)
            except (OSError, Refusal) as error:
                log.error("the control socket is missing, and cannot be created again: %s", error)
            if (line := self.status()) != told:
                systemd.status(line)
                told = line
            await asyncio.sleep(_AGAIN_SECONDS if self.recovery.later else pause)

    async def _hear(self, audit: Audit) -> None:
        """Passes the kernel's audit records on to sessions' launchers, once some arrive."""
        try:
            heard = await audit.serve(self._own.runtime)
        except Refusal as refusal:
            log.error("%s (%s)", refusal.message, refusal.context)
            heard = False
        if heard:
            log.info("kernel audit is received, and passed on to sessions")
        else:
            self.conditions.raise_("audit-unheard", "kernel audit is not received, so ledgers lack what Landlock"
                                   " alone denies", "boot with audit=1, and run the service in the machine's first"
                                   " PID namespace")  # fmt: skip

    async def _sample(self) -> None:
        """Looks at what sessions use, on a thread: it reads some hundred files."""
        while True:
            await asyncio.sleep(self.supervisor.settings.sample_seconds)
            launchers = self.supervisor.launchers_by_name()
            if launchers:
                usage = await asyncio.to_thread(self.sampler.look, launchers)
                self.sampler.usage = {name: found for name, found in usage.items() if name in self.supervisor.live}
            else:
                self.sampler.usage = {}


def _awaits(coroutine: Any) -> str:  # noqa: ANN401  # coroutines and futures alike
    """Where a coroutine is, and where those are that it awaits."""
    places = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        coroutine = coroutine.cr_await
    return " > ".join(places)


def _raise_descriptors() -> int:
    """Allows this process as many descriptors as it may have; returns the soft limit that was in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return soft
