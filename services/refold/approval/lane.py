"""One partition of the approval service: what is asked and said in it, and what it decides.

Everything is read from the start. Until the ends that were captured at the take-over are reached, votes and decisions
are only kept, because the keys and roles to judge them by may come later. A record that cannot be used becomes a dead
letter only if it lies at or above those ends: what is older was answered by a predecessor, or fell into its death, and
must not be put away again at every start.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from collections import OrderedDict
from collections.abc import Mapping

from refold.approval import inputs, outbox
from refold.approval.broadcast import Broadcast
from refold.approval.grants import Grants, Standing
from refold.approval.inputs import GRANT
from refold.approval.outbox import Post
from refold.approval.process import Seat
from refold.approval.question import KEPT, Poll, open_vote
from refold.core.approval import ballot, decision, signature
from refold.core.approval.ballot import Count, Outcome, Void, Vote
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision
from refold.core.errors import MalformedError, UnauthorisedError, UsageError
from refold.core.ids import RunId
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_REQUESTED, APPROVAL_VOTED, CATALOG
from refold.core.wire import letters
from refold.ports.log import Assigned, Record
from refold.runtime.parking import Parked, Parking

TOPICS = (APPROVAL_REQUESTED, APPROVAL_VOTED, APPROVAL_DECIDED, CATALOG)


class Lane:
    """See the module. `work` is called once a turn, after what came was taken."""

    def __init__(self, assigned: Assigned, seat: Seat, now: int) -> None:
        self.partition, self.now = assigned.partition, now
        self._seat, self._limits, self._counts = seat, seat.limits, seat.counts
        self.catalog = Catalog()
        self.polls: dict[str, Poll] = {}
        self.grants = Grants()
        self.post = Post(seat.token, seat.counts)
        self.live = False
        self._broadcast = Broadcast(self.partition, seat, self.post)
        self._parking = Parking[Parked](seat.limits.parked)
        self._ends = {topic: assigned.ends[topic] for topic in TOPICS}
        self._missing = {topic for topic, end in self._ends.items() if end > 0}
        self._held: list[Record] = []
        self._over: OrderedDict[str, str] = OrderedDict()
        self._due: dict[str, None] = {}
        self._stale: dict[str, RunId] = {}
        self._again_ms = 0

    # What comes in

    def take(self, record: Record) -> None:
        """A record of one of the topics, in order of offset."""
        if not self.live and record.topic in (APPROVAL_VOTED, APPROVAL_DECIDED):
            self._held.append(record)
        else:
            self._read(record)
        self.reached(record.topic, record.offset + 1)

    def reached(self, topic: str, offset: int) -> None:
        """Reading has come to this offset, though the records before it may be gone by compaction."""
        if topic == CATALOG:
            self.catalog.reached(offset)
        if offset >= self._ends[topic]:
            self._missing.discard(topic)

    def work(self, votes: int) -> int:
        """Judges what has changed, until about so many votes are counted; returns how many were."""
        if not self.live and not self._missing:
            self._go_live()
        if not self.live:
            return 0
        if self._again_ms and self.now >= self._again_ms:
            self._again_ms = 0
            self._due.update(dict.fromkeys(self.polls))
        due, self._due = self._due, {}
        polls = [poll for name in due if (poll := self.polls.get(name))]
        # What is decided comes first: what was said of it since may end a grant that would decide the others.
        counted = 0
        for poll in sorted(polls, key=lambda poll: not poll.decided):
            if counted < votes:
                counted += 1 + len(poll.tokens)
                self._judge(poll)
            else:
                self._due[poll.request.approval_id] = None
        while self._stale:
            approval, run = self._stale.popitem()
            actor, now = self._seat.member, self.now
            self.post.send([outbox.again(approval, run, partition=self.partition, actor=actor, at_ms=now)])
        for parked in self._parking.overdue(self.now):
            self._put_away(parked.record, Void("unknown", "there is no such approval"))
        return counted

    def next_due_ms(self) -> int | None:
        """When something waits for time alone: a parked vote, or a key that may not sign yet; or for the next turn."""
        if self.live and self._due:
            return self.now
        parked = self._parking.next_due_ms()
        return min((due for due in (parked, self._again_ms) if due), default=None)

    def _go_live(self) -> None:
        held, self._held = self._held, []
        for record in sorted(held, key=lambda record: (record.topic != APPROVAL_DECIDED, record.offset)):
            self._read(record)
        self.live = True
        self._counts["lane.live"] += 1
        self._due.update(dict.fromkeys(self.polls))
        for standing in self.grants:
            self._show(standing)
        for name in [name for name, how in self._over.items() if how == "back"]:
            self._bury(name.removeprefix(GRANT))

    def _read(self, record: Record) -> None:
        try:
            if record.topic == CATALOG:
                self._learn(record)
            elif record.topic == APPROVAL_REQUESTED:
                self._asked(record)
            elif record.topic == APPROVAL_VOTED:
                self._voted(record)
            else:
                self._decided(record)
        except MalformedError as error:
            self._put_away(record, Void(error.code, str(error)))

    def _learn(self, record: Record) -> None:
        keys = dict(self.catalog.keys)
        self.catalog.follow(record.offset, record.key, record.value)
        if self.catalog.keys != keys:
            for poll in self.polls.values():
                poll.forget()
        self._due.update(dict.fromkeys(self.polls))

    def _asked(self, record: Record) -> None:
        if record.value is None:
            self._close((record.key or b"").decode(errors="replace"))
            return
        request = inputs.request_of(record, environment=self._seat.environment, partitions=self._seat.partitions)
        name = request.approval_id
        poll = self.polls.get(name)
        if self._over.get(name) == "closed":
            # A planner that was stopped before it could ask: its successor has done so, and closed the question since.
            self._counts["request.closed"] += 1
            self._stale[name] = request.run_id
        elif poll is None:
            self.polls[name] = Poll(request, self._limits.said_bytes, decided=self._over.get(name, ""))
            self._due[name] = None
            for parked in self._parking.take(name):
                self._say(self.polls[name], parked.record, parked.token)
        elif poll.request.question != request.question:
            raise MalformedError(f"approval {name} was asked with another question")
        elif request.level > poll.request.level:
            poll.request = request
            self._due[name] = None

    def _close(self, name: str) -> None:
        self.polls.pop(name, None)
        self._stale.pop(name, None)
        self._end(name, "closed")

    def _end(self, name: str, how: str) -> None:
        self._over[name] = how
        self._over.move_to_end(name)
        if len(self._over) > self._limits.remember:
            self._over.popitem(last=False)

    def _voted(self, record: Record) -> None:
        if record.value is None:
            return
        message = inputs.vote_of(record, partitions=self._seat.partitions)
        if poll := self.polls.get(message.approval_id):
            self._say(poll, record, message.token)
        elif message.approval_id in self.grants:
            self._say_afterwards(record, message.token)
        elif message.approval_id in self._over:
            self._put_away(record, Void("late", "the approval is closed"))
        else:
            waits = Parked(record, message.token, self.now + self._limits.park_ms)
            for parked in self._parking.park(message.approval_id, waits):
                self._put_away(parked.record, Void("unknown", "too many votes wait for approvals that nobody knows"))

    def _say(self, poll: Poll, record: Record, token: str) -> None:
        if poll.decided:
            self._say_afterwards(record, token)
            return
        poll.tokens.setdefault(token)
        poll.fresh.append((record, token))
        self._due[poll.request.approval_id] = None

    def _say_afterwards(self, record: Record, token: str) -> None:
        found = open_vote(token, self.catalog)
        self._answer(record, found if isinstance(found, Void) else self._afterwards(found))

    def _decided(self, record: Record) -> None:
        """What stands in the log is decided, whoever of the lane's owners has written it."""
        key = (record.key or b"").decode(errors="replace")
        if record.value is None:
            if key.startswith(GRANT):
                self._gone(key.removeprefix(GRANT))
            return
        try:
            message = inputs.decision_of(record)
            if message.kind == "again":
                return
            known = record.offset < self._ends[APPROVAL_DECIDED] and message.approval_id not in self.polls
            if known and not _may_grant(message.token):
                self._end_if_open(message.approval_id)
                return
            found = Decision.parse(signature.verify(message.token, self.catalog.keys, use="decision"))
            if (found.approval, found.run) != (message.approval_id, message.run_id):
                raise MalformedError("the decision is another one than its record says")
        except (MalformedError, UnauthorisedError) as error:
            self._alarm(record, str(error))
            return
        if message.kind == "grant":
            self._shown(found, message.token)
        else:
            self._settle(found, message.token)

    def _settle(self, found: Decision, token: str) -> None:
        poll = self.polls.get(found.approval)
        if poll is None:
            self._end_if_open(found.approval)
        elif poll.request.question == found.question and poll.decided != token:
            self._counts["decision.raced" if poll.decided else "decision.read"] += 1
            poll.decided = poll.decided or token
        if standing := self.grants.take(found, token):
            self._due.update(dict.fromkeys(self.polls))
            self._show(standing)

    def _end_if_open(self, name: str) -> None:
        """A decision that is read before its request: topics come in any order."""
        if name not in self._over:
            self._end(name, "decided")

    # Judgement

    def _judge(self, poll: Poll) -> None:
        before, limit = poll.decided, self._limits.votes
        fresh, poll.fresh = poll.fresh, []
        void: Mapping[Vote, Void] = {}
        if not before:
            count = self._count(poll)
            void = count.void
            if poll.make_room(count, self.catalog.roles, limit):
                count = self._count(poll)
            self._conclude(poll, count.outcome)
        for record, token in fresh:
            vote = poll.read(token, self.catalog, self._seat.tools)
            if isinstance(vote, Void):
                self._answer(record, vote)
            elif before or vote.action == "revoke-grant":
                self._answer(record, self._afterwards(vote))
            elif vote.action in KEPT and vote not in void and token not in poll.tokens:
                self._answer(record, Void("too_many", f"{limit} votes count on this approval"))
            else:
                self._answer(record, void.get(vote))
        poll.tidy()

    def _count(self, poll: Poll) -> Count:
        return ballot.count(poll.request, poll.votes(self.catalog, self._seat.tools), self.catalog.roles)

    def _afterwards(self, vote: Vote) -> Void | None:
        """A vote on what is decided: it may end a grant, and nothing else any more."""
        if vote.action in ("comment", "remind"):
            return None
        if vote.action != "revoke-grant":
            return Void("late", "the approval is decided")
        if problem := self.grants.revoke(vote, self.catalog.roles):
            return problem
        self._seat.tell("grant.revoked", grant=vote.approval, actor=vote.actor)
        if standing := self.grants.get(vote.approval):
            self._show(standing)
        return None

    def _conclude(self, poll: Poll, outcome: Outcome | None) -> None:
        """Decides what has an outcome, as far as that may be decided now."""
        if not self._may_sign(poll):
            return
        vouched = inputs.vouched(poll.request, self.catalog, self._seat.tools)
        if vouched:
            outcome = outcome or self.grants.use(poll.request, self.catalog, self.now)
        else:
            self._hold(poll, "its policy does not ask for what the request says: it can only be rejected")
        # A rejection lets nothing out, so whoever makes up a request gains nothing by choosing who may reject it.
        if outcome and (vouched or outcome.verdict == "reject"):
            self._decide(poll, outcome)
        elif vouched:
            poll.told = ""

    def _may_sign(self, poll: Poll) -> bool:
        request, now = poll.request, self.now
        if request.expires_ms and now >= request.expires_ms:
            return False
        key = self.catalog.keys.get(self._seat.key.kid)
        if key is None or key.use != "decision" or not key.signs_at(now):
            self._hold(poll, "the key of this service is not in force by the catalog")
            self._again_ms = now + 1_000
            return False
        return True

    def _hold(self, poll: Poll, reason: str) -> None:
        if poll.told != reason:
            poll.told = reason
            self._seat.tell("approval.held", approval_id=poll.request.approval_id, reason=reason)

    def _decide(self, poll: Poll, outcome: Outcome) -> None:
        request, seat, limit = poll.request, self._seat, self._limits.payload_bytes
        try:
            found = decision.build(
                request,
                outcome.verdict,
                votes=outcome.votes,
                issued_ms=self.now,
                nonce=seat.nonce(),
                edited=outcome.edited,
                result=outcome.result,
                message=outcome.message,
                grant=outcome.grant,
            )
            token = signature.sign(found.payload(), seat.key)
        except (UsageError, MalformedError) as error:
            self._hold(poll, f"its decision cannot be signed: {error}")
            return
        record = outbox.decided(found, token, partition=self.partition, actor=seat.member, trace=request.traceparent)
        if len(record.value or b"") > limit:
            self._hold(poll, f"its decision would have more than {limit} bytes, and the planner would not take it")
            return
        poll.decided = token
        if outcome.grant and outcome.grant.use:
            self.grants.take(found, token)
            seat.tell("grant.used", grant=outcome.grant.id, use=outcome.grant.use, run_id=found.run)
        people = [vote.actor for vote in outcome.votes]
        seat.tell("approval.decided", approval_id=found.approval, verdict=found.verdict, by=people)
        self.post.send([record])

    # Grants

    def _shown(self, found: Decision, token: str) -> None:
        """A grant's own record: whoever has not the run at home learns of the grant by it."""
        standing = self.grants.get(found.approval)
        if standing is None and not self._broadcast.at_home(found):
            if f"{GRANT}{found.approval}" in self._over:
                self._bury(found.approval)
                return
            standing = self.grants.take(found, token)
        if standing is not None:
            standing.shown = True
            self._due.update(dict.fromkeys(self.polls))

    def _gone(self, grant: str) -> None:
        self._end(f"{GRANT}{grant}", "gone")
        standing = self.grants.get(grant)
        if standing is None:
            return
        standing.shown = False
        if not self._broadcast.at_home(standing.given):
            self.grants.drop(grant)

    def _bury(self, grant: str) -> None:
        """Ends a grant again: an owner that had lost its partition has told of it after its end."""
        self._end(f"{GRANT}{grant}", "back")
        if self.live:
            self.post.send([outbox.gone(grant, partition=self.partition)])

    def _show(self, standing: Standing) -> None:
        if self.live:
            self._broadcast.show(standing, self.now)

    # What cannot be used

    def _answer(self, record: Record, void: Void | None) -> None:
        if void is None:
            self._counts["vote.counted"] += 1
        else:
            self._put_away(record, void)

    def _put_away(self, record: Record, void: Void) -> None:
        """Writes a dead letter; of what was there before this lane, nothing but a count."""
        if record.offset < self._ends[record.topic]:
            self._counts["void.known"] += 1
            return
        if void.code == "unauthorised":
            self._alarm(record, void.reason)
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        self._seat.tell("vote.void" if record.topic == APPROVAL_VOTED else "request.void", **place, **void._asdict())
        letter = letters.letter(
            record,
            code=void.code,
            reason=void.reason,
            service=self._seat.member,
            at_ms=self.now,
            limit=self._limits.payload_bytes,
        )
        self.post.send([outbox.dead(letter, partition=self.partition)])

    def _alarm(self, record: Record, reason: str) -> None:
        """Somebody has written what they may not, or with a key that does not hold."""
        if record.offset >= self._ends[record.topic]:
            place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            self._seat.tell("unauthorised", **place, reason=reason)


def _may_grant(token: str) -> bool:
    """Whether a token may hold a grant, cheaply: only what does has to be verified once its approval is over."""
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        # In canonical JSON no text can hold these bytes: its quotes are escaped.
        return b'"grant":null' not in urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    except (Base64Error, ValueError):
        return True
