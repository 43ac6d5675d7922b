"""Production host of services: carries out their effects on an event log, a ledger and a toolbox. One thread takes
turns. With a toolbox or a hand-over a second one reads the log: the end of a tool wakes the turn at once, and a slow
ledger never keeps the consumer from polling."""

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import structlog

from refold.core.errors import RefoldError, UnreachableError, UsageError
from refold.engine.ports import effects
from refold.engine.ports.blobs import Blobs
from refold.engine.ports.ledger import Ledger, Operation
from refold.engine.ports.log import Assigned, Delivery, Depth, End, EventLog, Outgoing, Record, Revoked, Taken
from refold.engine.runtime.alarms import ALARMS
from refold.engine.runtime.blobs import BlobBackend
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.handover import HandedRecords, Handover
from refold.engine.runtime.memory import give_back
from refold.engine.runtime.outages import LINE_S, OUTAGES

T = TypeVar("T")

FAULT_VARIABLE = "REFOLD_FAULT_KILL"

Lookup = Callable[[str, int, int], Record | None]
"""Record at an offset of a partition, if any. **Raises** UnreachableError without an answer."""

TAKE = 500
"""Records per turn: more flush less often, but the first of a turn waits for the last."""

QUEUED = 4 * TAKE
"""Handed records that wait for a turn: as many as batches that are read ahead."""

IDLE_S = 0.1
"""Longest sleep between turns: the delay of timers and stops."""

DRAINING_S = 0.02
"""Longest sleep while draining: other members wait for the partitions."""

# A burst of runs leaves 50 MiB, and large values stay in cycles until a collection, which is rare.
QUIET_S, GIVE_AFTER_S = 0.05, 1.0
"""A second with less CPU time than QUIET_S is rest; memory is then returned after GIVE_AFTER_S of work, in 10 ms."""

BLOBS_S = 0.01
"""Longest sleep while large values are in transfer: their answers wake no poll of the log."""

# All turns wait for such a request, and a partition may be without a leader for hours.
ASK_AGAIN_S = 0.5
"""First pause after an unanswered request for a log end, doubled up to `LONGEST_AGAIN_S`."""

LONGEST_AGAIN_S = 16.0

ANSWERS_S = 2.0
"""Time without a refusal after which the ledger counts as back: one that refuses writes still answers queries."""

UNSTABLE_S = 30.0
"""Time after which a transaction that holds records back is an alarm; Kafka Streams' take 0.1 s."""

ABORT = "`kafka-transactions.sh describe-producers` names its producer; end that, or `kafka-transactions.sh abort` it"

MEASURED_S = 1.0
"""Interval of measurements of lag and lanes, which cost some microseconds per partition."""

log = structlog.get_logger()

_Queued = Taken | Record | effects.ToolEnded | effects.Looked | effects.BlobLoaded | effects.BlobSaved | BaseException


class _EndRetry(NamedTuple):
    due_s: float
    again_s: float


