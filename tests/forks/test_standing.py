"""Runs whose code stood still: a fork gives it its turn, as soon as nothing recorded does."""

from __future__ import annotations

from refold.core.ids import RunId
from refold.core.run import chain
from refold.lab.forks.record import LogRow
from tests.forks.recording import Family, fork
from tests.recovery.rig import Rig
from tests.recovery.test_versions import app, begun, one, three

LIVE = RunId("live")


def stalled() -> Family:
    """A run that waits in its second call; the outcome came when nobody had its version."""
    rig: Rig = begun(app(one), 3)
    rig.start("live", "ship")
    rig.run()
    rig.finish("live")
    rig.run()
    rig.deploy(app(three))
    rig.finish("live")
    rig.run()
    records = rig.broker.log("run-log", 0).records
    read = [(record, chain.read(record.key, record.value)) for record in records]
    return {
        LIVE: [
            LogRow(record.offset, record.key or b"", record.value or b"")
            for record, found in read
            if isinstance(found, chain.LogRecord) and found.entry.run_id == LIVE
        ]
    }


def test_a_run_that_stands_still_goes_on_in_a_fork_with_code_that_agrees() -> None:
    family = stalled()

    for at in (0, 5, 99):
        report = fork(app(one), family, "live", at)

        assert (report.verdict, report.stopped[0].args) == ("stopped", {"n": 3}), at


def test_a_run_that_stands_still_is_not_the_same_with_code_that_does_not_agree() -> None:
    report = fork(app(three), stalled(), "live", 99)

    assert (report.verdict, report.step) == ("disagrees", 2)
