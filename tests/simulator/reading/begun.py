"""When a call may begin: within the first part of its lease, behind whole leases of others, by no order taken back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from refold.core.messages import ToolRequest
from refold.core.wire.headers import taken_back
from refold.engine.ports.ledger import Claim, Claimed, Operation, Reply
from refold.engine.ports.log import Outgoing, Record
from tests.simulator.reading.logged import LoggedCall
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.settings import CLAIMS

MARGIN = 0.5
"""The part of its lease in which an effect may begin, as the design has it."""

BACK_MS = 300
"""The time after a ruling in which its planner may still send out what that takes back."""


PROMPT = frozenset(
    (
        *("die", "die-after", "power", "pause", "pause-after", "wipe", "wipe-die", "wipe-seen", "rollback"),
        *("rollback-die", "amnesia", "cut", "cut-after", "compact"),
    )
)
"""Faults after which what is taken back is known to all within `KNOWN_MS`."""

KNOWN_MS = 1_000


class Link(NamedTuple):
    """A claim that extends its chain, and when the log took it."""

    claim: Datum
    at_ms: int


class Beginnings:
    """What was claimed, when, and by whom: `writers` are processes, by claim. `reached` counts how often each of its
    rules was asked.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.reached: Counter[str] = Counter()
        self._links: defaultdict[str, list[Link]] = defaultdict(list)
        self.writers: dict[str, str] = {}
        self._claimed_ms: dict[tuple[str, str], int] = {}

    def answers(self, process: str, what: Operation, reply: Reply, now_ms: int) -> None:
        """The ledger answers a process."""
        if isinstance(what, Claim) and isinstance(reply, Claimed):
            self._claimed_ms[process, what.key] = now_ms

    def writes(self, process: str, record: Outgoing) -> None:
        """A process writes a record."""
        if record.topic == CLAIMS and record.value:
            self.writers[read_value(record.value)["claim_id"]] = process

    def extends(self, claim: Datum, at_ms: int, lease_ms: int) -> None:
        """A claim is at the head of its chain: the lease of the one before it has to be over."""
        before = self._links[claim["key"]]
        if before and before[-1].claim["claim_id"] == claim["prev"] and not before[-1].claim["undone"]:
            head = before[-1]
            # Who has made that one may know that nothing is sent under it any more. Of what the network has kept back
            # nobody knows the writer.
            one, other = (self.writers.get(each["claim_id"]) for each in (head.claim, claim))
            if one and other and one != other:
                self.reached["rule: a chain is extended"] += 1
                if at_ms - head.at_ms < lease_ms:
                    self.wrong.append(f"lease: {claim['call_id']} is claimed {at_ms - head.at_ms} ms after another")
        before.append(Link(claim, at_ms))

    def forgets(self) -> None:
        """The topic has lost claims, or has them at other times."""
        self._links.clear()

    def starts(self, process: str, ask: ToolRequest, *, chained: bool, checked_ms: int, lease_ms: int) -> None:
        """A tool begins that looked at the clock last at this time."""
        own = [link for link in self._links[ask.key] if not (link.claim["doubt"] or link.claim["undone"])]
        since_ms = own[-1].at_ms if chained and own else self._claimed_ms.get((process, ask.key), checked_ms)
        self.reached["rule: an effect begins within its margin"] += 1
        if checked_ms - since_ms > MARGIN * lease_ms:
            self.wrong.append(f"margin: {ask.call_id} begins {checked_ms - since_ms} ms into a lease of {lease_ms} ms")

    def goes_by(self, ask: ToolRequest, read: Iterable[Record]) -> None:
        """A tool begins, of whose call the topic has these orders and tombstones up to where its process has read."""
        back = 0
        for record in read:
            if record.value is None:
                back = max(back, taken_back(record.read_headers()))
            elif record.read_headers() and read_value(record.value)["attempt"] == ask.attempt:
                back = 0 if back >= ask.attempt else back
        self.reached["rule: an order was taken back"] += bool(back)
        if back >= ask.attempt:
            self.wrong.append(f"back: {ask.call_id} attempt {ask.attempt} begins, and its order was taken back")

    def outlives(self, ask: ToolRequest, call: LoggedCall | None, now_ms: int, struck: Iterable[str]) -> None:
        """A tool begins: has its call been judged again, and has everybody had the time to hear of it?"""
        attempt, since_ms = call.back if call else (0, 0)
        self.reached["rule: a call that was judged again begins"] += bool(attempt)
        late = ask.attempt <= attempt and now_ms - since_ms > KNOWN_MS
        if late and PROMPT.issuperset(fault.partition(":")[2] for fault in struck):
            self.wrong.append(f"back: {ask.call_id} begins {now_ms - since_ms} ms after {attempt} was judged")

    def goes_out(self, ask: Datum, call: LoggedCall, now_ms: int) -> None:
        """An order is sent out of a call that people, or an operator, may have been asked about since."""
        attempt, since_ms = call.back
        self.reached["rule: a call that was judged again is sent"] += bool(attempt)
        late = ask["attempt"] <= attempt and now_ms - since_ms > BACK_MS
        if late and call.phase in ("approval", "doubt", "held"):
            self.wrong.append(f"back: an attempt of {call.id} is sent {now_ms - since_ms} ms after it was judged")
