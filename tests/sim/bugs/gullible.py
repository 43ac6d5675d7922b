"""Bugs on purpose in what keeps a planner's accomplices out: Redis, other pools, the catalog, letters, votes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refold.core.approval import ballot, decision
from refold.core.approval.ballot import Objection, Vote
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision, Refusal
from refold.core.messages import ApprovalRequest, DeadLetter, ToolRequest
from refold.core.wire.seal import Seal
from refold.engine.executor.gate import Gate
from refold.engine.ports.log import Record
from tests.sim.bugs.planting import Bug

Objecting = Callable[[ApprovalRequest, Vote, int], Objection | None]


def _no_code(self: Seal, kind: str, home: int, content: bytes) -> bytes:
    return bytes(16)


def _of_any_pool(original: Callable[..., Refusal | None]) -> Callable[..., Refusal | None]:
    def refusal(self: Gate, request: ToolRequest, *args: Any, **how: Any) -> Refusal | None:
        known = self.tools.get(request.tool)
        return original(replace(self, pool=known.pool) if known else self, request, *args, **how)

    return refusal


def _forgetting(original: Callable[[Catalog, str, bytes | None], None]) -> Callable[[Catalog, str, bytes | None], None]:
    """What comes last is in force, whatever its counter."""

    def take(self: Catalog, name: str, value: bytes | None) -> None:
        if value is not None:
            self.entries.pop(name, None)
        original(self, name, value)

    return take


def _as_the_letter_says(content: DeadLetter, *_: object, **__: object) -> Record:
    return Record(content.topic, content.partition, content.offset, content.key, content.value, tuple)


def _for_this_question(original: Objecting) -> Objecting:
    def objection(request: ApprovalRequest, vote: Vote, now: int) -> Objection | None:
        same = {"approval": request.approval_id, "question": request.question, "environment": request.environment}
        return original(request, replace(vote, **same), now)  # type: ignore[arg-type]

    return objection


def _good_for_ever(original: Objecting) -> Objecting:
    def objection(request: ApprovalRequest, vote: Vote, now: int) -> Objection | None:
        return original(request, vote, min(now, vote.issued))

    return objection


def _about_anything(original: Callable[..., Refusal | None]) -> Callable[..., Refusal | None]:
    def elsewhere(found: Decision, *args: Any, about: str) -> Refusal | None:
        return original(found, *args, about=found.asked.get("about", ""))

    return elsewhere


def _for_anybody(original: Callable[..., Vote]) -> object:
    return staticmethod(lambda payload, key: original(payload, replace(key, actors=())))


def _never_any(*_: object, **__: object) -> None:
    return None


def _never(*_: object) -> None:
    return None


def _nothing(*_: object) -> str:
    return ""


GULLIBLE: dict[str, Bug] = {
    "anybody-fills-the-ledger": Bug((), (("Seal._code", _no_code),), seeds=60),
    "any-pool-answers": Bug((), (("decide_loop.of_other_pool", _nothing),), seeds=240, start=60),
    "any-pool-acts": Bug((), (("Gate.refusal", _of_any_pool(Gate.refusal)),), seeds=60),
    "catalog-unsigned": Bug((), (("catalog.check", _never),), seeds=120),
    "catalog-goes-back": Bug((), (("Catalog._take", _forgetting(Catalog._take)),), seeds=400, start=5_000_300),
    "letters-believed": Bug((), (("letters.original", _as_the_letter_says),), seeds=60),
    "votes-of-other-questions": Bug((), (("ballot.objection", _for_this_question(ballot.objection)),), seeds=120),
    "votes-of-the-future": Bug((), (("ballot.dated_ahead", _never),), seeds=120),
    "votes-without-end": Bug((), (("ballot.objection", _good_for_ever(ballot.objection)),), seeds=120),
    "nothing-came-of-it": Bug((), (("Gate.unsettled", _never_any),), seeds=120),
    "any-word-settles": Bug((), (("decision.unsettled", _never_any),), seeds=200),
    "doubt-settled-is-permission": Bug((), (("decision._elsewhere", _about_anything(decision._elsewhere)),), seeds=200),
    "grants-without-caps": Bug((), (("ballot._too_long", _never),), seeds=120),
    "key-speaks-for-anybody": Bug((), (("Vote.parse", _for_anybody(Vote.parse)),), seeds=120),
}
"""By name: whose word an executor, a planner or an approval service could take."""
