"""Decoding and checks of the service's records."""

from refold.core.approval import signature
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision
from refold.core.errors import MalformedError
from refold.core.ids import home, parse_approval_id
from refold.core.messages import ApprovalDecision, ApprovalVote
from refold.core.wire import codec
from refold.engine.ports.log import Record

ASKED_AGAIN = "again/"
"""Key prefix of the record about a repeated question; other decisions have the approval's id as key."""


def read_vote(record: Record, *, partitions: int) -> ApprovalVote:
    """Vote in a record, its token unopened. **Raises** MalformedError."""
    message = codec.decode_message(ApprovalVote, record.value or b"")
    run, _, _ = parse_approval_id(message.approval_id)
    if record.key != f"{message.approval_id}/{message.vote_id}".encode():
        raise MalformedError("the key is not that of the vote")
    if run != message.run_id or home(run, partitions) != record.partition:
        raise MalformedError("the vote is not at home in this partition")
    return message


def read_decision(record: Record) -> ApprovalDecision:
    """Decision in a record, its token unopened. **Raises** MalformedError."""
    message = codec.decode_message(ApprovalDecision, record.value or b"")
    prefix = ASKED_AGAIN if message.kind == "again" else ""
    if record.key != f"{prefix}{message.approval_id}".encode():
        raise MalformedError("the key is not that of the decision")
    return message


def opened(message: ApprovalDecision, catalog: Catalog) -> Decision:
    """Decision in its token. **Raises** MalformedError, UnauthorisedError."""
    decided = Decision.parse(signature.verified(message.token, catalog.keys, use="decision"))
    if (decided.approval, decided.run) != (message.approval_id, message.run_id):
        raise MalformedError("the decision is another one than its record says")
    return decided
