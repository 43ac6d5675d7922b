"""Votes that do not count: of another question, of another time, in another's name; and a host that signs over them.

The accomplices are an approver, whose key is bound to her name, and the approval service's own host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from refold.core.approval import decision, signature
from refold.core.approval.ballot import Remember, Vote
from refold.core.approval.decision import RUN, Cast, Grant
from refold.core.ids import home
from refold.core.messages import ApprovalDecision, ApprovalRequest, ApprovalVote
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_VOTED
from refold.core.wire import codec
from tests.simulator.attacks.foothold import Foothold, Order
from tests.simulator.reading.tokens import payload_of
from tests.simulator.reading.values import Datum
from tests.simulator.settings import PARTITIONS
from tests.simulator.world.law import BADGE, FIRST, LEADS

_HOUR_MS = 3_600_000
_WEEK_MS = 7 * 24 * _HOUR_MS
_ADA = "ada"


class Elector:
    """Says what is not to count, and decides by it. `send` gives an order to executors."""

    def __init__(self, foothold: Foothold, send: Callable[[Order], None]) -> None:
        self._foothold, self._rng, self._send, self._number = foothold, foothold.rng, send, 0
        self.moves: Mapping[Callable[[], None], int] = {self._vote: 4, self._decide: 5}

    def _vote(self) -> None:
        rng, foothold = self._rng, self._foothold
        asked = next(foothold.questions(), None)
        if asked is None:
            return
        if rng.random() < 0.4:
            if said := foothold.written(APPROVAL_VOTED, 20):
                foothold.tell("a vote on another question")
                self._cast(asked, codec.decode(ApprovalVote, rng.choice(said).value or b"").token)
            return
        self._cast(asked, self._bad(asked))

    def _bad(self, asked: ApprovalRequest) -> str:
        """A vote with a good signature that may not count."""
        rng, foothold = self._rng, self._foothold
        self._number += 1
        now = foothold.world.now_ms
        mine = Vote(
            approval=asked.approval_id,
            vote=f"mine-{self._number}",
            question=asked.question,
            environment=asked.environment,
            actor=_ADA,
            action="approve",
            issued=now,
        )
        how = rng.randrange(5)
        if how == 0:
            foothold.tell("a vote of the future")
            mine = replace(mine, issued=now + rng.choice((_HOUR_MS, 50 * _WEEK_MS)))
        elif how == 1:
            foothold.tell("a vote of long ago")
            mine = replace(mine, issued=now - (asked.requirement.expires_ms or _WEEK_MS) - rng.randrange(_HOUR_MS))
        elif how == 2:
            foothold.tell("a vote in another's name")
            mine = replace(mine, actor=rng.choice([name for name in LEADS if name != _ADA]))
        elif how == 3:
            foothold.tell("a vote that remembers too much")
            mine = replace(mine, remember=Remember(rng.choice((1_000, _WEEK_MS)), 1_000))
        else:
            foothold.tell("a vote on another question")
            mine = replace(mine, question="0" * 64)
        return signature.sign(mine.payload(), BADGE)

    def _cast(self, asked: ApprovalRequest, token: str) -> None:
        vote = payload_of(token)["vote"]
        message = ApprovalVote(asked.approval_id, vote, asked.run_id, token)
        key = f"{asked.approval_id}/{vote}"
        self._foothold.write(APPROVAL_VOTED, home(asked.run_id, PARTITIONS), key, codec.encode(message), by="approver")

    def _decide(self) -> None:
        """The service's own host makes a decision of what was said at other times, of other calls, or of too little."""
        rng, foothold = self._rng, self._foothold
        asked = next(foothold.questions(), None)
        if asked is None:
            return
        said = [
            codec.decode(ApprovalVote, record.value or b"").token for record in foothold.written(APPROVAL_VOTED, 30)
        ]
        here = [token for token in said if payload_of(token)["question"] == asked.question]
        if rng.random() < 0.5:
            tokens = [self._bad(asked)]
            if rng.random() < 0.5:
                self._cast(asked, tokens[0])
        elif here and rng.random() < 0.5:
            foothold.tell("a decision of one vote, twice")
            tokens = [here[0], here[0]]
        elif said:
            foothold.tell("a decision of others' votes")
            tokens = rng.sample(said, min(len(said), rng.choice((1, 2))))
        else:
            return
        foothold.tell("a decision of bad votes")
        votes = tuple(_cast_of(payload_of(token), asked) for token in tokens)
        issued, nonce = foothold.world.now_ms, f"mine-{self._number}"
        made = decision.build(
            asked,
            "approve",
            votes=votes,
            issued_ms=issued,
            nonce=nonce,
            grant=_grant_of(payload_of(tokens[0]), asked),
            tokens=tuple(tokens),
        )
        token = signature.sign(made.payload(), FIRST)
        if rng.random() < 0.3:
            message = ApprovalDecision(asked.approval_id, asked.run_id, token)
            place = home(asked.run_id, PARTITIONS)
            foothold.write(APPROVAL_DECIDED, place, asked.approval_id, codec.encode(message), by="approval")
        self._send(foothold.order(payload_of(token), token, asked.args))


def _grant_of(vote: Datum, asked: ApprovalRequest) -> Grant | None:
    if not vote["remember"]:
        return None
    until_ms, uses = vote["issued"] + vote["remember"]["for_ms"], vote["remember"]["uses"]
    return Grant(asked.approval_id, RUN, until_ms, uses, use=0, rule=asked.rule)


def _cast_of(vote: Datum, asked: ApprovalRequest) -> Cast:
    return Cast(vote["actor"], asked.requirement.approvers[0], "key", vote["vote"], vote["issued"])
