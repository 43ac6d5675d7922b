"""One set of topics with user, operator and people: what a campaign observes and, at the end, has judged."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from refold.core.ids import home
from refold.core.topics import DEAD_LETTERS
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime.settings import KafkaSettings
from tests.chaos import consent, raw, recorder, rules
from tests.chaos.actor import Actor, producer
from tests.chaos.app import PLANS
from tests.chaos.consent import Papers
from tests.chaos.echo import Echo
from tests.chaos.human import Human
from tests.chaos.judge import Evidence, Verdict, judge
from tests.chaos.people import VOTED, People
from tests.chaos.raw import Raw
from tests.chaos.rules import GRACE_MS, KINDS, REQUESTER, Keys, Ruler

TOOLS = ("look", "stamp", "stamp_sync", "poke", "fire", "fire_sync")
RISKY = ("risky_look", "risky_stamp", "risky_poke", "risky_fire")
DANGEROUS = 0.25
"""How many of the calls people are asked about."""

AGAIN = 0.25
"""How many are the same as one before of their run that people were asked about."""

GIVES_UP = 0.04
"""How many runs end with an error of their agent's."""

FAT = 0.015
"""How many of the other calls have a megabyte of arguments and a megabyte of result."""

BUSY_S = GRACE_MS / 1_000 + 12
"""So late that somebody may have been revoked since the decision, for longer than the grace."""

Groups = list[list[dict[str, str]]]
SIMPLE: Groups = [
    *([{"tool": tool, "label": tool, "plan": "ok"}] for tool in ("look", "stamp", "poke", "fire")),
    [{"tool": tool, "label": f"{tool}-any", "plan": "ok"} for tool in ("risky_stamp", "risky_fire", "risky_fire")],
]
"""One call of each class, and three at once that people are asked about, two of them the same; nothing goes wrong."""

POISON = (
    b"\xff\x00 not JSON",
    b'{"run_id": "x", "agent": "errand", "n": NaN}',
    b'{"agent": "errand"}',
    b"\0\0\0\0\x63?",
)


POISONED = "poison-"
"""How the keys of poison begin. A second start has none, because its own would be that of the run."""

TOPICS = (
    *("run-requested", "run-signalled", "run-operated", "run-log", "run-completed", *DEAD_LETTERS),
    *("tool-claimed.default", "tool-completed.default", "tool-requested.default"),
    *("approval-requested", "approval-decided", VOTED),
)
"""What the verdict is made from."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What worlds share: the recorder's port and its file, and the keys that people and services sign with."""

    port: int
    effects: Path
    keys: Keys


