"""What both clients do, below them: words go out and are waited for in this thread, ends and events come from the ear.

Nothing is opened before it is used. Any thread may call any of it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from refold.adapters.kafka.publisher import KafkaPublisher
from refold.client.addresses import addresses, own_key, vote_key
from refold.client.approvals import Answered, names_the_question
from refold.client.ear import Ear
from refold.client.inputs import InputAnswer, Inputs, operating, taken, word_on
from refold.client.pausing import Pauses
from refold.client.platform import Platform, login
from refold.client.redrive import Changes, retrying
from refold.client.signals import SignalAnswer, Signals, answering, signalling
from refold.client.starting import requesting
from refold.client.stores import blob_store
from refold.client.streams import LivePart, live_parts
from refold.client.values import in_full
from refold.core.approval.requester import signed
from refold.core.approval.signature import REQUEST, SigningKey
from refold.core.errors import NotFoundError, UsageError
from refold.core.events import Cause
from refold.core.ids import asked_about, parse_call_id, run_id
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.pausing import PAUSE
from refold.ports.blobs import Blobs
from refold.runtime.clock import clock_ms
from refold.sdk.budget import Budget
from refold.views.approval import Question, question_row
from refold.views.history import Run
from refold.views.model import plain
from refold.views.outcome import Said, Started, Told, Voted
from refold.views.run import Ended, RunEvent, RunInfo, end_of, events_of, info_of

TAKEN_S = 0.5
"""How long a planner has to take a request before its run is looked for in the past: a request that is said again
causes no entry. An idle planner needs a hundredth of it; a busy one costs a look."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a name, and the files of the keys that sign what they ask for and decide. Empty: see `Client`."""

    actor: str
    key: str
    vote_key: str
    data: str


