"""The attacker: everything that the planner's credentials allow, and a try at everything that they do not."""

from __future__ import annotations

import dataclasses
import time
from base64 import urlsafe_b64decode
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import TopicPartition

from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Policy
from refold.core.approval.question import named
from refold.core.approval.requester import signed
from refold.core.approval.signature import SigningKey
from refold.core.errors import UsageError
from refold.core.events import Requirement
from refold.core.ids import home, root_of
from refold.core.messages import ApprovalDecision, ApprovalRequest, RunRequest, ToolRequest, ToolResult
from refold.core.topics import pool_of, tool_completed
from refold.core.wire import canonical, codec
from refold.core.wire.canonical import idempotency_key
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.ports.log import Record
from tests.kafka.secured import PARTITIONS
from tests.security.app import app
from tests.security.stage import ASKER, ENVIRONMENT, EXECUTORS, POLICY, PREFIX, Stage
from tests.waiting import eventually

T = TypeVar("T")
GIVE_UP_S = 60.0
WATCHED = (*map(tool_completed, EXECUTORS), "approval-decided")


class Outcome(NamedTuple):
    """Where an attack was stopped, or that it was not."""

    stopped: bool
    where: str


@dataclass(frozen=True)
class Call:
    """A call that the attacker has made up."""

    tool: str
    run: str
    args: str
    seq: int = 3
    step: int = 1

    @property
    def id(self) -> str:
        """Its name."""
        return f"{self.run}/{self.seq}"

    @property
    def facts(self) -> ToolFacts:
        """What is known of its tool."""
        return app.tools[self.tool].facts

    def key(self, environment: str = ENVIRONMENT) -> str:
        """Its idempotency key."""
        return idempotency_key(environment=environment, run=self.run, step=self.step, tool=self.tool, args=self.args)


def asks(rule: str, policy: Policy = POLICY) -> Requirement:
    """What a rule asks."""
    needed = next(each.requirement for each in policy.rules if each.name == rule)
    assert needed is not None, "the rule asks for people"
    return needed


