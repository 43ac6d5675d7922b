"""Signed decisions and other outgoing records of a lane, published again until the log has them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from refold.core.approval import decision, signature
from refold.core.approval.ballot import BallotResult, Objection
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision
from refold.core.approval.policy_check import unfounded
from refold.core.approval.signature import SigningKey
from refold.core.errors import UsageError
from refold.core.ids import RunId
from refold.core.messages import ApprovalDecision
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_VOTED, DEAD_LETTER_APPROVAL
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.engine.approval.inputs import ASKED_AGAIN
from refold.engine.approval.question import OpenQuestion, ToolDefs
from refold.engine.approval.settings import ApprovalSettings
from refold.engine.ports.log import NEVER, Outgoing, Record
from refold.engine.runtime import letters
from refold.engine.runtime.lanes import Journal, Tokens


class ApprovalOutbox:
    """Outgoing records of a lane, which may be repeated. A predecessor has answered records below `ends`."""

    def __init__(self, partition: int, equipment: "Equipment", *, ends: Mapping[str, int]) -> None:
        self._partition, self._ends = partition, ends
        self._settings, self._journal = equipment.settings, equipment.journal
        self._flying: Tokens[Outgoing] = Tokens(equipment.number)
        self.publishes: list[Outgoing] = []

    def send(self, record: Outgoing) -> None:
        self.publishes.append(record._replace(token=self._flying.give(record)))

    def ask_again(self, approval: str, run: RunId, *, now: int) -> None:
        """Notify the planner of a repeated question that is closed, so that it closes it again."""
        key, actor = f"{ASKED_AGAIN}{approval}", self._settings.member
        headers = cloud_event(APPROVAL_DECIDED, key, id=f"{key}/{now}", source=actor, at_ms=now)
        value = codec.encode(ApprovalDecision(approval, run, "", kind="again"))
        self.send(Outgoing(APPROVAL_DECIDED, self._partition, key.encode(), value, headers, 0))

    def delivered(self, token: int, offset: int | None) -> bool:
        """Handle the delivery of a record; None: unknown, so it is sent again. False: not of this lane."""
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
        """Report a record that the log never takes; send a short form of a dead letter."""
        self._journal.tell("publish.refused", topic=record.topic, key=record.key.decode(errors="replace"))
        if record.topic == DEAD_LETTER_APPROVAL and (short := letters.shortened(record)) != record:
            self.send(short)

    def answerable(self, record: Record) -> Record:
        """Record with the parts that its answer needs: only its place if a predecessor has answered it."""
        return record if record.offset >= self._ends[record.topic] else record._replace(value=None)

    def dead_letter(self, record: Record, void: Objection, *, now: int) -> None:
        """Write the dead letter of an unusable record; one from before the lane is only counted."""
        # A predecessor has answered it: it does not become a dead letter again.
        if record.offset < self._ends[record.topic]:
            self._journal.counts["void.known"] += 1
            return
        if void.code == "unauthorised":
            self.alarm(record, void.reason)
        event = "vote.void" if record.topic == APPROVAL_VOTED else "request.void"
        self._journal.tell(event, **letters.place(record), **void._asdict())
        member, limit = self._settings.member, self._settings.limits.payload_bytes
        into = DEAD_LETTER_APPROVAL
        self.send(letters.letter(record, void, service=member, at_ms=now, into=into, limit=limit))

    def alarm(self, record: Record, reason: str) -> None:
        """Report a record by an actor without the right, or with an invalid key."""
        if record.offset >= self._ends[record.topic]:
            self._journal.tell("unauthorised", **letters.place(record), reason=reason)

    def second(self, record: Record, others: list[str]) -> None:
        """Report a second open question about one call, which no honest planner asks."""
        if record.offset >= self._ends[record.topic]:
            approval = (record.key or b"").decode(errors="replace")
            self._journal.tell("question.second", approval_id=approval, others=others)


def decision_record(decision: Decision, token: str, *, partition: int, actor: str, trace: str) -> Outgoing:
    message = ApprovalDecision(decision.approval, RunId(decision.run), token)
    name, at_ms = decision.approval, decision.issued
    headers = cloud_event(APPROVAL_DECIDED, name, id=decision.nonce, source=actor, at_ms=at_ms, trace=trace)
    return Outgoing(APPROVAL_DECIDED, partition, name.encode(), codec.encode(message), headers, 0)


class Signer:
    """Signer of this service's decisions. `nonce` returns random text. **Units**: `now` in ms, by the log."""

    def __init__(self, key: SigningKey, settings: ApprovalSettings, nonce: Callable[[], str]) -> None:
        self._key, self._settings, self._nonce = key, settings, nonce

    def in_force(self, catalog: Catalog, now: int) -> bool:
        key = catalog.keys.get(self._key.kid)
        return key is not None and key.use == "decision" and key.signs_at(now)

    def sign(
        self, question: OpenQuestion, settled: BallotResult, catalog: Catalog, *, partition: int, now: int
    ) -> tuple[Decision, str, Outgoing]:
        """The decision, its token and its record. **Raises** UsageError, MalformedError if readers would refuse it."""
        request, content = question.request, settled._asdict()
        tokens = question.tokens_of(content.pop("said"))
        decided = decision.build(request, **content, tokens=tokens, issued_ms=now, nonce=self._nonce())
        if refused := unfounded(decided, catalog):  # readers count again
            raise UsageError(refused.message)
        token = signature.sign(decided.payload(), self._key)
        member, trace = self._settings.member, request.traceparent
        record = decision_record(decided, token, partition=partition, actor=member, trace=trace)
        if len(record.value or b"") > (limit := self._settings.limits.payload_bytes):
            raise UsageError(f"it would have more than {limit} bytes, and the planner would not take it")
        return decided, token, record


@dataclass(frozen=True, slots=True)
class Equipment:
    """Parts that the lanes of a process share; `number` returns tokens for their records."""

    settings: ApprovalSettings
    signer: Signer
    tools: ToolDefs
    number: Callable[[], int]
    journal: Journal
