"""Where attackers stand: what the broker lets each of them write, what lies in the log for them to read, and chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import yaml

from refold.core.approval.question import received
from refold.core.errors import MalformedError
from refold.core.ids import RunId, call_id, home
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.run.chain import Head
from refold.core.topics import APPROVAL_REQUESTED, MEMBER
from refold.core.wire.canonical import idempotency_key
from refold.core.wire.resources import resource
from refold.engine.ports.log import Outgoing, Record
from tests.simulator.app import FACTS
from tests.simulator.reading.values import Datum
from tests.simulator.settings import OTHER, PARTITIONS, POOL
from tests.simulator.world.crew import ENVIRONMENT
from tests.simulator.world.world import World

SPECIAL = '{"effect":-7}'
"""The result that attackers make up, and no tool gives: wherever it is taken, somebody has believed them."""


@cache
def rights(principal: str = "planner", pools: tuple[str, ...] = (POOL, OTHER)) -> frozenset[str]:
    """The topics that a principal may write, as the broker's rules have it; an executor is one of a single pool."""
    topics = yaml.safe_load(resource("infra", "topics.yaml").read_text())["topics"]
    # Nobody reads `member`, and there is none in this world.
    mine = [name for name, topic in topics.items() if principal in topic["writers"] and name != MEMBER]
    return frozenset(name.replace("*", pool) for name in mine for pool in pools)


@dataclass(frozen=True, slots=True)
class Order:
    """An order and the partition that it is written into."""

    request: ToolRequest
    partition: int


@dataclass(frozen=True, slots=True)
class Foothold:
    """What attackers share. `heads` are those of the runs in the log."""

    world: World
    heads: Mapping[str, Head]
    rng: Random

    def write(self, topic: str, partition: int, key: str, value: bytes | None, *, by: str = "planner") -> None:
        """Writes a record with the rights of a principal; an accomplice among the executors is one of `OTHER`."""
        allowed = rights(by, (OTHER,)) if by == "executor" else rights(by)
        assert topic in allowed, f"{by} may not write to {topic}"
        self.world.broker.write(Outgoing(topic, partition, key.encode(), value, (), 0))

    def tell(self, lie: str) -> None:
        """Counts a lie."""
        self.world.counts[f"lie: {lie}"] += 1

    def written(self, topic: str, last: int = 8) -> list[Record]:
        """What was written last into a topic, tombstones left out."""
        return [record for record in self.world.witness.written.get(topic, ())[-last:] if record.value is not None]

    @property
    def decisions(self) -> list[str]:
        """Every decision that was written down, whoever has made it."""
        return [token for tokens in self.world.witness.approvals.decided.values() for token in tokens]

    def questions(self) -> Iterator[ApprovalRequest]:
        """The last questions that services may take for ones, the latest first."""
        for record in reversed(self.written(APPROVAL_REQUESTED)):
            try:
                yield received(record.key, record.value or b"", partition=record.partition, partitions=PARTITIONS)
            except MalformedError:
                continue

    def order(self, decided: Datum, token: str, args: str) -> Order:
        """The order of what a decision allows, for one of the attempts that it is good for."""
        attempt = self.rng.randint(decided["attempt"], min(decided["covers"], decided["attempt"] + 2))
        request = ToolRequest(
            call_id=decided["call"],
            run_id=decided["run"],
            step=decided["step"],
            attempt=attempt,
            issued=0,
            tool=decided["tool"],
            args=decided["edited"] or args,
            key=decided["key"],
            effect=decided["effect"],
            timeout_ms=800,
            policy=decided["policy"],
            decision=token,
            at_ms=self.world.now_ms,
        )
        return Order(request, home(decided["run"], PARTITIONS))


def about(asked: ApprovalRequest, *, run: str = "", tool: str = "", args: str = "") -> ApprovalRequest:
    """The question about another call, with all that follows from that."""
    run_id, facts, text = RunId(run or asked.run_id), FACTS[tool or asked.tool], args or asked.args
    seq = int(asked.call_id.rpartition("/")[2])
    key = idempotency_key(environment=ENVIRONMENT, run=run_id, step=asked.step, tool=facts.name, args=text)
    return replace(
        asked,
        run_id=run_id,
        call_id=call_id(run_id, seq),
        tool=facts.name,
        version=facts.version,
        schema=facts.schema,
        effect=facts.effect,
        covers=asked.attempt if facts.effect == "once" else asked.covers,
        args=text,
        key=key,
    )
