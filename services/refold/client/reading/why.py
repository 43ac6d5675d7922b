"""Causes of an event, back to the first request, and the audit trail of a run."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Self

from refold.client.reading.history import JudgedRecord, ReadRecord, Run
from refold.client.reading.model import ReadModel, json_text
from refold.client.reading.steps import RunStep
from refold.core import events
from refold.core.approval.ballot import Vote
from refold.core.approval.decision import Decision, signed_fields
from refold.core.approval.signature import content_of, kid_of
from refold.core.errors import MalformedError, NotFoundError, UnauthorisedError
from refold.core.events import Cause, Entry, Event, SignalReceived, SignalSent
from refold.core.ids import call_id, child_id, parent_of, parse_call_id
from refold.core.messages import ToolClaim
from refold.core.run.state import CHAINED
from refold.core.topics import RUN_LOG
from refold.core.wire import codec

LinkKind = Literal[
    "effect", "claim", "order", "decision", "vote", "policy", "proposal", "observation", "cause", "parent", "request"
]


class WhyLink(ReadModel):
    """A link of the chain of causes. `events` are the events of one entry that it is about.

    `seq`: number of its event, or of the first event of the entry. `place`: position of the record. `cause`: input of
    the entry. `by`: author. `other`: run and event of another run that caused it. `said`: details of the first event.
    """

    kind: LinkKind
    run_id: str
    seq: int
    events: list[str]
    place: str
    cause: Cause | None
    by: str
    other: tuple[str, int] | None
    at_ms: int
    said: dict[str, Any]


class Why(ReadModel):
    """Causes of an event of a run. For an event of a call, `step` is the call and `links` include its whole course."""

    run_id: str
    seq: int
    step: RunStep | None
    links: list[WhyLink]

    @property
    def chained(self) -> str:
        """Id of the call if its attempts are claimed in the log, else empty."""
        return self.step.call_id if self.step and self.step.effect in CHAINED else ""


Find = Callable[[str], Run | None]
"""Returns a run by its id, if it is known."""


def entry_with(run: Run, seq: int) -> tuple[JudgedRecord, Entry]:
    """Record and entry that contain an event. **Raises** NotFoundError."""
    place = bisect_right(run.records, seq, key=lambda record: record.entry.seq if record.entry else 0) - 1
    judged = run.records[place] if place >= 0 else None
    if judged is None or judged.entry is None or not judged.entry.seq <= seq <= judged.entry.last_seq:
        raise NotFoundError(f"run {run.state.run_id} has no event {seq}", hint=f"its last one is {run.state.head.seq}")
    return judged, judged.entry


def why(run: Run, seq: int, find: Find, *, claims: Sequence[ReadRecord] = (), most: int = 0) -> Why:
    """Causes of an event, at most `most`; of a call also its course, with its `claims`. **Raises** NotFoundError."""
    run = _original_run(run, seq, find)
    number = getattr(_EventPlace.of(run, seq).event(seq), "step", 0) or run.state.step_of(seq) or 0
    step = run.timeline.steps[number - 1] if 0 < number <= len(run.timeline.steps) else None
    if step is None or step.kind != "call":
        return Why(run_id=run.state.run_id, seq=seq, step=None, links=list(_cause_links(run, seq, find, most)))
    links = [*_call_links(run, step, claims), *_cause_links(run, run.state.seqs[number - 1], find, most)]
    return Why(run_id=run.state.run_id, seq=seq, step=step, links=links)


def _original_run(run: Run, seq: int, find: Find) -> Run:
    """Run of an event: for a copied one the source of a live fork, if known."""
    while (request := run.state.request) and request.forked and run.state.copied(seq):
        source = find(request.forked.run_id)
        if source is None or source.state.head.seq < seq:
            break
        run = source
    return run


class _EventPlace(NamedTuple):
    run: Run
    judged: JudgedRecord
    entry: Entry

    @classmethod
    def of(cls, run: Run, seq: int) -> Self:
        return cls(run, *entry_with(run, seq))

    def event(self, seq: int) -> Event:
        return self.entry.events[seq - self.entry.seq]

    def link(self, kind: LinkKind, seq: int, about: Sequence[Event], **other: Any) -> WhyLink:
        """Link about events of the entry; `other` overrides fields of the first event."""
        first = about[0]
        shown = {name: getattr(first, name) for name in _SHOWN if getattr(first, name, "")}
        people = ", ".join(getattr(first, "actors", ())) or getattr(first, "actor", "")
        fields: dict[str, Any] = {
            "events": [type(event).__name__ for event in about],
            "place": self.judged.place,
            "cause": self.entry.cause,
            "by": people or getattr(first, "requester", ""),
            "other": None,
            "at_ms": self.entry.at_ms,
            "said": {name: json_text(value) if name in _JSON else value for name, value in shown.items()},
        }
        return WhyLink(kind=kind, run_id=self.run.state.run_id, seq=seq, **(fields | other))


_JSON = ("args", "result", "input")
_SHOWN = (*_JSON, "tool", "failure", "verdict", "message", "rule", "attempt", "agent", "name")
_KINDS: Mapping[type, LinkKind] = {
    events.CallProposed: "proposal",
    events.CallRenewed: "proposal",
    events.CallDispatched: "order",
    **dict.fromkeys((events.ApprovalRequested, events.ApprovalEscalated, events.ApprovalDecided), "decision"),
    events.CallJudged: "policy",
}


def _call_links(run: Run, step: RunStep, claims: Sequence[ReadRecord]) -> Iterator[WhyLink]:
    """Links of a call, last first: outcome, claims, decisions, votes, proposal, policy, observations."""
    left = [claim for claim in claims if codec.decode(ToolClaim, claim.value or b"").call_id == step.call_id]
    for at, seq, event in reversed([*_events_of(run, step)]):
        if isinstance(event, events.CallDispatched):
            yield from (_claim_link(at, seq, left.pop()) for _ in range(len(left)))
        yield at.link(_KINDS.get(type(event), "effect"), seq, [event])
        if isinstance(event, events.ApprovalDecided):
            yield from _vote_links(at, seq, event)
        elif isinstance(event, events.CallProposed):
            yield from _ground_links(at, seq, event)


def _events_of(run: Run, step: RunStep) -> Iterator[tuple[_EventPlace, int, Event]]:
    """Events of a call, each with its place and number, without bills and, but for the proposal, copied ones."""
    for judged in run.records:
        entry = judged.entry
        if entry is None or entry.last_seq < run.state.seqs[step.step - 1]:
            continue
        for seq, event in enumerate(entry.events, entry.seq):
            copied = run.state.copied(seq) and not isinstance(event, events.CallProposed)
            billed = isinstance(event, events.CallReserved | events.CallBilled)
            if getattr(event, "step", 0) == step.step and not copied and not billed:
                yield _EventPlace(run, judged, entry), seq, event


def _claim_link(at: _EventPlace, seq: int, lies: ReadRecord) -> WhyLink:
    claim, place = codec.decode(ToolClaim, lies.value or b""), f"{lies.topic}/{lies.partition}/{lies.offset}"
    fields: dict[str, Any] = {"attempt": claim.attempt, "claim": claim.claim_id, "key": claim.key}
    fields |= {name: True for name in ("doubt", "undone") if getattr(claim, name)}  # these do not act
    about = {"events": ["ToolClaim"], "place": place, "cause": None, "by": claim.executor, "at_ms": lies.at_ms}
    return at.link("claim", seq, [at.event(seq)], **about, said=fields)


def _ground_links(at: _EventPlace, seq: int, call: events.CallProposed) -> Iterator[WhyLink]:
    """Policy of a proposal, and outcomes of the calls that its arguments build on."""
    state = at.run.state
    if state.request and (policy := state.request.policy):
        yield at.link("policy", seq, [call], said={"rule": call.rule, "policy": policy}, by="")
    for settled in (state.outcomes.get(number) for number in reversed(call.builds_on)):
        if settled is not None:
            then = _EventPlace.of(at.run, settled[2])
            yield then.link("observation", settled[2], [then.event(settled[2])])


def _vote_links(at: _EventPlace, seq: int, event: events.ApprovalDecided) -> Iterator[WhyLink]:
    """Votes in a decision, as signed; none if its token is invalid."""
    with suppress(MalformedError, UnauthorisedError):
        decided = Decision.parse(content_of(event.token))
        # Nobody votes on the use of a grant: the votes are those that gave it.
        if decided.given:
            decided = Decision.parse(content_of(decided.given))
        for token in decided.tokens:
            vote = signed_fields(Vote, "vote", content_of(token))
            fields = {name: vote[name] for name in ("action", "message", "vote", "issued")} | {"key": kid_of(token)}
            yield at.link("vote", seq, [event], said=fields, by=vote["actor"])


def _cause_links(run: Run, seq: int, find: Find, most: int) -> Iterator[WhyLink]:
    """Causal links from an event back, entry by entry and across runs, to the request of the first run."""
    visited = set[tuple[str, int]]()
    # A forged log may lead in circles.
    while (run.state.run_id, seq) not in visited and (not most or len(visited) < most):
        run = _original_run(run, seq, find)
        visited.add((run.state.run_id, seq))
        at = _EventPlace.of(run, seq)
        about = [event for number, event in enumerate(at.entry.events, at.entry.seq) if number <= seq]
        other = _cause_elsewhere(find, at, about)
        yield _entry_link(at, about, other)
        if before := _previous_event(run, at.entry, about):
            seq = before
        elif other and (above := find(other[0])) is not None:
            run, seq = above, other[1]
        elif at.entry.seq > 1:
            seq = 1
        else:
            return


def _entry_link(at: _EventPlace, about: Sequence[Event], other: tuple[str, int] | None) -> WhyLink:
    begins = isinstance(about[0], events.RunRequested)
    kind: LinkKind = "cause" if not begins else "parent" if other else "request"
    # Bills and status changes follow from the other events; alone they are the news.
    shown = [event for event in about if type(event).__name__ not in _SIDE] or about
    return at.link(kind, at.entry.seq, shown, other=other)


_SIDE = ("CallReserved", "CallBilled", "CallDispatched", "RunResumed", "RunSuspended")


def _previous_event(run: Run, entry: Entry, about: Sequence[Event]) -> int:
    """Last event of the previous entry about the step that this entry answers; 0 without one."""
    for step in (getattr(event, "step", 0) for event in about):
        if 0 < step <= len(run.state.seqs) and (begun := run.state.seqs[step - 1]) < entry.seq:
            seq = entry.seq
            while seq > begun:
                earlier = _EventPlace.of(run, seq - 1).entry
                if any(getattr(event, "step", 0) == step for event in earlier.events):
                    return earlier.last_seq
                seq = earlier.seq
    return 0


def _cause_elsewhere(find: Find, at: _EventPlace, about: Sequence[Event]) -> tuple[str, int] | None:
    """Run and last event number of another run's entry that caused this one."""
    cause, run = at.entry.cause, at.run.state.run_id
    if cause is None or cause.topic != RUN_LOG:
        senders = (_sender(find, run, event) for event in about if isinstance(event, SignalReceived))
        return next(filter(None, senders), None)
    relatives = map(find, filter(None, _relatives(run, about)))
    return next((place for other in relatives if other and (place := _entry_at(other, cause))), None)


