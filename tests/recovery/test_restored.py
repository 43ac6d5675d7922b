"""The restore drill: topics, Redis, blobs and keys are saved, and a new cluster goes on from them.

`older`: Redis was saved before the topics. `newer`: the topics were saved before Redis, so Redis knows calls that the
topics lost. In both the receiver's book decides whether an effect happened twice.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from redis import Redis

from refold.cli.commands.serve.process import check_homes
from refold.core.errors import ConflictError
from refold.core.ids import RunId, home
from refold.core.topics import RUN_LOG
from refold.dev.kafka import EmbeddedKafka
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.ports.log import Record
from refold.engine.runtime.settings import KafkaSettings
from tests.cli.terminal import Dev
from tests.waiting import eventually

APP = Path(__file__).with_name("drill.py")
TOOLS = ("pay", "book", "mail")
ASKING = ("asking", "agreed")
ACTING = (*(f"{kind}-{tool}" for kind in ("before", "since", "amid", "later") for tool in TOOLS), *ASKING)
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "operating.md"
PARTITIONS = 2
Saved = dict[str, list[Record]]

ENVIRONMENT = {"REFOLD_KAFKA__PARTITIONS": str(PARTITIONS), "REFOLD_EXECUTOR__CHAINED_LEASE_MS": "2000"}


def settings_of(bootstrap: str, *, partitions: int = PARTITIONS, prefix: str = "refold.") -> KafkaSettings:
    return KafkaSettings(bootstrap=bootstrap, partitions=partitions, prefix=prefix)


def save(bootstrap: str) -> Saved:
    """Save what a compacted topic keeps: the last record of each key, so that offsets differ in a copy."""
    settings = settings_of(bootstrap)
    reader, saved = KafkaLogReader(settings), Saved()
    for topic in sorted(each.topic.removeprefix(settings.prefix) for each in Topics(settings).present()):
        last = {(record.partition, record.key): record for record in reader.scan(topic)}
        saved[topic] = sorted(last.values(), key=lambda record: record.offset)
    return saved


def restore(saved: Saved, settings: KafkaSettings) -> None:
    """Make the topics, then write the records into the partitions where they lay."""
    Topics(settings, ("default",)).apply()
    producer = Producer({"bootstrap.servers": settings.bootstrap, "enable.idempotence": True, "log_level": 0})
    for topic, records in saved.items():
        for record in records:
            headers: list[Any] = list(record.read_headers() or ())
            producer.produce(settings.prefix + topic, record.value, record.key, record.partition, headers=headers)
            producer.poll(0)
    assert producer.flush(60) == 0


@contextmanager
def platform(data: Path, world: Path, *own: str) -> Iterator[Dev]:
    """`refold dev` on a folder, beside the receiver of a world; `own` are servers that it does not start."""
    data.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "refold", "dev", str(APP), "--data", str(data), *own]
    with (data / "dev.log").open("w") as log:
        environment = {**os.environ, **ENVIRONMENT, "DRILL": str(world)}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
    try:
        eventually(lambda: process.poll() is not None or (data / "dev.json").exists(), within=90, what="refold dev")
        assert process.poll() is None, (data / "dev.log").read_text()
        yield Dev(data, process)
    finally:
        process.terminate()
        process.wait(60)


@dataclass
class Backup:
    """What is saved of a platform, and the world as it was when the platform was lost."""

    topics: Saved
    redis: Path
    data: Path
    world: Path
    over: dict[str, Any]
    """Rows of the runs that had ended when the topics were saved."""


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Backup]:
    """Two backups of one platform whose runs are finished, amid an effect, before one, and waiting for people."""
    folder = tmp_path_factory.mktemp("drill")
    data, world = folder / "dev", folder / "world"
    world.mkdir()
    (world / "book").touch()
    with platform(data, world) as dev:
        start(dev, {f"before-{tool}": {"tool": tool} for tool in TOOLS})
        ended(dev, [f"before-{tool}" for tool in TOOLS])
        shutil.copytree(data / "valkey" / "store", folder / "older")
        since = {f"since-{tool}": {"tool": tool} for tool in TOOLS}
        amid = {f"amid-{tool}": {"tool": tool, "within": "second"} for tool in TOOLS}
        later = {f"later-{tool}": {"tool": tool, "before": "second"} for tool in TOOLS}
        start(dev, since | amid | later)
        start(dev, {"large": {"gate": "second"}}, "large")
        start(dev, dict.fromkeys(ASKING), "asking")
        ended(dev, [f"since-{tool}" for tool in TOOLS])
        eventually(lambda: len(lines(world)) == 3 * len(TOOLS), what="the effects before their results")
        eventually(lambda: len(dev.read("approval", "list")) == 2, what="two questions")
        eventually(lambda: dev.read("run", "show", "large")["seq"] > 5, what="the large value")
        topics = save(dev.state["kafka"])
        over = {run: row for run, row in rows(dev).items() if row["status"] == "completed"}
        saved = Backup(topics, folder / "older", copied(data, folder / "data"), copied(world, folder / "lost-1"), over)
        (world / "second").touch()
        agree(dev, "agreed")
        ended(dev, [f"{kind}-{tool}" for kind in ("amid", "later") for tool in TOOLS] + ["large", "agreed"])
        shutil.copytree(data / "valkey" / "store", folder / "newer")
    return {
        "older": saved,
        "newer": Backup(topics, folder / "newer", saved.data, copied(world, folder / "lost-2"), over),
    }


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("kafka", "valkey", "views", "logs", "dev.*", "lock"))
    return target


def start(dev: Dev, runs: Mapping[str, object], agent: str = "errand") -> None:
    producer = Producer({"bootstrap.servers": dev.state["kafka"], "log_level": 0})
    for run, given in runs.items():
        value = json.dumps({"run_id": run, "agent": agent, "input": given})
        producer.produce("refold.run-requested", value, run, home(RunId(run), PARTITIONS))
    assert producer.flush(60) == 0


def agree(dev: Dev, run: str) -> None:
    [asked] = [row for row in dev.read("approval", "list") if row["approval"].startswith(f"{run}/")]
    dev.refold("approval", "approve", asked["approval"])


def rows(dev: Dev) -> dict[str, Any]:
    return {row["run_id"]: row for row in dev.read("run", "list", "--from-log")}


def states(dev: Dev) -> list[str]:
    return [row["state"] for row in dev.read("projection", "list", "refold")["generations"]]


def ended(dev: Dev, runs: list[str]) -> None:
    def over() -> bool:
        shown = {row["run_id"]: row["status"] for row in dev.read("run", "list")}
        return all(shown.get(run) == "completed" for run in runs)

    eventually(over, what=f"the end of {runs}")


def lines(world: Path) -> list[str]:
    return (world / "book").read_text().splitlines()


def reopen(valkey: EmbeddedValkey) -> int:
    """Run the script of the guide on each key: calls that Redis has closed and the topics have open are taken over."""
    script = re.search(r"EVAL '([^']+)'", GUIDE.read_text(), re.DOTALL)
    assert script, "the guide has the script"
    with Redis.from_url(valkey.url) as link:
        return sum(int(link.eval(script[1], 1, name)) for name in link.scan_iter("refold:*:effect:*"))


def doubts(dev: Dev) -> dict[str, str]:
    return {row["run_id"]: row["approval"] for row in dev.read("approval", "list") if row["about"] == "doubt"}


@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    ("redis", "asked"),
    [
        ("older", {"amid-mail"}),
        pytest.param("newer", {"amid-mail", "later-mail", "agreed"}, marks=pytest.mark.long),
    ],
)
def test_a_platform_goes_on_from_its_backup(
    redis: str, asked: set[str], backups: dict[str, Backup], tmp_path: Path
) -> None:
    backup = backups[redis]
    data, world = copied(backup.data, tmp_path / "dev"), copied(backup.world, tmp_path / "world")
    (world / "second").touch()
    shutil.copytree(backup.redis, tmp_path / "valkey" / "store")
    with ExitStack() as servers:
        kafka = servers.enter_context(EmbeddedKafka(tmp_path / "kafka"))
        valkey = servers.enter_context(EmbeddedValkey(tmp_path / "valkey"))
        restore(backup.topics, settings_of(kafka.bootstrap))
        reopened = reopen(valkey) if redis == "newer" else 0
        dev = servers.enter_context(platform(data, world, "--kafka", kafka.bootstrap, "--redis", valkey.url))

        for run in ASKING:
            agree(dev, run)
        eventually(lambda: doubts(dev).keys() == asked, what=f"questions about {asked}")
        for question in doubts(dev).values():
            dev.refold("run", "resolve", question, "--happened", '"done"')
        ended(dev, [*ACTING, "large"])

        assert bool(reopened) is (redis == "newer")
        assert Counter(line.split()[0] for line in lines(world)) == dict.fromkeys(ACTING, 1)
        dev.refold("verify")
        eventually(lambda: "serving" in states(dev), what="a generation in use")
        dev.refold("projection", "verify", "refold")
        assert {run: row for run, row in rows(dev).items() if run in backup.over} == backup.over

        other = settings_of(kafka.bootstrap, partitions=PARTITIONS + 1, prefix="other.")
        restore({RUN_LOG: backup.topics[RUN_LOG]}, other)
        with pytest.raises(ConflictError, match=f"are of a log with {PARTITIONS}"):
            check_homes(other, RUN_LOG)
