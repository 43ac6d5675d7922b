"""What a lane writes: published again and again until the log has it, with what is to follow then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from refold.approval.inputs import AGAIN, GRANT
from refold.core.approval.decision import Decision
from refold.core.ids import RunId
from refold.core.messages import ApprovalDecision
from refold.core.topics import APPROVAL_DECIDED, DEAD_LETTER
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.core.wire.letters import Letter
from refold.ports.log import NEVER, Outgoing


def _nothing() -> None:
    """Nothing follows."""


def _always() -> bool:
    """What is said is true for good."""
    return True


@dataclass(slots=True, eq=False)
class Parcel:
    """Records that something waits for: `then` is called once all of them are in the log.

    `holds`: nothing else was said since. What does not hold any more is not sent again, but taken as answered.
    """

    missing: int
    then: Callable[[], None]
    holds: Callable[[], bool]


class Post:
    """The outgoing records of a lane. A second copy of any of them is harmless, a missing one is not.

    A decision or a dead letter is true for good, so it may be written again whatever came between. A key that says one
    thing first and then another has its records sent with `holds`: an old one must not come to lie behind a newer one.
    """

    def __init__(self, token: Callable[[], int], counts: Counter[str]) -> None:
        self._token, self._counts = token, counts
        self._flying: dict[int, tuple[Outgoing, Parcel]] = {}
        self.publishes: list[Outgoing] = []

    def send(
        self,
        records: Sequence[Outgoing],
        then: Callable[[], None] = _nothing,
        *,
        holds: Callable[[], bool] = _always,
    ) -> None:
        """Publishes records; without any, `then` follows at once."""
        parcel = Parcel(len(records), then, holds)
        for record in records:
            self._put(record, parcel)
        if not records:
            then()

    def delivered(self, token: int, offset: int | None) -> bool:
        """The log's answer to a record. None: it may be there or not, so it is sent again. False: it is not of here."""
        found = self._flying.pop(token, None)
        if found is None:
            return False
        record, parcel = found
        if offset is None:
            self._counts["publish.unknown"] += 1
            if parcel.holds():
                self._put(record, parcel)
                return True
        if offset == NEVER:
            self._counts["publish.refused"] += 1
        parcel.missing -= 1
        if not parcel.missing:
            parcel.then()
        return True

    def _put(self, record: Outgoing, parcel: Parcel) -> None:
        number = self._token()
        self._flying[number] = record, parcel
        self.publishes.append(record._replace(token=number))


def decided(found: Decision, token: str, *, partition: int, actor: str, trace: str) -> Outgoing:
    """The record of a decision."""
    message = ApprovalDecision(found.approval, RunId(found.run), token)
    headers = cloud_event(
        APPROVAL_DECIDED, found.approval, id=found.nonce, source=actor, at_ms=found.issued, trace=trace
    )
    return Outgoing(APPROVAL_DECIDED, partition, found.approval.encode(), codec.encode(message), headers, 0)


def again(approval: str, run: RunId, *, partition: int, actor: str, at_ms: int) -> Outgoing:
    """Tells the planner that a question which it has closed was asked once more: it closes it once more."""
    key = f"{AGAIN}{approval}"
    headers = cloud_event(APPROVAL_DECIDED, key, id=f"{key}/{at_ms}", source=actor, at_ms=at_ms)
    value = codec.encode(ApprovalDecision(approval, run, "", kind="again"))
    return Outgoing(APPROVAL_DECIDED, partition, key.encode(), value, headers, 0)


def standing(found: Decision, token: str, *, partition: int, actor: str) -> Outgoing:
    """The record by which a partition learns of a grant: the very decision that gave it."""
    message = ApprovalDecision(found.approval, RunId(found.run), token, kind="grant")
    key = f"{GRANT}{found.approval}"
    headers = cloud_event(APPROVAL_DECIDED, key, id=f"{key}/{found.nonce}", source=actor, at_ms=found.issued)
    return Outgoing(APPROVAL_DECIDED, partition, key.encode(), codec.encode(message), headers, 0)


def gone(grant: str, *, partition: int) -> Outgoing:
    """The tombstone by which a partition learns that a grant is over."""
    return Outgoing(APPROVAL_DECIDED, partition, f"{GRANT}{grant}".encode(), None, (), 0)


def dead(letter: Letter, *, partition: int) -> Outgoing:
    """The record of a dead letter."""
    return Outgoing(DEAD_LETTER, partition, letter.key, letter.value, letter.headers, 0)
