"""Watches records as they are written and tools as they begin, and says at once what may not be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from refold.core import topics
from refold.core.messages import ToolRequest
from refold.ports.log import Record
from refold.simulator.app import CLAIMED_EFFECTS
from refold.simulator.reading.approvals import ApprovalHistory
from refold.simulator.reading.history import Datum, History, read_value
from refold.simulator.reading.toil import Toil
from refold.simulator.settings import ORDERS

APPROVAL_TOPICS = (topics.CATALOG, topics.APPROVAL_REQUESTED, topics.APPROVAL_VOTED, topics.APPROVAL_DECIDED)


class Witness:
    """What was written, what it means, and what was wrong with it.

    `on_entry` is told of entries that count, `on_question` of what people are asked; `claims` are those that count, by
    call, and `claimed` the calls of which the ledger was asked.
    """

    def __init__(self) -> None:
        self.history = History()
        self.approvals = ApprovalHistory()
        self.toil = Toil(self.history)
        self.history.on_decided = self.approvals.accepts
        self.written: dict[str, list[Record]] = {}
        self.claims: defaultdict[str, list[Datum]] = defaultdict(list)
        self._heads: dict[str, str] = {}
        self.void_claims = 0
        self.claimed: set[str] = set()
        self.on_entry: Callable[[Datum], None] = lambda entry: None
        self.on_question: Callable[[Datum], None] = lambda request: None
        self._wrong: list[str] = []

    @property
    def wrong(self) -> list[str]:
        """What was wrong so far."""
        return [*self.history.wrong, *self.approvals.wrong, *self.toil.wrong, *self._wrong]

    def writes(self, record: Record) -> None:
        """A record is in the log. A client's poison is told by its having no headers."""
        self.written.setdefault(record.topic, []).append(record)
        self.toil.writes(record)
        if record.topic == topics.RUN_LOG:
            for entry in self.history.follow(record):
                self.on_entry(entry)
        elif record.topic == topics.TOOL_CLAIMED:
            self._follow_claim(read_value(record.value or b""))
        elif record.topic in APPROVAL_TOPICS:
            self.asks(record)
        elif record.topic == ORDERS and record.value and record.read_headers():
            self._check_order(read_value(record.value))
        elif record.topic == topics.TOOL_COMPLETED and record.value and record.read_headers():
            self._check_doubt(read_value(record.value))

    def asks(self, record: Record) -> None:
        """Follows a record that is about an approval, or about who may decide and how."""
        request = self.approvals.follow(record)
        if request:
            self.on_question(request)

    def commits(self, log: Sequence[Record], start: int, end: int) -> None:
        """Requests from one offset to another are committed: each was claimed, or followed by another of its call."""
        later: set[bytes | None] = set()
        for record in reversed(log):
            seen, call = record.key in later, (record.key or b"").decode()
            later.add(record.key)
            if not start <= record.offset < end or not record.value or not record.read_headers():
                continue
            if call not in self.claimed and not seen:
                self._wrong.append(f"commit: the request of call {call} was committed before it was claimed")

    def starts(self, ask: ToolRequest, *, looked: int) -> None:
        """A tool begins: by the log, is it allowed to?

        `looked` is where the run log ended when its process last looked: what people are asked after that comes too
        late for a process that stalls before the receiver.
        """
        run = self.history.runs.get(ask.run_id)
        call = run.calls.get(ask.step) if run else None
        name = f"{ask.call_id} attempt {ask.attempt}"
        if call is None or ask.attempt not in call.attempts or call.id != ask.call_id:
            self._wrong.append(f"unordered: {name} begins without an accepted dispatch")
        elif (call.key, call.args, call.effect) != (ask.key, ask.args, ask.effect):
            self._wrong.append(f"unordered: {name} begins with another key, class or arguments than were accepted")
        elif ask.at_ms not in call.ordered[ask.attempt] and not (
            ask.again and ask.at_ms > min(call.ordered[ask.attempt])
        ):
            self._wrong.append(f"unordered: {name} begins with another time than that of its dispatch")
        elif call.held and call.held_from < looked and not call.permitted(ask.decision, ask.attempt):
            self._wrong.append(f"undecided: {name} begins with a decision that the log has not accepted for it")
        if ask.effect in CLAIMED_EFFECTS and not self._claimed_as(ask.call_id, ask.attempt, doubt=False):
            self._wrong.append(f"unclaimed: {name} begins without a valid claim")

    def starts_by_ledger(self, ask: ToolRequest, *, known: bool, read: Sequence[Record]) -> None:
        """The same by the ledger, if that has lost nothing, and by what its process has `read` of the requests.

        A ledger that lost a CLOSE lets a lapsed lease of the call be taken over: late, and safe by class.
        """
        if not known:
            self._wrong.append(f"unclaimed: {ask.call_id} begins and the ledger knows nothing of it")
        mine = [record for record in read if record.key == ask.call_id.encode()]
        if mine and mine[-1].value is None:
            self._wrong.append(f"closed: {ask.call_id} begins in a process that has read its tombstone")

    def _follow_claim(self, claim: Datum) -> None:
        if not claim["call_id"]:
            return  # somebody wants to know the time
        if claim["prev"] == self._heads.get(claim["key"], ""):
            self._heads[claim["key"]] = claim["claim_id"]
            self.claims[claim["call_id"]].append(claim)
        else:
            self.void_claims += 1

    def _claimed_as(self, call: str, attempt: int, *, doubt: bool) -> bool:
        return any(claim["doubt"] == doubt and claim["attempt"] == attempt for claim in self.claims[call])

    def _check_doubt(self, told: Datum) -> None:
        declared = told["status"] == "doubt" and told["failure"]["code"] == "in_doubt"
        if declared and not self._claimed_as(told["call_id"], told["attempt"], doubt=True):
            self._wrong.append(f"doubt: {told['call_id']} was declared in doubt outside the claim chain")

    def _check_order(self, ask: Datum) -> None:
        run = self.history.runs.get(ask["run_id"])
        call = run.calls.get(ask["step"]) if run else None
        if call is None or ask["attempt"] not in call.attempts:
            self._wrong.append(f"unordered: {ask['call_id']} was sent out before its dispatch was accepted")
