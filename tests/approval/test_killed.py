"""The service as a process on a real broker, killed around its decision; people vote with the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from refold.client.operations.approvals import Approvals
from refold.core.ids import home
from refold.core.messages import ApprovalRequest
from refold.core.wire import codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime import keys
from refold.engine.runtime.settings import KafkaSettings
from tests.approval.driving import GATEWAY, POLICY, ROLES, SERVICE, app, request
from tests.roots import PINNED, TRUST, entry, spread

REFOLD = (sys.executable, "-m", "refold")
PARTITIONS = 2
_NUMBERS = count()


@dataclass
class Bench:
    """Topics of its own on the shared broker, and the processes that work on them."""

    kafka: KafkaSettings
    folder: Path
    processes: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        Topics(self.kafka, app.pools).apply()
        self.publisher = KafkaPublisher(self.kafka, partitions=PARTITIONS)
        self.reader = KafkaLogReader(self.kafka)
        self.publish("roles", "roles", ROLES)
        self.publish(f"policy/{POLICY.digest}", "policy", POLICY.content)
        for key in (SERVICE, GATEWAY):
            keys.save(key, self.folder / "keys" / f"{key.use}.json")
            self.publish(f"key/{key.kid}", "key", key.public().content())

    def publish(self, name: str, kind: str, content: Any) -> None:
        """Puts an entry into the catalog."""
        spread(self.publisher, PARTITIONS, entry(name, kind, content))

    def ask(self, asked: ApprovalRequest) -> None:
        """Asks as the planner does."""
        number, key = home(asked.run_id, PARTITIONS), asked.approval_id.encode()
        self.publisher.send_raw("approval-requested", number, key=key, value=codec.encode(asked), headers=[])

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Starts a command on these topics."""
        own = {
            "REFOLD_KAFKA__BOOTSTRAP": self.kafka.bootstrap,
            "REFOLD_KAFKA__PREFIX": self.kafka.prefix,
            "REFOLD_KAFKA__PARTITIONS": str(PARTITIONS),
            "REFOLD_ENVIRONMENT": "test",
            "REFOLD_TRUST": PINNED,
            "REFOLD_DATA": str(self.folder),
        }
        process = subprocess.Popen(
            [*REFOLD, *words], env={**os.environ, **own, **more}, stdout=subprocess.PIPE, text=True
        )
        self.processes.callback(process.wait)
        self.processes.callback(process.kill)
        return process

    def serve(self, **more: str) -> subprocess.Popen[str]:
        """Starts the service, always under the same name."""
        key = str(self.folder / "keys" / "decision.json")
        return self.start(
            "serve", "approval", "--app", "tests.approval.driving:app", "--key", key, "--member", "a", **more
        )

    def say(self, *words: str) -> Any:
        """Ends when a command has; returns what it says as data."""
        process = self.start("approval", *words, "--json")
        said, _ = process.communicate(timeout=90)
        assert process.returncode == 0
        return json.loads(said)

    def decisions(self) -> list[bytes | None]:
        """The values of all records of decisions."""
        return [record.value for record in self.reader.scan("approval-decided") if record.value]


@pytest.fixture
def bench(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Bench]:
    """Give topics with keys, roles and a policy in their catalog."""
    prefix = f"approval{next(_NUMBERS)}."
    made = Bench(KafkaSettings(bootstrap=kafka.bootstrap, prefix=prefix, partitions=PARTITIONS), tmp_path)
    with made.processes:
        yield made


@pytest.mark.parametrize("boundary", ["3", "3:after"])  # before it, each partition is asked for the time
def test_a_vote_is_decided_once_though_the_service_dies_around_its_decision(bench: Bench, boundary: str) -> None:
    asked = request()
    bench.ask(asked)
    dying = bench.serve(REFOLD_FAULT_KILL=boundary)
    voting = bench.start("approval", "approve", asked.approval_id, "--actor", "ada", "--timeout", "60", "--json")
    assert dying.wait(60) == -9
    written = len(bench.decisions())

    bench.serve()
    said, _ = voting.communicate(timeout=90)

    answer = json.loads(said)
    assert written == (1 if boundary.endswith("after") else 0)
    assert (answer["what"], answer["decision"]["verdict"]) == ("decided", "approve")
    assert len(bench.decisions()) == 1
    assert Approvals(bench.reader, TRUST, partitions=PARTITIONS).get(asked.approval_id).state == "decided"


@pytest.mark.long
def test_people_list_show_and_decide_from_the_command_line(bench: Bench) -> None:
    asked = request(by="two")
    bench.ask(asked)
    bench.serve()

    [listed] = bench.say("list", "--approver", "ada")
    first = bench.say("approve", asked.approval_id, "--actor", "ada")
    edited = bench.say("approve", asked.approval_id, "--args", '{"service": "db"}', "--actor", "bob")
    last = bench.say("approve", asked.approval_id, "--args", '{"service":"db"}', "--actor", "ada", "-m", "bob is right")
    shown = bench.say("show", asked.approval_id)

    assert (listed["approval"], listed["quorum"]) == (asked.approval_id, 2)
    assert [(each["what"], each["leading"]) for each in (first, edited)] == [("counted", 1), ("counted", 1)]
    assert (last["what"], last["decision"]["edited"]) == ("decided", '{"service":"db"}')
    assert (shown["state"], shown["verdict"], shown["log"]) == ("decided", "edit", "")