class World:
    """Topics under a prefix. `start_run` and `poison` may be called from one thread; all else happens by itself.

    `rulers` do nothing until they are started, and leave the catalog as it was when they are stopped. `busy` is the
    share of dangerous calls that are not done before `BUSY_S` after their run was asked for.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        outside: Outside,
        *,
        seed: int,
        tag: str = "r",
        busy: float = 0.0,
        naps_ms: Sequence[int] = (0,),
    ) -> None:
        self.settings, self._outside, self._tag, self._busy, self._naps_ms = settings, outside, tag, busy, naps_ms
        self._random = random.Random(seed)
        self._count = 0
        self.acked: dict[str, Any] = {}
        self.wiped: list[float] = []
        self.sent: dict[str, float] = {}
        self.over: dict[str, float] = {}
        self.cancelled: set[str] = set()
        self.failing: set[str] = set()
        self._producer: Producer | None = None
        prefix = settings.prefix
        self.rulers = [Ruler(settings, kind, seed=seed + n) for n, kind in enumerate(("roles", "current"), 4)]
        self.people = People(settings, outside.keys.vote, seed=seed + 2, gone=self.rulers[0].decreed)
        self.human = Human(settings, outside.keys.vote, ask=self.happened, know=self.people.know)
        self.echo = Echo(settings, seed=seed + 3)
        self._stopped = threading.Event()
        self._watch = threading.Thread(target=self._follow_outcomes, name=f"outcomes-{prefix}", daemon=True)

    def open(self) -> None:
        """Makes the topics and puts the policy in force; the user, the operator and the people go to work."""
        Topics(self.settings).apply()
        rules.publish(self.settings, self._outside.keys)
        self._producer = producer(self.settings.bootstrap)
        self._watch.start()
        self.human.start()
        self.people.start()
        self.echo.start()

    def close(self) -> None:
        """All of them go home."""
        self._stopped.set()
        self.human.stop()
        self.people.stop()
        self.echo.stop()
        self._watch.join()

    def happened(self, key: str) -> int | None:
        """The truth about an effect, from outside."""
        found: int | None = recorder.call(self._outside.port, {"do": "ask", "key": key})
        return found

    def start_run(self, groups: Groups | None = None) -> str:
        """Asks for a run in plain JSON, as any client would: of these groups of calls, or of some at random."""
        self._count += 1
        run = f"{self._tag}{self._count}"
        nap = 0 if groups else self._random.choice(self._naps_ms)
        given: dict[str, Any] = {"groups": groups or self._groups(), "nap_ms": nap}
        if not groups and self._random.random() < GIVES_UP:
            given["give_up"] = True
            self.failing.add(run)
        value = {"run_id": run, "agent": "errand", "input": given, "requester": REQUESTER}
        self.sent[run] = time.monotonic()
        stray = self._random.randrange(self.settings.partitions) if self._random.random() < 0.1 else None
        self._send("run-requested", run, json.dumps(value).encode(), partition=stray)
        return run

    def poison(self) -> None:
        """Sends what nobody can use: bytes, JSON that is none, a second start with other input; and tombstones.

        Those say nothing, and are no inputs: whoever erases writes them.
        """
        kind = self._random.randrange(len(POISON) + 2)
        name = f"{POISONED}{self._random.getrandbits(32)}"
        if kind < len(POISON):
            self._send("run-requested", name, POISON[kind])
        elif kind == len(POISON):
            self._send("run-signalled", name, None)
        elif self.over:
            run = self._random.choice(list(self.over))
            value = {"run_id": run, "agent": "errand", "input": {"groups": [], "nap_ms": 1}}
            number = home(run, self.settings.partitions)
            self._send("run-requested", "", json.dumps(value).encode(), partition=number)

    def cancel(self, run: str) -> None:
        """Stops a run: as who asked for it, or as an operator."""
        self.cancelled.add(run)
        name = f"stop-{run}"
        topic, actor = self._random.choice((("run-signalled", REQUESTER), ("run-operated", "operator")))
        value = {"run_id": run, "signal_id": name, "kind": "cancel", "data": {"reason": "chaos"}, "actor": actor}
        self._send(topic, f"{run}/{name}", json.dumps(value).encode())

    @property
    def troubles(self) -> list[str]:
        """Why those who take part are not there any more."""
        actors: tuple[Actor, ...] = (self.human, self.people, self.echo, *self.rulers)
        return [actor.trouble for actor in actors if actor.trouble]

    def waiting(self) -> list[str]:
        """The runs that are not over."""
        return [run for run in list(self.sent) if run not in self.over]

    def flush(self) -> int:
        """Waits until Kafka has answered for every record; returns how many it has not."""
        assert self._producer is not None, "open() comes first"
        return self._producer.flush(90)

    def judge(self) -> Verdict:
        """Reads everything back and judges it. For a world in which nothing moves any more."""
        bootstrap, prefix = self.settings.bootstrap, self.settings.prefix
        with ThreadPoolExecutor(4) as pool:
            every = pool.map(partial(raw.scan, bootstrap), [prefix + topic for topic in TOPICS])
            found = dict(zip(TOPICS, every, strict=True))
        return judge(self._evidence(found))

    def _evidence(self, found: Mapping[str, list[Raw]]) -> Evidence:
        public = self._outside.keys.decision.public()
        decrees = [decree for ruler in self.rulers for decree in ruler.decrees]
        mine = set(self.sent)
        asked = {
            (record.partition, record.offset): record for record in [*self.people.asked, *found["approval-requested"]]
        }
        return Evidence(
            acked=self.acked,
            maybe=mine - self.acked.keys(),
            cancelled=self.cancelled,
            poison=places(found, "run-requested", is_poison),
            effects=[line for line in recorder.read(self._outside.effects) if line["run"].partition(".")[0] in mine],
            run_log=found["run-log"],
            outcomes=found["run-completed"],
            letters=[letter for topic in DEAD_LETTERS for letter in found[topic]],
            claims=found["tool-claimed.default"],
            results=found["tool-completed.default"],
            requests=found["tool-requested.default"],
            papers=Papers(
                [asked[place] for place in sorted(asked)],
                found["approval-decided"],
                {**self.people.votes, **self.human.votes},
                consent.key_of(public.x),
                decrees,
            ),
            votes={
                (VOTED, record.partition, record.offset): record.key.rpartition(b"/")[2].decode()
                for record in found[VOTED]
            },
            failing=self.failing,
            early=said_early(found),
            wiped=self.wiped,
        )

    def _groups(self) -> Groups:
        groups: Groups = []
        before: list[dict[str, str]] = []
        for _ in range(self._random.randint(2, 5)):
            group = []
            for _ in range(self._random.choice((1, 1, 1, 3))):
                risky = [call for call in before if call["tool"] in RISKY]
                again = bool(risky) and self._random.random() < AGAIN
                before.append(self._random.choice(risky) if again else self._call(len(before) + 1))
                group.append(before[-1])
            groups.append(group)
        return groups

    def _call(self, number: int) -> dict[str, str]:
        plan = self._random.choice(PLANS) if self._random.random() < 0.2 else "ok"
        risky = self._random.random() < DANGEROUS
        if not risky and self._random.random() < FAT:
            plan = "fat"
        if risky and self._random.random() < self._busy:
            plan = f"busy-{time.time() + BUSY_S:.0f}"
        kind = f"-{self._random.choice(KINDS)}" if risky else ""
        tool = self._random.choice(RISKY if risky else TOOLS)
        return {"tool": tool, "label": f"c{number}{kind}", "plan": plan}

    def _send(self, topic: str, key: str, value: bytes | None, *, partition: int | None = None) -> None:
        assert self._producer is not None, "open() comes first"
        number = home(key.partition("/")[0], self.settings.partitions) if partition is None else partition

        def answered(error: KafkaError | None, message: Message) -> None:
            if error is None and key in self.sent and topic == "run-requested":
                self.acked[key] = value

        self._producer.produce(self.settings.prefix + topic, value, key, number, on_delivery=answered)
        self._producer.poll(0)

    def _follow_outcomes(self) -> None:
        for record in raw.tail(self.settings.bootstrap, f"{self.settings.prefix}run-completed"):
            if record:
                self.over.setdefault(record.key.decode(), time.monotonic())
            elif self._stopped.is_set():
                return


def is_poison(record: Raw) -> bool:
    """Whether this is one of the inputs that nobody can use."""
    return bool(record.value) and (not record.key or record.key.startswith(POISONED.encode()))


def said_early(found: Mapping[str, list[Raw]]) -> set[tuple[str, int, int]]:
    """Where things lie that were said to runs before their requests were in the log."""
    asked: dict[str, int] = {}
    for record in found["run-requested"]:
        asked.setdefault(record.key.decode(errors="replace"), record.at_ms)

    def early(record: Raw) -> bool:
        return record.at_ms < asked.get(record.key.decode(errors="replace").partition("/")[0], 0)

    return {place for topic in ("run-signalled", "run-operated") for place in places(found, topic, early)}


def places(found: Mapping[str, list[Raw]], topic: str, wanted: Callable[[Raw], bool]) -> set[tuple[str, int, int]]:
    """Where in a topic certain records lie: what was sent may be there though nobody heard that it is."""
    return {(topic, record.partition, record.offset) for record in found[topic] if wanted(record)}
