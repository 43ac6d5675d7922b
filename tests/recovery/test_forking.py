"""A live fork begins with the history of another run: nothing follows of that, and what it does itself is its own."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

from refold import App, Context
from refold.client.operations.copying import prefix_to
from refold.client.reading.history import Run, feed
from refold.client.reading.steps import Timeline
from refold.core.events import ApprovalRequested, CallCompleted, CallProposed, Entry, Requirement, RunForked
from refold.core.ids import RunId, home, log_key
from refold.core.messages import RunOperation, ToolRequest
from refold.core.planning import copying
from refold.core.planning.asking import question_of
from refold.core.planning.copying import fork_asked
from refold.core.run import chain
from refold.core.run.log import LogFold
from refold.core.run.state import Asked
from refold.core.wire import canonical, codec
from refold.engine.ports.log import Delivery, Outgoing, Record
from tests.projections import histories
from tests.recovery.retrying import begun, charge, shop, three
from tests.recovery.rig import NOW, Rig

SOURCE = "r-1"


def entries(rig: Rig, run: str) -> list[Entry]:
    """The entries that count of a run."""
    found, head = list[Entry](), chain.Head()
    for read in rig._chain():
        if read.entry.run_id == run and chain.extends(head, read.entry):
            found.append(read.entry)
            head = chain.Head(read.id, read.entry.last_seq)
    return found


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 1, 0)])
def test_a_client_copies_every_entry_that_counts_in_whatever_order_the_log_has_them(order: tuple[int, ...]) -> None:
    batches = ([*histories.begun(), *histories.call(1)], [CallCompleted(1, 1, "1"), *histories.call(2)])
    written = [*histories.entries("r", *batches, [CallCompleted(2, 1, "2")])]
    log, run = LogFold(), Run.empty(RunId("r"))
    for offset, (key, value) in enumerate(written[number] for number in order):
        run.take(feed(log, Record("run-log", 0, offset, key, value, list, NOW)), log)

    copied = prefix_to(run, run.state.head.seq)

    assert [codec.encode_entry(entry)[1] for entry in copied.entries] == [value for _, value in written]
    assert copied.state.head == run.state.head


def asked_for(rig: Rig, at: int, source: str = SOURCE, **more: object) -> dict[str, object]:
    """The content of a fork of a run up to its last entry that ends at event `at` or before."""
    state = rig.state(source)
    head = next(head for head in reversed(state.heads) if head.seq <= at)
    return {"source": source, "at": head.seq, "head": head.id.hex(), **more}


def fork(rig: Rig, at: int, run: str = "f-1", source: str = SOURCE, **more: object) -> None:
    """An operator forks a run."""
    rig.operate(run, "fork", **asked_for(rig, at, source, **more))
    rig.run()


def ends(rig: Rig) -> list[int]:
    """The seqs at which entries of the source end, but for the last one."""
    return [head.seq for head in rig.state(SOURCE).heads][:-1]


def requests(rig: Rig, run: str) -> list[ToolRequest]:
    """All requests of a run that were ever sent."""
    read = [codec.decode(ToolRequest, each.value) for each in rig.records("tool-requested.default") if each.value]
    return [request for request in read if request.run_id == run]


def finished(rig: Rig, run: str = "f-1") -> None:
    """Executors answer until nobody asks."""
    while rig.finish(run):
        rig.run()


def done() -> Rig:
    """A run of three calls that is over."""
    rig = begun(shop(three), done=3)
    assert rig.state(SOURCE).status == "completed"
    return rig


@pytest.mark.parametrize("place", range(3))
def test_a_fork_keeps_a_history_and_does_the_rest_under_keys_of_its_own(place: int) -> None:
    rig = done()
    at = ends(rig)[place]
    kept = rig.history(SOURCE)[:at]
    rig.later(86_400_000)

    fork(rig, at)

    assert rig.history("f-1")[1:at] == kept[1:]
    assert [type(event) for event in rig.history("f-1")[at : at + 1]] == [RunForked]
    finished(rig)
    assert rig.state("f-1").status == "completed"
    sent, before = requests(rig, "f-1"), requests(rig, SOURCE)
    assert [request.step for request in sent] == list(range(place + 1, 4)), "of the copy nothing was sent"
    assert not {request.key for request in sent} & {request.key for request in before}
    assert all(rig.state("f-1").step_of(int(request.call_id.rpartition("/")[2])) for request in sent)


def test_the_source_goes_on_as_if_nobody_had_forked_it() -> None:
    rig = begun(shop(three), done=1)
    before = len(entries(rig, SOURCE))

    fork(rig, 99)

    assert len(entries(rig, SOURCE)) == before
    assert {request.run_id for request in rig.asked()} == {SOURCE, "f-1"}
    finished(rig, "")
    assert {rig.state(run).status for run in (SOURCE, "f-1")} == {"completed"}


class DiedError(Exception):
    """The planner is gone while it writes."""


@pytest.mark.parametrize("written", range(6))
def test_a_planner_may_die_within_a_fork(written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = done()
    append, left = rig._append, written

    def limited(record: Outgoing) -> Delivery:
        nonlocal left
        if record.topic == "run-log" and record.key.startswith(b"f-1/"):
            if not left:
                raise DiedError
            left -= 1
        return append(record)

    monkeypatch.setattr(rig, "_append", limited)
    with contextlib.suppress(DiedError):
        fork(rig, ends(rig)[2], reason="try")
    monkeypatch.undo()
    assert len(entries(rig, "f-1")) == min(written, 4)
    assert {request.step for request in requests(rig, "f-1")} <= {3}
    rig.deploy(shop(three))
    finished(rig)

    assert rig.state("f-1").status == "completed"
    assert rig.events("f-1").count("RunForked") == 1
    assert {request.step for request in requests(rig, "f-1")} == {3}
    assert len({request.key for request in requests(rig, "f-1")}) == 1
    assert rig.letters() == 0


def partly(rig: Rig, copied: int, place: int = 2) -> None:
    """A planner has died that had copied so many entries; what it was told is lost, too."""
    at, head = ends(rig)[place], None
    said = RunOperation(RunId("f-1"), "s", "fork", canonical.dumps(asked_for(rig, at)))
    before = None
    for entry in entries(rig, SOURCE)[:copied]:
        fresh = copying.copy_of(entry, fork_asked(said), RunId("f-1"), before)
        name, value = codec.encode_entry(fresh)
        key = log_key(RunId("f-1"), fresh.seq, name)
        rig.broker.write(Outgoing("run-log", home("f-1", 1), key, value, (), 0))
        before, head = rig.state("f-1"), name
    assert head
    rig.run()


def test_of_a_part_of_a_history_nothing_follows_until_the_rest_is_there() -> None:
    rig = done()
    partly(rig, 2)
    rig.signal("f-1", "signal")
    rig.deploy(shop(three))
    rig.later(3_600_000)

    assert rig.asked() == []
    assert rig.events("f-1") == rig.events(SOURCE)[: ends(rig)[1]]
    fork(rig, ends(rig)[2])
    finished(rig)
    assert rig.state("f-1").status == "completed"
    assert [request.step for request in requests(rig, "f-1")] == [3]


def test_a_part_of_a_history_can_be_cancelled_and_its_end_is_told() -> None:
    rig = done()
    partly(rig, 2)

    rig.operate("f-1", "cancel", reason="no more")
    rig.run()

    assert rig.events("f-1")[-2:] == ["RunForked", "RunCancelled"]
    assert b"f-1" in {record.key for record in rig.records("run-completed")}
    assert rig.asked() == []
    fork(rig, ends(rig)[2])
    assert rig.events("f-1")[-1] == "RunCancelled"


def test_the_same_fork_twice_is_one_and_another_one_under_its_id_is_refused() -> None:
    rig = done()
    fork(rig, ends(rig)[1])
    whole = rig.history("f-1")
    rig.later(10)
    fork(rig, ends(rig)[1])

    assert rig.history("f-1") == whole
    assert rig.letters() == 0
    rig.later(10)
    fork(rig, ends(rig)[2])
    rig.later(10)
    rig.start("r-2", "shop")
    rig.run()
    fork(rig, ends(rig)[1], run="r-2")
    assert rig.letters() == 2
    assert rig.history("f-1") == whole


def test_a_fork_that_is_over_is_one_however_often_it_is_said() -> None:
    rig = done()
    fork(rig, ends(rig)[1])
    finished(rig)
    whole = rig.history("f-1")
    assert rig.state("f-1").status == "completed"
    fork(rig, ends(rig)[1])
    rig.deploy(shop(three))
    fork(rig, ends(rig)[1])

    assert rig.letters() == 0
    assert rig.history("f-1") == whole


def test_what_is_no_history_that_counts_is_not_copied() -> None:
    rig = begun(shop(three), done=1)
    good = asked_for(rig, 99)
    loser = entries(rig, SOURCE)[-1]
    name, value = codec.encode_entry(Entry(**{**_fields(loser), "nonce": b"another"}))
    key = log_key(RunId(SOURCE), loser.seq, name)
    rig.broker.write(Outgoing("run-log", 0, key, value, (), 0))
    wrong: list[dict[str, object]] = [
        {**good, "head": name.hex()},
        {**good, "head": "00" * 16},
        {**good, "at": 1},
        {**good, "source": "nobody"},
        {**good, "edit": {"n": "x"}, "tool": "charge"},
        {**good, "edit": {"n": 1}},
        {**good, "at": "4"},
        {},
    ]
    for number, said in enumerate(wrong):
        rig.operate(f"f-{number}", "fork", **said)
        rig.run()
        assert rig.letters() == number + 1, said
        assert rig.events(f"f-{number}") == [], said
    for run in (SOURCE, "f.3"):
        rig.later(1)
        rig.operate(run, "fork", **good)
        rig.run()
    assert rig.letters() == len(wrong) + 2


def _fields(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}


def test_two_forks_under_one_id_at_once_are_not_mixed() -> None:
    rig = done()
    for at in (ends(rig)[0], ends(rig)[2]):
        rig.operate("f-1", "fork", **asked_for(rig, at))
    rig.run()

    assert rig.letters() == 1
    state = rig.state("f-1")
    assert state.request
    assert state.request.forked
    assert rig.events("f-1").index("RunForked") == state.request.forked.seq == ends(rig)[0]


def test_a_run_may_end_while_its_history_is_read() -> None:
    rig = begun(shop(three), done=2)
    at = rig.state(SOURCE).head.seq
    rig.operate("f-1", "fork", **asked_for(rig, at))
    rig.finish()
    rig.run()
    assert rig.state(SOURCE).status == "completed"
    assert rig.letters() == 0
    assert rig.events("f-1").count("RunForked") == 1


def test_nothing_is_forked_from_behind_an_end() -> None:
    rig = begun(shop(three), done=1)
    rig.fail(SOURCE, "busy")
    rig.run()
    over = rig.state(SOURCE).head.seq
    rig.operate(SOURCE, "retry", seq=over)
    rig.run()
    rig.finish()
    rig.run()

    fork(rig, 99)
    assert rig.letters() == 1
    fork(rig, over - 1, run="f-2")
    finished(rig, "f-2")
    assert rig.state("f-2").status == "completed"


def test_the_next_call_has_other_arguments_and_no_later_one() -> None:
    rig = done()
    fork(rig, ends(rig)[0], edit={"n": 20}, tool="charge")
    finished(rig)

    [first, second, third] = [step for step in rig.state("f-1").steps if isinstance(step, CallProposed)]
    assert [first.args, second.args, third.args] == ['{"n":1}', '{"n":20}', '{"n":3}']


async def patient(ctx: Context) -> list[object]:
    """Sleeps, waits for a word and for an answer, and has another agent do something."""
    mine = ctx.run_id
    await asyncio.sleep(3_600)
    back = ctx.callback("paid", schema=int, timeout=timedelta(hours=2))
    got: int = await ctx.call(charge, 1)
    other = ctx.start("helper", {"n": got})
    try:
        said = (await ctx.wait_for("go", timeout=timedelta(hours=1))).data
    except TimeoutError:
        said = "late"
    again = ctx.callback("again", schema=int)
    told = await ctx.call(note, again.token)
    return [mine, said, await other, told, await again, back.token[:3]]


def note(text: str, *, idempotency_key: str) -> Any:
    """Tells somebody."""
    return text


async def helper(ctx: Context, n: int) -> int:
    """Makes a call."""
    return await ctx.call(charge, n)


def house() -> App:
    app = App("shop")
    for tool in (charge, note):
        app.tool(effect="keyed")(tool)
    for agent in (patient, helper):
        app.agent(agent)
    return app


def waiting() -> Rig:
    """A run that waits for a word, and for another run."""
    rig = Rig(house())
    rig.start(SOURCE, "patient")
    rig.run()
    rig.later(3_600_000)
    rig.finish(SOURCE)
    rig.run()
    assert rig.state(SOURCE).status == "suspended" or rig.asked()
    return rig


def test_what_waits_has_the_time_that_was_left_and_children_begin_anew() -> None:
    rig = waiting()
    assert [request.run_id for request in rig.asked()] == ["r-1.4"]
    later = 86_400_000
    rig.later(later)  # by now the source has given up waiting for its word

    fork(rig, next(head.seq for head in rig.state(SOURCE).heads if head.seq >= rig.events(SOURCE).index("WaitStarted")))

    assert {request.run_id for request in rig.asked()} >= {"f-1.4"}
    opened = rig.state("f-1").open
    assert opened[5].due_ms == rig.state(SOURCE).steps[4].until_ms + later  # type: ignore[union-attr]
    rig.tell("f-1", "s-1", "now")
    rig.finish("f-1.4")
    rig.run()
    [asked] = rig.asked("f-1")
    token = canonical.parse(asked.args)["text"]
    rig.finish("f-1", result=canonical.dumps("ok"))
    rig.run()
    rig.deploy(house())
    rig.resolve(token, 7)
    rig.run()
    end = rig.history("f-1")[-1]
    assert canonical.parse(end.result) == ["r-1", "now", 1, "ok", 7, "cb_"]  # type: ignore[union-attr]
    assert rig.state(SOURCE).status != "completed", "nobody has answered that one"


@pytest.mark.parametrize("at", range(4, 16))
def test_forks_of_forks_agree_with_their_code_wherever_they_are_cut(at: int) -> None:
    rig = waiting()
    most = rig.state(SOURCE).head.seq
    fork(rig, min(at, most))
    rig.later(3_600_000)
    finished(rig, "f-1")
    fork(rig, rig.state("f-1").head.seq, run="f-2", source="f-1")
    rig.deploy(house())
    rig.later(1)
    for run in ("f-1", "f-2"):
        rig.tell(run, f"s-{run}", "now")
    rig.run()

    assert rig.holds() == 0
    assert rig.letters() == 0
    assert not rig.state("f-2").over
    assert rig.state("f-2").request.forked.lineage == [SOURCE, "f-1"]  # type: ignore[union-attr]


def test_what_failed_before_a_fork_is_tried_again_under_a_key_of_its_own() -> None:
    rig = begun(shop(three), done=1)
    rig.operate(SOURCE, "pause", reason="look")
    rig.run()
    rig.fail(SOURCE, "busy")
    rig.run()
    fork(rig, 99)
    for run in (SOURCE, "f-1"):
        rig.operate(run, "resume")
        rig.run()
        over = rig.state(run)
        assert over.status == "failed"
        rig.operate(run, "retry", seq=over.head.seq)
        rig.run()

    keys = {request.run_id: request.key for request in rig.asked()}
    assert keys.keys() == {SOURCE, "f-1"}
    assert len({*keys.values()}) == 2


def test_a_call_that_is_asked_for_anew_began_with_the_fork() -> None:
    rig = begun(shop(three), done=1)
    rig.later(60_000)
    fork(rig, 99)
    finished(rig)
    timeline = Timeline(RunId("f-1"))
    for entry in entries(rig, "f-1"):
        timeline.feed(entry)

    kept, anew, _ = timeline.steps

    assert kept.ended_ms < NOW + 60_000 <= anew.started_ms
    assert anew.ended_ms - anew.started_ms < 60_000


def test_a_fork_of_a_paused_run_starts_when_it_goes_on() -> None:
    rig = Rig(shop(three))
    rig.operate(SOURCE, "pause", reason="look")
    rig.start(SOURCE, "shop")
    rig.run()
    assert "RunStarted" not in rig.events(SOURCE)
    fork(rig, 99)
    assert "RunStarted" not in rig.events("f-1")
    rig.operate("f-1", "resume")
    rig.run()
    finished(rig)
    assert rig.state("f-1").status == "completed"


def test_of_a_budget_nothing_stays_reserved_and_a_deadline_is_as_far_as_it_was() -> None:
    rig = done()
    fork(rig, ends(rig)[2])
    before = rig.state("f-1")
    assert before.requested_ms >= NOW
    assert before.deadline_ms == 0
    finished(rig)
    [*_, last] = [event for event in rig.history("f-1") if isinstance(event, CallCompleted)]
    assert last.step == 3


def test_people_are_not_told_that_the_call_of_a_fork_was_edited() -> None:
    rig = begun(shop(three), done=1)
    fork(rig, 99)
    state = rig.state("f-1")
    [step] = state.open_calls()
    asked = Asked(state.head.seq, _question(step), (), NOW, 0, escalated=False, question="digest")

    told = question_of(state, state.call(step), state.open[step]._replace(question=asked))

    assert told.proposed_args == ""
    assert told.key == state.call(step).key != state.steps[step - 1].key  # type: ignore[union-attr]


def _question(step: int) -> ApprovalRequested:
    return ApprovalRequested(step, 1, 1, "p", "rule", Requirement(["ada"]), "test", "", "", "digest")
