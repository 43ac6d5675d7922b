"""The verdict: from raw topics, what the user was told, and the recorder's file. Knows nothing of who was killed.

`Evidence` is plain data, so that a test can plant every kind of lie in it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tests.chaos import consent, raw, timing
from tests.chaos.app import FAT
from tests.chaos.consent import Papers, Ruling
from tests.chaos.raw import Chain, Event, Fields, History, Raw
from tests.chaos.rules import Decree

STALL_MS = 1_000
"""An effect that came so long after its tool had begun has outlived what lease minus margin covers (1.5 s)."""


@dataclass(slots=True)
class Evidence:
    """What the world has seen.

    **JsonCodec**: `acked` are the requests that Kafka acknowledged, run -> input; `maybe` those whose ack never came.
    `poison` are (topic, partition, offset) of what the user sent on purpose, as the topics have it; `effects` the
    recorder's lines. `votes` are the ids of what people have sent, by their places,
    `failing` the runs whose agent gives up at its end. `programs` are the trees of runs of programs, which have
    children; `said` are the places of what such runs were told. `early` are those of what was said to a run before the
    log had its request: a producer keeps no order between topics, and a broker that dies delays one of them.
    `wiped` are the moments at which the ledger lost everything, in ms since 1970.
    """

    acked: dict[str, Any]
    maybe: set[str]
    cancelled: set[str]
    poison: set[tuple[str, int, int]]
    effects: list[Fields]
    run_log: list[Raw]
    outcomes: list[Raw]
    letters: list[Raw]
    claims: list[Raw] = field(default_factory=list)
    results: list[Raw] = field(default_factory=list)
    requests: list[Raw] = field(default_factory=list)
    papers: Papers = field(default_factory=Papers)
    votes: dict[tuple[str, int, int], str] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    programs: dict[str, Any] = field(default_factory=dict)
    said: set[tuple[str, int, int]] = field(default_factory=set)
    early: set[tuple[str, int, int]] = field(default_factory=set)
    wiped: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """What is wrong, in words (nothing, one hopes), and what was counted on the way."""

    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)
    unauthorised: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems()

    def problems(self) -> dict[str, list[str]]:
        """What is wrong, by kind."""
        found = {
            "lost": self.lost,
            "twice": self.twice,
            "stuck": self.stuck,
            "unlisted": self.unlisted,
            "unauthorised": self.unauthorised,
            "wrong": self.wrong,
        }
        return {kind: problems for kind, problems in found.items() if problems}


@dataclass(slots=True)
class Call:
    """A call as the accepted log tells it."""

    run: str
    label: str
    key: str
    effect: str
    call_id: str
    dangerous: bool = False
    rulings: list[Ruling] = field(default_factory=list)
    doubts: int = 0
    unknown: int = 0
    attempts: int = 0
    end: Event | None = None
    proposed_ms: int = 0
    settled_ms: int = 0
    resolved: str = ""


def judge(evidence: Evidence) -> Verdict:
    """Judges all of it."""
    verdict, chain = Verdict(), Chain()
    for record in evidence.run_log:
        chain.feed(record)
    verdict.counts.update({f"void.{reason}": count for reason, count in chain.void.items()})
    verdict.counts["entries"] = chain.accepted
    verdict.counts["takeovers_in_runs"] = sum(len(history.actors) - 1 for history in chain.runs.values())
    _runs(verdict, evidence, chain)
    _outcomes(verdict, evidence, chain)
    _effects(verdict, evidence, chain)
    _letters(verdict, evidence)
    _claims(verdict, evidence)
    _open_calls(verdict, evidence)
    problems, counts = consent.check(evidence.papers, chain)
    verdict.wrong += problems
    verdict.counts.update(counts)
    return verdict


def _runs(verdict: Verdict, evidence: Evidence, chain: Chain) -> None:
    """What was acknowledged is there, and is over; nothing is there that nobody asked for."""
    verdict.counts["runs"] = len(evidence.acked)
    for run in evidence.acked:
        if run not in chain.runs:
            verdict.lost.append(f"{run} was acknowledged, and the run log does not know it")
    for run, history in chain.runs.items():
        program = run.partition(".")[0] in evidence.programs
        if run not in evidence.acked and run not in evidence.maybe and not (program and "." in run):
            verdict.wrong.append(f"{run} is in the run log, and nobody asked for it")
        if history.end is None:
            last = history.events[-1][0]
            verdict.stuck.append(f"{run} is not over; its last event is {last} at {history.seq}")
        elif program:
            pass  # how those end plain asyncio says
        elif (history.end[0] == "RunFailed") > (run in evidence.failing):
            verdict.wrong.append(f"{run} failed: {history.end[1]['failure']}")
        elif history.end[0] == "RunCancelled" and run not in evidence.cancelled:
            verdict.wrong.append(f"{run} is cancelled, and nobody asked for that")
        elif history.end[0] == "RunCompleted" and run in evidence.failing:
            verdict.wrong.append(f"{run} is completed, and its agent gives up")
        if history.end:
            verdict.counts[f"runs.{history.end[0]}"] += 1
        problems, counts = timing.check(history)
        verdict.wrong += problems["wrong"]
        verdict.stuck += problems["stuck"]
        verdict.counts.update(counts)
    verdict.counts["events"] = sum(history.seq for history in chain.runs.values())


def _outcomes(verdict: Verdict, evidence: Evidence, chain: Chain) -> None:
    """One outcome per run, the one that its last event tells, however often it was published."""
    told: dict[str, set[str]] = defaultdict(set)
    for record in evidence.outcomes:
        told[record.key.decode()].add(json.dumps(raw.decode(record.value or b""), sort_keys=True, default=str))
    verdict.counts["outcomes_published_again"] = len(evidence.outcomes) - len(told)
    words = {"RunCompleted": "completed", "RunFailed": "failed", "RunCancelled": "cancelled"}
    for run, history in chain.runs.items():
        if history.end is None:
            continue
        if len(told[run]) != 1:
            verdict.lost.append(f"{run} is over and has {len(told[run])} different outcomes")
            continue
        outcome = json.loads(next(iter(told[run])))
        expected = words[history.end[0]], history.seq, history.end[1].get("result", "null"), history.cause
        if (outcome["status"], outcome["seq"], outcome["result"], outcome["request"]) != expected:
            verdict.wrong.append(f"run-completed tells {outcome} of {run}, the log {expected}")
    verdict.wrong += [f"run-completed tells of {run}, the log does not" for run in told.keys() - chain.runs.keys()]


def _effects(verdict: Verdict, evidence: Evidence, chain: Chain) -> None:
    """At most one effect per call by its class, no effect without a proposal, no result without its effect."""
    every = [call for history in chain.runs.values() for call in calls_of(history)]
    calls = {(call.run, call.label, call.key): call for call in every}
    labels = {(call.run, call.label) for call in every}
    withdrawn: dict[str, int] = {}
    for record in evidence.requests:
        if record.value is None:
            withdrawn.setdefault(record.key.decode(), record.at_ms)
    done: dict[tuple[str, str, str], list[Fields]] = defaultdict(list)
    for line in evidence.effects:
        done[line["run"], line["label"], line["key"]].append(line)
    for place in done.keys() - calls.keys():
        if place[:2] in labels:
            verdict.twice.append(f"{place} was sent under a key that its call has not")
        else:
            verdict.wrong.append(f"{place} had an effect, and no accepted entry proposes it")
    for place, call in calls.items():
        lines = done.get(place, [])
        verdict.counts[f"calls.{call.effect}"] += 1
        verdict.counts["attempts"] += call.attempts
        verdict.counts["doubts"] += call.doubts
        verdict.counts["unknown_attempts"] += call.unknown
        verdict.counts[f"effects.{call.effect}"] += sum(line["applied"] for line in lines)
        verdict.counts["effects_avoided_by_key"] += sum(not line["applied"] for line in lines)
        verdict.counts["effects_begun_late"] += sum(line["waited_ms"] >= STALL_MS for line in lines)
        _once(verdict, call, lines)
        _sparing(verdict, call, lines, withdrawn.get(call.call_id, 0))
        history = chain.runs[call.run]
        end = history.end
        over_ms = history.times[-1] if end and end[0] == "RunCancelled" else None
        _allowed(verdict, call, lines, decrees=evidence.papers.decrees, over_ms=over_ms)
        left = call.end is None and call.run.partition(".")[0] in evidence.programs
        if end and (call.end or end[0] != "RunCancelled") and not left:
            _truth(verdict, call, [line for line in lines if line["applied"]], wiped=evidence.wiped)


def _allowed(
    verdict: Verdict, call: Call, lines: list[Fields], *, decrees: Sequence[Decree], over_ms: int | None
) -> None:
    """Of a dangerous call nothing was sent that people had not agreed to."""
    for line in lines if call.dangerous else ():
        verdict.counts["effects_agreed_to"] += line["applied"]
        verdict.counts["effects_under_a_decree"] += line["applied"] and consent.under_a_decree(line, decrees)
        if problem := consent.objection(line, call.rulings, decrees, over_ms=over_ms):
            verdict.unauthorised.append(f"{call} {problem}: {line}")


def _once(verdict: Verdict, call: Call, lines: list[Fields]) -> None:
    applied = [line for line in lines if line["applied"]]
    if call.effect == "pure" or len(applied) <= 1:
        return
    if call.effect == "probed" and any(line["waited_ms"] >= STALL_MS for line in lines):
        verdict.counts["twice_by_stall"] += 1  # what no rule can give: see docs/reliability.md
        return
    verdict.twice.append(f"{call} had its effect {len(applied)} times: {applied}")


def _sparing(verdict: Verdict, call: Call, lines: list[Fields], withdrawn_ms: int) -> None:
    """What may be repeated is not repeated without need, and never for a call that was settled long before."""
    again = timing.repeats(call.effect, call.attempts, lines)
    verdict.counts["pure_repeats"] += again
    if again > timing.MOST_REPEATS:
        verdict.wrong.append(f"{call} was done {again} times more than it was tried")
    # A pure call has no claim: until a planner has withdrawn its order, an executor that takes over begins it again.
    known_ms = max(call.settled_ms, withdrawn_ms) if call.effect == "pure" else call.settled_ms
    if call.settled_ms and (line := timing.begun_after(lines, known_ms)):
        verdict.wrong.append(f"{call} was begun long after it was settled: {line}")


def _kept_elsewhere(value: str) -> str:
    """What stands in the log for the large result of an effect."""
    text = f'"{value}{" " * FAT}"'.encode()
    return f"blob:{sha256(text).hexdigest()}:{len(text)}"


def _truth(verdict: Verdict, call: Call, applied: list[Fields], *, wiped: list[float]) -> None:
    """A result is that of an effect; a failure says that there was none; what was unknown was listed."""
    if call.end is None:
        verdict.stuck.append(f"{call} has no end, and its run has")
    elif call.end[0] == "CallCompleted":
        values = {str(line["value"]) for line in applied}
        if people := consent.answered(call.rulings):
            values.add(people)
        told = call.end[1]["result"]
        if told.strip('" ') not in values and told not in map(_kept_elsewhere, values):
            verdict.wrong.append(f"{call} has the result {call.end[1]['result']}, its effects {sorted(values)}")
    elif call.effect in ("keyed", "probed") and any(
        call.proposed_ms <= at <= line["at"] * 1_000 for at in wiped for line in applied
    ):
        verdict.counts["failed_and_done_behind_a_wipe"] += 1  # see docs/limits.md
    elif applied and call.effect != "pure":
        kind = verdict.wrong if call.doubts else verdict.unlisted
        kind.append(f"{call} failed with {call.end[1]['failure']['code']}, and its effect has happened")


def calls_of(history: History) -> list[Call]:
    """The calls of a run, in order of their proposals."""
    calls: dict[int, Call] = {}
    rulings = consent.rulings_of(history)
    for seq, ((name, fields), appended) in enumerate(zip(history.events, history.appended, strict=True), start=1):
        if name == "CallProposed":
            args = json.loads(fields["args"])
            step, dangerous = fields["step"], "amount" in args
            names = history.run, args["label"], fields["key"], fields["effect"], f"{history.run}/{seq}"
            call = Call(*names, dangerous, rulings.get(step, []), proposed_ms=appended)
            calls[step] = call
            continue
        if fields.get("step", -1) not in calls:
            continue
        call = calls[fields["step"]]
        if name == "ApprovalDecided" and fields["key"]:
            call.key = fields["key"]  # people have edited it, before anything was sent
        elif name == "CallDispatched":
            call.attempts = max(call.attempts, fields["attempt"])
        elif name == "AttemptFailed":
            call.unknown += fields["unknown"]
        elif name == "CallDoubted":
            call.doubts += 1
        elif name == "DoubtResolved":
            call.resolved = fields["verdict"]
        elif name in ("CallCompleted", "CallFailed"):
            call.end, call.settled_ms = (name, fields), appended
    return list(calls.values())


def _letters(verdict: Verdict, evidence: Evidence) -> None:
    """A dead letter for every poison, and for nothing else but votes that came too late or are void."""
    found: dict[tuple[str, int, int], Fields] = {}
    for record in evidence.letters:
        letter = raw.decode(record.value or b"")
        found[letter["topic"], letter["partition"], letter["offset"]] = {**letter, "appended_ms": record.at_ms}
    verdict.counts["dead_letters"] = len(found)
    void = {place for place, vote in evidence.votes.items() if evidence.papers.said[vote].void}
    # What falls into the death of an approval service is not put away by its successor, which cannot know.
    verdict.counts["votes_void_without_a_letter"] = len(void - found.keys())
    for place in evidence.poison - found.keys():
        verdict.lost.append(f"the poison at {place} has no dead letter")
    for place, letter in found.items():
        code = letter["code"]
        if place in evidence.votes and _may_be_void(evidence, place, letter):
            verdict.counts[f"votes_void.{code}"] += 1
        elif place in evidence.early and code == "unknown_run":
            verdict.counts["said_too_early"] += 1
        elif place in evidence.said and code in ("closed", "conflict", "unfit"):
            verdict.counts[f"said_in_vain.{code}"] += 1
        elif place not in evidence.poison:
            verdict.wrong.append(f"{place} is a dead letter: {code}: {letter['reason']}")


def _may_be_void(evidence: Evidence, place: tuple[str, int, int], letter: Fields) -> bool:
    """Whether a vote was meant to be void for this reason, or came when all was decided, or of somebody revoked."""
    said, code = evidence.papers.said[evidence.votes[place]], letter["code"]
    # A vote that waited in a killed service is judged by the rights of its successor's time, under its own date.
    moments = letter["at_ms"], letter["appended_ms"]
    gone = code == "unentitled" and any(consent.may_be_gone(evidence.papers.decrees, said.actor, at) for at in moments)
    # A service that was stopped hears of a vote when it has lived as long as its policy gives people.
    return code in ("late", "outlived", said.void) or gone


def _claims(verdict: Verdict, evidence: Evidence) -> None:
    """Counts the links of the claim chains, and what extends no head."""
    heads: dict[str, str] = {}
    for record in evidence.claims:
        claim = raw.decode(record.value or b"")
        if not claim["call_id"]:
            continue  # an executor has asked for the time
        if claim["prev"] != heads.get(claim["key"], ""):
            verdict.counts["claims_refused"] += 1
            continue
        verdict.counts["claims"] += 1
        verdict.counts["claims_after_a_claim"] += bool(claim["prev"])
        heads[claim["key"]] = claim["claim_id"]
    for record in evidence.results:
        result = raw.decode(record.value or b"")
        verdict.counts["late_results"] += result["late"]
        verdict.counts["results"] += 1


def _open_calls(verdict: Verdict, evidence: Evidence) -> None:
    """When all runs are over, every request has its tombstone."""
    last: dict[bytes, bool] = {}
    for record in evidence.requests:
        last[record.key] = record.value is not None
    for key, still in last.items():
        if still:
            verdict.wrong.append(f"call {key.decode()} is settled, and executors are still asked for it")
