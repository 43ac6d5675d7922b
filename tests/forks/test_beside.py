"""A fork beside its run, step by step, as `refold run diff` compares them."""

from __future__ import annotations

from refold.client.reading.diff import run_diff
from refold.client.reading.history import JudgedRecord, Run, extend
from refold.core.ids import RunId
from refold.core.run import chain
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Record
from refold.lab.forks.record import LogRow
from refold.testing import attempts
from tests.forks.recording import family_of, fork
from tests.forks.zoo import app, buy, start

RUN = RunId("r-1")


def read(rows: list[LogRow]) -> Run:
    """A run out of rows, as it is read out of a log or of a bundle."""
    run = Run.empty(RUN)
    for place, key, value in rows:
        found = chain.read(key, value)
        assert isinstance(found, chain.LogRecord)
        record = Record(RUN_LOG, 0, place, key, value, list, found.entry.at_ms)
        extend(run, JudgedRecord(run.state.run_id, found.id, found.entry, "", record=record), found.entry)
    return run


def test_steps_of_a_fork_are_compared_by_what_they_ask_for() -> None:
    run = start(app, "shops", items=["tea", "milk", "silk"], tools={buy: attempts("1", "2", "3")}).finish()
    rows = family_of(run)[RUN]
    report = fork(app, family_of(run), "r-1", 0, input='{"items":["tea","silk"]}')
    mine = [LogRow(-1, bytes.fromhex(key), bytes.fromhex(value)) for key, value in report.rows["r-1"]]

    found = run_diff(read(rows), read(mine))
    same = run_diff(read(rows), read(rows))

    calls = [(step.change, step.name, step.left, step.right) for step in found.steps if step.name == "buy"]
    assert calls == [("removed", "buy", 4, 0)]
    assert (found.left.forked, found.right.forked) == (0, 1)
    assert (same.steps, same.fields) == ([], [])


def test_a_call_with_other_arguments_is_one_step_that_was_changed() -> None:
    run = start(app, "shops", items=["tea", "milk"]).finish()
    family = family_of(run)
    report = fork(app, family, "r-1", 5, edits={4: '{"item":"silk","many":1}'})
    kept = family[RUN][: report.kept["r-1"]]
    mine = [LogRow(-1, bytes.fromhex(key), bytes.fromhex(value)) for key, value in report.rows["r-1"]]

    found = run_diff(read(family[RUN]), read(kept + mine))

    (step,) = [step for step in found.steps if step.name == "buy"]
    assert (step.change, step.left, step.right) == ("changed", 4, 4)
    assert next(change.right for change in step.fields if change.name == "args")["item"] == "silk"
    assert found.right.forked > 1
