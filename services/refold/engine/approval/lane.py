"""One partition of the approval service, read from the start: its questions, votes and decisions."""

from collections import deque
from collections.abc import Callable, Mapping

from refold.core.approval.ballot import BallotResult, Objection, Vote, most_said
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision
from refold.core.approval.policy_check import vouched
from refold.core.approval.question import received
from refold.core.approval.requester import quorum_of
from refold.core.errors import MalformedError, UnauthorisedError, UsageError
from refold.core.ids import RunId
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_REQUESTED, APPROVAL_VOTED, CATALOG
from refold.engine.approval import inputs
from refold.engine.approval.granting import Grants, may_grant
from refold.engine.approval.outbox import ApprovalOutbox, Equipment
from refold.engine.approval.question import KEPT, OpenByCall, OpenQuestion, PastApprovals, ToolDefs, as_judged, vote_in
from refold.engine.approval.settings import REPLAYED
from refold.engine.ports.effects import AskEnd, Effect, Read
from refold.engine.ports.log import NEVER, Assigned, Delivery, End, Outgoing, Reached, Record
from refold.engine.runtime.clock import LogClock
from refold.engine.runtime.lanes import INPUT_OVERHEAD, CatchUp, Positions, follow_catalog, record_bytes
from refold.engine.runtime.unresolved import UnresolvedInputs
from refold.sdk.sources import FactsTable


class IncomingVotes:
    """Votes of a lane on their way to its `questions`, read up to `questions_end`. **Units**: `most_void` in bytes."""

    def __init__(self, questions: Mapping[str, OpenQuestion], outbox: ApprovalOutbox, *, most_void: int) -> None:
        self._questions, self._outbox, self._most_void = questions, outbox, most_void
        self.unresolved: UnresolvedInputs[tuple[Record, str]] = UnresolvedInputs()
        self.questions_end = 0
        self._votes: list[tuple[OpenQuestion, Record, str]] = []
        self._void: deque[tuple[str, str]] = deque()
        self._void_bytes = 0

    def add(self, question: OpenQuestion, record: Record, token: str) -> None:
        question.tokens.setdefault(token, record.at_ms)
        self._votes.append((question, record, token))

    def pass_on(self, catalog: Catalog, tools: ToolDefs, answer: Callable[[Record, Objection], None]) -> None:
        """Pass votes on to their questions; answer unusable ones, and those without a question."""
        records, self._votes = self._votes, []
        for question, record, token in records:
            vote = question.read(token, catalog, tools)
            if not isinstance(vote, Objection):
                question.fresh.append((self._outbox.answerable(record), token))
                continue
            answer(record, vote)
            # An answered vote is kept as far as there is room: the key that signed it may come later.
            self._void.append((question.request.approval_id, token))
            self._void_bytes += INPUT_OVERHEAD + len(token)
        for record, _ in self.unresolved.over(self.questions_end):
            answer(record, Objection("unknown", "there is no such approval"))
        while self._void_bytes > self._most_void:
            approval, token = self._void.popleft()
            self._void_bytes -= INPUT_OVERHEAD + len(token)
            if open_question := self._questions.get(approval):
                open_question.give_up(token, catalog, tools)