class Desk:
    """See the module. **Units**: timeouts in seconds; None waits for ever."""

    def __init__(self, *, kafka: str, data: str, actor: str, key: str, vote_key: str) -> None:
        self.platform = Platform(addresses(kafka=kafka, data=data), source="refold-client")
        self._caller = Caller(actor or login(), key, vote_key, data)
        self._opening = threading.Lock()

    @cached_property
    def _ear(self) -> Ear:
        return Ear(self.platform.settings.kafka, self.platform.runs.partitions)

    @cached_property
    def _blobs(self) -> Blobs | None:
        return blob_store(self.platform.settings)

    @cached_property
    def _request_key(self) -> SigningKey | None:
        return own_key(REQUEST, self._caller.key, self._caller.data)

    def open(self) -> None:
        """Opens what all of it needs, once, whichever thread comes first. **Raises** UnreachableError, UsageError."""
        with self._opening:
            _ = self._ear, self.platform.publisher

    def close(self) -> None:
        """Tells whoever waits that it is over."""
        with self._opening:
            if "_ear" in self.__dict__:
                self._ear.close()

    def start(
        self,
        agent: str,
        given: object,
        *,
        run: str,
        labels: Mapping[str, str],
        sessions: Sequence[str],
        not_before: datetime | None,
        deadline: datetime | None,
        budget: Budget | None,
    ) -> Future[Started]:
        """Asks for a run; the answer comes when a planner has taken it."""
        self.open()
        request = requesting(
            agent,
            given,
            run=run,
            requester=self._caller.actor,
            labels=labels,
            sessions=sessions,
            not_before_ms=_ms(not_before, "not_before"),
            deadline_ms=_ms(deadline, "deadline"),
            budget=budget.limits if budget is not None else None,
            settings=self.platform.settings,
            key=self._request_key,
        )
        place: list[Cause] = []

        def judge(found: Run) -> Started | None:
            answer = taken(request, place[0], found) if place else None
            return Started(run_id=request.run_id, known=answer.what == "known") if answer else None

        # A run with an id that was made just now has no past.
        watch = self._ear.listen(request.run_id, judge, patience_s=TAKEN_S if run else math.inf)
        try:
            place.append(Inputs(self.platform.runs, self.platform.publisher).start(request))
        except BaseException:
            watch.answer.cancel()
            raise
        self._ear.sent(watch, place[0])
        return watch.answer

    def ended(self, run: str) -> Future[Ended]:
        """Waits until a run is over, whether there is one by now or not."""
        self.open()
        return self._ear.listen(run_id(run), lambda found: end_of(found) if found.state.over else None).answer

    def whole(self, ended: Ended) -> Ended:
        """How a run ended, with its result in full: a large one is read from the blob store, if there is one."""
        if self._blobs is None:
            return ended
        return ended.model_copy(update={"result": in_full(ended.result, run_id(ended.run_id), self._blobs)})

    def events(self, run: str, after: int, tell: Callable[[RunEvent], object]) -> Future[bool]:
        """Tells every event behind a seq, from the ear's thread. The answer comes with the last one."""
        self.open()
        told = after

        def judge(found: Run) -> bool | None:
            nonlocal told
            for event in events_of(found, told):
                tell(event)
                told = event.seq
            return True if found.state.over else None

        return self._ear.listen(run_id(run), judge).answer

    def stream(self, run: str, timeout: timedelta | None) -> Generator[LivePart | None]:
        """What calls of a run say while they run."""
        return live_parts(self.platform.runs, run_id(run), timeout)

    def get(self, run: str) -> RunInfo:
        """A run as it is now."""
        return info_of(self.platform.runs.get(run))

    def signal(self, run: str, name: str, data: object, signal_id: str, timeout_s: float | None) -> Told:
        """Tells a run something."""
        said = signalling(run_id(run), name, data, signal_id=signal_id, actor=self._caller.actor)
        return _told(Signals(self.platform.runs, self._sender).signal(said, timeout_s))

    def answer(self, token: str, data: object, failure: str, key: str, timeout_s: float | None) -> Told:
        """Resolves a callback, or with a `failure` fails it."""
        said = answering(token, data, failure=failure, key=key, actor=self._caller.actor)
        return _told(Signals(self.platform.runs, self._sender).answer(said, timeout_s))

    def cancel(self, run: str, reason: str, timeout_s: float | None) -> Said:
        """Cancels a run."""
        return _said(Inputs(self.platform.runs, self._sender).cancel(self._word(run, "cancel", reason), timeout_s))

    def hold(self, run: str, kind: str, reason: str, timeout_s: float | None) -> Said:
        """Pauses a run, or lets it go on."""
        pauses, word = Pauses(self.platform.runs, self._sender), self._word(run, kind, reason)
        return _said((pauses.pause if kind == PAUSE else pauses.resume)(word, timeout_s))

    def retry(self, run: str, changes: Changes, timeout_s: float | None) -> Said:
        """Has a failed run go on, or the code of a stalled one tried again."""
        found, actor = self.platform.runs.get(run), self._caller.actor
        inputs = Inputs(self.platform.runs, self._sender)
        if found.hold is not None and not found.state.over:
            if changes != Changes():
                raise UsageError(f"run {run} is stalled, not failed", hint="only its code is run again")
            return _said(inputs.retry(operating(run, "retry", None, actor=actor), timeout_s))
        return _said(inputs.redrive(retrying(found.state, actor, changes), timeout_s))

    def questions(self, state: str) -> list[Question]:
        """What people are asked, the oldest first."""
        found = self.platform.approvals.read().all()
        return [question_row(each) for each in found if state in ("all", each.state)]

    def question(self, name: str) -> Question:
        """What people are asked by this approval."""
        approvals = self.platform.approvals
        return question_row(approvals.get(approvals.named(name)))

    def decide(self, approval: str, action: str, said: dict[str, Any], timeout_s: float, *, about: str = "") -> Voted:
        """Votes on a question, signed, and waits for what becomes of that."""
        if not names_the_question(approval):
            hint = "give the whole id: a decision is on the question that somebody has seen, and on no other"
            raise UsageError(f"{approval} does not say which question is decided", hint=hint)
        key, approvals = vote_key(self._caller.vote_key, self._caller.data), self.platform.approvals
        name = self._asked(approval, time.monotonic() + timeout_s)
        question = approvals.get(name).request.question
        vote = approvals.vote(name, action, question=question, actor=self._caller.actor, about=about, **said)
        return voted(approvals.answered(vote, approvals.send(vote, key, self._sender), timeout_s), vote.vote)

    def _asked(self, approval: str, until: float) -> str:
        """The id of a question. One that the run's history shows already may still be on its way to its topic."""
        while True:
            try:
                return self.platform.approvals.named(approval)
            except NotFoundError:
                run = self.platform.runs.find(parse_call_id(asked_about(approval))[0])
                shown = {line.approvals[-1].approval_id for line in run.timeline.asking} if run else set()
                if approval not in shown or time.monotonic() > until:
                    raise
            time.sleep(0.1)

    def _word(self, run: str, kind: str, reason: str) -> RunSignal | RunOperation:
        """What cancels, pauses or resumes a run: as its user if the caller has asked for it, or as an operator."""
        said = word_on(self.platform.runs.get(run).state, kind, reason=reason, actor=self._caller.actor)
        key = self._request_key
        where = self.platform.settings.platform
        return signed(said, key, clock_ms(), where) if key and isinstance(said, RunSignal) else said

    @property
    def _sender(self) -> KafkaPublisher:
        self.open()
        return self.platform.publisher


def _ms(at: datetime | None, name: str) -> int:
    if at is None:
        return 0
    if at.tzinfo is None:
        raise UsageError(f"{name} is a time without a zone", hint="datetime.now(UTC) + timedelta(hours=1)")
    return int(at.timestamp() * 1000)


def _said(answer: InputAnswer) -> Said:
    return Said(run_id=answer.run.state.run_id, outcome=answer.what, status=answer.run.status)


def _told(answer: SignalAnswer) -> Told:
    return Told(**dict(_said(answer)), step=answer.step)


def voted(answer: Answered, vote: str) -> Voted:
    """What became of a vote, of this id."""
    facts = {name: getattr(answer, name) for name in ("approval", "position", "leading", "quorum")}
    return Voted(outcome=answer.what, decision=plain(answer.decision), vote=vote, **facts)
