"""A model of one run's records: planners that come, go and oversleep, a tool that repeats records, and the cleaner."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from refold.core.events import Entry, Event, NoteRecorded, RunCompleted, RunRequested, RunStarted
from refold.core.ids import NO_ENTRY, EntryId, RunId, log_key, parse_log_key
from refold.core.run.chain import Head
from refold.core.run.log import LogFold
from refold.core.wire import codec

RUN = RunId("run-1")
T0 = 1_700_000_000_000


@dataclass(frozen=True)
class Written:
    """A record of the log. `at_ms` is when the log took it."""

    key: bytes
    value: bytes | None
    at_ms: int

    @property
    def id(self) -> EntryId:
        parts = parse_log_key(self.key)
        assert parts is not None
        return parts[2]


@dataclass(frozen=True)
class Rates:
    """How often what happens, of all that happens. `zombie` is a record on an old head, `strand` two of them."""

    work: float = 10
    copy: float = 4
    clean: float = 1
    sleep: float = 1
    wake: float = 3
    zombie: float = 2
    strand: float = 1
    end: float = 0.2
    delay: float = 1
    arrive: float = 3


@dataclass
class Platform:
    """One partition with one run. `truth` is what counted in the order in which it was first written."""

    rng: random.Random
    rates: Rates = field(default_factory=Rates)
    sweeps: bool = True
    log: list[Written | None] = field(default_factory=list)
    truth: LogFold = field(default_factory=LogFold)
    chain: list[EntryId] = field(default_factory=list)
    entries: dict[EntryId, Entry] = field(default_factory=dict)
    lane: LogFold | None = None
    position: int = 0
    now: int = T0
    wrong: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    delayed: list[tuple[EntryId, Entry, bytes]] = field(default_factory=list)

    def entry(self, head: Head, *, last: bool = False) -> tuple[EntryId, Entry, bytes]:
        """A fresh entry on this head."""
        step = sum(isinstance(e, NoteRecorded) for name in self.path(head.id) for e in self.entries[name].events)
        events: list[Event] = [NoteRecorded(step + 1, "now", "1")]
        if not head.id:
            events = [RunRequested("agent", "null", "digest", "seed"), RunStarted()]
        elif last:
            events = [RunCompleted("1")]
        entry = Entry(RUN, head.seq + 1, head.id, self.now, None, "p", self.rng.randbytes(16), events)
        name, value = codec.encode_entry(entry)
        self.entries[name] = entry
        return name, entry, value

    def path(self, name: EntryId) -> list[EntryId]:
        """The entries from the first to this one."""
        found: list[EntryId] = []
        while name:
            found.append(name)
            name = self.entries[name].prev  # type: ignore[assignment]
        return found[::-1]

    def write(self, name: EntryId, entry: Entry, value: bytes) -> None:
        """A first writing: the log takes it, and by its place it counts or not."""
        key = log_key(RUN, entry.seq, name)
        self.log.append(Written(key, value, self.now))
        judged = self.truth.feed(key, value, shared=True)
        self.chain += [each.id for each in ((judged, *judged.linked) if not judged.void else judged.linked)]

    def read(self) -> None:
        """The live planner reads what is new, and buries what can never count."""
        lane = self.lane
        assert lane is not None
        for record in self.log[self.position :]:
            if record is not None:
                lane.feed(record.key, record.value, shared=True, at_ms=record.at_ms)
        self.position = len(self.log)
        for key in lane.sweep if self.sweeps else ():
            self.bury(key)
        lane.sweep.clear()

    def bury(self, key: bytes) -> None:
        """A tombstone of a planner."""
        parts = parse_log_key(key)
        assert parts is not None
        if parts[2] in self.chain:
            self.wrong.append("buried what counts")
        self.log.append(Written(key, None, self.now))

    def clean(self) -> None:
        """The cleaner keeps the last record of every key among what is old enough, and at times takes tombstones."""
        old = [n for n, record in enumerate(self.log) if record is not None and record.at_ms < self.now - 60_000]
        upto = old[-1] + 1 if old else 0
        last = {record.key: n for n, record in enumerate(self.log[:upto]) if record is not None}
        for n in old:
            record = self.log[n]
            assert record is not None
            if last[record.key] != n or (record.value is None and record.at_ms < self.now - 3_600_000):
                self.log[n] = None

    def take_over(self) -> LogFold:
        """A planner folds the log from its start."""
        lane = LogFold()
        for record in self.log:
            if record is not None:
                lane.feed(record.key, record.value, shared=True, at_ms=record.at_ms)
        lane.settle()
        return lane

    def check(self, lane: LogFold) -> str:
        """`equal`, `stalled` or `wrong`: what a take-over has made of the run."""
        state, truth = lane.states.get(RUN), self.truth.states.get(RUN)
        if RUN in lane.frozen:
            return "stalled"
        return "equal" if (state and state.head) == (truth and truth.head) else "wrong"

    def step(self) -> None:
        """Something happens."""
        rates = vars(self.rates)
        self.now += self.rng.choice((1, 1_000, 100_000, 2_000_000))
        what = self.rng.choices(list(rates), list(rates.values()))[0]
        getattr(self, f"_{what}")()
        if self.lane is not None:
            self.read()
            if self.check(self.lane) == "wrong":
                self.wrong.append(f"the live planner differs after {what}")

    def _work(self, *, last: bool = False) -> None:
        if self.lane is not None and RUN not in self.lane.frozen:
            state = self.lane.states.get(RUN)
            if state is None or not state.over:
                self.write(*self.entry(state.head if state else Head(), last=last and state is not None))

    def _end(self) -> None:
        self._work(last=True)

    def _copy(self) -> None:
        records = [record for record in self.log if record is not None and record.value is not None]
        if records:
            self.log.append(replace(self.rng.choice(records), at_ms=self.now))

    def _clean(self) -> None:
        self.clean()

    def _sleep(self) -> None:
        self.lane = None

    def _wake(self) -> None:
        if self.lane is None:
            lane = self.take_over()
            outcome = self.check(lane)
            self.outcomes[outcome] += 1
            if outcome == "wrong":
                self.wrong.append("a take-over differs")
            self.lane, self.position = lane, len(self.log)

    def _zombie(self, length: int = 1) -> None:
        heads = [NO_ENTRY, *self.chain[:-1]]
        name = self.rng.choice(heads)
        entry = self.entries.get(name)
        head = Head(name, entry.last_seq if entry else 0)
        if entry is not None and isinstance(entry.events[-1], RunCompleted):
            return
        for _ in range(length):
            fork, entry, value = self.entry(head)
            self.write(fork, entry, value)
            head = Head(fork, entry.last_seq)

    def _strand(self) -> None:
        self._zombie(2)

    def _delay(self) -> None:
        """A planner sends two entries, and the first is held up on its way, for a while or until it is lost."""
        name = self.rng.choice(self.chain[-2:] or [NO_ENTRY])
        entry = self.entries.get(name)
        if entry is None or isinstance(entry.events[-1], RunCompleted):
            return
        first, between, value = self.entry(Head(name, entry.last_seq))
        self.write(*self.entry(Head(first, between.last_seq)))
        self.delayed.append((first, between, value))

    def _arrive(self) -> None:
        if self.delayed:
            self.write(*self.delayed.pop(self.rng.randrange(len(self.delayed))))


def play(seed: int, rates: Rates, *, steps: int = 60, sweeps: bool = True) -> Platform:
    """One schedule, up to the first thing that is wrong."""
    platform = Platform(random.Random(seed), rates, sweeps)
    for _ in range(steps):
        platform.step()
        if platform.wrong:
            break
    return platform
