"""Where tests hand in votes, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from refold.client.operations.approvals import Answered, Approvals
from refold.core.approval import signature
from refold.core.approval.ballot import Vote
from refold.core.approval.signature import SigningKey
from refold.core.events import Cause
from refold.core.ids import home
from refold.core.messages import ApprovalRequest, ApprovalVote
from refold.core.topics import APPROVAL_VOTED
from refold.core.wire import codec
from refold.engine.adapters.memory.log import MemoryLogReader
from tests.approval.driving import GATEWAY, PARTITIONS, Process, World
from tests.approval.questions import NOW
from tests.roots import TRUST


@dataclass
class Desk:
    """Where votes are handed in; the service takes its turns after every one, if it lives."""

    world: World
    process: Process | None

    def send(self, message: ApprovalVote) -> tuple[int, int]:
        """See `Sender`."""
        number = home(message.run_id, PARTITIONS)
        key = f"{message.approval_id}/{message.vote_id}"
        offset = self.world.write("approval-voted", number, key, codec.encode(message))
        if self.process:
            self.process.run()
        return number, offset

    @property
    def approvals(self) -> Approvals:
        """The client."""
        return Approvals(MemoryLogReader(self.world.broker), TRUST, partitions=PARTITIONS, settle_s=0)

    def force(self, asked: ApprovalRequest, actor: str, *, key: SigningKey = GATEWAY) -> tuple[Vote, Cause]:
        """An approval that is sent without a check: right when it was checked, or by no client of ours."""
        vote = Vote(asked.approval_id, "forced", asked.question, asked.environment, actor, "approve", NOW + 1)
        message = ApprovalVote(vote.approval, vote.vote, asked.run_id, signature.sign(vote.payload(), key))
        return vote, Cause(APPROVAL_VOTED, *self.send(message))

    def vote(
        self, asked: ApprovalRequest, actor: str, action: str, *, key: SigningKey = GATEWAY, **more: Any
    ) -> Answered:
        """Votes and waits for what becomes of it."""
        vote = self.approvals.vote(asked.approval_id, action, question=asked.question, actor=actor, **more)
        position = self.approvals.send(replace(vote, issued=NOW + 1), key, self)
        return self.approvals.answered(replace(vote, issued=NOW + 1), position, 0)