def _relatives(run: str, about: Sequence[Event]) -> Iterator[str]:
    """Runs whose entries may have caused these events: parent (may be empty), children that ended or were billed."""
    yield parent_of(run)[0]
    for event in about:
        if isinstance(event, events.ChildCompleted):
            yield child_id(run, event.step)
        elif isinstance(event, events.ChildBilled):
            yield event.run_id


def _entry_at(run: Run, cause: Cause) -> tuple[str, int] | None:
    for judged in run.records:
        if (judged.record.partition, judged.record.offset) == (cause.partition, cause.offset) and judged.entry:
            return run.state.run_id, judged.entry.last_seq
    return None


def _sender(find: Find, run: str, event: SignalReceived) -> tuple[str, int] | None:
    """Run and event that sent a signal, only if that run's log has it: ids of signals can be forged."""
    with suppress(MalformedError, IndexError):
        name, step = parse_call_id(event.signal_id)
        if (sender := find(name)) is not None:
            seq = sender.state.seqs[step - 1]
            sent = [message for message in _EventPlace.of(sender, seq).entry.events if isinstance(message, SignalSent)]
            if any((message.step, message.run_id) == (step, run) for message in sent):
                return name, seq
    return None


PEOPLE = ("actor", "actors", "requester")
WHY = ("reason", "comment", "message", "verdict", "rule", "text")
_NO_CALL = {"tool": "", "call_id": "", "key": ""}


