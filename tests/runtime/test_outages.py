"""An outage is a few lines in a log, whatever is tried meanwhile: its start, one an interval, and its end."""

from __future__ import annotations

import time

from structlog.testing import capture_logs

from refold.engine.runtime.outages import Outages
from tests.waiting import eventually


def test_an_outage_is_a_line_at_once_one_an_interval_and_one_at_its_end() -> None:
    outages, begun = Outages(line_s=0.2, quiet_s=0.4), time.monotonic()
    with capture_logs() as lines:
        tries = 0
        while time.monotonic() - begun < 0.7:
            outages.failed("ledger.unreachable", error="it is away")
            tries += 1
        eventually(lambda: lines[-1]["event"] == "outage.over", what="its end")

    first, *between, last = lines
    assert tries > 100
    assert (first["event"], first["log_level"], "failures" in first) == ("ledger.unreachable", "warning", False)
    assert 1 <= len(between) <= 3
    assert all(line["failures"] > 1 for line in between)
    assert (last["of"], last["failures"]) == ("ledger.unreachable", tries)
    assert last["seconds"] >= 0.6


def test_kinds_are_apart_and_what_fails_once_has_no_end() -> None:
    outages = Outages(line_s=9, quiet_s=0.1)
    with capture_logs() as lines:
        for kind in ("FAIL", "ERROR", "FAIL"):
            outages.failed("kafka.client", kind, "error", line=kind)
        eventually(lambda: not outages._open, what="the end of all")

    assert [(line["event"], line["log_level"]) for line in lines[:2]] == [("kafka.client", "error")] * 2
    assert [(line["event"], line["kind"], line["failures"]) for line in lines[2:]] == [("outage.over", "FAIL", 2)]


def test_the_next_failure_after_an_end_is_another_outage() -> None:
    outages = Outages(line_s=9, quiet_s=0.05)
    with capture_logs() as lines:
        outages.failed("projection.waits")
        eventually(lambda: not outages._open, what="its end")
        outages.failed("projection.waits")

    assert [line["event"] for line in lines] == ["projection.waits"] * 2
