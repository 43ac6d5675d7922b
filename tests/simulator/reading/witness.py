"""Watches records as they are written and tools as they begin, and says at once what may not be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile

from refold.core import topics
from refold.core.errors import MalformedError
from refold.core.ids import RunId, home, parse_callback_token
from refold.core.messages import ToolRequest
from refold.core.run.erased import erased_claims_key, is_erased_claims_key
from refold.core.wire.headers import taken_back
from refold.engine.ports.ledger import Claim
from refold.engine.ports.log import Record
from tests.simulator.app import CLAIMED_EFFECTS, FACTS
from tests.simulator.reading.approvals import ApprovalHistory
from tests.simulator.reading.begun import Beginnings
from tests.simulator.reading.history import History
from tests.simulator.reading.leases import Leases
from tests.simulator.reading.logged import LoggedCall
from tests.simulator.reading.toil import Toil
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.settings import ANSWERS, CLAIMS, ORDERS

APPROVAL_TOPICS = (topics.CATALOG, topics.APPROVAL_REQUESTED, topics.APPROVAL_VOTED, topics.APPROVAL_DECIDED)

CLOCKS_MS = 1_000
"""How far behind the log's time an executor may be."""


class Witness:
    """What was written, what it means, and what was wrong with it.

    `on_entry` is told of entries that count, `on_question` of what people are asked; `claims` are those that count, by
    call, `claimed` the calls of which the ledger was asked, `lost` the attempts whose dispatch the log had once, or
    which a planner has taken for accepted that had not noticed that the log has lost its end: what that believes is
    `unaware`. `stored` are the keys to which the ledger has answered with the result of an earlier attempt.
    """

    def __init__(self, stale_ms: int = 0, chained_lease_ms: int = 0) -> None:
        self.stale_ms, self.chained_lease_ms = stale_ms, chained_lease_ms
        self.history, self.unaware = History(), History()
        self._ends: dict[int, int] = {}
        self.approvals = ApprovalHistory()
        self.toil = Toil(self.history)
        self.leases, self.begun = Leases(), Beginnings()
        self.history.on_decided = self.approvals.accepts
        self.written: dict[str, list[Record]] = {}
        self.claims: defaultdict[str, list[Datum]] = defaultdict(list)
        self._links: defaultdict[str, list[str]] = defaultdict(list)
        self._anew: set[str] = set()
        self.void_claims = 0
        self.claimed: set[str] = set()
        self.stored: set[str] = set()
        self.reused: list[tuple[int, int, int]] = []
        self.lost: set[tuple[str, int]] = set()
        self._ordered_ms: dict[tuple[str, int], int] = {}
        self.on_entry: Callable[[Datum], None] = lambda entry: None
        self.on_question: Callable[[Datum], None] = lambda request: None
        self._wrong: list[str] = []

    @property
    def wrong(self) -> list[str]:
        """What was wrong so far."""
        readers = self.history, self.approvals, self.toil, self.leases, self.begun
        return [*(why for reader in readers for why in reader.wrong), *self._wrong]

    def writes(self, record: Record) -> None:
        """A record is in the log. A client's poison is told by its having no headers."""
        self.written.setdefault(record.topic, []).append(record)
        self.toil.writes(record)
        if record.topic == topics.RUN_LOG:
            self._follow_log(record)
        elif record.topic == topics.BUDGET_SPENT:
            self.history.limits.hears(record)
        elif record.topic == CLAIMS and record.value:
            self._follow_claim(record.key or b"", read_value(record.value), record.at_ms)
        elif record.topic in APPROVAL_TOPICS:
            self.asks(record)
        elif record.topic == ORDERS and record.value and record.read_headers():
            self._check_order(read_value(record.value), record)
        elif record.topic == ANSWERS and record.value and record.read_headers():
            self._check_doubt(read_value(record.value))

    def _follow_log(self, record: Record) -> None:
        counting = self.history.follow(record)
        for entry in counting:
            self.on_entry(entry)
        # Where the log was as long before it lost its end, whoever knew it so expects its own next entry, and has read
        # nothing that tells it otherwise.
        if not counting and record.offset == self._ends.get(record.partition) and self.unaware.follow(record):
            self._ends[record.partition] += 1
            self.lost |= _dispatched(self.unaware) - _dispatched(self.history)

    def laid(self, *names: str) -> list[Record]:
        """All that was ever written into some topics."""
        return [record for name in names for record in self.written.get(name, ())]

    def settles(self, inputs: Sequence[Record], partitions: int) -> None:
        """What users have said is settled: it is in the log, or told to be dead, or means nothing any more."""
        dead = self._dead()
        for record in inputs:
            place, name = (record.topic, record.partition, record.offset), (record.key or b"").decode(errors="replace")
            owner = _owner(name)
            run = self.history.runs.get(owner)
            if record.value is None or place in dead or self.history.caused(owner, *place):
                continue
            if record.topic == topics.RUN_REQUESTED:
                heard = run is not None or home(name, partitions) != record.partition
            else:
                heard = run is not None and (bool(run.ends) or b'"cancel"' not in record.value)
                # Of the same signal twice one is answered.
                told = name.partition("/")[2]
                heard &= (
                    run is None
                    or b'"signal"' not in record.value
                    or bool(run.ends)
                    or told in {*run.mail.came, *run.mail.dropped}
                )
                heard |= name.startswith("cb_") and home(owner, partitions) != record.partition
            if not heard:
                self._wrong.append(f"unheard: {name} on {record.topic} is settled, and nobody has answered it")

    def answered(self, given: Record) -> bool:
        """Whether an input is in the log, or told to be dead."""
        place, name = (given.topic, given.partition, given.offset), (given.key or b"").decode(errors="replace")
        return place in self._dead() or self.history.caused(_owner(name), *place)

    def _dead(self) -> set[tuple[str, int, int]]:
        dead = set[tuple[str, int, int]]()
        for record in self.written.get(topics.DEAD_LETTER, ()):
            with suppress(ValueError, KeyError, IndexError, EOFError):  # a liar may have written it
                letter = read_value(record.value or b"")
                dead.add((letter["topic"], letter["partition"], letter["offset"]))
        return dead

    def loses(self, logs: Sequence[Sequence[Record]]) -> None:
        """The run log has lost records; this is what is left of its partitions. What they ordered is under way."""
        self.unaware = History()
        self.unaware.runs, self.unaware.erased = self.history.runs, self.history.erased
        self.unaware.known = self.history.known
        self.history.restart(logs)
        self.lost |= _dispatched(self.unaware) - _dispatched(self.history)

    def forgets(self, topic: str, partition: int, end: int, was: int) -> None:
        """A topic has lost its end: what lies there next is something else. No claim follows one that is lost."""
        self.history.forget(topic, partition, end)
        if topic == topics.RUN_LOG:
            self._ends[partition] = was
        if topic == CLAIMS:
            self.begun.forgets()
            held = self.written.get(topic, ())
            lost = {
                read_value(r.value)["claim_id"]
                for r in held
                if r.value and r.partition == partition and r.offset >= end
            }
            for key, links in self._links.items():
                self._links[key] = list(takewhile(lambda link: link not in lost, links))
        if topic == topics.APPROVAL_DECIDED:
            self.approvals.begin_anew()
        if topic == ORDERS:
            self.reused.append((partition, end, was))

    def renumbered(self, topic: str, partition: int) -> None:
        """Take note that other inputs will lie where some lay, also where cleaning has left none to be moved."""
        self.history.forget(topic, partition, 0)

    def moved(self, record: Record) -> None:
        """A record lies at another offset now, in a log that begins anew."""
        self._ends.clear()
        self.toil.moved()
        self.begun.forgets()
        self.written.setdefault(record.topic, []).append(record)

    def differs(self, why: str) -> None:
        """Somebody else has found what may not be."""
        self._wrong.append(why)

    def asks(self, record: Record) -> None:
        """Follows a record that is about an approval, or about who may decide and how."""
        request = self.approvals.follow(record)
        if request:
            self.on_question(request)

    def commits(self, log: Sequence[Record], start: int, end: int, *, now_ms: int) -> None:
        """Requests from one offset to another are committed: each was claimed, old, or followed by one of its call."""
        later: set[bytes | None] = set()
        for record in reversed(log):
            seen, call = record.key in later, (record.key or b"").decode()
            later.add(record.key)
            if not start <= record.offset < end or not record.value or not record.read_headers():
                continue
            if any(record.partition == place and end <= record.offset < was for place, end, was in self.reused):
                continue  # who has read what lay there before commits past it; the planner asks again
            old = now_ms - record.at_ms > self.stale_ms - CLOCKS_MS
            if call not in self.claimed and not seen and not old and not self._closed(record.key):
                self._wrong.append(f"commit: the request of call {call} was committed before it was claimed")

    def _closed(self, key: bytes | None) -> bool:
        """Whether a request was ever closed: an executor may have read so before the topic lost its end."""
        return any(record.key == key and record.value is None for record in self.written[ORDERS])

    def starts(self, ask: ToolRequest, *, looked: int) -> None:
        """A tool begins: by the log, is it allowed to?

        `looked` is where the run log ended when its process last looked: what people are asked after that comes too
        late for a process that stalls before the receiver.
        """
        run = self.history.runs.get(ask.run_id)
        call = run.call(ask.call_id) if run else None
        name = f"{ask.call_id} attempt {ask.attempt}"
        if (ask.call_id, ask.attempt) in self.lost:
            pass  # whoever has the order cannot know
        elif call is None or ask.attempt not in call.attempts or call.id != ask.call_id:
            self._wrong.append(f"unordered: {name} begins without an accepted dispatch")
        elif (call.key, call.args, call.effect) != (ask.key, ask.args, ask.effect):
            self._wrong.append(f"unordered: {name} begins with another key, class or arguments than were accepted")
        elif ask.at_ms not in call.ordered[ask.attempt] and not self._put_off(ask, call):
            self._wrong.append(f"unordered: {name} begins with another time than that of its dispatch")
        elif call.held and call.held_from < looked and not call.permitted(ask.decision, ask.attempt):
            self._wrong.append(f"undecided: {name} begins with a decision that the log has not accepted for it")
        if ask.effect in CLAIMED_EFFECTS and not self._claimed_to_act(ask.call_id, ask.attempt):
            self._wrong.append(f"unclaimed: {name} begins without a valid claim")

    def _put_off(self, ask: ToolRequest, call: LoggedCall) -> bool:
        """True if a dispatch was told again, or kept back by a pause or a halt until now: nobody was asked before."""
        told = ask.again or ask.at_ms == self._ordered_ms.get((ask.call_id, ask.attempt))
        return told and ask.at_ms > min(call.ordered[ask.attempt])

    def starts_by_ledger(self, ask: ToolRequest, *, known: bool, read: Sequence[Record]) -> None:
        """The same by the ledger, if that has lost nothing, and by what its process has `read` about the call.

        A ledger that lost a CLOSE lets a lapsed lease of the call be taken over: late, and safe by class.
        """
        if not known:
            self._wrong.append(f"unclaimed: {ask.call_id} begins and the ledger knows nothing of it")
        # A planner that takes over may take the attempts before this one back once more.
        read = [record for record in read if not 0 < taken_back(record.read_headers()) < ask.attempt]
        if read and read[-1].value is None:
            self._wrong.append(f"closed: {ask.call_id} begins in a process that has read its tombstone")

    def claims_it(self, claim: Claim, read: Sequence[Record], *, known: bool, now_ms: int) -> None:
        """The ledger is asked for a call by somebody who has `read` this of it: of old requests only what it knows."""
        self.claimed.add(claim.call)
        if not known and read and now_ms - read[-1].at_ms > self.stale_ms + CLOCKS_MS:
            self._wrong.append(f"stale: {claim.call} is claimed by a request of {now_ms - read[-1].at_ms} ms ago")

    def _forget_claims(self, erased: bytes) -> None:
        """The claims of a run are erased: what follows begins chains anew, and is in doubt, whatever it is.

        But where a mirror has brought them back it follows those.
        """
        for call, claims in self.claims.items():
            if erased_claims_key(RunId(call.partition("/")[0])) == erased:
                self._anew |= {claim["key"] for claim in claims}

    def _follow_claim(self, key: bytes, claim: Datum, at_ms: int) -> None:
        if is_erased_claims_key(key):
            self._forget_claims(key)
        if not claim["call_id"]:
            return  # somebody wants to know the time
        links = self._links[claim["key"]]
        if not claim["prev"] and claim["key"] in self._anew:
            links.clear()
        if claim["prev"] == (links or [""])[-1]:
            links.append(claim["claim_id"])
            self.begun.extends(claim, at_ms, self.chained_lease_ms)
            self.claims[claim["call_id"]].append(claim)
        else:
            self.void_claims += 1

    def _claimed_to_act(self, call: str, attempt: int) -> bool:
        return any(claim["attempt"] == attempt and not claim["doubt"] for claim in self.claims[call])

    def _check_doubt(self, told: Datum) -> None:
        # Who claims by a word of people that is then withdrawn leaves its claim as it is, and links no doubt to it.
        declared = told["status"] == "doubt" and told["failure"]["code"] == "in_doubt"
        own = [claim for claim in self.claims[told["call_id"]] if claim["attempt"] == told["attempt"]]
        withdrawn = told["attempt"] > 1 and [claim["executor"] for claim in own] == [told["executor"]]
        if declared and not withdrawn and not any(claim["doubt"] for claim in own):
            self._wrong.append(f"doubt: {told['call_id']} was declared in doubt outside the claim chain")

    def _check_order(self, ask: Datum, record: Record) -> None:
        if FACTS[ask["tool"]].effect in CLAIMED_EFFECTS:
            self.leases.chained.add(ask["key"])
        self._ordered_ms.setdefault((ask["call_id"], ask["attempt"]), ask["at_ms"])
        run = self.history.runs.get(ask["run_id"])
        call = run.call(ask["call_id"]) if run else None
        if (call is None or ask["attempt"] not in call.attempts) and (ask["call_id"], ask["attempt"]) not in self.lost:
            self._wrong.append(f"unordered: {ask['call_id']} was sent out before its dispatch was accepted")
        elif call and not self.toil.is_stale(record.value):
            self.begun.goes_out(ask, call, record.at_ms)


def _dispatched(history: History) -> set[tuple[str, int]]:
    calls = [call for run in history.runs.values() for call in run.calls.values()]
    return {(call.id, attempt) for call in calls for attempt in call.attempts}


def _owner(name: str) -> str:
    """The run that the key of an input names; with a token nobody names one by itself."""
    try:
        return parse_callback_token(name)
    except MalformedError:
        return name.partition("/")[0]