class AuditLine(ReadModel):
    """An event of a run's history. `writer` is the service that wrote it, `actors` are the people that it names.

    `cause` is the input that led to it. `key` is the idempotency key, if the event is about a call. `why` contains the
    recorded reasons, `note` a note of the agent or on the run.
    """

    run_id: str
    seq: int
    at_ms: int
    type: str
    writer: str
    actors: list[str]
    cause: Cause | None
    step: int
    tool: str
    call_id: str
    key: str
    why: dict[str, str]
    note: Any = None


def audit_of(run: Run) -> list[AuditLine]:
    """Audit trail of a run: its events, without arguments and results."""
    calls, lines = dict[int, dict[str, str]](), list[AuditLine]()
    for entry in (judged.entry for judged in run.records if judged.entry):
        for seq, event in enumerate(entry.events, start=entry.seq):
            if isinstance(event, events.CallProposed):
                call = {"tool": event.tool, "call_id": call_id(run.state.run_id, seq), "key": event.key}
                calls[event.step] = call
            step = getattr(event, "step", 0)
            line = AuditLine(
                run_id=run.state.run_id,
                seq=seq,
                at_ms=entry.at_ms,
                type=type(event).__name__,
                writer=entry.actor,
                actors=_actors(event),
                cause=entry.cause,
                step=step,
                **calls.get(step, _NO_CALL),
                why={name: str(value) for name in WHY if (value := getattr(event, name, ""))},
                note=_note(event),
            )
            lines.append(line)
    return lines


def _note(event: Event) -> Any:
    if isinstance(event, events.RunAnnotated):
        return event.note
    return json_text(event.data) if isinstance(event, events.NoteRecorded) else None


def _actors(event: Event) -> list[str]:
    values = [getattr(event, name, "") for name in PEOPLE]
    named = [actor for value in values for actor in (value if isinstance(value, list) else [value]) if actor]
    return list(dict.fromkeys(named))
