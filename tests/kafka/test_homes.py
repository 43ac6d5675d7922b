"""A log that was copied into topics with another number of partitions is refused with both numbers."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from refold.cli.commands.serve.gateway import gateway
from refold.cli.commands.serve.planner import planner
from refold.cli.commands.serve.process import Served, check_homes
from refold.cli.commands.serve.projections import projections
from refold.core.errors import ConflictError
from refold.core.ids import CallId, EntryId, RunId, home, log_key
from refold.core.messages import ToolClaim
from refold.core.run.chain import anchor_key
from refold.core.topics import RUN_LOG, TOOL_CLAIMED
from refold.core.wire import codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime.addresses import Addresses
from refold.engine.runtime.settings import KafkaSettings, Settings

RUNS = [RunId(f"run-{number}") for number in range(40)]
CLAIMED = f"{TOOL_CLAIMED}.default"


def settings_of(kafka: EmbeddedKafka, partitions: int) -> KafkaSettings:
    """A platform whose topics have so many partitions."""
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"{uuid4().hex[:8]}.", partitions=partitions)
    Topics(settings, ("default",)).apply()
    return settings


def copy(settings: KafkaSettings, partitions: int) -> None:
    """Writes the runs of a log with so many partitions, and what executors have claimed of them, where they lay."""
    producer = Producer({"bootstrap.servers": settings.bootstrap, "enable.idempotence": True, "log_level": 0})
    for run in RUNS:
        number = home(run, partitions)
        claim = codec.encode(ToolClaim(CallId(f"{run}/3"), "c", "", 1, False, "executor", key=run))
        producer.produce(settings.prefix + RUN_LOG, b"x", log_key(run, 1, EntryId(bytes(16))), number)
        producer.produce(settings.prefix + RUN_LOG, b"{}", anchor_key(EntryId(bytes(16))), number)
        producer.produce(settings.prefix + CLAIMED, claim, run.encode(), number)
    assert producer.flush(60) == 0


@pytest.mark.parametrize(("before", "now"), [(1, 4), (2, 4), (3, 4)])
def test_whoever_starts_refuses_a_log_of_another_number_of_partitions(
    kafka: EmbeddedKafka, before: int, now: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = settings_of(kafka, now)
    copy(settings, before)
    told = f"has {now} partitions, and its records are of a log with {before}"
    where = Addresses(Settings(kafka=settings), dev=False, lost=None, data=tmp_path)

    for service in ("planner", "approval", "archivist", "executor"):
        with pytest.raises(ConflictError, match=told):
            Served(service, "m", where).check(("default",))

    for name, value in {"BOOTSTRAP": kafka.bootstrap, "PREFIX": settings.prefix, "PARTITIONS": str(now)}.items():
        monkeypatch.setenv(f"REFOLD_KAFKA__{name}", value)
    with pytest.raises(ConflictError, match=told):
        planner(app="tests/cli/app.py")
    for serve in (gateway, projections):
        with pytest.raises(ConflictError, match=told):
            serve()


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_log_of_as_many_is_not(kafka: EmbeddedKafka, partitions: int) -> None:
    settings = settings_of(kafka, partitions)
    check_homes(settings, RUN_LOG)
    copy(settings, partitions)

    check_homes(settings, RUN_LOG)
    check_homes(settings, CLAIMED)
