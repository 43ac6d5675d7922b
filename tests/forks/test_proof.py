"""Forks cannot fire: a hundred recorded runs from every tenth event, in real processes, beside a real Kafka."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from refold import NotDone, TerminalError
from refold.core.ids import RunId, home
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime.settings import KafkaSettings
from refold.lab.forks.record import RecordedRun
from refold.lab.forks.report import ForkReport
from refold.lab.forks.worker import ForkJob, ForkSetup
from refold.lab.processes import forks
from refold.testing import AgentRun, attempts, reject
from tests.cli.terminal import refold
from tests.forks.recording import Family, family_of, golden_family
from tests.forks.thinking import app as thinking
from tests.forks.zoo import POLICY, RUNS, app, buy, look, start
from tests.golden.recording import kept
from tests.roots import PINNED

ROOT = Path(__file__).parents[2]
ZOO, THINKING, GOLDEN = "tests.forks.zoo:app", "tests.forks.thinking:app", "tests.golden.agents:app"


def recordings() -> Iterator[tuple[str, str, Family]]:
    """A hundred runs with the app of each and its id: with models, people, children and failures."""
    for record in RUNS.values():
        yield ZOO, "r-1", family_of(record())
    for name in kept():
        yield GOLDEN, name, golden_family(name)
    for number, run in enumerate(kit_runs()):
        yield THINKING if number % 4 == 3 else ZOO, run.state.run_id, family_of(run)


def kit_runs() -> Iterator[AgentRun]:
    """Runs of the test kit under ids of their own."""
    for number in range(19):
        items = [f"item {each % 7}" for each in range(number % 9)]
        said = reject("no") if number % 3 else "approve"
        yield start(app, "shops", name=f"s-{number}", items=items, policy=POLICY, decisions={"buy": said}).finish()
        calls = attempts(NotDone("busy"), TerminalError("no"), *map(str, range(7)))
        yield start(app, "fans", name=f"f-{number}", many=number % 5 + 1, tools={look: calls}).finish()
        lost = attempts(*[RuntimeError("who knows")] * 2)
        yield start(app, "parent", name=f"p-{number}", tools={buy: lost} if number % 2 else {}).finish()
        yield start(thinking, "thinker", name=f"t-{number}", prompt=f"what is dear in {number}?").finish()


def jobs() -> dict[str, list[ForkJob]]:
    """Forks of all of them from every tenth event, by app."""
    found: dict[str, list[ForkJob]] = {ZOO: [], THINKING: [], GOLDEN: []}
    for target, run, family in recordings():
        end = RecordedRun.of(family[RunId(run)]).state.head.seq
        found[target] += [ForkJob(run, family, at) for at in range(0, end + 1, 10)]
    return found


def workers_sockets() -> list[str]:
    """The sockets that the processes of forks have open, of which there is at least one."""
    workers = [child for child in psutil.Process().children() if "refold.lab.forks.worker" in child.cmdline()]
    assert workers
    opened = [str(place.readlink()) for worker in workers for place in Path(f"/proc/{worker.pid}/fd").iterdir()]
    return [link for link in opened if link.startswith("socket:")]


@pytest.mark.parametrize("each", [12, pytest.param(1, marks=pytest.mark.long)])
def test_a_hundred_runs_forked_from_every_tenth_event_open_no_socket_and_run_no_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each: int
) -> None:
    """All of them, and a twelfth where one is in a hurry."""
    monkeypatch.chdir(ROOT)
    file = tmp_path / "acted"
    file.write_text("nothing\n")
    by_app = jobs()
    monkeypatch.setenv("FORK_TEST_ACTED", str(file))
    seen, found = list[str](), list[list[ForkReport]]()

    for _ in range(2):
        reports = list[ForkReport]()
        for target, asked in by_app.items():
            for report in forks(asked[::each], ForkSetup(target, "test", [POLICY]), at_once=2):
                reports.append(report)
                if len(reports) % 7 == 1:
                    seen += workers_sockets()
        found.append(reports)

    assert sum(job.at == 0 for asked in by_app.values() for job in asked) > 100
    assert (seen, file.read_text()) == ([], "nothing\n")
    assert Counter(report.verdict for report in found[0]) == {"same": len(found[0])}
    assert all(report.refused == {} for report in found[0])
    assert [report.model_dump_json() for report in found[0]] == [report.model_dump_json() for report in found[1]]


def ends(settings: KafkaSettings) -> dict[tuple[str, int], int]:
    """The end of each partition of all topics with a prefix."""
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    topics = {name: each for name, each in admin.list_topics(timeout=30).topics.items() if settings.prefix in name}
    places = [TopicPartition(name, number) for name, each in topics.items() for number in each.partitions]
    newest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    found = admin.list_offsets(dict.fromkeys(places, newest))
    return {(place.topic, place.partition): done.result(30).offset for place, done in found.items()}


def test_forks_of_all_runs_on_a_real_kafka_write_no_record_to_any_topic(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"forks-{os.getpid()}.", partitions=3)
    for name, value in (("PREFIX", settings.prefix), ("PARTITIONS", "3"), ("BOOTSTRAP", settings.bootstrap)):
        monkeypatch.setenv(f"REFOLD_KAFKA__{name}", value)
    monkeypatch.setenv("REFOLD_ENVIRONMENT", "test")
    monkeypatch.setenv("REFOLD_TRUST", PINNED)
    Topics(settings, ("default",), payload_bytes=1 << 20).apply()
    publisher = KafkaPublisher(settings, partitions=3)
    runs = [run for number, run in enumerate(kit_runs()) if number % 12 in (0, 5, 10)]
    for each in runs:
        for name, rows in family_of(each).items():
            for row in rows:
                publisher.send_raw("run-log", home(name, 3), key=row.key, value=row.value, headers=[])
    before = ends(settings)

    for at in range(0, 30, 10):
        result = refold("fork", "--app", ZOO, "--at", str(at), "--jobs", "2", "--json", "--data", str(tmp_path))
        assert result.exit_code == 0, result.output[-2_000:]

    assert sum(before.values()) > 100
    assert ends(settings) == before
