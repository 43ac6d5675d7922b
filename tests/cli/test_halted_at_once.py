"""How long after its halt a tool is still ordered, and still acts: real services on a real broker, busy with it.

`pytest tests/cli/test_halted_at_once.py -s` prints the figures that docs/performance.md has.
"""

from __future__ import annotations

import statistics
import sys
import time

import pytest

from refold.core.messages import ToolRequest
from refold.core.topics import CATALOG, tool_requested
from refold.core.wire import codec
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.settings import KafkaSettings
from tests.cli.terminal import Dev
from tests.waiting import eventually, under_load

PLAYS, RUNS = 3, 8
WATCHED_S = 2.0
"""How long nothing may happen after a halt. Twice the second that is promised."""


def lines(dev: Dev) -> list[str]:
    """What the tool has left, as far as it is written."""
    return (dev.data / "ticks").read_text().rpartition("\n")[0].splitlines()


def effects(dev: Dev) -> list[float]:
    """When the tool acted, in seconds since 1970."""
    return [float(line.split()[1]) for line in lines(dev)]


def orders(reader: KafkaLogReader) -> list[float]:
    """When planners ordered the tool."""
    records = [record for record in reader.scan(tool_requested("default")) if record.value]
    return [record.at_ms / 1000 for record in records if codec.decode(ToolRequest, record.value or b"").tool == "tick"]


def halted(dev: Dev, reader: KafkaLogReader) -> float:
    """Halts the tool; the time at which the last partition of the catalog has it."""
    dev.read("halt", "--tool", "tick", "--reason", "look first")
    return max(record.at_ms for record in reader.scan(CATALOG)) / 1000


@pytest.mark.long
def test_what_is_halted_is_ordered_by_nobody_and_acts_no_more_within_a_second(
    dev: Dev, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = KafkaLogReader(KafkaSettings(bootstrap=dev.state["kafka"]))
    late: dict[str, list[float]] = {"ordered": [], "acted": []}
    names = [f"t-{number}" for number in range(RUNS)]
    (dev.data / "ticks").touch()
    for name in names:
        dev.read("run", "start", "ticks", "--id", name, "--input", '{"count": 100000}')
    eventually(lambda: len({line.split()[0] for line in lines(dev)}) == RUNS, what="runs that are busy")
    try:
        for _ in range(PLAYS):
            begun = time.time()
            eventually(lambda since=begun: sum(at > since for at in effects(dev)) > 5 * RUNS, what="busy runs")  # type: ignore[misc]
            at = halted(dev, reader)
            eventually(lambda at=at: time.time() > at + WATCHED_S, what="the time to watch")  # type: ignore[misc]
            late["acted"].append(max(effects(dev)) - at)
            late["ordered"].append(max(orders(reader)) - at)
            dev.read("halt", "--lift", "--tool", "tick")
    finally:
        for name in names:
            dev.refold("run", "cancel", name)

    means = {what: statistics.mean(max(0.0, each) for each in spans) for what, spans in late.items()}
    most = {what: max(spans) for what, spans in late.items()}
    with capsys.disabled():
        for what, mean in means.items():
            sys.stdout.write(
                f"\n{what} after its halt, ms: {mean * 1000:.0f} on average, {most[what] * 1000:.0f} at most"
            )
    assert max(means.values()) < under_load(1.0)
