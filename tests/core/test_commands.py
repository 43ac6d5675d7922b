"""What an accepted entry orders from others."""

from __future__ import annotations

from refold.core.events import (
    CallCompleted,
    CallProposed,
    Failure,
    NoteRecorded,
    RetryPolicy,
    RunCompleted,
    RunFailed,
    SleepStarted,
)
from refold.core.ids import attempt_trace, trace_id
from refold.core.messages import EarlierCall, RunOutcome, RunRequest, ToolRequest
from refold.core.planning.commands import Command, commands, request
from refold.core.planning.verdict import Start
from refold.core.run.building import complete
from refold.core.run.fold import fold
from refold.core.run.state import RunState
from tests.core.histories import NOW, RUN, Log, calling, doubting, signal, started


def ordered(log: Log, offset: int = 70) -> list[Command]:
    return commands(log.live, log.entries[-1][1], offset)


def test_a_start_orders_nothing() -> None:
    assert ordered(started()) == []


def test_a_dispatch_orders_an_attempt_and_names_the_record_that_issued_it() -> None:
    log = calling(window_ms=5_000)

    (order,) = ordered(log)

    assert order == Command(
        "tool-requested.default",
        f"{RUN}/3",
        ToolRequest(
            f"{RUN}/3",
            RUN,
            1,
            1,
            70,
            "push",
            '{"n":1}',
            "key-1",
            "keyed",
            30_000,
            NOW + 5_000,
            at_ms=NOW,
            agent="deploy",
            requester="ann",
            traceparent=attempt_trace(RUN, 3, f"{RUN}/3", 1),
        ),
    )


def test_a_second_dispatch_keeps_the_key_and_its_window() -> None:
    log = calling(window_ms=500_000)
    (first,) = ordered(log)
    log.now = log.due().due_ms
    log.feed(log.due())

    (second,) = ordered(log, 71)

    assert isinstance(first.message, ToolRequest)
    assert isinstance(second.message, ToolRequest)
    assert (second.key, second.message.key, second.message.key_expires_ms) == (
        first.key,
        first.message.key,
        first.message.key_expires_ms,
    )
    assert second.message.issued == 71


def trace(order: Command) -> list[str]:
    assert isinstance(order.message, ToolRequest)
    return order.message.traceparent.split("-")


def test_each_attempt_has_a_span_of_its_own_in_the_trace_of_its_activation() -> None:
    log = Log()
    log.feed(Start(RunRequest(RUN, "a"), "d", "s", traceparent="00-trace"))
    log.propose()
    (first,) = ordered(log)
    (again,) = ordered(log)
    log.feed(log.result(status="failed"))
    log.now = log.due().due_ms
    log.feed(log.due())
    (second,) = ordered(log)

    assert trace(first) == ["00", trace_id(RUN, 3), trace(first)[2], "01"]
    assert trace(again) == trace(first)
    assert trace(second)[1] != trace(first)[1], "it waited for the second attempt"
    assert trace(second)[2] != trace(first)[2]


def test_calls_of_one_stretch_of_work_have_one_trace_and_a_take_over_derives_the_same() -> None:
    log = calling()
    (first,) = ordered(log)
    log.propose()
    (beside,) = ordered(log)
    log.feed(log.result())
    at = log.live.activation
    log.feed(log.result(2))
    log.propose()
    (later,) = ordered(log)

    assert at == 3, "another call is under way"
    assert trace(beside)[1] == trace(first)[1] == trace_id(RUN, 3)
    assert trace(later)[1] == trace_id(RUN, log.live.activation) != trace(first)[1], "all were settled"
    assert trace(beside)[2] != trace(first)[2]
    assert fold(log.entries, RUN).activation == log.live.activation


def test_a_settled_call_is_closed() -> None:
    log = calling()
    log.feed(log.result())

    assert ordered(log) == [Command("tool-requested.default", f"{RUN}/3", None, "key-1")]


def test_a_call_in_doubt_stays_open_and_its_order_is_taken_back() -> None:
    assert ordered(doubting()) == [Command("tool-requested.default", f"{RUN}/3", None, "key-1", attempt=1)]


def test_the_end_closes_what_is_open_and_tells_the_outcome() -> None:
    log = calling()
    log.propose()
    log.append([SleepStarted(3, NOW + 1), NoteRecorded(4, "thought", "1")])
    log.feed(log.result(1))
    log.feed(signal("cancel"))

    outcome, *closed = ordered(log)

    assert closed == [Command("tool-requested.default", f"{RUN}/5", None, "key-2")]
    assert outcome == Command(
        "run-completed",
        RUN,
        RunOutcome(
            RUN,
            "cancelled",
            "deploy",
            seq=log.live.head.seq,
            request=log.entries[0][1].cause,
            at_ms=NOW,
            stop="cancelled",
        ),
    )


def test_the_outcome_has_the_result_or_the_failure() -> None:
    done, failed = started(), started()
    done.append([RunCompleted("7")])
    failed.append([RunFailed(Failure("raised", "no"))])

    outcomes = [ordered(log)[-1].message for log in (done, failed)]

    assert [(o.status, o.result, o.failure) for o in outcomes if isinstance(o, RunOutcome)] == [
        ("completed", "7", None),
        ("failed", "null", Failure("raised", "no")),
    ]


def test_an_order_carries_the_calls_on_which_it_builds_and_theirs_and_no_others() -> None:
    state, built = RunState(RUN), {1: [], 2: [], 3: [1], 4: [3, 7], 5: [4]}
    for step, below in built.items():
        proposed = CallProposed(
            step, "ask", f'{{"n":{step}}}', "k", "default", "pure", 1_000, RetryPolicy(), builds_on=below
        )
        state.steps, state.seqs = state.steps.append(proposed), state.seqs.append(step)
    for step in (1, 2, 3):
        state.outcomes = state.outcomes.add(step, (NOW, CallCompleted(step, 1, f"{step}"), 10 + step))

    orders = [request(state, step, 1, issued=0, at_ms=0).message for step in (4, 5)]
    fourth, fifth = (complete(state, order) for order in orders if isinstance(order, ToolRequest))

    assert fourth.earlier == [EarlierCall(1, '{"n":1}', "1"), EarlierCall(3, '{"n":3}', "3")]
    assert fifth.earlier == []
