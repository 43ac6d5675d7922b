"""What the rules of the event log are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.dev.kafka import EmbeddedKafka
from tests.contract.log_benches import Bench, KafkaBench, LastingBench, MemoryBench, StingyBench


@pytest.fixture(params=["memory", "stingy", "lasting", "kafka"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Give topics and a group that nobody has used."""
    if request.param == "lasting":
        yield LastingBench(tmp_path / "records")
        return
    if request.param != "kafka":
        yield MemoryBench() if request.param == "memory" else StingyBench()
        return
    broker: EmbeddedKafka = request.getfixturevalue("kafka")
    made = KafkaBench(broker.bootstrap)
    yield made
    made.close()
