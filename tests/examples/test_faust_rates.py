"""`examples/outside/faust_rates.py` counts each call once, though its counts are lost and it is killed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from confluent_kafka import TopicPartition

from refold.core.events import CallProposed, Entry
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.reader import KafkaLogReader
from tests.projections.killing import CALLS, Load, platform
from tests.waiting import eventually

PROGRAM = Path(__file__).parents[2] / "examples" / "outside" / "faust_rates.py"


def test_the_rates_of_faust_are_those_of_the_log_after_a_kill_and_a_loss(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    settings = platform(kafka.bootstrap, f"rates-{os.urandom(3).hex()}")
    topic, rates, log = settings.prefix + RUN_LOG, tmp_path / "rates.db", tmp_path / "log"
    environment = {**os.environ, "KAFKA": settings.bootstrap, "TOPIC": topic, "RATES": str(rates)}

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), "worker", "--loglevel", "warn"]
        with log.open("ab") as out:
            return subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=out, stderr=out)

    def counted() -> Counter[tuple[int, str]]:
        with closing(sqlite3.connect(rates)) as there:
            there.execute("create table if not exists rates (minute, tool, calls, primary key (minute, tool))")
            return Counter({row[:2]: row[2] for row in there.execute("select minute, tool, calls from rates")})

    def place() -> int:
        with closing(clients.consumer(settings, f"{RUN_LOG}-rates")) as consumer:
            places = [TopicPartition(topic, number) for number in range(settings.partitions)]
            return sum(max(0, each.offset) for each in consumer.committed(places))

    with Load(settings) as load:
        running = start()
        try:
            eventually(lambda: rates.exists() and place() > 0 and counted().total() > 20)
            with closing(sqlite3.connect(rates)) as there, there:
                there.executescript("begin; delete from heads; delete from rates; commit;")
            eventually(lambda: "gap in load-" in log.read_text())
        finally:
            running.kill()
            running.wait()
    running = start()
    try:
        entries = [codec.decode(Entry, each.value or b"") for each in KafkaLogReader(settings).scan(RUN_LOG)]
        calls = ((entry, event) for entry in entries for event in entry.events if isinstance(event, CallProposed))
        wanted = Counter((entry.at_ms // 60_000, event.tool) for entry, event in calls)
        eventually(lambda: counted() == wanted, every=0.5)
    finally:
        running.kill()
        running.wait()

    assert wanted.total() == CALLS * len(load.runs)
