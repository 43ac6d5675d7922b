"""Signed decisions: built from a settled ballot, signed with the service's key, within the planner's size limit."""

from collections.abc import Callable

from refold.core.approval import decision, signature
from refold.core.approval.ballot import BallotResult
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision
from refold.core.approval.signature import SigningKey
from refold.core.approval.vote_check import unfounded
from refold.core.errors import UsageError
from refold.engine.approval import outbox
from refold.engine.approval.question import OpenQuestion
from refold.engine.approval.settings import ApprovalSettings
from refold.engine.ports.log import Outgoing


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
        """The decision, its token, and its record. **Raises** UsageError or MalformedError if it cannot be signed, or
        readers would refuse it."""
        request, content = question.request, settled._asdict()
        tokens = question.tokens_of(content.pop("said"))
        decided = decision.build(request, **content, tokens=tokens, issued_ms=now, nonce=self._nonce())
        if refused := unfounded(decided, catalog):  # readers count again
            raise UsageError(refused.message)
        token = signature.sign(decided.payload(), self._key)
        member, trace = self._settings.member, request.traceparent
        record = outbox.decision_record(decided, token, partition=partition, actor=member, trace=trace)
        if len(record.value or b"") > (limit := self._settings.limits.payload_bytes):
            raise UsageError(f"it would have more than {limit} bytes, and the planner would not take it")
        return decided, token, record
