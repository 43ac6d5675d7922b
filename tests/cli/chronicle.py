"""Runs as a planner leaves them behind, written into topics in memory: entries, and the commands that they imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from refold.core.events import (
    CallCompleted,
    CallDispatched,
    CallDoubted,
    CallProposed,
    Cause,
    Entry,
    Event,
    Failure,
    RetryPolicy,
    RunCompleted,
    RunRequested,
    RunStarted,
)
from refold.core.ids import EntryId, RunId, home, log_key
from refold.core.messages import EndedRuns, RunOperation, RunRequest, RunSignal
from refold.core.planning.asking import foreseen
from refold.core.planning.commands import commands
from refold.core.planning.family import request_digest
from refold.core.run.finished import Finished
from refold.core.run.fold import evolve
from refold.core.run.pausing import status_change
from refold.core.run.snapshot import over_key
from refold.core.run.state import RunState
from refold.core.topics import RUN_REQUESTED
from refold.core.wire import codec
from refold.core.wire.headers import TAKEN_BACK
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryLogReader
from refold.engine.ports.log import Outgoing

TOPICS = (
    "run-requested",
    "run-signalled",
    "run-operated",
    "run-log",
    "run-snapshot",
    "approval-requested",
    "catalog",
    "tool-requested.default",
    "tool-claimed.default",
    "tool-completed.default",
    "run-completed",
    "dead-letter",
    "dead-letter-approval",
    "dead-letter-executor",
    "dead-letter-source",
)
NOW = 1_700_000_000_000
DOUBT = Failure("lost", "the executor died")


def requested(agent: str = "deploy", given: str = "{}") -> list[Event]:
    """The beginning of a run."""
    digest = request_digest(RunRequest(RunId(""), agent, given))
    return [RunRequested(agent, given, digest, "seed"), RunStarted("1")]


def proposed(step: int, effect: str = "keyed") -> list[Event]:
    """A call, on its way to the executors."""
    call = CallProposed(step, "push", "{}", f"key-{step}", "default", effect, 1_000, RetryPolicy())
    return [call, CallDispatched(step, 1, NOW + 60_000)]


def completed(step: int) -> list[Event]:
    """A call's result."""
    return [CallCompleted(step, 1, '"ok"')]


def doubted(step: int) -> list[Event]:
    """A call that nobody can know about."""
    return [CallDoubted(step, 1, DOUBT)]


def ended() -> list[Event]:
    """The end of a run."""
    return [RunCompleted('"done"')]


@dataclass
class Chronicle:
    """Topics in memory and a hand that writes into them as a planner does."""

    broker: MemoryBroker = field(default_factory=lambda: MemoryBroker(TOPICS, 4))
    states: dict[str, RunState] = field(default_factory=dict)
    nonce: int = 0
    actor: str = "planner"

    @property
    def reader(self) -> MemoryLogReader:
        """What reads the topics."""
        return MemoryLogReader(self.broker)

    def add(
        self, run: str, *batches: Sequence[Event], emit: bool = True, cause: Cause | None = None, tells: bool = False
    ) -> None:
        """Appends an entry per batch, and with `emit` the commands that each implies.

        `tells`: entries say at their end whether the run waits, as those of a planner do.
        """
        for batch in batches:
            before, events = self.states.get(run, RunState(RunId(run))), list(batch)
            if tells:
                events += status_change(before, foreseen(before, events, NOW + self.nonce), events)
            name, entry, value = self.entry(run, events, seq=before.head.seq + 1, prev=before.head.id, cause=cause)
            offset = self.write("run-log", run, key=log_key(run, entry.seq, name), value=value)
            self.states[run] = after = evolve(self.states.get(run), entry, name)
            for command in commands(after, entry, offset) if emit else []:
                message = codec.encode(command.message) if command.message else None
                back = [(TAKEN_BACK, b"%d" % command.attempt)] if command.attempt else []
                place = command.key if command.topic == RUN_REQUESTED else run  # as it is forwarded
                self.write(command.topic, place, key=command.key.encode(), value=message, headers=back)
            if emit and after.over:
                self.keep(after)

    def keep(self, state: RunState) -> None:
        """Keeps the row of a run that is over, as a planner does."""
        finished = Finished()
        ended = EndedRuns(rows=finished.add(state), pools=finished.pools())
        self.write("run-snapshot", state.run_id, key=over_key(self.nonce, 0, ended.rows), value=codec.encode(ended))

    def entry(
        self, run: str, events: list[Event], *, seq: int, prev: bytes, cause: Cause | None = None
    ) -> tuple[EntryId, Entry, bytes]:
        """An entry with a nonce of its own: its id, itself and its bytes."""
        self.nonce += 1
        cause = cause or Cause("run-requested", home(run, 4), 0)
        entry = Entry(run, seq, prev, NOW + self.nonce, cause, self.actor, self.nonce.to_bytes(16, "big"), events)
        name, value = codec.encode_entry(entry)
        return name, entry, value

    def void(self, run: str, *, prev: bytes = b"", seq: int = 1) -> None:
        """An entry that lost a race, or with an unknown `prev` an orphan."""
        name, entry, value = self.entry(run, requested(), seq=seq, prev=prev)
        self.write("run-log", run, key=log_key(run, entry.seq, name), value=value)

    def write(
        self,
        topic: str,
        run: str,
        *,
        key: bytes,
        value: bytes | None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> int:
        """One record, at the home of the run unless told otherwise."""
        number = home(run, 4) if partition is None else partition
        delivery = self.broker.write(Outgoing(topic, number, key, value, [*headers], 0))
        assert delivery.offset is not None
        return delivery.offset


@dataclass
class Hand:
    """A `Sender` that writes into the topics in memory."""

    chronicle: Chronicle
    sent: list[RunRequest | RunSignal | RunOperation] = field(default_factory=list)

    def send(self, message: RunRequest | RunSignal | RunOperation) -> tuple[int, int]:
        """See `Sender`."""
        self.sent.append(message)
        topic = codec.SUBJECTS[type(message)]
        offset = self.chronicle.write(topic, message.run_id, key=b"key", value=codec.encode(message))
        return home(message.run_id, 4), offset
