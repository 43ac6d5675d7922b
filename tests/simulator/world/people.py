"""Simulated people: they see what is asked, say what their script or chance has them say, and agree in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from refold.core.approval import signature
from refold.core.approval.ballot import Remember, Vote
from refold.core.approval.signature import SigningKey
from refold.core.ids import home
from refold.core.messages import ApprovalVote
from refold.core.topics import APPROVAL_VOTED
from refold.core.wire import codec
from refold.engine.ports.log import Outgoing
from tests.simulator.reading.values import Datum
from tests.simulator.world.law import BADGE, EDITED, GATEWAY, HEADS, LEADS, OUTSIDER, REQUESTER, STRANGER
from tests.simulator.world.surroundings import Surroundings

KEYS: dict[str, SigningKey] = {"gateway": GATEWAY, "badge": BADGE, "stranger": STRANGER}
ANSWERED = '{"effect":77}'
INSIST_MS = 2_500
"""How long an approval is open before everybody who may says yes: longer than any expiry that is to be seen."""

_ENOUGH = 20
"""How often they insist. An approval that is open for longer is stuck, and the case says so."""


@dataclass(frozen=True, slots=True)
class Say:
    """Something that somebody says of every approval at this level, or only of the `nth` of its call.

    **Units**: `after_ms` counts from the question; `again_ms` after that the same record comes a second time.
    `question` is asked instead of the right one: `old` is the one before, anything else is made up.
    """

    actor: str
    action: str = "approve"
    after_ms: int = 150
    level: int = 0
    nth: int = 0
    again_ms: int = 0
    key: str = "gateway"
    to: tuple[str, ...] = ()
    question: str = ""
    remember: tuple[int, int] | None = None


Found = Callable[[str], tuple[str, str]]
"""What is said of the call with an idempotency key: a verdict on the doubt, and a result."""

_SETTLES = {"did_not_happen": "approve", "happened": "answer", "give_up": "reject"}


class People:
    """All people of a case. Without a script (None) chance has them speak; `silent`: nobody insists.

    They take `looks_ms` to look what came of a call that is in doubt.
    """

    def __init__(
        self,
        world: Surroundings,
        script: Sequence[Say] | None,
        found: Found,
        *,
        silent: bool = False,
        looks_ms: int = 700,
    ) -> None:
        self._world, self._script, self._silent = world, script, silent
        self._found, self._looks_ms = found, looks_ms
        self._seen: set[str] = set()
        self._asked: dict[str, int] = {}
        self._questions: list[str] = []
        self._votes = 0

    def asked(self, request: Datum) -> None:
        """A question lies in its topic, maybe not for the first time."""
        if request["approval_id"] in self._seen:
            return
        self._seen.add(request["approval_id"])
        if request["about"]:
            self._world.at(self._looks_ms, lambda: self._settle(request, LEADS[:1]), waits=False)
            return
        name = f"{request['call_id']}, {request['round']}"
        number = self._asked.setdefault(name, 1 + sum(other.startswith(request["run_id"]) for other in self._asked))
        script = self._random() if self._script is None else self._script
        for say in script:
            if say.level == request["level"] and say.nth in (0, number):
                later = partial(self._say, say, request, [*self._questions])
                self._world.at(say.after_ms, later, waits=False)
        self._questions.append(request["question"])
        if not self._silent:
            self._world.at(INSIST_MS, lambda: self._insist(request, _ENOUGH), waits=False)

    def _settle(self, request: Datum, actors: Sequence[str]) -> None:
        """Looks what came of a call, and says so; all together where one word was not enough."""
        if request["approval_id"] not in self._world.witness.approvals.open:
            return
        self._world.counts["doubts_asked"] += 1
        verdict, result = self._found(request["key"])
        for actor in actors:
            self._say(Say(actor, _SETTLES[verdict]), request, [], result=result)
        self._world.at(INSIST_MS, lambda: self._settle(request, (*LEADS, *HEADS)), waits=False)

    def _say(self, say: Say, request: Datum, older: list[str], *, result: str = ANSWERED) -> None:
        self._votes += 1
        question = request["question"]
        if self._script is None and say.action == "edit" and request["writers"] and not request["expires_ms"]:
            say = replace(say, action="approve")  # another writer of arguments leaves nobody who may decide, for ever
        if say.question:
            question = older[-1] if say.question == "old" and older else "0" * 64
        vote = Vote(
            approval=request["approval_id"],
            vote=f"{say.actor}-{self._votes}",
            question=question,
            environment=request["environment"],
            actor=say.actor,
            action=say.action,
            issued=self._world.now_ms,
            args=EDITED if say.action == "edit" else "",
            result=result if say.action == "answer" else "",
            message="because" if say.action in ("reject", "comment") else "",
            to=say.to,
            remember=Remember(*say.remember) if say.remember else None,
        )
        signer = SigningKey(KEYS[say.key].kid, "vote", KEYS[say.key].seed)
        token = signature.sign(vote.payload(), signer)
        message = ApprovalVote(vote.approval, vote.vote, request["run_id"], token)
        place, key = home(request["run_id"], self._world.settings.partitions), f"{vote.approval}/{vote.vote}"
        record = Outgoing(APPROVAL_VOTED, place, key.encode(), codec.encode(message), (), 0)
        self._world.counts[f"vote.{say.action}"] += 1
        self._world.broker.write(record)
        if say.again_ms:
            self._world.at(say.again_ms, lambda: self._world.broker.write(record), waits=False)

    def _insist(self, request: Datum, left: int) -> None:
        """An approval that nobody has decided yet is approved by everybody who may, so that no run waits for ever."""
        approvals = self._world.witness.approvals
        if request["approval_id"] not in approvals.open or not left:
            return
        if request["approval_id"] not in approvals.decided:
            for actor in (*LEADS, *HEADS) if request["level"] or self._script is None else LEADS:
                self._say(Say(actor), request, [])
        self._world.at(INSIST_MS, lambda: self._insist(request, left - 1), waits=False)

    def _random(self) -> list[Say]:
        rng = self._world.chance.rng
        return [_anything(rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 4)))]


def _anything(rng: Random) -> Say:
    action = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    after_ms = rng.choice((rng.randrange(400), rng.randrange(1_500)))
    given: dict[str, Any] = {"after_ms": after_ms, "level": int(rng.random() < 0.2)}
    if action == "delegate":
        given["to"] = (rng.choice((*LEADS, *HEADS)),)
    if action == "reassign":  # to enough people for every quorum
        given["to"] = rng.choice((("role:lead", *HEADS), ("role:head", *LEADS)))
    if action == "approve" and rng.random() < 0.2:
        given["remember"] = (5_000, rng.choice((1, 2)))
    if rng.random() < 0.25:
        given["again_ms"] = rng.randrange(1, 900)
    if rng.random() < 0.1:
        given["question"] = rng.choice(("old", "made-up"))
    actor = rng.choice((*LEADS, *LEADS, *HEADS, REQUESTER, OUTSIDER))
    key = rng.choice(("badge", "gateway", "gateway")) if actor == "ada" else "gateway"
    return Say(actor, action, key="stranger" if rng.random() < 0.05 else key, **given)


_WEIGHTS = {"approve": 12, "reject": 2, "edit": 2, "answer": 1, "withdraw": 1, "delegate": 1}
_WEIGHTS |= {"reassign": 1, "comment": 1, "remind": 1, "revoke-grant": 1}
