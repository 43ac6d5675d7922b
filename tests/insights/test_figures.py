"""Figures, alerts, and records of what is missed, repeated, out of order or erased."""

from __future__ import annotations

from typing import Any

import pytest

from refold.console.insights.figures import Insights
from refold.console.insights.service import Counting, figures_store
from refold.console.projections.following import LoggedRuns
from refold.core.errors import UsageError
from refold.core.events import AttemptFailed, CallBilled, CallCompleted, CallFailed, CallReserved, Failure
from refold.core.messages import RunInsight
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.engine.ports.log import Record
from tests.projections.histories import NOW, USAGE, Pair, begun, call, entries, long, marker, mixed
from tests.projections.memory_views import MemoryViewDatabase
from tests.projections.viewed import Log, Viewed

MINUTE = NOW // 60_000


class Counted:
    """Insights of a log in memory. `topic` is `run-insight` as its readers fold it."""

    def __init__(self, pairs: list[Pair], database: MemoryViewDatabase | None = None) -> None:
        self.log = Log(Record(RUN_LOG, 0, at, *pair, list, NOW) for at, pair in enumerate(pairs))
        self.topic: dict[str, bytes | None] = {}
        self.database = database or MemoryViewDatabase()
        insights = Insights(lambda usage, at_ms: 7, "seven")
        self.store = figures_store(self.database, insights, "log-1")
        self.counting = Counting(insights, self.store, LoggedRuns(self.log), self.read, self.topic.update)

    def read(self, partition: int, at: int) -> list[Record]:
        """Read the log itself."""
        return [each for each in self.log if each.offset >= at]

    def take(self, *offsets: int) -> None:
        """Deliver records of the log, as Faust does."""
        self.counting.take([self.log[at] for at in offsets])

    def all(self) -> Counted:
        """Deliver all of it."""
        self.take(*range(len(self.log)))
        return self

    def insight(self, key: str) -> dict[str, Any]:
        """What a record says, but for zeros; nothing for a tombstone."""
        if (value := self.topic[key]) is None:
            return {}
        found = codec.decode(RunInsight, value)
        return {name: each for name in RunInsight.__slots__ if (each := getattr(found, name))}

    @property
    def rows(self) -> dict[str, int]:
        """Digests of all tables."""
        made = Viewed(self.log, Insights(lambda usage, at_ms: 7, "seven"), self.store)  # type: ignore[arg-type]
        return made.digests()


def spending() -> list[Pair]:
    """A call that is billed, and one that is not; both results contain what they took."""
    return entries(
        "s-1",
        [*begun(), *call(1), CallReserved(1, 1, 100, 10)],
        [CallBilled(1, 1, 1, 40, 9), CallCompleted(1, 1, USAGE), *call(2)],
        [CallCompleted(2, 1, USAGE)],
    )


def failing(failures: int) -> list[Pair]:
    """A call whose attempts fail."""
    tries = [[AttemptFailed(1, number, Failure("lost", "?"), False, NOW)] for number in range(1, failures + 1)]
    return entries("f-1", [*begun(), *call(1)], *tries, [CallFailed(1, 9, Failure("lost", "?"))])


def test_a_minute_has_the_runs_calls_and_spend_of_each_agent_and_the_outcomes_of_each_tool() -> None:
    counted = Counted(spending()).all()

    assert counted.insight(f"agent/{MINUTE}/shop") == {
        "kind": "agent",
        "at_ms": MINUTE * 60_000,
        "name": "shop",
        "requested": 1,
        "calls": 2,
        "tokens": 140,
        "nano_usd": 16,
    }
    assert counted.insight(f"tool/{MINUTE}/pay")["completed"] == 2
    assert counted.topic[f"failing/{MINUTE}/pay"] is None
    assert counted.topic["loop/s-1"] is None


@pytest.mark.parametrize(("failures", "alarms"), [(3, False), (4, True)])
def test_a_tool_that_fails_five_times_in_a_minute_is_an_alert(failures: int, alarms: bool) -> None:
    counted = Counted(failing(failures)).all()

    alert = counted.insight(f"failing/{MINUTE}/pay")
    assert alert == (
        {"kind": "failing", "at_ms": MINUTE * 60_000, "name": "pay", "failed": 1, "retried": 4} if alarms else {}
    )


