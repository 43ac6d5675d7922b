"""What becomes of what a lane has published: it is in its topic, it may be, or it never will be."""

from __future__ import annotations

from refold.core.planning.verdict import Spoilt
from refold.core.topics import DEAD_LETTER, RUN_REQUESTED
from refold.planner.acceptance import Acceptance
from refold.planner.answering import Answering
from refold.planner.holds import Holds
from refold.planner.inbox import Inbox, Pending
from refold.planner.outbox import Asker, Ordered, Outbox, SentHold
from refold.planner.snapshots import SentKept
from refold.planner.windows import SentSpent
from refold.ports.log import NEVER


class Receipts:
    """The answers of the log for what one lane has published, but for its entries. **Units**: `now` since 1970, ms."""

    def __init__(self, log: Acceptance, outbox: Outbox, inbox: Inbox, *, answering: Answering, holds: Holds) -> None:
        self._log, self._outbox, self._inbox, self._journal = log, outbox, inbox, log.journal
        self._answering, self._holds = answering, holds

    def published(self, asker: Asker, offset: int | None, now: int) -> None:
        """The answer for a record. `offset` None: it may be in its topic or not."""
        if isinstance(asker, SentHold):
            if offset is None:
                self._holds.send_again(asker.run_id)
        elif isinstance(asker, SentSpent):
            self._log.windows.delivered(asker, offset)
        elif isinstance(asker, SentKept):
            self._log.keeper.delivered(asker, offset)
            if offset == NEVER:
                stops = "snapshots" if self._log.keeper.opened else "all decisions"
                hint = f"{stops} of this partition wait: see max.message.bytes and the ACLs of run-snapshot"
                self._journal.tell("snapshot.refused", key=asker.key.decode(), hint=hint)
        elif isinstance(asker, (Ordered, Pending)):
            self._answered(asker, offset, now)

    def _answered(self, asker: Ordered | Pending, offset: int | None, now: int) -> None:
        self._journal.counts["publish.unknown"] += offset is None
        if offset == NEVER:
            self._never(asker, now)
        elif isinstance(asker, Ordered):
            self._outbox.acknowledged(asker, offset, self._log.fold.states, now)
        elif offset is None:
            self._inbox.push([asker])
        elif isinstance(asker.input, Spoilt) and asker.letter:
            asker.letter = None  # told to operators; now the call is settled
            self._inbox.push([asker])
        elif asker.closed:
            asker.finish()
        else:
            self._outbox.close(asker)

    def _never(self, asker: Ordered | Pending, now: int) -> None:
        """The log certainly does not take a record: that is neither a yes nor an unknown, and has an answer."""
        if isinstance(asker, Ordered):
            topic, key = asker.record.topic, asker.record.key.decode()
            self._journal.tell("publish.refused", topic=topic, key=key, bytes=len(asker.record.value or b""))
            if unsent := self._outbox.refused(asker, self._log.fold.states):
                self._inbox.push([unsent])
            return
        if asker.closed:  # it is answered all the same, and stays where it lies
            self._journal.tell("publish.refused", topic=asker.record.topic if asker.record else "", run=asker.run_id)
            asker.finish()
            return
        self._journal.tell("publish.refused", topic=DEAD_LETTER if asker.letter else RUN_REQUESTED, run=asker.run_id)
        if asker.letter is None:  # a stray that cannot go home
            self._answering.bury(asker, "too_large", "its home partition does not take it", now)
        elif asker.short:
            asker.finish()  # the line in the log of this process is all that can be
        else:
            asker.short = True
            self._inbox.push([asker])
