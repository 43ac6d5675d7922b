"""How much is done for what is accepted, and how long that takes: nothing for what is settled, and nothing for ever."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from refold.core import topics
from refold.core.wire import codec
from refold.core.wire.schemas import registered
from refold.engine.ports.effects import StartTool
from refold.engine.ports.log import Record
from tests.simulator.reading.history import History
from tests.simulator.reading.logged import LoggedCall, LoggedRun
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.settings import ORDERS

SENT_OUT = (ORDERS, topics.APPROVAL_REQUESTED, topics.RUN_COMPLETED)
"""What planners publish because of an entry."""

_SHORT = registered()[1]["tool-requested.short"][0].to_bytes(4)

PER_RUN = 4
"""How much may be published for a run, for each fault and once, besides a record for an event: more than it has open.
Of few runs as for three, and of many as for twelve, which is how many a schedule has."""

DEADLINES = 3
"""How many deadlines of a call may pass before it is answered, or people are asked."""


class Toil:
    """What is done, beside what the log says of it at that moment.

    `began` are the runs of tools by call. `usurped` counts, by call, leases of a successor that a process has ended
    which stood still between its clock and the ledger: that call begins there, and once more here. A request that its
    sender sends after it has stood still, or that the network keeps back, is `stale`: the log has gone on meanwhile,
    and nobody could know. `abandoned` has, by call, the attempts that a zombie took up though they were ordered after
    its group had expelled it: it gives them up when it learns of that, and its successor begins them once more.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._wanted: set[bytes] = set()
        self._stale: set[bytes] = set()
        self._idle: dict[bytes, str] = {}
        self._idle_at: dict[tuple[int, int], str] = {}
        self.began: Counter[str] = Counter()
        self.usurped: Counter[str] = Counter()
        self.abandoned: defaultdict[str, set[int]] = defaultdict(set)
        self.published = self.short = 0
        self.wrong: list[str] = []

    def writes(self, record: Record) -> None:
        """A record is in the log: was it still wanted?"""
        self.short += record.topic == ORDERS and (record.value or b"")[1:5] == _SHORT
        self.published += record.topic in SENT_OUT and not (record.value is None and self._erased(record.key))
        if record.topic == ORDERS and record.value and record.read_headers():
            ask = read_value(record.value)
            if ended := self._ended(ask):
                self._idle.setdefault(record.value, ended)
                if record.value not in self._stale:
                    self._idle_at[record.partition, record.offset] = ended
            else:
                self._wanted.add(record.value)

    def _erased(self, key: bytes | None) -> bool:
        """True if a tombstone is that of an archivist."""
        return (key or b"").decode().partition("/")[0] in self._history.erased

    def stale(self, value: bytes | None) -> None:
        """A record is about to be written of which nobody can say any more whether it is wanted."""
        self._wanted.add(value or b"")
        self._stale.add(value or b"")

    def is_stale(self, value: bytes | None) -> bool:
        """True if nobody can say whether a record is wanted that was written with this content."""
        return value in self._stale

    def moved(self) -> None:
        """Requests have other offsets from now on."""
        self._idle_at.clear()

    def starts(self, order: StartTool, read: Sequence[Record], *, expelled_at_ms: int | None) -> None:
        """A tool begins in a process that has `read` these records of its call, the last of which it goes by.

        `expelled_at_ms`: the time at which its group has given its partitions to others, where it does not know so far.
        """
        if expelled_at_ms is not None and read and read[-1].at_ms >= expelled_at_ms:
            self.abandoned[order.request.call_id].add(order.request.attempt)
        closed = any(record.value is None for record in read)
        if closed and (ended := self._idle_at.get((read[-1].partition, read[-1].offset))):
            self.wrong.append(f"idle: {order.request.call_id} begins, and {ended} when it was sent out once more")
        self.began[order.request.call_id] += 1
        raw = codec.encode(order.request)
        if raw in self._idle and raw not in self._wanted:
            self.wrong.append(f"idle: {order.request.call_id} begins, and {self._idle[raw]} when it was sent out")

    def _ended(self, ask: Datum) -> str:
        run = self._history.runs.get(ask["run_id"])
        call = run.call(ask["call_id"]) if run else None
        if run is None or call is None:
            return ""
        if run.over:
            return f"its run was {run.status}"
        return f"it was {call.phase}" if call.settled or call.phase in ("renewed", "left") else ""

    def objections(self, *, faults: int, forgot: int, deadline_ms: int, lost_ms: int, went_back: bool) -> Iterator[str]:
        """What took too much or too long. `deadline_ms`: when an unanswered call is asked for again at the latest;
        `lost_ms`: for how long nobody was there. `forgot`: how many of the faults lose the ledger. Each of these costs
        a call two: the attempt under way, whose end it does not take, and an older one, whose end it has forgotten.

        Where the log `went_back`, nobody knows of the attempts that it has lost but the ledger, and a call that has
        fewer by now waits until that forgets them.
        """
        runs = self._history.runs.values()
        events = sum(run.seq - (run.fork.at or run.seq if run.fork else 0) for run in runs)
        open_ = sorted(map(_most_open, runs), reverse=True)[:12]
        extra = sum(open_) + PER_RUN * max(3 - len(open_), 0)
        # A short order may be followed by the whole, where its executor lacks the rest.
        if self.published > events + extra * (faults + 1) + self.short:
            yield f"toil: {self.published} records were published for {events} events and {faults} faults"
        for run in self._history.runs.values() if not went_back else ():
            for call in run.calls.values():
                yield from self._calls(run, call, faults=faults + forgot, most_ms=DEADLINES * deadline_ms + lost_ms)

    def _calls(self, run: LoggedRun, call: LoggedCall, *, faults: int, most_ms: int) -> Iterator[str]:
        most = len(call.attempts) + faults + self.usurped[call.id] + len(self.abandoned[call.id])
        if self.began[call.id] > most:
            yield f"toil: {call.id} ({call.effect}) began {self.began[call.id]} times, and {most} are accounted for"
        if call.waited_ms > most_ms:
            yield f"slow: {call.id} of run {run.id} had an attempt that took {call.waited_ms} ms to be answered"


def _most_open(run: LoggedRun) -> int:
    """What may be published for a run at once: each call that goes out or is asked about, and its closing twice."""
    calls = run.calls.values()
    wide = max(Counter(min(call.ordered[1]) for call in calls if 1 in call.ordered).values(), default=0)
    wide = max(wide, sum(bool(call.permits) or not call.attempts for call in calls))
    return 3 * wide if wide > PER_RUN else PER_RUN