def system_now() -> effects.Now:
    return effects.Now(clock_ms(), time.monotonic_ns() // 1_000_000)


class Host:
    """Services that share a membership, an event log and its backends."""

    def __init__(
        self,
        services: Sequence[effects.Service],
        event_log: EventLog,
        *,
        ledger: Ledger | None = None,
        tools: Callable[[Callable[[effects.ToolEnded], None]], effects.Tools] | None = None,
        lookup: Lookup | None = None,
        blobs: Blobs | None = None,
    ) -> None:
        self._services, self._log, self._ledger = services, event_log, ledger
        self._queue: SimpleQueue[tuple[Host, _Queued]] = SimpleQueue()
        self._blobs = BlobBackend(blobs, self._put)
        self._tools = tools(self._put) if tools else None
        self._lookup, self._looking = lookup, ThreadPoolExecutor(1, thread_name_prefix="lookup")
        self._boundaries = Boundaries()
        self._batches_ahead = threading.Semaphore(4)
        self._stopped = threading.Event()
        self._assignments: dict[int, int] = {}
        self._ends: dict[effects.AskEnd, _EndRetry] = {}
        self._awaited: dict[int, float] = {}
        self._reader: threading.Thread | None = None
        self._handed: HandedRecords | None = None
        self.turns = 0
        self.vitals = Vitals()
        self._ask_end_s = self._refused_s = self._transactions_s = 0.0
        self._ledger_away = False
        self._measured_s = self._spent_s = self._released_s = 0.0
        self._unanswered: dict[type[effects.Effect], Callable[[Any], object]] = {
            effects.Publish: self._publish,
            effects.Commit: lambda effect: self._log.commit(effect.positions),
            effects.AskEnd: lambda effect: self._ends.setdefault(effect, _EndRetry(0.0, ASK_AGAIN_S)),
            effects.Read: lambda effect: self._log.read(*effect, under=self._assignments.get(effect.partition)),
            effects.Look: lambda effect: self._looking.submit(self._fetch, effect),
            effects.LoadBlob: lambda effect: self._blobs.take(effect),
            effects.SaveBlob: lambda effect: self._blobs.take(effect),
            effects.Reopen: lambda effect: self._log.reopen(effect.partition),
            effects.Leave: lambda effect: self._log.leave(),
            effects.Flow: self._flow,
        }
        if self._tools:  # only such a host has services that stop tools
            self._unanswered[effects.StopTool] = self._tools.stop

    def take_handed(self, handover: Handover, topics: frozenset[str]) -> None:
        """Read records of some topics once they are written by hosts of this process, which run together."""
        self._handed, self._queue = HandedRecords(topics), handover.queue
        # While the hosts wait for a server, further records come by the broker.
        handover.connect(topics, lambda record: self._put(record) if self._queue.qsize() < QUEUED else None)

    def run(
        self, stopping: Callable[[], bool], *, grace_s: float = 10.0, beside: "Mapping[Host, float] | None" = None
    ) -> None:
        """Take turns until `stopping`, then drain the services for at most `grace_s`; before them those of hosts
        `beside` this one, each with its own grace."""
        graces = {self: grace_s, **(beside or {})}
        for host in graces:
            host._start_reader()
        try:
            while not stopping():
                self._take_turns(graces)
            for draining in (beside or {}, {self: grace_s}):
                self._drain_all(draining)
        finally:
            for host in graces:
                host._end()

    def _drain_all(self, graces: "Mapping[Host, float]") -> None:
        """Take turns until each host is drained or its grace, in seconds, is over; close their logs."""
        until = {host: time.monotonic() + grace_s for host, grace_s in graces.items()}
        while until:
            for host in [host for host in until if host._drained() or time.monotonic() >= until[host]]:
                del until[host]
                host._end()
                host._log.close()
            if until:
                self._take_turns({self: 0, **until}, DRAINING_S)

    def _take_turns(self, hosts: "Collection[Host]", most_s: float = IDLE_S) -> None:
        """Take a turn of each host that has input, or work that is due."""
        wait_s = min(most_s, *(host._wait_s() for host in hosts)) if hosts else 0.0
        inboxes = self._gather(wait_s) if self._reader else {self: self._take(wait_s)}
        for host in hosts:
            if host in inboxes or not inboxes or host._wait_s() <= 0:
                host.pump(inboxes.get(host, []))

    def _start_reader(self) -> None:
        if self._tools or self._handed:
            self._reader = threading.Thread(target=self._read, name="reader", daemon=True)
            self._reader.start()

    def _end(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._looking.shutdown(wait=False, cancel_futures=True)
        self._blobs.close()
        if self._tools:
            self._tools.close()
        if self._reader:
            self._reader.join(timeout=2)

    def _drained(self) -> bool:
        drained = [service.drain() for service in self._services]  # every one is told, whatever the others say
        return all(drained)

    def pump(self, inbox: list[effects.Item]) -> None:
        """Take one turn, and the turns that its answers cause."""
        while True:
            self._check_threads()
            self.turns += 1
            now = system_now()
            vitals = self.vitals
            vitals.begin_turn(time.monotonic())
            orders = [effect for service in self._services for effect in service.turn(inbox, now)]
            for service in self._services:
                if service.news:
                    self._deliver(service.news)
            vitals.end_turn(ended := time.monotonic())
            if ended >= self._measured_s:
                self._measured_s = ended + MEASURED_S
                depth = self._log.depth()
                if self._handed:
                    depth = depth._replace(positions={**depth.positions, **self._handed.positions})
                vitals.measure(self._services, depth, "Redis" * self._ledger_away)
                self._warn_of_transactions(depth, ended)
                self._return_memory(time.process_time())
            inbox = self._carry_out(orders)
            if not inbox:
                return

    def _return_memory(self, spent_s: float) -> None:
        quiet, self._spent_s = spent_s - self._spent_s < QUIET_S, spent_s
        if quiet and spent_s >= self._released_s + GIVE_AFTER_S:
            give_back()
            self._released_s = time.process_time()

    def _deliver(self, news: list[effects.News]) -> None:
        for name, fields in news:
            self.vitals.report(name, alarm=name in ALARMS)
            (log.warning if name in ALARMS else log.info)(name, **fields)
        news.clear()

    def _warn_of_transactions(self, depth: Depth, now_s: float) -> None:
        place = max(depth.unstable, key=depth.unstable.__getitem__, default=None)
        if place and depth.unstable[place] > UNSTABLE_S and now_s >= self._transactions_s:
            self._transactions_s = now_s + LINE_S
            facts = {"topic": place[0], "partition": place[1], "offset": depth.positions.get(place), "hint": ABORT}
            self._deliver([("transaction.open", facts)])

    def _check_threads(self) -> None:
        """**Raises** RefoldError if a thread is gone."""
        # Alive without it, the process would hold partitions that others could serve.
        if self._tools is not None and not self._tools.alive:
            raise RefoldError("the tools' thread is gone", hint="a tool has closed its event loop; this process ends")
        dead = self._reader is not None and not self._reader.is_alive()
        if dead and self._queue.empty() and not self._stopped.is_set():  # else its error comes with the next items
            raise RefoldError("the reader's thread is gone", hint="this process ends, and its supervisor starts it")

    def _carry_out(self, orders: list[effects.Effect]) -> list[effects.Item]:
        answers: list[effects.Item] = []
        ledger_requests: list[effects.AskLedger] = []
        starts: list[effects.StartTool] = []
        for effect in orders:
            if isinstance(effect, effects.StartTool):
                starts.append(effect)
                continue
            if starts:
                self._start(starts)  # nothing that waits may come between the last look at the clock and the tool
                starts = []
            if isinstance(effect, effects.AskLedger):
                ledger_requests.append(effect)
            elif isinstance(effect, effects.Append):
                answers += self._append(effect.records)
            elif isinstance(effect, effects.AskCommitted):
                answers.append(effects.CommittedAt(*effect, self._log.committed(*effect)))
            else:
                self._unanswered[type(effect)](effect)
        if starts:
            self._start(starts)
        self._log.push()
        return answers + self._ask(ledger_requests) + self._ask_ends()

    def _append(self, records: list[Outgoing]) -> list[Delivery]:
        records, begun = self._up_to_fault(records, self._log.append), time.monotonic()
        answers = self._log.append(records)
        self.vitals.wrote(len(records), begun)
        return answers

    def _publish(self, effect: effects.Publish) -> None:
        # Before a fault they are appended, which waits: a fault after an effect needs the effect.
        self._log.publish(self._up_to_fault(effect.records, self._log.append))
        self.vitals.wrote(len(effect.records))
        last = next((record.token for record in reversed(effect.records) if record.awaited), None)
        if last is not None:
            self._awaited[last] = time.monotonic()

    def _flow(self, effect: effects.Flow) -> None:
        if self._handed:
            self._handed.flow((effect.topic, effect.partition), paused=effect.action == "pause")
        steer = self._log.pause if effect.action == "pause" else self._log.resume
        steer(effect.topic, effect.partition, under=self._assignments.get(effect.partition))

    def _ask_ends(self) -> list[effects.Item]:
        """Ends of partitions; one without a leader is requested again later."""
        answers: list[effects.Item] = []
        while self._ends and (now := time.monotonic()) >= self._ask_end_s:
            ask, wait = min(self._ends.items(), key=lambda end: end[1].due_s)
            if wait.due_s > now:
                break
            try:
                answers.append(End(ask.topic, ask.partition, self._log.end(ask.topic, ask.partition)))
                del self._ends[ask]
            except UnreachableError:
                now = time.monotonic()
                self._ends[ask] = _EndRetry(now + wait.again_s, min(2 * wait.again_s, LONGEST_AGAIN_S))
                self._ask_end_s = now + ASK_AGAIN_S
        return answers

    def _start(self, orders: list[effects.StartTool]) -> None:
        assert self._tools is not None, "only a host with tools has services that start some"
        self._tools.start(orders)

    def _fetch(self, fetch: effects.Look) -> None:
        """Look up a record in a thread of its own."""
        assert self._lookup is not None, "only a host with a lookup has services that look something up"
        try:
            # Brokers may be slow, and leases must be renewed meanwhile.
            self._put(effects.Looked(*fetch, self._lookup(*fetch)))
        except UnreachableError as error:
            OUTAGES.failed("lookup.unanswered", topic=fetch.topic, partition=fetch.partition, error=str(error))
            self._put(effects.Looked(*fetch, None, known=False))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that takes turns
            self._put(error)

    def _ask(self, requests: list[effects.AskLedger]) -> list[effects.Item]:
        """Run the ledger operations of a turn; every reply is unknown (None) if the ledger is unreachable."""
        if not requests:
            return []
        assert self._ledger is not None, "only a host with a ledger has services that ask it"
        operations: list[Operation] = [operation for batch in requests for operation in batch.operations]
        operations, begun = self._up_to_fault(operations, self._ledger.run), time.monotonic()
        try:
            replies = self._ledger.run(operations)
        except UnreachableError as error:
            self._refused_s, self._ledger_away = begun, True
            OUTAGES.failed("ledger.unreachable", error=str(error))
            return [effects.Answers(batch.batch, None) for batch in requests]
        self._ledger_away &= begun - self._refused_s <= ANSWERS_S
        self.vitals.ledger.add(time.monotonic() - begun)
        in_order = iter(replies)
        return [effects.Answers(batch.batch, list(islice(in_order, len(batch.operations)))) for batch in requests]

    def _up_to_fault(self, orders: list[T], carry_out: Callable[[list[T]], object]) -> list[T]:
        """Return the effects; if a fault is due, carry out those before it and die."""
        last = self._boundaries.take(len(orders))
        if last is not None:
            carry_out(orders[:last])
            os.kill(os.getpid(), signal.SIGKILL)
        return orders

    def _wait_s(self) -> float:
        due_ms = min((due for service in self._services if (due := service.next_due_ms()) is not None), default=None)
        return IDLE_S if due_ms is None else min(IDLE_S, max(0.0, (due_ms - system_now().mono_ms) / 1000))

    def _take(self, timeout_s: float) -> list[effects.Item]:
        if not self._blobs.open:
            return self._items(self._log.take(TAKE, timeout_s))
        self._blobs.again()
        batch = self._log.take(TAKE, min(timeout_s, BLOBS_S))
        return [*self._items(batch), *self._gather(0).get(self, ())]

    def _put(self, item: _Queued) -> None:
        self._queue.put((self, item))

    def _gather(self, timeout_s: float) -> "dict[Host, list[effects.Item]]":
        """Queued items by host; waits for the first."""
        inboxes: dict[Host, list[effects.Item]] = {}
        try:
            host, item = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
            while True:
                inboxes.setdefault(host, []).extend(host._unpack(item))
                host, item = self._queue.get_nowait()
        except Empty:
            return inboxes

    def _unpack(self, item: _Queued) -> Sequence[effects.Item]:
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, Taken):
            self._batches_ahead.release()
            return self._items(item)
        if self._handed and isinstance(item, Record):
            return self._handed.take(item)
        self._blobs.open -= isinstance(item, (effects.BlobLoaded, effects.BlobSaved))
        return [item]

    def _items(self, batch: Taken) -> list[effects.Item]:
        records = self._handed.merge(batch) if self._handed else batch.records
        self.vitals.read(len(records))
        for delivery in batch.deliveries if self._awaited else ():
            if (begun := self._awaited.pop(delivery.token, None)) is not None:
                self.vitals.appends.add(time.monotonic() - begun)
        for change in batch.rebalances:
            if isinstance(change, Assigned):
                self._assignments[change.partition] = change.assignment  # what this turn orders is meant for it
                log.info("partition.assigned", partition=change.partition, committed=dict(change.committed))
            elif isinstance(change, Revoked):
                log.info("partition.revoked", partition=change.partition)
        for lost in batch.shrunk:
            log.error("log.shrunk", topic=lost.topic, partition=lost.partition, end=lost.end)
        return [*batch.rebalances, *records, *batch.reached, *batch.shrunk, *batch.deliveries]

    def _read(self) -> None:
        """Read batches of the log ahead of the turns, in a thread of its own."""
        try:
            while not self._stopped.is_set():
                batch = self._log.take(TAKE, IDLE_S)
                if any((batch.records, batch.rebalances, batch.deliveries, batch.reached, batch.shrunk, batch.begun)):
                    self._batches_ahead.acquire()
                    self._put(batch)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that takes turns
            self._put(error)


class Boundaries:
    """Fault injection for tests: `REFOLD_FAULT_KILL=17` kills the process before its 17th effect, `17:after` just after
    it. Records and ledger operations are counted separately, over the life of the process."""

    def __init__(self) -> None:
        spec = os.environ.get(FAULT_VARIABLE, "")
        number, _, when = spec.partition(":")
        if spec and (not number.isdigit() or when not in ("", "before", "after")):
            raise UsageError(f"{FAULT_VARIABLE}={spec!r}", hint="write a number, or a number and :after")
        self._at = int(number) if spec else 0
        self._after = when == "after"
        self._count = 0

    def take(self, effects: int) -> int | None:
        """Count effects before they are carried out; return the number to carry out before dying, or None."""
        # Effects are counted from 1, so 0 (no fault) matches none.
        before, self._count = self._count, self._count + effects
        if not before < self._at <= self._count:
            return None
        return self._at - before if self._after else self._at - before - 1