def started_by(key: SigningKey, run: str, *, requester: str = "rita", agent: str = "archived_values") -> RunRequest:
    """What somebody has signed who asked for a run, which is not the attacker."""
    return signed(RunRequest(run, agent, "null", requester), key, time.time_ns() // 1_000_000)


def ask_for(
    call: Call, *, rule: str = "one", requirement: Requirement | None = None, **changes: Any
) -> ApprovalRequest:
    """What an honest planner would ask of people about a call, with the attacker's changes."""
    facts = call.facts
    request = ApprovalRequest(
        approval_id="",
        run_id=call.run,
        call_id=call.id,
        step=call.step,
        attempt=1,
        covers=1,
        agent="archived_values",
        requester="rita",
        session="",
        environment=ENVIRONMENT,
        tool=call.tool,
        version=facts.version,
        schema=facts.schema,
        effect=facts.effect,
        args=call.args,
        key=call.key(),
        policy=POLICY.digest,
        rule=rule,
        requirement=requirement or asks(rule),
        question="",
        proposal="proposal",
        asked_ms=time.time_ns() // 1_000_000,
        token=started_by(ASKER, root_of(call.run)).token,
    )
    if (lasts := request.requirement.expires_ms) and "expires_ms" not in changes:
        changes["expires_ms"] = request.asked_ms + lasts
    asked = named(dataclasses.replace(request, **changes))
    return dataclasses.replace(asked, question=changes.get("question") or asked.question)


class Hijack:
    """A hijacked planner on a stage, for one attack after the other; `label` is what the effects of one are called."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.label = stage, ""
        self.settings = stage.settings("planner")
        self._publisher = KafkaPublisher(self.settings, partitions=PARTITIONS)
        self._results: dict[tuple[str, str], list[ToolResult]] = defaultdict(list)
        self._tokens: dict[str, list[str]] = defaultdict(list)
        self._numbers = count(1)
        self._reader = clients.consumer(self.settings, "refold-planner")
        places = [TopicPartition(PREFIX + topic, number, 0) for topic in WATCHED for number in range(PARTITIONS)]
        self._reader.assign(places)

    def close(self) -> None:
        """Stops reading."""
        self._reader.close()

    @cached_property
    def blunt(self) -> KafkaPublisher:
        """Writes what will be refused, so that the other producer stays well."""
        return KafkaPublisher(self.settings, partitions=PARTITIONS)

    # What a planner writes

    def call(self, tool: str = "wipe", *, how: str = "plain", run: str = "", seq: int = 3, step: int = 1) -> Call:
        """A call of this attack, of a run of its own unless another is named."""
        name = run or f"{self.label}-{next(self._numbers)}"
        return Call(tool, name, canonical.dumps({"how": how, "label": self.label}), seq, step)

    def write(self, topic: str, partition: int, *, key: str, value: bytes | None) -> int:
        """Writes a record that a planner may write; returns its offset."""
        return self._publisher.send_raw(topic, partition, key=key.encode(), value=value, headers=[])[1]

    def forbidden(self, topic: str, *, key: str, value: bytes | None) -> Outcome:
        """Writes what no planner may write; the broker should say no."""
        try:
            self.blunt.send_raw(topic, 0, key=key.encode(), value=value, headers=[])
        except UsageError as error:
            return Outcome(True, f"broker: {error.fields.get('kafka')}")
        return Outcome(False, f"the broker took it into {topic}")

    def ask(self, request: ApprovalRequest) -> None:
        """Asks people."""
        number, value = home(request.run_id, PARTITIONS), codec.encode(request)
        self.write("approval-requested", number, key=request.approval_id, value=value)

    def decision(self, request: ApprovalRequest, *actors: str, action: str = "approve", **more: Any) -> str:
        """The real decision of real people on a request."""
        self.ask(request)
        for actor in actors or ("ada",):
            self.stage.vote(request, actor, action, **more)
        return self.token(request.approval_id)

    def token(self, approval: str) -> str:
        """The decision of an approval, as the planner reads it."""
        return self._wait(lambda: next(iter(self._tokens[approval]), ""), f"a decision of {approval}")

    def undecided(self, request: ApprovalRequest) -> bool:
        """Whether nothing was decided of a request, though the service has read it and what was said of it.

        It has when it has decided what was asked later in the same partition; no grant is for that.
        """
        later = self.call(how="later", run=request.run_id, seq=1_000 + next(self._numbers))
        self.decision(ask_for(later))
        return not self._tokens[request.approval_id]

    def order(self, call: Call, token: str = "", *, pool: str = "default", at: int = -1, **changes: Any) -> ToolResult:
        """Orders a call, in its home or in partition `at`; returns what came of it."""
        known = len(self.results(call.id, pool))
        self.send(self.ordering(call, token, **changes), pool=pool, at=at)
        return self.result(call.id, known, pool)

    def ordering(self, call: Call, token: str = "", **changes: Any) -> ToolRequest:
        """The order of a call, with the attacker's changes."""
        request = ToolRequest(
            call_id=call.id,
            run_id=call.run,
            step=call.step,
            attempt=1,
            issued=7,
            tool=call.tool,
            args=call.args,
            key=call.key(),
            effect=call.facts.effect,
            timeout_ms=20_000,
            policy=POLICY.digest,
            decision=token,
            at_ms=time.time_ns() // 1_000_000,
        )
        return dataclasses.replace(request, **changes)

    def send(self, request: ToolRequest, *, pool: str = "default", at: int = -1) -> None:
        """Sends an order and does not wait."""
        partition = home(request.run_id, PARTITIONS) if at < 0 else at
        self.write(f"tool-requested.{pool}", partition, key=request.call_id, value=codec.encode(request))

    def results(self, call: str, pool: str = "default") -> list[ToolResult]:
        """What a pool has said of a call so far."""
        self._read()
        return self._results[pool, call]

    def result(self, call: str, known: int = 0, pool: str = "default") -> ToolResult:
        """What a pool says of a call, after so many results that were known already."""
        found = self._wait(lambda: self._results[pool, call][known:], f"a result of {call}")
        return found[0]

    def insist(self, request: ToolRequest, known: int, *, pool: str = "default") -> ToolResult:
        """What comes of an order that was sent after so many results, and is sent again every second.

        While an earlier result is on its way, an order gets none of its own.
        """
        again = time.monotonic() + 1.0

        def look() -> list[ToolResult]:
            nonlocal again
            if time.monotonic() > again:
                again += 1.0
                self.send(request, pool=pool)
            return self._results[pool, request.call_id][known:]

        return self._wait(look, f"a result of {request.call_id}")[0]

    def refused(self, call: Call, token: str = "", **more: Any) -> Outcome:
        """Orders a call that the executor should refuse."""
        found = self.order(call, token, **more)
        why = found.failure.message if found.failure else "nothing"
        code = found.failure.code if found.failure else ""
        shown = found.status if code in ("", found.status) else f"{found.status}, {code}"
        return Outcome(found.status == "unauthorised", f"executor: {shown}: {why}")

    def use(self, call: Call, request: ApprovalRequest, *, by: str = "") -> Outcome:
        """Where a request was stopped that was voted on; a decision that comes of it is used.

        `by` is the code under which the approval service has to have put something of it away; none: nothing may be.
        """
        if not self.undecided(request):
            return self.refused(call, self.token(request.approval_id), policy=request.policy)
        name = request.approval_id
        if not by:
            found = self.stage.put_away(name)
            return Outcome(not found, f"approval: waits for more, {found or 'nothing put away'}")
        why = self._wait(lambda: self.stage.put_away(name).get(by), f"{by} of {name}")
        return Outcome(True, f"approval: {by}: {why}")

    # What a planner reads

    def _wait(self, condition: Callable[[], T | None], what: str) -> T:
        def look() -> T | None:
            self._read()
            return condition()

        return eventually(look, within=GIVE_UP_S, what=what)

    def _read(self) -> None:
        for message in self._reader.consume(500, 0):
            if message.error() is None:
                self._take(clients.record((message.topic() or "").removeprefix(PREFIX), message))

    def _take(self, record: Record) -> None:
        if record.value is None:
            return
        if record.topic.startswith("tool-completed."):
            result = codec.decode(ToolResult, record.value)
            self._results[pool_of(record.topic), result.call_id].append(result)
        else:
            found = codec.decode(ApprovalDecision, record.value)
            if found.kind != "again":  # of that kind nothing is decided
                self._tokens[found.approval_id].append(found.token)


def payload(token: str) -> dict[str, Any]:
    """What a token says."""
    part = token.split(".")[1]
    found: dict[str, Any] = canonical.parse(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found
