"""Platform of one developer on a folder: broker, Valkey and services as supervised processes."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from refold.core.errors import NotFoundError, RefoldError, UnreachableError, UsageError
from refold.core.redaction import public_url
from refold.dev.files import FolderLock, write_atomic
from refold.dev.jars import Progress, silent
from refold.dev.kafka import EmbeddedKafka
from refold.dev.ports import HOST, check_free, remembered_ports
from refold.dev.postgres import EmbeddedPostgres
from refold.dev.process import log_bytes, logged
from refold.dev.server import EmbeddedServer
from refold.dev.supervisor import Child, Exit, Pids, Supervisor
from refold.dev.valkey import EmbeddedValkey
from refold.engine.runtime.settings import PARTITIONS
from refold.engine.runtime.signals import stop_signals

BLOBS_URL, VIEWS_URL = "REFOLD_BLOBS__URL", "REFOLD_VIEWS__URL"
METRICS = "REFOLD_METRICS__ADDRESS"
ROLES = {"all": ("planner", "executor")}
"""Roles of a process that has several, in dev.json."""
# The reverse of the order in which they stop.
_BROKER, _VALKEY, _SERVICES = range(3)
# Longest time until a broken supervision, a gateway's first answer, or a changed file is noticed.
_WATCH_S = 0.25
# Time that our own broker may need after its start, on a machine that compiles at the same time.
_BUSY_S, _AGAIN_S = 60.0, 0.5
# Longest head start of services that runs need, and the pause between two looks at their logs.
_FIRST_S, _LOOK_S = 10.0, 0.02


@dataclass(frozen=True)
class ServiceProcess:
    """Service process of the stack; list it twice to run two under one name. Services without `serves`, the log event
    of one that serves, start after those that have it."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    serves: str = ""


def _without_restart(supervisor: Supervisor, name: str) -> Callable[[], bool]:
    # A server that cannot start is restarted too: without this check its error would come after 60 s.
    return lambda: supervisor.active and supervisor.restarts(name) == 0


@dataclass(frozen=True)
class Servers:
    """Servers of a stack; an address replaces the embedded one. `properties` are for the embedded broker. `postgres`:
    views are in an embedded Postgres, not in SQLite."""

    kafka: str | None = None
    redis: str | None = None
    properties: Mapping[str, str] | None = None
    postgres: bool = False


@dataclass(frozen=True)
class Listeners:
    """Callbacks of a stack; `on_trouble` gets a problem as text, and stops nothing."""

    progress: Progress = silent
    on_exit: Callable[[Exit], None] = lambda _: None
    on_trouble: Callable[[str], None] = lambda _: None


