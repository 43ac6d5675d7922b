"""Applies batches of the run log to the figures, and writes these to `run-insight`."""

import asyncio
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from typing import Any

import faust
import structlog

from refold.console.insights.figures import MINUTE_MS, Insights, changed_records, recent
from refold.console.projections.following import LoggedRuns, misplaced
from refold.console.projections.projector import Projector
from refold.console.projections.service import made_by
from refold.core.errors import UsageError
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Place, Record
from refold.engine.ports.tables import ViewDatabase, ViewStore
from refold.engine.runtime.settings import KafkaSettings

GROUP = "refold-insights"
MOST_TAKEN = 500
"""Most records of a batch: a projection has a second for one."""
KEPT_MS = 86_400_000
"""Age of the records that a start writes again, as they may be unwritten."""

ReadSince = Callable[[int, int], Iterable[Record]]
"""Reads a partition of the run log from an offset to its end."""

_log = structlog.get_logger()


def figures_store(database: ViewDatabase, insights: Insights, log: str) -> ViewStore:
    """Open or create the tables of this version. **Raises** UsageError while another process writes them."""
    name = insights.name
    if not database.lock(name):
        raise UsageError("another process keeps these insights", hint="one is enough; or name another database")
    for newest in database.generations(name):
        if (store := database.store(name, newest)).notes().items() >= made_by(insights).items():
            return store
        database.drop(name, newest)
    database.create(name, 1, Projector.tables_of(insights), {"log": log, **made_by(insights)})
    database.switch(name, 1, insights.tables)
    return database.store(name, 1)


class Counting:
    """Figures of batches, in the tables. `position` is the next offset by partition. Not thread-safe."""

    def __init__(
        self, insights: Insights, store: ViewStore, runs: LoggedRuns, read: ReadSince, send: Callable[..., None]
    ) -> None:
        self._projector, self._store, self._read, self._send = Projector(insights, store, runs), store, read, send
        positions = store.positions()
        self.position = {number: positions.get((RUN_LOG, number), 0) for number in range(runs.partitions)}

    def begin(self, now_ms: int, log: str, bounds: Mapping[Place, tuple[int, int]]) -> None:
        """Write rows that may be unwritten, and read to the log's end. **Raises** UsageError for invalid positions."""
        if reason := misplaced(self._store.notes(), self._store.positions(), log, bounds):
            raise UsageError(f"insights stand still: {reason}", hint="remove their database: they begin anew")
        for records in recent(self._store, (now_ms - KEPT_MS) // MINUTE_MS):
            self._send(records)
        # The group may be past the position.
        for (_, partition), (_, end) in bounds.items():
            self._apply_from_log(partition, end)

    def take(self, records: Iterable[Record]) -> None:
        """Apply records from Faust that are new, after any missed ones before them, read from the log."""
        for partition, those in groupby(records, key=lambda record: record.partition):
            batch = [record for record in those if record.offset >= self.position[partition]]
            if batch:
                self._apply_from_log(partition, batch[0].offset)
                self._apply(partition, batch)

    def _apply_from_log(self, partition: int, until: int) -> None:
        if (at := self.position[partition]) < until:
            _log.warning("insights.gap", partition=partition, position=at, until=until)
            records = iter(self._read(partition, at))
            while self.position[partition] < until and (some := list(islice(records, MOST_TAKEN))):
                self._apply(partition, some)

    def _apply(self, partition: int, batch: list[Record]) -> None:
        end, before = batch[-1].offset + 1, self._projector.counts["repaired"]
        changes = self._projector.apply(batch, {(RUN_LOG, partition): (self.position[partition], end)})
        self.position[partition] = end
        if runs := self._projector.counts["repaired"] - before:
            _log.warning("insights.jumped", runs=runs)
        self._send(changed_records(self._store, changes))


def work(settings: KafkaSettings, counting: Counting) -> None:
    """Count the records that Faust delivers, until a signal ends the process."""
    app = faust.App(
        settings.prefix + GROUP,
        broker=[f"kafka://{server}" for server in settings.bootstrap.split(",")],
        broker_credentials=credentials(settings.options),
        broker_session_timeout=settings.session_timeout_ms / 1000,
        broker_commit_interval=1.0,
        # As a static member: the successor of a killed process has its partitions at once.
        consumer_group_instance_id=GROUP,
        store="memory://",
        web_enabled=False,
        topic_disable_leader=True,  # or it makes a topic of its own
        worker_redirect_stdouts=False,  # or our log becomes warnings of its
        value_serializer="raw",
    )
    topic = app.topic(settings.prefix + RUN_LOG, key_type=bytes, value_type=bytes, value_serializer="raw")
    # In a thread: a run that is read from the log would hold up the heartbeats, and cost the partitions.
    thread = ThreadPoolExecutor(1)

    @app.agent(topic)
    async def count(stream: Any) -> None:
        async for some in stream.take_events(MOST_TAKEN, within=0.1):
            rows = (
                Record(RUN_LOG, sent.partition, sent.offset, sent.key, sent.value, list, int(sent.timestamp * 1000))
                for sent in (event.message for event in some)
            )
            records = sorted(rows, key=lambda record: (record.partition, record.offset))
            try:
                await asyncio.get_running_loop().run_in_executor(thread, counting.take, records)
            except BaseException as error:  # noqa: BLE001 - the stream would go on behind the batch
                _log.error("insights.failed", reason=str(error), exc_info=True)
                os._exit(1)

    faust.Worker(app, loglevel="WARN", quiet=True, override_logging=False).execute_from_commandline()


def credentials(options: Mapping[str, str]) -> Any:
    """Faust's credentials from options of librdkafka. **Raises** UsageError for unsupported mechanisms."""
    protocol, context = options.get("security.protocol", "").lower(), None
    if protocol.endswith("ssl"):
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
        if own := options.get("ssl.certificate.location"):
            context.load_cert_chain(own, options.get("ssl.key.location"), options.get("ssl.key.password"))
    if not protocol.startswith("sasl"):
        return context
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms")
    if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        raise UsageError(f"insights cannot log in by {mechanism}", hint="PLAIN, SCRAM, or TLS with a key")
    login = {"username": options.get("sasl.username"), "password": options.get("sasl.password")}
    return faust.SASLCredentials(**login, mechanism=mechanism, ssl_context=context)
