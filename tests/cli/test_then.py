"""Open steps of runs at a time, and the input of their models and tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refold.client.operations.run import Changes, redrive
from refold.client.operations.runs import RunQuery, selected
from refold.client.reading.diff import MOST_SEEN, run_then
from refold.client.reading.history import Run, at_time, feed
from refold.console.projections.service import KeptProjection
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.views import runs_then
from refold.core.errors import ConflictError
from refold.core.events import CallCompleted, Event, Failure, RunCompleted, RunFailed
from refold.core.ids import RunId
from refold.core.run.log import LogFold
from refold.engine.ports.log import Record
from tests.projections.histories import NOW, begun, call, entries
from tests.projections.memory_views import MemoryViewDatabase
from tests.projections.source import ListedLog
from tests.projections.test_service import settle


def run_of(*batches: list[Event], name: str = "r") -> Run:
    fold, run = LogFold(), Run.empty(RunId(name))
    for offset, (key, value) in enumerate(entries(name, *batches)):
        run.take(feed(fold, Record("run-log", 0, offset, key, value, list, NOW)), fold)
    return run


def given(args: Any) -> str:
    """The input that the second call of a run is shown with, where the first has a result."""
    text = args if isinstance(args, str) else json.dumps(args, separators=(",", ":"))
    run = run_of([*begun(), *call(1)], [CallCompleted(1, 1, '{"sky":"blue"}'), *call(2, text)])
    (step,) = run_then(run).open_steps
    assert (step.step, step.kind, step.name, step.status) == (2, "call", "pay", "running")
    return step.given


def test_of_a_request_to_a_model_its_newest_message_is_shown() -> None:
    old, question = {"parts": [{"content": "old"}]}, {"parts": [{"content": "which sky?"}, {"content": ["a", 1]}]}

    assert given({"messages": [old, question]}) == 'which sky? ["a",1]'
    assert given({"messages": [old, {"parts": [{"$result": 1, "tool_name": "look"}]}]}) == '{"sky":"blue"}'
    assert given({"messages": [{"parts": [{"content": "x" * 500}]}]}) == "x" * (MOST_SEEN - 1) + "…"


@pytest.mark.parametrize(
    "args",
    [
        *({}, {"n": 1}, {"messages": []}, {"messages": 7}, {"messages": [{}]}, {"messages": ["a"]}, {"messages": {}}),
        *({"messages": [{"parts": [{"$result": 99}]}]}, {"messages": [{"parts": ["a"]}]}, {"messages": None}),
        *({"messages": [{"parts": [{"$result": "1"}]}]}, {"messages": [{"parts": [{}]}]}, {"messages": [{"parts": 5}]}),
    ],
)
def test_of_any_other_call_the_arguments_are_shown(args: Any) -> None:
    assert given(args) == json.dumps(args, separators=(",", ":"))


def test_a_run_that_is_over_has_nothing_open_and_had() -> None:
    run = run_of([*begun(), *call(1)], [RunCompleted("1")])
    first = run.records[0].entry
    assert first is not None

    assert run_then(run).open_steps == []
    assert [step.step for step in run_then(at_time(run, first.at_ms)).open_steps] == [1]


def test_only_the_runs_of_a_state_count_as_those_that_a_limit_hides() -> None:
    database, log = MemoryViewDatabase(), ListedLog()
    kept = KeptProjection(Shipped(), database, log)
    log.finish(*(f"done-{number}" for number in range(6)))
    for number in range(7):
        for key, value in entries(f"open-{number}", [*begun(), *call(1)]):
            log.write(key, value)
    settle(kept)

    with database.store(Shipped.name, 1).snapshot() as view:
        found = runs_then(view, RunQuery(state="running", limit=5), 2 * NOW)
        every = runs_then(view, RunQuery(limit=5), 2 * NOW)

    assert [len(found.runs), found.meant, found.total] == [5, 7, 13]
    assert [len(every.runs), every.meant, every.total] == [5, 13, 13]


def test_the_retry_of_a_failed_child_is_refused_before_it_is_sent_with_commands_that_work() -> None:
    failed = [*begun(), RunFailed(Failure("ValueError", "no address", "mail.py:9 in one"))]
    child, alone = run_of(failed, name="mail.2"), run_of(failed)

    with pytest.raises(ConflictError, match="run mail, which has started mail.2, has its failure") as refused:
        redrive(child.state, "ann", Changes())

    assert str(refused.value.hint).startswith("`refold run retry mail --from 2`, or")
    assert "`refold run start shop --input JSON`" in str(refused.value.hint)
    assert selected([child, alone], RunQuery(), "retry") == [alone]
