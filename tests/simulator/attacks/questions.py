"""Questions that nobody should be asked: false ones, and a second one about a call that people look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from refold.core.approval.decision import ToolFacts
from refold.core.approval.policy import Policy
from refold.core.approval.question import named
from refold.core.events import DOUBT, Earlier
from refold.core.ids import RunId, call_id, home
from refold.core.messages import ApprovalRequest
from refold.core.topics import APPROVAL_REQUESTED
from refold.core.wire import codec
from refold.core.wire.canonical import idempotency_key
from tests.simulator.app import DANGEROUS, FACTS
from tests.simulator.attacks.foothold import Foothold, about
from tests.simulator.settings import PARTITIONS
from tests.simulator.world.crew import ENVIRONMENT
from tests.simulator.world.law import STATUTES

_WORSE = '{"n":666}'


class Inquirer:
    """A planner's questions, asked in the name of runs that nobody has started."""

    def __init__(self, foothold: Foothold) -> None:
        self._foothold, self._rng = foothold, foothold.rng
        self.moves: Mapping[Callable[[], None], int] = {
            self._ask: 5,
            self._ask_falsely: 3,
            self._swap: 3,
            self._doubt: 3,
        }

    def _question(self, tools: Sequence[str] = DANGEROUS) -> ApprovalRequest:
        """A question about a call that might be: its policy does ask for what it says."""
        rng, world = self._rng, self._foothold.world
        law = world.witness.approvals.laws.all(0)[-1]
        tool: ToolFacts = FACTS[rng.choice(tools)]
        run, step, args = RunId(f"z-{rng.randrange(4)}"), rng.choice((1, 1, 2)), f'{{"n":{rng.choice((1, 1, 2))}}}'
        attempt = rng.choice((1, 1, 1, 2))
        rule = _policies()[law.current].rules[0]
        assert rule.requirement is not None, "the first rule of these policies asks"
        expires_ms = rule.requirement.expires_ms
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
            key=idempotency_key(environment=ENVIRONMENT, run=run, step=step, tool=tool.name, args=args),
            policy=law.current,
            rule=rule.name,
            requirement=rule.requirement,
            question="",
            proposal="0" * 64,
            asked_ms=world.now_ms,
            # A liar may say that it never expires so soon.
            expires_ms=world.now_ms + expires_ms * rng.choice((1, 1, 1_000)) if expires_ms else 0,
        )

    def _publish(self, asked: ApprovalRequest, *, partition: int | None = None, question: str = "") -> None:
        true = named(asked)
        self._write(replace(true, question=question) if question else true, partition=partition)

    def _write(self, asked: ApprovalRequest, *, partition: int | None = None) -> None:
        place = home(asked.run_id, PARTITIONS) if partition is None else partition
        self._foothold.write(APPROVAL_REQUESTED, place, asked.approval_id, codec.encode(asked))

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
        self._foothold.tell("a false question")
        partition = rng.randrange(PARTITIONS) if rng.random() < 0.1 else None
        question = "0" * 64 if rng.random() < 0.1 else ""
        self._publish(replace(asked, **rng.choice(changes)), partition=partition, question=question)

    def _doubt(self) -> None:
        """What came of an attempt that maybe nobody has begun? People look, and say what is true."""
        asked, rng = self._question((*DANGEROUS, "pay", "pay", "pay")), self._rng
        attempt = rng.choice((2, 2, 3))
        needed = _policies()[asked.policy].doubt
        assert needed is not None, "these policies say who settles doubts"
        past = [Earlier(attempt - 1, "doubt", "nobody can tell")]
        asked = replace(asked, about=DOUBT, rule=DOUBT, attempt=attempt, covers=attempt, history=past)
        asked = replace(asked, requirement=needed, expires_ms=0)
        if rng.random() < 0.3:
            self._foothold.tell("a false doubt")
            changes: list[dict[str, Any]] = [
                {"history": []},
                {"covers": attempt + 1},
                {"rule": asked.tool},
                {"about": "x"},
            ]
            self._publish(replace(asked, **rng.choice(changes)))
        else:
            self._foothold.tell("a made-up doubt")
            self._publish(asked)

    def _swap(self) -> None:
        """People look at a question: there is another one about its call, by another name or by the same."""
        rng = self._rng
        asked = next(self._foothold.questions(), None)
        if asked is None:
            return
        other = about(asked, args=_WORSE) if rng.random() < 0.7 else about(asked, tool=rng.choice(DANGEROUS))
        how = rng.randrange(5)
        if how < 2:  # a good question, by its own name
            self._foothold.tell("a second question")
            self._publish(replace(other, requester=rng.choice((asked.requester, asked.requester, "mallory"))))
            return
        self._foothold.tell("a question in another's place")
        if how == 2:  # all of it is another, but its name and its digest
            other = replace(other, approval_id=asked.approval_id, question=asked.question)
        elif how == 3:  # its digest is its own, its name is not
            other = replace(named(other), approval_id=asked.approval_id)
        else:  # its name begins like its own, and its digest is the other's
            other = replace(named(other), question=asked.question)
        self._write(other)
        if rng.random() < 0.3:  # and the first one is there again
            self._write(asked)


@cache
def _policies() -> dict[str, Policy]:
    """The policies by their digests."""
    return {policy.digest: policy for policy in map(Policy.parse, STATUTES.values())}