class ApprovalLane:
    """Lane of one partition. `work` is called once a turn, after the items were fed; then `orders` has its effects."""

    def __init__(self, assigned: Assigned, equipment: Equipment, mono_ms: int) -> None:
        self.partition, self.clock = assigned.partition, LogClock()
        self.clock.tick(mono_ms)
        self._equipment, self._settings, self._limits = equipment, equipment.settings, equipment.settings.limits
        self._journal = equipment.journal
        self._facts = FactsTable(equipment.tools)
        self.catalog = Catalog(self._settings.trust)
        self.questions: dict[str, OpenQuestion] = {}
        self.grants = Grants()
        self._starts = assigned.starts
        # After catalog and requests, in this order: then a vote's keys are known, and whether its question is open.
        self._later = [APPROVAL_DECIDED, APPROVAL_VOTED]
        self.orders: list[Effect] = []
        self._catch_up = CatchUp(assigned, REPLAYED)
        self.outbox = ApprovalOutbox(self.partition, equipment, ends=self._catch_up.ends)
        self.live = False
        self._incoming = IncomingVotes(self.questions, self.outbox, most_void=self._limits.void_bytes)
        self._past, self._questions_of_call = PastApprovals(self._limits.remember), OpenByCall()
        self._due: dict[str, None] = {}
        self._stale: dict[str, RunId] = {}
        self._again_ms = 0

    def reads(self) -> Mapping[str, int]:
        return {topic: start for topic, start in self._starts.items() if topic not in self._later}

    # Input

    def feed(self, item: Record | Reached | End) -> None:
        if isinstance(item, Reached):
            if item.topic == CATALOG:
                follow_catalog(self.catalog, item, self._journal)
            self._reached(item.topic, item.offset)
        elif isinstance(item, End):
            self._incoming.unresolved.reached_end(item.offset)
        else:
            self.clock.read(item.at_ms)
            self._read(item)
            self._reached(item.topic, item.offset + 1)

    @property
    def now(self) -> int:
        return self.clock.now_ms

    def delivered(self, delivery: Delivery) -> bool:
        expected = self.outbox.delivered(delivery.token, delivery.offset)
        if expected and delivery.offset is not None and delivery.offset != NEVER:
            self.clock.delivered(delivery.at_ms)
        return expected

    def low_water(self) -> Positions:
        """No positions: a successor reads everything again."""
        return {}

    def work(self, votes: int) -> int:
        """Judge changed questions until about `votes` votes are counted; return their number."""
        self._read_later_topics()
        self._incoming.pass_on(self.catalog, self._equipment.tools, self._answer)
        if not self.live and self._catch_up.done:
            self._go_live()
        # Without the present time, an expired question could still be decided.
        if not (self.live and self.clock.fresh):
            return 0
        if self._again_ms and self.now >= self._again_ms:
            self._again_ms = 0
            self._make_all_due()
        counted = self._judge_due(votes)
        while self._stale:
            self.outbox.ask_again(*self._stale.popitem(), now=self.now)
        return counted

    def _judge_due(self, votes: int) -> int:
        due, self._due = self._due, {}
        questions = [question for approval in due if (question := self.questions.get(approval))]
        # Decided questions first: later votes on them may end a grant that would decide the others.
        counted = 0
        for question in sorted(questions, key=lambda question: not question.decided):
            if counted < votes:
                counted += 1 + len(question.tokens)
                self._judge(question)
            else:
                self._due[question.request.approval_id] = None
        return counted

    def waiting_bytes(self) -> int:
        """Bytes of votes without a request, and, once the lane judges, of unjudged votes."""
        unjudged = (self.questions.get(approval) for approval in self._due if self.live and self.clock.fresh)
        return self._incoming.unresolved.bytes + sum(question.waiting_bytes() for question in unjudged if question)

    def next_due_ms(self) -> int | None:
        """Time of the next judgement: in the next turn, or when the service's key may sign."""
        if not (self.live and self.clock.fresh):
            return None
        if self._due:
            return self.clock.mono_ms
        return self.clock.mono_of(self._again_ms) if self._again_ms else None

    def _reached(self, topic: str, offset: int) -> None:
        if topic == APPROVAL_REQUESTED:
            self._incoming.questions_end = max(self._incoming.questions_end, offset)
        self._catch_up.reached(topic, offset)

    def _read_later_topics(self) -> None:
        while self._later and all(self._catch_up.has(topic) for topic in REPLAYED if topic not in self._later):
            topic = self._later.pop(0)
            self.orders.append(Read(topic, self.partition, self._starts[topic]))
        if not self._later and self._incoming.unresolved.has_fresh():
            self.orders.append(AskEnd(APPROVAL_REQUESTED, self.partition))

    def _go_live(self) -> None:
        self.live = True
        # Its delivery shows the present time of the log.
        self.outbox.send(Outgoing(APPROVAL_DECIDED, self.partition, b"beat", None, (), 0))
        self._journal.counts["lane.live"] += 1
        self._make_all_due()

    def _make_all_due(self) -> None:
        self._due.update(dict.fromkeys(self.questions))

    def _read(self, record: Record) -> None:
        try:
            if record.topic == CATALOG:
                self._read_catalog(record)
            elif record.topic == APPROVAL_REQUESTED:
                self._read_question(record)
            elif record.topic == APPROVAL_VOTED:
                self._read_vote(record)
            else:
                self._decided(record)
        except MalformedError as error:
            self.outbox.dead_letter(record, Objection(error.code, str(error)), now=self.now)

    def _read_catalog(self, record: Record) -> None:
        before = dict(self.catalog.keys), set(self.catalog.policies)
        follow_catalog(self.catalog, record, self._journal)
        if (self.catalog.keys, set(self.catalog.policies)) != before:
            for question in self.questions.values():
                question.forget()
        self._make_all_due()

    def _read_question(self, record: Record) -> None:
        if record.value is None:
            approval = (record.key or b"").decode(errors="replace")
            self.questions.pop(approval, None)
            self._questions_of_call.close(approval)
            self._stale.pop(approval, None)
            self._past.close(approval)
            return
        settings, place = self._settings, {"partition": record.partition, "partitions": self._settings.partitions}
        request = received(record.key, record.value, environment=settings.environment, **place)
        approval = request.approval_id
        if self._past.get(approval):
            # A predecessor of the planner died before it sent this request; its successor sent and closed it.
            self._journal.counts["request.closed"] += 1
            self._stale[approval] = request.run_id
        elif approval not in self.questions:
            if others := self._questions_of_call.open(request):
                self.outbox.second(record, others)
            most = most_said(self._limits.payload_bytes, quorum_of(request, self.catalog.roles.askers))
            question = OpenQuestion(request, most, decided=approval in self._past)
            self.questions[approval] = question
            self._due[approval] = None
            for vote, token in self._incoming.unresolved.take(approval):
                self._take_vote(question, vote, token)

    def _read_vote(self, record: Record) -> None:
        if record.value is None:
            return
        message = inputs.read_vote(record, partitions=self._settings.partitions)
        approval = message.approval_id
        if question := self.questions.get(approval):
            self._take_vote(question, record, message.token)
        elif approval in self.grants:
            self._judge_late_vote(record, message.token)
        elif approval in self._past:
            self.outbox.dead_letter(record, Objection("late", "the approval is closed"), now=self.now)
        else:
            # Until its request is read, or is known to be missing.
            self._incoming.unresolved.park(approval, (record, message.token), record_bytes(record))

    def _take_vote(self, question: OpenQuestion, record: Record, token: str) -> None:
        if question.decided:
            self._judge_late_vote(record, token)
            return
        self._incoming.add(question, record, token)
        self._due[question.request.approval_id] = None

    def _judge_late_vote(self, record: Record, token: str) -> None:
        vote = vote_in(token, self.catalog)
        self._answer(record, vote if isinstance(vote, Objection) else self._apply_late_vote(vote))

    def _decided(self, record: Record) -> None:
        if record.value is None:
            return
        try:
            message = inputs.read_decision(record)
            if message.kind == "again":
                return
            past = record.offset < self._catch_up.ends[APPROVAL_DECIDED] and message.approval_id not in self.questions
            # Of a closed question only a grant still has an effect, and verifying costs far more than this look.
            if past and not may_grant(message.token):
                self._past.decide(message.approval_id)
                return
            decided = inputs.opened(message, self.catalog)
        except (MalformedError, UnauthorisedError) as error:
            self.outbox.alarm(record, str(error))
        else:
            self._accept(decided, message.token)

    def _accept(self, decided: Decision, token: str) -> None:
        question = self.questions.get(decided.approval)
        if question is None:
            self._past.decide(decided.approval)
        elif question.request.question == decided.question and question.token != token:
            self._journal.counts["decision.raced" if question.decided else "decision.read"] += 1
            question.decide(token)
        if self.grants.take(decided, token):
            self._make_all_due()

    # Judgement and answers

    def _judge(self, question: OpenQuestion) -> None:
        before, limits, tools = question.decided, self._limits, self._equipment.tools
        fresh, question.fresh = question.fresh, []
        void: Mapping[Vote, Objection] = {}
        if not before:
            count = question.count(self.catalog, tools, self.now)
            void = count.void
            if question.make_room(count, self.catalog.roles, limits):
                count = question.count(self.catalog, tools, self.now)
            self._conclude(question, count.settled)
        for record, token in fresh:
            vote = question.read(token, self.catalog, tools)
            if isinstance(vote, Objection):
                self._answer(record, vote)
            elif before or vote.action == "revoke-grant":
                self._answer(record, self._apply_late_vote(vote))
            elif vote.action in KEPT and vote not in void and token not in question.tokens:
                self._answer(record, Objection("too_many", f"{limits.votes} votes count on this approval"))
            else:
                self._answer(record, void.get(vote))
        question.tidy()

    def _apply_late_vote(self, vote: Vote) -> Objection | None:
        problem = self.grants.afterwards(vote, self.catalog.roles)
        if problem is None and vote.action == "revoke-grant":
            self._journal.tell("grant.revoked", grant=vote.approval, actor=vote.actor)
        return problem

    def _conclude(self, question: OpenQuestion, settled: BallotResult | None) -> None:
        """Decide a question that its votes or a grant settle, if the decision may be signed."""
        if not self._may_sign(question):
            return
        vouched_for = vouched(question.request, self.catalog, self._facts)
        if vouched_for:
            settled = settled or self.grants.use(question.request, self.catalog, self.now)
        else:
            self._keep_back(question, "its policy does not ask for what the request says: it can only be rejected")
        # A rejection lets nothing out, so a forged request gains nothing by choosing its own voters.
        if settled and (vouched_for or settled.verdict == "reject"):
            self._decide(question, as_judged(question.request, settled, self.catalog, self._facts))
        elif vouched_for:
            question.kept_back = ""

    def _may_sign(self, question: OpenQuestion) -> bool:
        request, now = question.request, self.now
        if request.expires_ms and now >= request.expires_ms:
            return False
        if not self._equipment.signer.in_force(self.catalog, now):
            self._keep_back(question, "the key of this service is not in force by the catalog")
            self._again_ms = now + 1_000
            return False
        return True

    def _keep_back(self, question: OpenQuestion, reason: str) -> None:
        if question.kept_back != reason:
            question.kept_back = reason
            self._journal.tell("approval.held", approval_id=question.request.approval_id, reason=reason)

    def _decide(self, question: OpenQuestion, settled: BallotResult) -> None:
        grant, signer, now = settled.grant, self._equipment.signer, self.now
        try:
            decided, token, record = signer.sign(question, settled, self.catalog, partition=self.partition, now=now)
        except (UsageError, MalformedError) as error:
            self._keep_back(question, f"its decision cannot be signed: {error}")
            return
        question.decide(token)
        if grant and grant.use:
            self.grants.take(decided, token)
            self._journal.tell("grant.used", grant=grant.id, use=grant.use, run_id=decided.run)
        people = [vote.actor for vote in settled.votes]
        fields = {"approval_id": decided.approval, "verdict": decided.verdict, "rule": question.request.rule}
        self._journal.tell("approval.decided", **fields, by=people)
        self.outbox.send(record)

    def _answer(self, record: Record, void: Objection | None) -> None:
        if void is None:
            self._journal.counts["vote.counted"] += 1
        else:
            self.outbox.dead_letter(record, void, now=self.now)
