"""A failed run goes on where it failed: what was done stays done, what is done again has a key of its own."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from refold import App, Context, Retry
from refold.core.events import CallProposed, Entry, Failure, RunCompleted, RunRetried
from refold.core.ids import RunId, log_key
from refold.core.messages import ToolResult
from refold.core.run import chain
from refold.core.topics import RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.planner import recovery
from refold.engine.planner.recovery import Collected
from refold.engine.ports.log import Outgoing, Record
from tests.recovery.retrying import begun, charge, fail, failed, finish, retry, shop, three
from tests.recovery.rig import Rig


async def broken(ctx: Context) -> int:
    """Has a bug after its second call."""
    first = [await ctx.call(charge, n) for n in (1, 2)]
    raise KeyError(sum(first))


def keyed(window: timedelta | None) -> App:
    """An app whose tool knows its keys for so long."""
    app = App("shop")
    app.tool(effect="keyed", key_window=window, retry=Retry(attempts=1))(charge)
    app.agent(name="shop")(three)
    return app


def folded(rig: Rig, app: App | None = None) -> None:
    """The run is a row by now, and another planner has it."""
    for _ in range(3):  # until its snapshot is written
        rig.later(6_000)
    rig.deploy(app or shop(three))


def test_an_exhausted_call_gets_fresh_attempts_under_its_own_key_and_what_is_done_stays_done() -> None:
    rig = failed(shop(three))
    [*_, last] = [step for step in rig.state("r-1").steps if isinstance(step, CallProposed)]
    assert rig.state("r-1").status == "failed"

    retry(rig)

    [asked] = rig.asked("r-1")
    assert (asked.step, asked.key, asked.attempt) == (3, last.key, 1)
    assert asked.call_id != f"r-1/{rig.state('r-1').seqs[2]}"  # another call: a tombstone has closed the first one
    finish(rig, result="3")
    assert rig.state("r-1").status == "completed"
    assert rig.events("r-1").count("CallProposed") == 3


def test_what_is_said_again_of_a_call_that_was_asked_for_anew_twice_is_known() -> None:
    rig = failed(shop(three))
    retry(rig)
    [second] = rig.asked("r-1")
    fail(rig)
    retry(rig)
    [third] = rig.asked("r-1")
    place = second.call_id, second.run_id, second.step, second.attempt

    rig._write("tool-completed.default", second.call_id, ToolResult(*place, "failed", failure=Failure("busy", "again")))
    rig.run()

    assert rig.letters() == 0
    assert rig.asked("r-1") == [third], "of the last one nothing was said"
    rig.finish_one(second, result="3")
    rig.run()
    assert rig.state("r-1").status == "completed", "a result counts however late: its effect has happened"


@pytest.mark.parametrize(("window", "asked"), [(None, 1), (timedelta(hours=1), 0)])
def test_a_call_that_had_its_effect_does_not_go_out_again_to_who_forgets_its_key(
    window: timedelta | None, asked: int
) -> None:
    rig = begun(keyed(window))
    fail(rig, code="bad_result", status="broken")

    retry(rig)

    assert len(rig.asked("r-1")) == asked
    assert rig.state("r-1").status == ("running" if asked else "failed")


def test_a_run_that_was_retried_survives_its_planner_at_every_moment() -> None:
    rig = failed(shop(three))
    retry(rig)
    rig.deploy(shop(three))

    assert rig.state("r-1").status == "running"
    finish(rig, result="3")

    rig.deploy(shop(three))
    assert rig.state("r-1").status == "completed"
    assert rig.planner.lanes.get(0).log.finished.get("r-1").status == "completed"  # type: ignore[union-attr, arg-type]


def test_a_run_whose_row_is_all_that_is_left_of_it_goes_on() -> None:
    rig = failed(shop(three))
    folded(rig)

    retry(rig)
    folded(rig)

    assert rig.state("r-1").status == "suspended" or rig.asked("r-1")
    finish(rig, result="3")
    assert rig.state("r-1").status == "completed"
    folded(rig)
    lane = rig.planner.lanes.get(0)
    assert lane is not None
    assert lane.log.finished.get("r-1").status == "completed"  # type: ignore[union-attr, arg-type]


def test_fixed_code_goes_on_where_the_broken_one_failed() -> None:
    rig = begun(shop(broken), 2)
    assert rig.state("r-1").status == "failed"
    rig.deploy(shop(three))

    retry(rig)

    [asked] = rig.asked("r-1")
    assert asked.step == 3
    finish(rig, result="3")
    assert rig.state("r-1").status == "completed"


def test_a_step_that_is_done_again_has_a_number_and_a_key_of_its_own() -> None:
    rig = failed(shop(three))
    before = [step.key for step in rig.state("r-1").steps if isinstance(step, CallProposed)]

    retry(rig, **{"from": 2})

    [asked] = rig.asked("r-1")
    assert (asked.step, asked.args) == (4, '{"n":2}')
    assert asked.key not in before
    finish(rig)
    finish(rig)
    state = rig.state("r-1")
    assert state.status == "completed"
    assert [step.step for step in state.steps] == [1, 2, 3, 4, 5]
    rig.deploy(shop(three))
    assert rig.events("r-1").count("CallProposed") == 5


def test_a_step_is_done_again_with_other_arguments() -> None:
    rig = failed(shop(three))

    retry(rig, **{"from": 2, "edit": {"n": 7}})

    [asked] = rig.asked("r-1")
    assert asked.args == '{"n":7}'
    [proposed] = [step for step in rig.state("r-1").steps if isinstance(step, CallProposed) and step.asked]
    assert proposed.asked == '{"n":2}'
    rig.deploy(shop(three))  # the code asks for 2 still, and that is what it is held to
    finish(rig)
    finish(rig)
    assert rig.state("r-1").status == "completed"
    assert not rig.holds()


@pytest.mark.parametrize(
    "data",
    [
        *({"from": 9}, {"from": 2, "edit": {"m": 1}}, {"edit": {"n": 1}}, {"from": -1}, {"steps": "many"}),
        *({"steps": -1}, {"bytes": -1}, {"children": -1}, {"deadline_ms": -2}),
    ],
    ids=json.dumps,
)
def test_what_cannot_be_is_refused_and_the_run_stays_failed(data: dict[str, Any]) -> None:
    rig = failed(shop(three))

    retry(rig, **data)

    assert rig.letters() == 1
    assert rig.state("r-1").status == "failed"
    retry(rig)
    assert rig.state("r-1").status != "failed"


def test_a_retry_is_good_for_the_failure_that_it_names_and_for_no_other() -> None:
    rig = failed(shop(three))
    seq = rig.state("r-1").head.seq
    rig.operate("r-1", "retry", seq=seq)
    rig.run()
    fail(rig)
    assert rig.state("r-1").status == "failed"

    rig.now += 1
    rig.operate("r-1", "retry", seq=seq)
    rig.run()
    rig.now += 1
    rig.operate("r-1", "retry")
    rig.run()

    assert rig.state("r-1").status == "failed"
    assert rig.events("r-1").count("RunRetried") == 1


async def fans(ctx: Context) -> int:
    """Three calls at once; it waits for all of them."""
    found = await asyncio.gather(*(ctx.call(charge, n) for n in (1, 2, 3)), return_exceptions=True)
    if any(isinstance(each, BaseException) for each in found):
        raise ExceptionGroup("calls", [each for each in found if isinstance(each, Exception)])
    return 3


def test_of_calls_side_by_side_those_that_failed_are_made_again_and_those_that_are_done_are_not() -> None:
    rig = begun(shop(fans))
    one, two, three_ = rig.asked("r-1")
    fail(rig, one.call_id)
    rig.finish_one(two)
    rig.run()
    fail(rig, three_.call_id)
    assert rig.state("r-1").status == "failed"

    retry(rig)

    assert sorted(asked.key for asked in rig.asked("r-1")) == sorted([one.key, three_.key])
    finish(rig)
    assert rig.state("r-1").status == "completed"


async def groups(ctx: Context) -> None:
    """Three calls at once, of which none goes on alone."""
    async with asyncio.TaskGroup() as group:
        for n in (1, 2, 3):
            group.create_task(ctx.call(charge, n))  # type: ignore[arg-type]


def test_what_was_given_up_as_the_run_failed_is_waited_for_again() -> None:
    rig = begun(shop(groups))
    before = rig.asked("r-1")
    rig.finish_one(before[0])
    rig.run()
    fail(rig, before[1].call_id)
    assert rig.events("r-1")[-2:] == ["StepGivenUp", "RunFailed"]

    retry(rig)

    assert [asked.key for asked in rig.asked("r-1")] == [asked.key for asked in before[1:]]
    finish(rig)
    assert rig.state("r-1").status == "completed"
    rig.deploy(shop(groups))
    assert not rig.holds()


def test_another_planner_that_has_only_the_row_reads_the_history_again() -> None:
    rig = failed(shop(three))
    folded(rig)
    # The retry is in the log, and nothing of it in the snapshot.
    rig.operate("r-1", "retry", seq=rig.state("r-1").head.seq)
    rig.run()
    assert isinstance(rig.state("r-1").end, type(None))

    rig.deploy(shop(three))

    finish(rig, result="3")
    assert rig.state("r-1").status == "completed"


def test_what_a_retried_run_had_asked_for_is_closed_for_who_has_only_the_row() -> None:
    rig = failed(shop(three))
    folded(rig)
    rig.operate("r-1", "retry", seq=rig.state("r-1").head.seq)
    rig.run()
    rig.finish(result="3")
    rig.run_until("r-1", "RunCompleted")  # and the planner is gone, before it has told anybody
    rig.broker.delete("tool-completed.default", 0, below=1_000)  # or its result would be said, and closed, once more
    assert len(rig.asked("r-1")) == 1

    rig.deploy(shop(three))
    rig.run()

    assert rig.state("r-1").status == "completed"
    assert rig.asked("r-1") == []


def parents() -> App:
    """Its agent acts beside another run, which acts, too."""

    async def worker(ctx: Context) -> int:
        return 10 * await ctx.call(charge, 1)

    async def parent(ctx: Context) -> list[int]:
        return list(await asyncio.gather(ctx.call(charge, 1), ctx.run("worker")))

    app = shop(parent)
    app.agent(name="worker")(worker)
    return app


@pytest.mark.parametrize(
    ("run", "last", "status"), [("r-1", "RunRetried", "pending"), ("r-1.4", "RunStarted", "running")]
)
def test_what_a_retried_run_has_started_goes_on_for_who_has_only_the_row(run: str, last: str, status: str) -> None:
    rig = begun(parents())
    fail(rig, f"r-1/{rig.state('r-1').seqs[0]}")
    assert [rig.state(run).status for run in ("r-1", "r-1.2")] == ["failed", "cancelled"]
    folded(rig, parents())
    # The planner is gone right after the retry is in the log, or after what was started by it is.
    rig.operate("r-1", "retry", seq=rig.state("r-1").head.seq, **{"from": 1})
    rig.run_until(run, last)
    assert rig.state("r-1.4").status == status

    rig.deploy(parents())

    finish(rig, result="3")
    assert rig.state("r-1.4").status == "completed"
    assert rig.state("r-1").end == RunCompleted("[3,30]")


def test_a_run_that_is_over_otherwise_does_not_go_on() -> None:
    rig = begun(shop(three))
    rig.signal("r-1", "cancel")
    rig.run()

    retry(rig)

    assert rig.letters() == 1
    assert rig.state("r-1").status == "cancelled"


def test_nothing_but_a_retry_follows_a_failure() -> None:
    rig = failed(shop(three))
    rig.operate("r-1", "cancel")
    rig.run()

    assert rig.state("r-1").status == "failed"
    assert RunRetried.__name__ not in rig.events("r-1")


def test_code_that_begins_anew_does_not_replay() -> None:
    told: list[bool] = []

    async def tells(ctx: Context) -> int:
        told.append(ctx.replaying)
        return await ctx.call(charge, 1)

    rig = failed(shop(tells), 0)
    before = len(told)

    retry(rig, **{"from": 1})

    assert told[before:] == [False]


def test_of_two_retries_in_the_log_the_first_counts_for_who_reads_the_history_again() -> None:
    rig = failed(shop(three))
    folded(rig)
    rig.operate("r-1", "retry", seq=rig.state("r-1").head.seq)
    rig.run()
    log = rig.broker.log("run-log", 0).records
    reads = [chain.read(record.key, record.value) for record in log]
    entries = [read.entry for read in reads if isinstance(read, chain.LogRecord)]
    [retried] = [entry for entry in entries if isinstance(entry.events[0], RunRetried)]
    name, value = codec.encode_entry(replace(retried, nonce=bytes(16), actor="another"))
    key = log_key(retried.run_id, retried.seq, name)
    rig.broker.write(Outgoing("run-log", 0, key, value, (), 0))

    rig.deploy(shop(three))

    finish(rig, result="3")
    assert rig.state("r-1").status == "completed"


def test_a_call_that_has_acted_without_a_result_is_not_made_again_once_its_key_may_be_forgotten() -> None:
    rig = begun(keyed(timedelta(hours=1)))
    rig.fail("r-1", "no number", status="broken")
    rig.later(7_200_000)

    retry(rig)

    [asked] = rig.asked("r-1")
    assert 0 < asked.key_expires_ms < rig.now  # its executor leaves it to people


async def notes(ctx: Context) -> int:
    """As `three`, with something new before the second call."""
    first = await ctx.call(charge, 1)
    ctx.note("checked", first)
    return first + sum([await ctx.call(charge, n) for n in (2, 3)])


def test_an_edited_call_never_goes_out_as_the_code_has_it_where_that_does_something_else_first() -> None:
    rig = failed(shop(three))
    rig.deploy(shop(notes))

    retry(rig, **{"from": 2, "edit": {"n": 7}})

    assert rig.asked("r-1") == []
    assert rig.state("r-1").end.failure.code == "edit"  # type: ignore[union-attr]
    retry(rig)
    assert [asked.args for asked in rig.asked("r-1")] == ['{"n":2}'], "as somebody says who leaves the edit out"


def test_where_copies_have_changed_places_a_retry_goes_on_from_the_end_that_its_row_names() -> None:
    rig = failed(shop(three))
    reads = {record: chain.read(record.key, record.value) for record in rig.broker.log("run-log", 0).records}
    records = {read.id: record for record, read in reads.items() if isinstance(read, chain.LogRecord)}
    *_, (last, failure) = ((read.id, read.entry) for read in reads.values() if isinstance(read, chain.LogRecord))
    head = rig.state("r-1").head
    retried, value = codec.encode_entry(
        Entry(
            failure.run_id,
            head.seq + 1,
            last,
            failure.at_ms,
            None,
            "another",
            bytes(16),
            [RunRetried("operator", again=[3])],
        )
    )
    key = log_key(failure.run_id, head.seq + 1, retried)
    records[retried] = Record("run-log", 0, 99, key, value, lambda: None)
    # A zombie's end of the run, which lost, and which a copy has put before the one that counts.
    lost, value = codec.encode_entry(replace(failure, nonce=bytes(16), actor="zombie"))
    zombie = Record("run-log", 0, 98, log_key(failure.run_id, failure.seq, lost), value, lambda: None)
    there = {name: record for name, record in records.items() if name not in (last, retried)}
    collected = Collected({**there, lost: zombie, last: records[last], retried: records[retried]})

    reread = recovery._reread(RunId("r-1"), collected, head, goes_on=True)

    assert [entry.nonce for entry in reread.news] == [bytes(16)]
    assert isinstance(reread.news[0].events[0], RunRetried)
    assert reread.state.entry_at(failure.seq) == last


def test_a_history_stays_until_the_last_retry_that_needs_it_is_in_the_log() -> None:
    rig = failed(shop(three))
    seq = rig.state("r-1").head.seq
    rig.operate("r-1", "retry", seq=seq, **{"from": 99})
    while not rig.letters():
        rig._turn()
    refusal, rig._answers = rig._answers, []
    rig.now += 1
    rig.operate("r-1", "retry", seq=seq)
    before = len([*rig._chain()])
    while len([*rig._chain()]) == before:
        rig._turn()
    written, rig._answers = rig._answers, refusal
    rig._log.pause("run-log", 0)
    for _ in range(3):  # until the refused one is settled
        rig._turn()
    rig._answers += written
    rig._turn()
    rig._log.resume("run-log", 0)
    rig.run()

    seqs = [read.entry.seq for read in rig._chain()]
    assert seqs.count(seq + 1) == 1, "written twice, its planner would follow what counts for nobody else"
    finish(rig, result="3")
    assert rig.state("r-1").status == "completed"


def test_a_run_that_goes_on_is_not_lost_to_a_zombie_that_deletes_what_was_kept_of_its_failure() -> None:
    rig = failed(shop(three))
    folded(rig)
    retry(rig)
    rig.later(6_000)  # until its snapshot is written
    assert rig.records(RUN_SNAPSHOT)[-2].key == b"run/r-1"

    rig.broker.write(Outgoing(RUN_SNAPSHOT, 0, b"run/r-1", None, (), 0))
    rig.deploy(shop(three))
    finish(rig, result="3")

    assert rig.state("r-1").status == "completed"
