"""An approval service on the log in memory, driven turn by turn, with real keys and signatures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from refold.core.approval import signature
from refold.core.approval.ballot import Vote
from refold.core.approval.decision import Decision
from refold.core.approval.policy import Policy
from refold.core.approval.signature import SigningKey
from refold.core.events import Earlier
from refold.core.ids import home
from refold.core.messages import ApprovalDecision, ApprovalRequest, ApprovalVote, DeadLetter
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_REQUESTED, APPROVAL_VOTED, DEAD_LETTERS
from refold.core.wire import codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.approval.service import ApprovalService
from refold.engine.approval.settings import ApprovalLimits, ApprovalSettings
from refold.engine.ports.effects import AskEnd, Effect, Flow, Item, Now, Publish, Read
from refold.engine.ports.log import Delivery, End, Outgoing, Record
from refold.sdk.app import App
from tests.approval import questions
from tests.approval.questions import NOW, RUN
from tests.roots import TRUST, entry

TOPICS = (APPROVAL_REQUESTED, APPROVAL_VOTED, APPROVAL_DECIDED, "catalog", *DEAD_LETTERS)
PARTITIONS = 3
GATEWAY = SigningKey("gateway", "vote", bytes(31) + b"v")
SERVICE = SigningKey("approval", "decision", bytes(31) + b"d")
ROLES = {"roles": {"lead": ["ada", "bob", "cyd"], "owner": ["dan"]}, "revoked": []}
KEPT = {"for": "30d", "uses": 9}
POLICY = Policy.parse(
    {
        "doubt": {"approvers": ["role:lead"]},
        "rules": [
            {"name": "one", "when": "agent == 'one'", "require": {"approvers": ["role:lead"], "remember": KEPT}},
            {"name": "two", "when": "agent == 'two'", "require": {"approvers": ["role:lead"], "quorum": 2}},
            {
                "name": "rising",
                "when": "agent == 'rising'",
                "require": {"approvers": ["dan"], "escalate": {"after": "1m", "to": ["role:lead"]}},
            },
        ],
    }
)

app = App("approving")


@app.tool(version="1")
def restart(service: str, times: int = 1) -> int:
    """Restart a service."""
    return times


def rule(name: str) -> dict[str, Any]:
    """The fields of a request that a rule of the policy asks for."""
    found = next(each for each in POLICY.rules if each.name == name)
    return {"needs": found.requirement, "policy": POLICY.digest, "rule": name, "agent": name}


def request(call: str = f"{RUN}/5", *, by: str = "one", **more: Any) -> ApprovalRequest:
    """A request that the policy vouches for, about the tool of the app."""
    facts = app.tools["restart"].facts
    given = {"version": facts.version, "schema": facts.schema, "effect": facts.effect, **rule(by), **more}
    return questions.request(call, **given)


def doubt(call: str = f"{RUN}/5", *, policy: Policy = POLICY, **more: Any) -> ApprovalRequest:
    """A question that the policy vouches for: what came of attempt 1?"""
    history = [Earlier(1, "doubt", "the executor died", at_ms=NOW)]
    asks = {"about": "doubt", "rule": "doubt", "needs": policy.doubt, "policy": policy.digest, "attempt": 2}
    return request(call, **{**asks, "effect": "once", "history": history, **more})


@dataclass
class World:
    """The topics, with keys, roles and the policy in the catalog, and what was written to them."""

    topics: tuple[str, ...] = TOPICS
    max_bytes: int = 8 << 20
    now: int = NOW + 1_000

    def __post_init__(self) -> None:
        self.broker = MemoryBroker(self.topics, PARTITIONS, max_bytes=self.max_bytes, clock_ms=lambda: self.now)
        self.publish("roles", "roles", ROLES)
        self.publish(f"policy/{POLICY.digest}", "policy", POLICY.content)
        for key in (GATEWAY, SERVICE):
            self.publish(f"key/{key.kid}", "key", key.public().content())

    def write(self, topic: str, partition: int, key: str, value: bytes | None) -> int:
        """Writes a record; returns its offset."""
        delivery = self.broker.write(Outgoing(topic, partition, key.encode(), value, (), 0))
        assert delivery.offset is not None
        return delivery.offset

    def publish(self, name: str, kind: str, content: Any) -> None:
        """Writes an entry of the catalog into every partition."""
        value = codec.encode(entry(name, kind, content))
        for number in range(PARTITIONS):
            self.write("catalog", number, name, value)

    def ask(self, asked: ApprovalRequest, *, partition: int | None = None) -> int:
        """Writes a request, as the planner does."""
        number = home(asked.run_id, PARTITIONS) if partition is None else partition
        return self.write(APPROVAL_REQUESTED, number, asked.approval_id, codec.encode(asked))

    def close(self, asked: ApprovalRequest) -> None:
        """Closes an approval, as the planner does."""
        self.write(APPROVAL_REQUESTED, home(asked.run_id, PARTITIONS), asked.approval_id, None)

    def say(self, vote: Vote, *, key: SigningKey = GATEWAY) -> int:
        """Signs a vote and writes it, as the gateway does."""
        run = vote.approval.partition("/")[0]
        message = ApprovalVote(vote.approval, vote.vote, run, signature.sign(vote.payload(), key))
        return self.write(APPROVAL_VOTED, home(run, PARTITIONS), f"{vote.approval}/{vote.vote}", codec.encode(message))

    def vote(self, asked: ApprovalRequest, actor: str, action: str = "approve", **more: Any) -> int:
        """What somebody says of a request."""
        return self.say(questions.vote(asked, actor, action, **more))

    def records(self, topic: str) -> Iterator[Record]:
        """Everything in a topic."""
        for number in range(PARTITIONS):
            yield from self.broker.log(topic, number).records

    def decisions(self, asked: ApprovalRequest | None = None) -> list[Decision]:
        """The decisions in the log, of one approval or of all, with their signatures checked."""
        keys = {SERVICE.kid: SERVICE.public()}
        found = []
        for record in self.records(APPROVAL_DECIDED):
            if record.value and (message := codec.decode(ApprovalDecision, record.value)).kind == "decision":
                found.append(Decision.parse(signature.verified(message.token, keys, use="decision")))
        return [each for each in found if asked is None or each.approval == asked.approval_id]

    def verdicts(self, asked: ApprovalRequest) -> list[str]:
        """What was decided of an approval, once for every record that says so."""
        return [each.verdict for each in self.decisions(asked)]

    def letters(self) -> list[tuple[str, int, str]]:
        """Topic, offset and code of every dead letter."""
        records = [record for topic in DEAD_LETTERS for record in self.records(topic)]
        found = [codec.decode(DeadLetter, record.value or b"") for record in records]
        return [(letter.topic, letter.offset, letter.code) for letter in found]


class Process:
    """A process of the service.

    `fate` is what becomes of its writes: `sent`, `lost`, `unsure` (sent, without an answer) or `held` until `let_go`.
    """

    _starts = count(1)

    def __init__(
        self, world: World, member: str = "a", *, limits: ApprovalLimits | None = None, app_: App = app
    ) -> None:
        self.world = world
        settings = ApprovalSettings(PARTITIONS, member, "test", limits or ApprovalLimits(), TRUST)
        start, nonces = next(self._starts), count(1)
        self.service = ApprovalService(app_, settings, key=SERVICE, nonce=lambda: f"{start}.{next(nonces)}")
        self.log = MemoryEventLog(world.broker, settings.membership)
        self.ahead_ms = 0
        self.fate: Literal["sent", "lost", "unsure", "held"] = "sent"
        self._held: list[Outgoing] = []
        self._answers: list[Item] = []

    def turn(self, limit: int = 500) -> list[Effect]:
        """One turn with what there is; returns its effects, carried out."""
        taken = self.log.take(limit, 0)
        inbox = [*taken.rebalances, *taken.records, *taken.reached, *taken.deliveries, *self._answers]
        self._answers = []
        effects = self.service.turn(inbox, Now(self.world.now + self.ahead_ms, self.world.now))
        for effect in effects:
            if isinstance(effect, Read):
                self.log.read(*effect)
                continue
            if isinstance(effect, AskEnd):
                self._answers.append(End(*effect, self.log.end(*effect)))
                continue
            if isinstance(effect, Flow):
                steer = self.log.pause if effect.action == "pause" else self.log.resume
                steer(effect.topic, effect.partition)
                continue
            assert isinstance(effect, Publish), "the service does nothing but read, ask and publish"
            for record in effect.records:
                self._carry_out(record)
        return effects

    def run(self) -> Process:
        """Takes turns until nothing happens any more."""
        quiet = 0
        for _ in range(200):
            busy = self.turn() or self._answers or (self.service.next_due_ms() or self.world.now + 1) <= self.world.now
            quiet = 0 if busy else quiet + 1
            if quiet == 3:
                return self
        raise AssertionError("the service does not come to rest")

    def let_go(self) -> None:
        """The held writes arrive."""
        self.fate, held, self._held = "sent", self._held, []
        for record in held:
            self._carry_out(record)

    def _carry_out(self, record: Outgoing) -> None:
        if self.fate == "held":
            self._held.append(record)
            return
        written = self.world.broker.write(record) if self.fate != "lost" else None
        self._answers.append(written if written and self.fate == "sent" else Delivery(record.token, None))