class DevStack:
    """Platform on a folder: starts and supervises its processes, and maintains `dev.json` there. `prepare` is called
    with the bootstrap address before the first service starts: it creates topics, and returns the partition count
    to set for services, or None to leave theirs. `fresh` deletes all earlier data."""

    def __init__(
        self,
        data_dir: Path,
        services: Sequence[ServiceProcess],
        *,
        servers: Servers = Servers(),
        fresh: bool = False,
        prepare: Callable[[str], int | None] | None = None,
        listeners: Listeners = Listeners(),
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.dev_json = self.data_dir / "dev.json"
        self._servers, self._listeners = servers, listeners
        self._fresh = fresh
        self._services = list(services)
        self._prepare = prepare
        self._lock = FolderLock(self.data_dir / "lock")
        self._writing = threading.Lock()
        self._ready = False
        self._supervisor: Supervisor | None = None
        self._broker: EmbeddedKafka | None = None
        self._returning = threading.Lock()
        self.kafka, self.redis = servers.kafka or "", servers.redis or ""
        self.blobs = os.environ.get(BLOBS_URL) or f"file://{self.data_dir / 'blobs'}"
        self.views = os.environ.get(VIEWS_URL) or f"sqlite:///{self.data_dir / 'views' / 'views.db'}"
        self.views_shown, self._postgres = public_url(self.views), None
        if servers.postgres:
            self._postgres = EmbeddedPostgres(self.data_dir / "postgres", log=self._log("postgres"))
            self.views = self.views_shown = self._postgres.url
        self.gateway = self.metrics = ""
        self.partitions = 0
        self.trouble = ""
        """Reason why dev.json is out of date; empty if it is not."""

    def start(self) -> Self:
        """Start everything, and return when the servers answer, the first services serve and the others are started.
        **Raises** ConflictError if another stack runs on the folder; any error of `prepare`. Nothing is left running
        then."""
        self._lock.acquire()
        try:
            self.data_dir.chmod(0o700)  # logs, topics and the ledger have the arguments of tools, in clear
            if self._fresh:
                # By name: the folder may hold files of the user's.
                for name in ("kafka", "valkey", "logs", "blobs", "views", "postgres"):
                    shutil.rmtree(self.data_dir / name, ignore_errors=True)
            (self.data_dir / "views").mkdir(exist_ok=True)
            ports = remembered_ports(self.data_dir / "views" / "ports.json", "gateway", "metrics")
            self.gateway, self.metrics = f"http://{HOST}:{ports['gateway']}", f"{HOST}:{ports['metrics']}"
            self._supervisor = Supervisor(on_change=self._update_dev_json, on_exit=self._on_exit)
            self._start_servers(self._supervisor)
            if self._prepare is not None:
                self.partitions = self._call_prepare(self._prepare)
            self._start_services(self._supervisor)
            self._ready = True
            self._update_dev_json(self._supervisor.pids())
            if self.trouble:
                raise RefoldError(f"cannot write dev.json: {self.trouble}", hint="make room, or choose another folder")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        self._ready = False
        try:
            if self._supervisor is not None:
                self._supervisor.stop()
        finally:
            self._supervisor = None
            if self._lock.is_own():  # else it is the file of another stack
                self.dev_json.unlink(missing_ok=True)
            self._lock.release()

    def run_until_stopped(self, turn: Callable[[], None] = lambda: None) -> None:
        """Wait for SIGINT or SIGTERM, then stop everything; a second signal kills the remaining processes. `turn` is
        called four times a second. **Raises** NotFoundError, with everything killed, if the data folder is deleted."""
        supervisor = self.supervisor
        with stop_signals(supervisor.hurry) as stopping:
            turn()
            while supervisor.active and not stopping.wait(_WATCH_S) and self._lock.is_own():
                turn()
            if lost := not self._lock.is_own():
                supervisor.hurry()
            self.stop()
        if lost:
            hint = "start `refold dev` again: it begins with an empty folder"
            raise NotFoundError(f"the data folder {self.data_dir} was deleted while the platform ran on it", hint=hint)

    @property
    def supervisor(self) -> Supervisor:
        if self._supervisor is None:
            raise UsageError("the stack is not running", hint="call start() first")
        return self._supervisor

    def __enter__(self) -> Self:
        return self if self._ready else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_servers(self, supervisor: Supervisor) -> None:
        servers: list[tuple[str, EmbeddedServer, int]] = []
        if self._servers.kafka is None:  # the slowest first
            options: dict[str, Any] = {"properties": self._servers.properties, "progress": self._listeners.progress}
            broker = EmbeddedKafka(self.data_dir / "kafka", log=self._log("broker"), **options)
            self.kafka, self._broker = broker.bootstrap, broker
            servers.append(("broker", broker, _BROKER))
        if self._servers.redis is None:
            valkey = EmbeddedValkey(self.data_dir / "valkey", log=self._log("valkey"))
            self.redis = valkey.url
            servers.append(("valkey", valkey, _VALKEY))
        if self._postgres is not None:
            servers.append(("postgres", self._postgres, _VALKEY))
        for name, server, rank in servers:
            check_free(server.data_dir / "ports.json")
            server.prepare()
            supervisor.add(Child(name, tuple(server.command()), server.log, rank=rank, grace=server.grace))
        for name, server, _ in servers:
            server.wait_ready(alive=_without_restart(supervisor, name))

    def _on_exit(self, gone: Exit) -> None:
        if gone.name == "broker" and self._broker is not None:
            self._broker.expect()
            threading.Thread(target=self._wait_for_broker, args=(self._broker,), daemon=True).start()
        self._listeners.on_exit(gone)

    def _wait_for_broker(self, broker: EmbeddedKafka) -> None:
        # A second request to forget the dead broker could remove the new one's registration.
        with suppress(RefoldError), self._returning:  # the stack has stopped
            supervisor = self.supervisor
            try:
                broker.wait_ready(alive=lambda: supervisor.active)
            except UnreachableError:
                # Its registration was removed in place of the dead one's: only a restart registers it again.
                with supervisor.down("broker"):
                    pass

    def _call_prepare(self, prepare: Callable[[str], int | None]) -> int:
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                return prepare(self.kafka) or 0
            except UnreachableError as error:
                # Our own broker is up, and on a busy machine slow to elect leaders.
                if self._servers.kafka is not None:
                    raise
                if time.monotonic() > deadline:
                    hint = f"the machine is too busy for the broker: see {self._log('broker')}, then start again"
                    raise UnreachableError(error.message, hint=hint) from None
                self._listeners.progress(f"waiting for the broker ({error.message})", 0, 1)
                time.sleep(_AGAIN_S)

    def _start_services(self, supervisor: Supervisor) -> None:
        # A service that is restarted has no time to compile its modules again, whatever the shell prefers.
        outer = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        shared = {**outer, "REFOLD_KAFKA__BOOTSTRAP": self.kafka, "REFOLD_REDIS__URL": self.redis}
        shared |= {BLOBS_URL: self.blobs, VIEWS_URL: self.views}
        if self.partitions:
            shared[PARTITIONS] = str(self.partitions)
        shared["REFOLD_GATEWAY__PORT"] = self.gateway.rpartition(":")[2]
        # Lines that a killed service has printed must be in its log.
        shared["PYTHONUNBUFFERED"] = "1"

        def start(service: ServiceProcess) -> None:
            # They share a machine, so one metrics address for all of them would serve only the first.
            shared[METRICS] = outer.get(METRICS, self.metrics) if service.name == "gateway" else ""
            env = {**shared, **service.env}
            supervisor.add(Child(service.name, service.argv, self._log(service.name), env, rank=_SERVICES))

        first = [service for service in self._services if service.serves]
        since = {service.name: log_bytes(self._log(service.name)) for service in first}
        for service in first:
            start(service)
        # On two cores, the first run would otherwise wait for the imports of the pages.
        self._wait_serving(first, since)
        for service in self._services:
            if service not in first:
                start(service)

    def _wait_serving(self, services: list[ServiceProcess], since: Mapping[str, int]) -> None:
        """Wait for the services' log events after positions `since`, at most 10 s."""
        deadline = time.monotonic() + _FIRST_S
        for service in services:
            log = self._log(service.name)
            while not logged(log, service.serves, since[service.name]) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)

    def _update_dev_json(self, pids: Pids) -> None:
        # Two threads call this, and both drafts of the file have the same name.
        with self._writing:
            # The file is the sign that the stack is ready.
            if self._ready and self._lock.is_own():  # else it is the file of another stack
                roles = [(role, name) for name in pids for role in ROLES.get(name, (name,))]
                processes = {"broker": [], "valkey": [], **{role: pids[name] for role, name in roles}}
                restarts = {role: self.supervisor.restarts(name) for role, name in roles}
                at = {"kafka": self.kafka, "redis": public_url(self.redis), "blobs": public_url(self.blobs)}
                at |= {"views": self.views_shown, "gateway": self.gateway, "metrics": self.metrics}
                content = {**at, "partitions": self.partitions, "processes": processes, "restarts": restarts}
                self._write_dev_json(json.dumps(content, indent=2) + "\n")

    def _write_dev_json(self, text: str) -> None:
        before = self.trouble
        try:
            write_atomic(self.dev_json, text, mode=0o600)
            self.trouble = ""
        except OSError as error:
            # An old dev.json (without disk space, say) is better than processes that end.
            self.trouble = f"{error.strerror}: {error.filename}"
        if self.trouble not in ("", before):
            self._listeners.on_trouble(f"dev.json is not up to date: {self.trouble}")

    def _log(self, name: str) -> Path:
        return self.data_dir / "logs" / f"{name}.log"
