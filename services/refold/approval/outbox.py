"""Records of a lane: published again and again until the log has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from refold.approval.inputs import ASKED_AGAIN
from refold.approval.settings import ApprovalSettings
from refold.core.approval.ballot import Objection
from refold.core.approval.decision import Decision
from refold.core.ids import RunId
from refold.core.messages import ApprovalDecision
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_VOTED, DEAD_LETTER_APPROVAL
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.ports.log import NEVER, Outgoing, Record
from refold.runtime import letters
from refold.runtime.lanes import Journal, Tokens


class ApprovalOutbox:
    """The records of a lane that are on their way.

    All of them are true for good, so each may be written again whatever came between: a second one is harmless, a
    missing one is not. `ends` are those that the lane has found: what lies below was answered by a predecessor.
    """

    def __init__(
        self,
        partition: int,
        settings: ApprovalSettings,
        journal: Journal,
        number: Callable[[], int],
        *,
        ends: Mapping[str, int],
    ) -> None:
        self._partition, self._settings, self._journal, self._ends = partition, settings, journal, ends
        self._flying: Tokens[Outgoing] = Tokens(number)
        self.publishes: list[Outgoing] = []

    def send(self, record: Outgoing) -> None:
        self.publishes.append(record._replace(token=self._flying.give(record)))

    def ask_again(self, approval: str, run: RunId, *, now: int) -> None:
        """Tells the planner that a question which it has closed was asked once more: it closes it once more."""
        key, actor = f"{ASKED_AGAIN}{approval}", self._settings.member
        headers = cloud_event(APPROVAL_DECIDED, key, id=f"{key}/{now}", source=actor, at_ms=now)
        value = codec.encode(ApprovalDecision(approval, run, "", kind="again"))
        self.send(Outgoing(APPROVAL_DECIDED, self._partition, key.encode(), value, headers, 0))

    def delivered(self, token: int, offset: int | None) -> bool:
        """The log's answer to a record. None: it may be there or not, so it is sent again. False: it is not of here."""
        record = self._flying.take(token)
        if record is None:
            return False
        if offset is None:
            self._journal.counts["publish.unknown"] += 1
            self.send(record)
        elif offset == NEVER:
            self._refused(record)
        return True

    def _refused(self, record: Outgoing) -> None:
        """The log never takes a record: operators hear of it, and of a dead letter at least what it was about."""
        self._journal.tell("publish.refused", topic=record.topic, key=record.key.decode(errors="replace"))
        if record.topic == DEAD_LETTER_APPROVAL and (short := letters.shortened(record)) != record:
            self.send(short)

    def answerable(self, record: Record) -> Record:
        """What has to be kept of a record until its sender is answered."""
        return record if record.offset >= self._ends[record.topic] else record._replace(value=None)

    def dead_letter(self, record: Record, void: Objection, *, now: int) -> None:
        """Writes the dead letter of what cannot be used; of what was there before the lane, nothing but a count."""
        if record.offset < self._ends[record.topic]:
            self._journal.counts["void.known"] += 1
            return
        if void.code == "unauthorised":
            self.alarm(record, void.reason)
        event = "vote.void" if record.topic == APPROVAL_VOTED else "request.void"
        self._journal.tell(event, **_place(record), **void._asdict())
        member, limit = self._settings.member, self._settings.limits.payload_bytes
        into = DEAD_LETTER_APPROVAL
        self.send(letters.letter(record, void, service=member, at_ms=now, into=into, limit=limit))

    def alarm(self, record: Record, reason: str) -> None:
        """Somebody has written what they may not, or with a key that does not hold."""
        if record.offset >= self._ends[record.topic]:
            self._journal.tell("unauthorised", **_place(record), reason=reason)

    def second(self, record: Record, others: list[str]) -> None:
        """People are asked two things about one call at a time, which an honest planner does not do."""
        if record.offset >= self._ends[record.topic]:
            asked = (record.key or b"").decode(errors="replace")
            self._journal.tell("question.second", approval_id=asked, others=others)


def decision_record(decision: Decision, token: str, *, partition: int, actor: str, trace: str) -> Outgoing:
    message = ApprovalDecision(decision.approval, RunId(decision.run), token)
    headers = cloud_event(
        APPROVAL_DECIDED, decision.approval, id=decision.nonce, source=actor, at_ms=decision.issued, trace=trace
    )
    return Outgoing(APPROVAL_DECIDED, partition, decision.approval.encode(), codec.encode(message), headers, 0)


def clock_probe(partition: int) -> Outgoing:
    """A record that says nothing: its delivery tells the time."""
    return Outgoing(APPROVAL_DECIDED, partition, b"beat", None, (), 0)


def _place(record: Record) -> dict[str, object]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}
