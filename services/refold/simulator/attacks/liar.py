"""The hijacked planner itself: what it writes, where, and what it has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import yaml

from refold.core import events
from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Policy
from refold.core.approval.question import named
from refold.core.ids import RunId, call_id, home, log_key
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.run.chain import Head
from refold.core.topics import APPROVAL_REQUESTED, RUN_LOG
from refold.core.wire import codec
from refold.core.wire.canonical import idempotency_key
from refold.core.wire.resources import resource
from refold.ports.log import Outgoing
from refold.simulator.app import DANGEROUS, FACTS
from refold.simulator.attacks.lies import HARMLESS, LIES, Means, Order
from refold.simulator.reading.tokens import payload_of
from refold.simulator.settings import ORDERS, PARTITIONS, POOL
from refold.simulator.world.crew import ENVIRONMENT
from refold.simulator.world.law import STATUTES
from refold.simulator.world.world import World


@cache
def rights() -> frozenset[str]:
    """The topics that a planner may write, as the broker's rules have it."""
    topics = yaml.safe_load(resource("infra", "topics.yaml").read_text())["topics"]
    names = {name.replace("*", POOL) for name, topic in topics.items() if "planner" in topic["writers"]}
    return frozenset(names)


class Liar:
    """Writes something every few milliseconds until its time is over. `heads` are those of the runs in the log."""

    def __init__(self, world: World, heads: Mapping[str, Head], rng: Random, *, until_ms: int) -> None:
        self._world, self._heads, self._rng = world, heads, rng
        self._until_ms = world.settings.epoch_ms + until_ms
        self._moves: dict[Callable[[], None], int] = {
            self._ask: 5,
            self._ask_falsely: 3,
            self._order: 5,
            self._lie: 14,
            self._replay: 2,
            self._forge_entry: 4,
            self._bury: 2,
            self._babble: 2,
            self._wipe: 1,
            self._crash: 1,
        }

    def begin(self) -> None:
        """Starts to write."""
        self._world.at(self._rng.randrange(50), self._act, waits=False)

    def _act(self) -> None:
        if self._world.now_ms < self._until_ms:
            self._rng.choices(list(self._moves), list(self._moves.values()))[0]()
            self._world.at(self._rng.randrange(10, 110), self._act, waits=False)

    def _write(self, topic: str, partition: int, key: str, value: bytes | None) -> None:
        assert topic in rights(), "a planner may not write there"
        self._world.broker.write(Outgoing(topic, partition, key.encode(), value, (), 0))

    def _count(self, what: str) -> None:
        self._world.counts[what] += 1

    # Questions

    def _question(self) -> ApprovalRequest:
        """A question about a call that might be: its policy does ask for what it says."""
        rng, law = self._rng, self._world.witness.approvals.laws.all(0)[-1]
        tool: ToolFacts = FACTS[rng.choice(DANGEROUS)]
        run, step, args = RunId(f"z-{rng.randrange(4)}"), rng.choice((1, 1, 2)), f'{{"n":{rng.choice((1, 1, 2))}}}'
        attempt = rng.choice((1, 1, 1, 2))
        rule = _policies()[law.current].rules[0]
        assert rule.requirement is not None, "the first rule of these policies asks"
        key = idempotency_key(environment=ENVIRONMENT, run=run, step=step, tool=tool.name, args=args)
        return ApprovalRequest(
            approval_id="",
            run_id=run,
            call_id=call_id(run, step * 2),
            step=step,
            attempt=attempt,
            covers=attempt if tool.effect == "once" else attempt + 2,
            agent="handling",
            requester="eve",
            session="",
            environment=ENVIRONMENT,
            tool=tool.name,
            version=tool.version,
            schema=tool.schema,
            effect=tool.effect,
            args=args,
            key=key,
            policy=law.current,
            rule=rule.name,
            requirement=rule.requirement,
            question="",
            proposal="0" * 64,
            asked_ms=self._world.now_ms,
        )

    def _publish(self, asked: ApprovalRequest, *, partition: int | None = None, question: str = "") -> None:
        true = named(asked)
        asked = replace(true, question=question) if question else true
        place = home(asked.run_id, PARTITIONS) if partition is None else partition
        self._write(APPROVAL_REQUESTED, place, asked.approval_id, codec.encode(asked))

    def _ask(self) -> None:
        self._publish(self._question())

    def _ask_falsely(self) -> None:
        asked, rng = self._question(), self._rng
        needed = asked.requirement
        changes: list[dict[str, Any]] = [
            {"requirement": replace(needed, approvers=["mallory"])},
            {"requirement": replace(needed, quorum=0, valid_ms=1 << 40)},
            {"requirement": replace(needed, not_requester=False)},
            {"covers": asked.attempt + 90},
            {"effect": "pure"},
            {"version": "2"},
            {"environment": "production"},
            {"policy": "made-up"},
            {"rule": "rest"},
            {"requester": "ada"},
            {"key": "0" * 64},
            {"args": '{"n": 1}'},
            {"expires_ms": 1},
            {"call_id": f"q-1/{asked.step}"},
        ]
        self._count("lie: a question")
        partition = rng.randrange(PARTITIONS) if rng.random() < 0.1 else None
        question = "0" * 64 if rng.random() < 0.1 else ""
        self._publish(replace(asked, **rng.choice(changes)), partition=partition, question=question)

    # Orders

    def _decisions(self) -> list[str]:
        return [token for tokens in self._world.witness.approvals.decided.values() for token in tokens]

    def _true_order(self) -> Order | None:
        tokens = self._decisions()
        if not tokens:
            return None
        token = self._rng.choice(tokens[-6:])
        found = payload_of(token)
        requests = self._world.witness.approvals.asked[found["approval"]]
        asked = next((each for each in requests if each["question"] == found["question"]), None)
        if asked is None:
            return None
        request = ToolRequest(
            call_id=found["call"],
            run_id=found["run"],
            step=found["step"],
            attempt=self._rng.randint(found["attempt"], min(found["covers"], found["attempt"] + 2)),
            issued=0,
            tool=found["tool"],
            args=found["edited"] or asked["args"],
            key=found["key"],
            effect=found["effect"],
            timeout_ms=800,
            policy=found["policy"],
            decision=token,
            at_ms=self._world.now_ms,
        )
        return Order(request, home(found["run"], PARTITIONS))

    def _send(self, order: Order) -> None:
        self._write(ORDERS, order.partition, order.request.call_id, codec.encode(order.request))

    def _order(self) -> None:
        """What was decided, as it was decided; sometimes into all partitions at once, or twice."""
        if order := self._true_order():
            self._count("true order")
            self._send(order)
            if self._rng.random() < 0.3:
                self._count("lie: another partition")
                self._send(replace(order, partition=(order.partition + 1) % PARTITIONS))

    def _lie(self) -> None:
        if order := self._true_order():
            means = Means(self._rng, self._decisions())
            for name in self._rng.sample(list(LIES), self._rng.choice((1, 1, 1, 2))):
                try:
                    order = LIES[name](order, means)
                except ValueError:  # nothing is left of the decision to lie about
                    continue
                self._count(f"lie: {name}")
                if name not in HARMLESS:
                    self._count("lies")
            self._send(order)

    def _replay(self) -> None:
        """An old record, as it was, wherever."""
        old = self._world.witness.written.get(ORDERS)
        if old:
            record = self._rng.choice(old)
            self._count("lie: a replay")
            self._write(ORDERS, self._rng.randrange(PARTITIONS), (record.key or b"").decode(), record.value)

    # All else

    def _bury(self) -> None:
        """The tombstone of a call or of an approval."""
        topic = self._rng.choice((ORDERS, APPROVAL_REQUESTED))
        if old := self._world.witness.written.get(topic):
            record = self._rng.choice(old[-8:])
            self._write(topic, record.partition, (record.key or b"").decode(), None)

    def _babble(self) -> None:
        """Bytes that mean nothing, into any topic that it may write."""
        topic, value = self._rng.choice(sorted(rights())), self._rng.choice((b"", b"{}", b"\0\0\0\0\x09x", b"\xff"))
        self._write(topic, self._rng.randrange(PARTITIONS), self._rng.choice(("r-1", "z-1/2", "", "//")), value)

    def _forge_entry(self) -> None:
        rng = self._rng
        if not self._heads:
            return
        run = RunId(rng.choice(list(self._heads)))
        head, now, token = self._heads[run], self._world.now_ms, rng.choice([*self._decisions(), "true"])
        step, attempt, seq = rng.choice((1, 2, 3)), rng.choice((1, 2, 9)), rng.randrange(1, 12)
        sent = events.CallDispatched(step, attempt, now + 800)
        until, expired = now + 1_000_000, events.Failure("decision_expired", "no")
        call = events.CallProposed(step, "wipe_pay", '{"n":1}', "k" * 64, POOL, "pure", 800, events.RetryPolicy(3))
        choices: list[list[events.Event]] = [
            [sent],
            [events.ApprovalDecided(step, seq, "approve", token=token, covers=99, expires_ms=until), sent],
            [events.ApprovalDecided(step, seq, "edit", token=token, args='{"n":9}', key="0" * 64, covers=9), sent],
            [events.CallJudged(step, "", ""), sent],
            [events.CallCompleted(step, attempt, '{"effect":1}')],
            [events.CallFailed(step, attempt, events.Failure("x", "y"))],
            [events.AttemptFailed(step, attempt, expired, unknown=False, retry_ms=now)],
            [events.DoubtResolved(step, attempt, "did_not_happen", "me")],
            [call, sent],
            [events.SleepEnded(step)],
            [events.RunCancelled("because", "me")],
            [events.RunRequested("handling", '{"tool":"wipe_pay"}', "", "", requester="eve"), events.RunStarted()],
        ]
        prev = b"\1" * 16 if rng.random() < 0.1 else head.id
        entry = events.Entry(run, head.seq + 1, prev, now, None, "planner-1", rng.randbytes(16), rng.choice(choices))
        name, value = codec.encode_entry(entry)
        self._count("lie: the run log")
        place = home(run, PARTITIONS)
        self._write(RUN_LOG, place, log_key(run, entry.seq, name).decode(), value)

    def _wipe(self) -> None:
        self._count("wiped")
        self._world.ledger.wipe()

    def _crash(self) -> None:
        groups = self._world.groups
        up = [process for process in groups.processes if process.state == "up" and process.role == "executor"]
        if up:
            groups.die(self._rng.choice(up))


@cache
def _policies() -> dict[str, Policy]:
    """The policies by their digests."""
    return {policy.digest: policy for policy in map(Policy.parse, STATUTES.values())}
