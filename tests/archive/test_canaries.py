"""After erasure and cleaning no byte of what runs carried lies in any file of the broker or of Valkey."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from refold.cli.commands.dev import dev_services
from refold.cli.commands.provision import Provision
from refold.client.operations.runs import Runs
from refold.client.verify import verify_log
from refold.core import topics
from refold.core.approval import signature
from refold.core.approval.ballot import Vote
from refold.core.approval.signature import trusted
from refold.core.events import NoteRecorded
from refold.core.ids import home, parse_callback_token
from refold.core.messages import ApprovalRequest, ApprovalVote
from refold.core.wire import canonical, codec
from refold.dev.stack import DevStack, Servers
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.writer import KafkaWriter
from refold.engine.archive.container import flaws
from refold.engine.archive.erasure import run_of
from refold.engine.archive.service import Archivist
from refold.engine.archive.settings import ArchivistSettings
from refold.engine.archive.store import ArchiveStore
from refold.engine.ports.log import Outgoing, Record
from refold.engine.runtime import keys
from refold.engine.runtime.settings import KafkaSettings
from tests.archive.world import ALL
from tests.kafka.cleaning import EAGER, ROUND_S, make_eager
from tests.waiting import eventually

RUNS, EVERY, CALLED = 1_000, 20, 8
"""Runs that sing; of each `EVERY` of them one is voted on and asked for again with other input (a dead letter); runs
that an outside system answers."""
CANARY = b"canary.bird.in.the.mine"
APP = Path(__file__).with_name("app.py")
AT_ONCE = {**EAGER, "file.delete.delay.ms": "0"}
SHORT_MEMORY = {"REFOLD_REDIS__RETENTION_MS": "60000"}


def needles() -> list[bytes]:
    """The canary as it is and inside base64, at each of its three alignments: tokens are signed in that."""
    found = [CANARY]
    for shift in range(3):
        text = b64encode(b"\0" * shift + CANARY + b"\0\0")
        found.append(text[-(-8 * shift // 6) : 8 * (shift + len(CANARY)) // 6])
    return found


NEEDLES = needles()


def sings(content: bytes) -> bool:
    """Whether a canary is in it. Searched one by one: a pattern of four takes four times as long."""
    return any(needle in content for needle in NEEDLES)


def song() -> str:
    return f"{CANARY.decode()}-{secrets.token_hex(8)}"


def late(run: str) -> dict[str, object]:
    """A word that comes too late to change anything."""
    return {"run_id": run, "signal_id": song(), "kind": "cancel", "data": {"reason": song()}, "actor": song()}


def signal(run: str, name: str) -> dict[str, object]:
    return {"run_id": run, "signal_id": song(), "kind": "signal", "name": name, "data": song(), "actor": song()}


def answer(token: str, outcome: str) -> dict[str, object]:
    """An answer to a callback, as an outside system sends it: `outcome` is the field that has it."""
    return {"kind": "callback", "callback": token, outcome: song(), "actor": song(), "key": song()}


@dataclass
class Mine:
    """A running platform, with what reads and writes its topics from outside."""

    stack: DevStack
    needs: Provision
    settings: KafkaSettings
    folder: Path

    def __post_init__(self) -> None:
        self.reader = KafkaLogReader(self.settings)
        self.writer = KafkaWriter(self.settings, "outside")

    def archivist(self) -> Archivist:
        """One for which everything that is over is due."""
        archive_store = ArchiveStore((self.folder / "archive").as_uri())
        return Archivist(self.reader, self.writer, archive_store, ArchivistSettings(retention_ms=0))

    def send(self, topic: str, run: str, key: str, value: bytes, *, astray: int = 0) -> None:
        """Write a record into the home of a run, or so many partitions away from it."""
        partition = (home(run, self.settings.partitions) + astray) % self.settings.partitions
        assert self.writer.append([Outgoing(topic, partition, key.encode(), value, [], 0)])[0].offset is not None

    def request(self, names: list[str], *, flies: bool = False) -> None:
        """Runs, each with a song of its own."""
        records = [
            Outgoing(
                topics.RUN_REQUESTED,
                home(name, self.settings.partitions),
                name.encode(),
                json.dumps({"run_id": name, "agent": "canary", "input": {"song": song(), "flies": flies}}).encode(),
                [],
                0,
            )
            for name in names
        ]
        self.writer.append(records)

    def call(self, names: list[str]) -> None:
        """Runs that wait for outside systems, with a song in every field that a request may have one in."""
        for name in names:
            asked = {"run_id": name, "agent": "called", "input": {"song": song()}, "requester": song()}
            more = {"labels": {song(): song()}, "sessions": [song()]}
            self.send(topics.RUN_REQUESTED, name, name, json.dumps({**asked, **more}).encode())

    def tokens(self) -> dict[str, str]:
        """The token that each run has made for outside systems."""
        return {
            run.state.run_id: str(canonical.parse(step.data))
            for run in Runs(self.reader).all()
            for step in run.state.steps
            if isinstance(step, NoteRecorded) and step.kind == "token"
        }

    def count(self, topic: str) -> int:
        """How many keys of a topic have been there that are of runs, and not of executors who ask for the time."""
        return len({each.key for each in self.reader.scan(topic) if each.value is not None and run_of(each)})

    def vote(self, record: Record, says: str) -> None:
        """Says yes or gives an answer, with a song in each."""
        asked = codec.decode(ApprovalRequest, record.value or b"")
        vote = Vote(
            approval=asked.approval_id,
            vote=secrets.token_hex(4),
            question=asked.question,
            environment=asked.environment,
            actor="ada",
            action=says,
            issued=time.time_ns() // 1_000_000,
            args="",
            result=json.dumps(song()) if says == "answer" else "",
            message=song(),
        )
        token = signature.sign(vote.payload(), keys.load(self.needs.file("vote"), "vote"))
        value = codec.encode(ApprovalVote(asked.approval_id, vote.vote, asked.run_id, token))
        self.send(topics.APPROVAL_VOTED, asked.run_id, f"{asked.approval_id}/{vote.vote}", value)

    def roll(self) -> None:
        """Something to read in every partition, so that the broker closes the segment before it."""
        clock_probe = [Outgoing(topic, number, b"beat", None, [], 0) for topic in ALL for number in range(4)]
        self.writer.append(clock_probe)

    def found(self) -> set[str]:
        """The files of broker and Valkey in which a canary lies."""
        held = set()
        for server in ("kafka", "valkey"):
            for path in (self.folder / server / "store").rglob("*"):
                try:
                    if path.is_file() and sings(path.read_bytes()):
                        held.add(str(path.relative_to(self.folder)))
                except FileNotFoundError:
                    continue  # deleted meanwhile, which is what is waited for
        return held


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Mine]:
    """Give a platform whose cleaner is eager and whose ledger forgets after a minute."""
    needs = Provision(("default",), tmp_path / "keys")
    services = [replace(each, env={**each.env, **SHORT_MEMORY}) for each in dev_services(str(APP), needs)]

    def prepare(bootstrap: str) -> None:
        needs.prepare(bootstrap)
        make_eager(bootstrap, [f"refold.{topic}" for topic in ALL], settings=AT_ONCE)

    # The index of an open segment is as large as it may become, and all of it is searched: here 64 KiB, not 10 MiB.
    quick = {
        "log.cleaner.backoff.ms": "200",
        "log.segment.delete.delay.ms": "0",
        "log.index.size.max.bytes": str(64 << 10),
    }
    with DevStack(tmp_path, services=services, prepare=prepare, servers=Servers(properties=quick)) as stack:
        yield Mine(stack, needs, KafkaSettings(bootstrap=stack.kafka), tmp_path)


def test_the_search_sees_a_canary_in_a_signed_token_too() -> None:
    for shift in range(3):
        assert sings(b64encode(b"x" * shift + b'{"message":"' + CANARY + b'-00"}'))
    assert not sings(b64encode(b'{"message":"nothing"}'))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_canary_is_left_in_any_file(mine: Mine) -> None:
    names = [f"run-{number}" for number in range(RUNS)]
    mine.request(names[::EVERY], flies=True)
    mine.request([name for name in names if name not in set(names[::EVERY])])
    eventually(lambda: mine.count(topics.APPROVAL_REQUESTED) == RUNS // EVERY, within=60, what="the questions")
    asked = [each for each in mine.reader.scan(topics.APPROVAL_REQUESTED) if each.value is not None]
    for record, says in zip(asked, itertools.cycle(("approve", "answer"))):
        mine.vote(record, says)
    called = [f"call-{number}" for number in range(CALLED)]
    mine.call(called)
    tokens = eventually(lambda: len(tokens := mine.tokens()) == CALLED and tokens, within=60, what="the tokens")
    for outcome, (name, token) in zip(itertools.cycle(("data", "failure")), tokens.items()):
        for kept in ("told", song()):
            said = signal(name, kept)
            mine.send(topics.RUN_SIGNALLED, name, f"{name}/{said['signal_id']}", json.dumps(said).encode())
        mine.send(topics.RUN_SIGNALLED, name, token, json.dumps(answer(token, outcome)).encode(), astray=1)
    # Looked for all the while: of what is settled the cleaner leaves nothing, and on a busy machine it is the quicker.
    before: set[str] = set()
    eventually(
        lambda: before.update(mine.found()) or mine.count(topics.RUN_COMPLETED) == RUNS + CALLED,
        within=90,
        every=ROUND_S,
        what="the runs",
    )
    mine.request(names[::EVERY])
    eventually(lambda: mine.count(topics.DEAD_LETTER) == RUNS // EVERY, what="the dead letters")
    for name in [*names[::EVERY], *called]:
        for topic in (topics.RUN_SIGNALLED, topics.RUN_OPERATED):
            said = late(name)
            mine.send(topic, name, f"{name}/{said['signal_id']}", json.dumps(said).encode())
        for letters in topics.DEAD_LETTERS[1:]:  # as if a vote or an order had been refused
            mine.send(letters, name, f"{name}/{song()}", song().encode())
        mine.send(topics.RUN_VIEW, name, name, song().encode())  # as if views were written there
    for token in tokens.values():
        mine.send(topics.RUN_SIGNALLED, parse_callback_token(token), token, json.dumps(answer(token, "data")).encode())
    before |= mine.found()
    eventually(lambda: not mine.archivist().sweep(dry_run=True).left, within=60, what="the rows")

    swept = mine.archivist().sweep()

    assert (len(swept.archived), swept.left) == (RUNS + CALLED, {})
    assert mine.count(topics.tool_claimed("default")) == RUNS // EVERY // 2
    held = {name.split("/")[2].rsplit("-", 1)[0].removeprefix("refold.") for name in before if "kafka" in name}
    # What is kept of runs that live has gone already where the cleaner was quick.
    assert held - {topics.RUN_SNAPSHOT} == {
        name for name in ALL if name not in (topics.CATALOG, topics.RUN_SNAPSHOT, topics.tool_claimed("default"))
    }
    assert any("valkey" in name for name in before)
    verdict = verify_log(mine.reader, trusted(mine.needs.file("trust").read_text().strip()), now_ms=0, settle_s=0)
    assert verdict.violations == []
    eventually(lambda: clean(mine), within=120, every=ROUND_S, what="files without a canary")
    gone: set[str] = set()
    eventually(
        lambda: gone.update(swept_again(mine)) or len(gone) == RUNS + CALLED,
        every=ROUND_S,
        what="nothing left of any run",
    )
    assert gone == {*names, *called}
    archive_store = ArchiveStore((mine.folder / "archive").as_uri())
    assert [flaw for file in archive_store.files() for run in archive_store.runs(file) for flaw in flaws(run)] == []
    mine.request(["afterwards"])
    eventually(lambda: mine.count(topics.RUN_COMPLETED) == 1, what="a run after all that")


def swept_again(mine: Mine) -> list[str]:
    """The runs of which another pass found nothing: the tombstones go a cleaning later than what they bury."""
    mine.roll()
    return mine.archivist().sweep().gone


def clean(mine: Mine) -> bool:
    """Lets broker and Valkey tidy up, and looks."""
    mine.roll()
    with suppress(ResponseError):  # one is under way
        Redis.from_url(mine.stack.redis).bgrewriteaof()
    return not mine.found()