def test_a_tool_that_succeeds_more_often_than_it_fails_takes_its_alert_back() -> None:
    good = entries(
        "g-1", [*begun(), *call(1)], *([CallCompleted(n, 1, "1"), *call(n + 1, f"{n}")] for n in range(1, 8))
    )
    counted = Counted([*failing(4), *good])
    first = len(failing(4))

    counted.take(*range(first))
    assert counted.insight(f"failing/{MINUTE}/pay")
    counted.take(*range(first, len(counted.log)))

    assert counted.topic[f"failing/{MINUTE}/pay"] is None


@pytest.mark.parametrize(("calls", "loops"), [(4, {}), (5, {"equal_calls": 5}), (7, {"equal_calls": 7})])
def test_a_run_that_makes_five_equal_calls_is_an_alert(calls: int, loops: dict[str, int]) -> None:
    counted = Counted(long("l-1", calls)).all()

    loop = counted.insight("loop/l-1")

    expected = {"kind": "loop", "at_ms": MINUTE * 60_000, "name": "pay", "run_id": "l-1"} | loops if loops else {}
    assert loop == expected


@pytest.mark.parametrize("seed", range(8))
def test_figures_are_the_same_whatever_is_repeated_or_comes_in_other_batches(seed: int) -> None:
    pairs = mixed([long("a"), long("b", 6), failing(4), spending()], seed)
    whole = Counted(pairs).all()

    counted = Counted(pairs)
    for at in range(0, len(pairs), 3):
        counted.take(*range(max(0, at - seed), min(at + 3, len(pairs))))

    assert counted.rows == whole.rows
    assert counted.topic == whole.topic


def test_a_run_whose_seq_jumps_is_read_from_the_log() -> None:
    first, second, *rest = long("j-1")
    counted = Counted([second, first, *rest])

    for at in range(len(counted.log)):
        counted.take(at)

    assert counted.topic == Counted(long("j-1")).all().topic


def test_what_faust_has_passed_by_is_read_from_the_log() -> None:
    whole, counted = Counted(long("p-1")).all(), Counted(long("p-1"))

    counted.take(0)
    counted.take(3)

    assert counted.rows == whole.rows
    assert counted.topic == whole.topic


def test_a_start_writes_the_records_of_the_last_day_again_and_goes_on_at_the_position() -> None:
    pairs, database = long("a", 6), MemoryViewDatabase()
    before = Counted(pairs, database)
    before.take(0, 1, 2)

    after = Counted(pairs, database)
    after.counting.begin(NOW + 3_600_000, "log-1", {(RUN_LOG, 0): (0, 3)})
    assert {key: value for key, value in after.topic.items() if value} == {k: v for k, v in before.topic.items() if v}
    after.counting.begin(NOW + 90_000_000, "log-1", {(RUN_LOG, 0): (0, len(pairs))})

    assert after.rows == Counted(pairs).all().rows
    assert after.counting.position == {0: len(pairs)}


def test_another_log_and_a_log_that_has_lost_its_end_are_refused() -> None:
    counted = Counted(long("a")).all()

    for log, end in (("log-2", 99), ("log-1", 2)):
        with pytest.raises(UsageError, match="insights stand still"):
            counted.counting.begin(NOW, log, {(RUN_LOG, 0): (0, end)})


def test_nothing_stays_of_a_run_that_is_erased() -> None:
    pairs = long("e-1", 6)
    counted = Counted(pairs).all()
    assert counted.insight("loop/e-1")
    counted.log.append(marker("e-1", 0))
    counted.log += [Record(RUN_LOG, 0, len(pairs) + at, pair[0], None, list, NOW) for at, pair in enumerate(pairs)]

    counted.counting.take([record for record in counted.log[len(pairs) :] if record.topic == RUN_LOG])

    assert not any(counted.topic.values())


def test_tables_of_another_version_or_of_other_prices_are_made_anew() -> None:
    counted = Counted(long("a")).all()

    store = figures_store(counted.database, Insights(lambda usage, at_ms: 8, "eight"), "log-1")

    assert store.positions() == {}
    assert list(store.scan(Insights.agents)) == []
