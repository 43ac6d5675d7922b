"""The verifier finds each lie that a topic can tell, and nothing in what is true."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from benchmarks.prefill import finished

from refold.client.verify import Verified, verify_log
from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallDispatched,
    CallFailed,
    CallRenewed,
    ChildStarted,
    Event,
    Failure,
    Requirement,
    RunFailed,
    RunRetried,
    RunSuspended,
)
from refold.core.ids import RunId, home, log_key
from refold.core.messages import RunOutcome, ToolRequest
from refold.core.wire import codec
from refold.core.wire.headers import TAKEN_BACK
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryLogReader
from refold.engine.ports.log import Record
from tests.cli.chronicle import NOW, Chronicle, completed, doubted, ended, proposed, requested
from tests.roots import TRUST


def checked(chronicle: Chronicle) -> Verified:
    """What the verifier says, without waiting for the topics to agree."""
    return verify_log(chronicle.reader, TRUST, now_ms=NOW + 1_000, settle_s=0)


@pytest.fixture
def chronicle() -> Chronicle:
    """Give a log with a run that is over, one that is open and one in doubt."""
    found = Chronicle()
    found.add("done", requested(), proposed(1), completed(1), ended())
    found.add("open", requested(), proposed(1))
    found.add("doubtful", requested(), proposed(1, "once"), doubted(1), tells=True)
    return found


def test_what_is_true_has_no_violations(chronicle: Chronicle) -> None:
    found = checked(chronicle)

    assert found.violations == []
    assert (found.records, found.accepted, found.void) == (9, 9, {})
    assert found.runs == {"completed": 1, "running": 1, "suspended": 1}
    assert sorted(found.open) == ["doubtful", "open"]
    assert found.in_doubt == ["doubtful"]
    assert found.digests == {run: state.digest() for run, state in chronicle.states.items()}


def test_records_that_lost_are_counted_by_reason_and_change_nothing(chronicle: Chronicle) -> None:
    before = checked(chronicle).digests
    chronicle.void("open")
    chronicle.void("done", prev=chronicle.states["done"].head.id, seq=chronicle.states["done"].head.seq + 1)
    chronicle.void("open", prev=b"0" * 16, seq=99)
    chronicle.write("run-log", "open", key=b"junk", value=b"junk")

    found = checked(chronicle)

    assert found.void == {"raced": 1, "over": 1, "orphan": 1, "key": 1}
    assert (found.violations, found.digests) == ([], before)


def records_of(chronicle: Chronicle, run: str) -> list[Record]:
    """The records of a run in the log."""
    records = chronicle.broker.log("run-log", home(run, 4)).records
    return [record for record in records if (record.key or b"").startswith(run.encode() + b"/")]


def test_a_status_that_the_events_do_not_tell_is_named_with_its_place(chronicle: Chronicle) -> None:
    chronicle.add("silent", requested(), proposed(1, "once"))
    chronicle.add("silent", doubted(1))
    chronicle.add("loud", requested(), [RunSuspended("sleep", "noon")])

    found = checked(chronicle)

    silent, loud = (place_of(records_of(chronicle, run)[n]) for run, n in (("silent", 2), ("loud", 1)))
    assert sorted(violation for violation in found.violations if violation.kind == "status") == [
        ("status", "loud", f"by {loud} it is running, and its events say suspended"),
        ("status", "silent", f"by {silent} it is suspended, and its events say running"),
    ]


def place_of(record: Record) -> str:
    """Where a record lies, for people."""
    return f"run-log/{record.partition}/{record.offset}"


def test_copies_that_change_nothing_are_counted_and_agree(chronicle: Chronicle) -> None:
    for record in records_of(chronicle, "open"):
        chronicle.write("run-log", "open", key=record.key or b"", value=record.value)

    found = checked(chronicle)

    assert (found.violations, found.copied) == ([], {"open": 2})


def test_a_copy_that_cleaning_would_keep_behind_its_successors_is_told_before(chronicle: Chronicle) -> None:
    for record in records_of(chronicle, "done")[:2]:
        chronicle.write("run-log", "done", key=record.key or b"", value=record.value)

    found = checked(chronicle)

    assert [(each.kind, each.run_id) for each in found.violations] == [("copied", "done")]
    assert found.copied == {"done": 2}
    chronicle.broker.compact("run-log", home("done", 4))
    assert (checked(chronicle).violations, checked(chronicle).digests) == ([], found.digests)


def test_two_histories_in_an_order_that_was_lost_are_told(chronicle: Chronicle) -> None:
    first, *_ = records_of(chronicle, "open")
    chronicle.void("open", prev=chronicle.states["open"].heads[0].id, seq=chronicle.states["open"].heads[0].seq + 1)
    chronicle.write("run-log", "open", key=first.key or b"", value=first.value)

    found = checked(chronicle)

    assert [(each.kind, each.run_id) for each in found.violations] == [("forked", "open")]
    assert "open" in found.frozen


def changed_bytes(chronicle: Chronicle) -> None:
    """Somebody changed a result in place."""
    log = chronicle.broker.log("run-log", home("done", 4))
    at = next(index for index, record in enumerate(log.records) if b'"ok"' in (record.value or b""))
    log.records[at] = log.records[at]._replace(value=(log.records[at].value or b"").replace(b'"ok"', b'"no"'))


def lost_beginning(chronicle: Chronicle) -> None:
    """A history without its first record."""
    chronicle.void("headless", prev=b"1" * 16, seq=4)


def wrong_partition(chronicle: Chronicle) -> None:
    """A run that began where it does not belong."""
    name, entry, value = chronicle.entry("astray", requested(), seq=1, prev=b"")
    wrong = (home("astray", 4) + 1) % 4
    chronicle.write("run-log", "astray", key=log_key("astray", entry.seq, name), value=value, partition=wrong)


def untold_end(chronicle: Chronicle) -> None:
    """A run that is over, and nobody was told."""
    chronicle.add("silent", requested(), ended(), emit=False)


def false_end(chronicle: Chronicle) -> None:
    """An outcome of a run that goes on."""
    outcome = RunOutcome("open", "completed", "deploy")
    chronicle.write("run-completed", "open", key=b"open", value=codec.encode(outcome))


def other_end(chronicle: Chronicle) -> None:
    """The only outcome of a run that is over, with other words."""
    chronicle.add("told", requested(), ended(), emit=False)
    outcome = RunOutcome("told", "completed", "deploy", '"other"', seq=chronicle.states["told"].head.seq)
    chronicle.write("run-completed", "told", key=b"told", value=codec.encode(outcome))


def two_ends(chronicle: Chronicle) -> None:
    """A second outcome that says otherwise."""
    outcome = RunOutcome("done", "failed", "deploy", seq=6)
    chronicle.write("run-completed", "done", key=b"done", value=codec.encode(outcome))


def unrequested_call(chronicle: Chronicle) -> None:
    """A call that is open, and no executor knows."""
    chronicle.add("unasked", requested(), proposed(1), emit=False)


def recalled_call(chronicle: Chronicle) -> None:
    """The order of a call that is under way, taken back."""
    back = [(TAKEN_BACK, b"1")]
    chronicle.write("tool-requested.default", "open", key=b"open/3", value=None, headers=back)


def closed_call(chronicle: Chronicle) -> None:
    """A call in doubt that executors take for settled."""
    chronicle.write("tool-requested.default", "doubtful", key=b"doubtful/3", value=None)


def later_attempt(chronicle: Chronicle) -> None:
    """A call in doubt, and executors are asked for an attempt that the log does not have."""
    request = ToolRequest("doubtful/3", "doubtful", 1, 2, 1, "push", "{}", "key-1", "once", 1_000)
    chronicle.write("tool-requested.default", "doubtful", key=b"doubtful/3", value=codec.encode(request))


def zombie_call(chronicle: Chronicle) -> None:
    """A call that is settled, and executors are asked for it again."""
    request = ToolRequest("done/3", "done", 1, 1, 1, "push", "{}", "key-1", "keyed", 1_000)
    chronicle.write("tool-requested.default", "done", key=b"done/3", value=codec.encode(request))


@pytest.mark.parametrize(
    ("lie", "kind", "run"),
    [
        (changed_bytes, "hash", "done"),
        (lost_beginning, "beginning", "headless"),
        (wrong_partition, "home", "astray"),
        (untold_end, "outcome", "silent"),
        (false_end, "outcome", "open"),
        (other_end, "outcome", "told"),
        (two_ends, "outcome", "done"),
        (unrequested_call, "open-call", "unasked"),
        (recalled_call, "open-call", "open"),
        (closed_call, "open-call", "doubtful"),
        (later_attempt, "open-call", "doubtful"),
        (zombie_call, "open-call", "done"),
    ],
)
def test_every_lie_is_found(chronicle: Chronicle, lie: Callable[[Chronicle], None], kind: str, run: str) -> None:
    lie(chronicle)

    found = checked(chronicle)

    assert (kind, run) in {(violation.kind, violation.run_id) for violation in found.violations}


def test_what_is_due_for_long_is_listed(chronicle: Chronicle) -> None:
    found = verify_log(chronicle.reader, TRUST, now_ms=NOW + 600_000, settle_s=0)

    assert found.overdue == ["open"]
    assert found.violations == []


def test_a_run_that_waits_for_another_is_not_late(chronicle: Chronicle) -> None:
    chronicle.add(RunId("parent"), requested(), [ChildStarted(1, "worker", "{}")])

    found = verify_log(chronicle.reader, TRUST, now_ms=NOW + 600_000, settle_s=0)

    assert "parent" in found.open
    assert found.overdue == ["open"]


class Finished(MemoryLogReader):
    """So many runs that are over, made while they are read, and their outcomes."""

    def __init__(self, broker: MemoryBroker, runs: int) -> None:
        super().__init__(broker)
        self._runs = runs

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        names = (RunId(f"finished-{number:07}") for number in range(self._runs if topic == "run-log" else 0))
        places = count()
        for run in names:
            for key, value in finished(run, NOW):
                yield Record("run-log", home(run, 4), next(places), key, value, list, NOW)


def held_bytes(runs: int) -> int:
    """The most that a verification of so many finished runs holds at a time, beside what it tells."""
    reader = Finished(Chronicle().broker, runs)
    tracemalloc.start()
    found = verify_log(reader, TRUST, now_ms=NOW, settle_s=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.runs, len(found.violations)) == ({"completed": runs}, runs), "nobody has told of them"
    return peak


def test_of_a_run_that_is_over_little_is_kept() -> None:
    held_bytes(20)  # the first has what it imports, too

    of_each = (held_bytes(420) - held_bytes(20)) / 400

    assert of_each < 1_600  # whole it would be 17,000


def test_a_run_that_failed_and_was_retried_has_told_of_both_ends(chronicle: Chronicle) -> None:
    failed: list[Event] = [CallFailed(1, 1, Failure("bad", "no")), RunFailed(Failure("bad", "no"))]
    chronicle.add("again", requested(), proposed(1), failed)
    assert checked(chronicle).runs["failed"] == 1
    chronicle.add("again", [RunRetried("op", again=[1]), CallRenewed(1), CallDispatched(1, 1, NOW)])
    assert (checked(chronicle).violations, "again" in checked(chronicle).open) == ([], True)

    chronicle.add("again", completed(1), ended())

    found = checked(chronicle)
    assert (found.violations, found.runs["completed"], found.void) == ([], 2, {})
    assert found.digests["again"] == chronicle.states["again"].digest()


def test_a_decision_that_nobody_has_signed_is_told(chronicle: Chronicle) -> None:
    asks = ApprovalRequested(1, 1, 1, "p", "two", Requirement(["ada"]), "dev", "1", "s", "0" * 64)
    call = proposed(1)[0]
    chronicle.add("forged", requested(), [call, asks], tells=True)
    question = chronicle.states["forged"].open[1].question
    assert question is not None
    decided = ApprovalDecided(1, question.seq, "reject", "e30.e30.e30", ["ada"], question=question.question)
    chronicle.add("forged", [decided, CallFailed(1, 1, Failure("rejected", "no"))], ended(), tells=True)

    found = checked(chronicle)

    assert [(each.kind, each.run_id) for each in found.violations] == [("decision", "forged")]
