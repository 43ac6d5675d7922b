"""What may never be, checked on raw records and the receiver's count when a case is over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from refold.core.errors import MalformedError
from refold.core.ids import RunId, home, parse_callback_token
from refold.core.topics import (
    APPROVAL_DECIDED,
    APPROVAL_VOTED,
    DEAD_LETTERS,
    RUN_COMPLETED,
    RUN_LOG,
    RUN_OPERATED,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_SNAPSHOT,
)
from refold.engine.planner.lane import Lane
from refold.engine.planner.service import Planner
from tests.simulator import budgets, erasures, families, forks, generations, pauses, versions, waits
from tests.simulator.app import FACTS, TIMEOUT_MS
from tests.simulator.folds import folded_again, statuses
from tests.simulator.minds import verdict as minds
from tests.simulator.reading.drains import charges
from tests.simulator.reading.logged import LoggedCall, LoggedRun
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.settings import ANSWERS, INPUTS, ORDERS
from tests.simulator.workload.inputs import OPERATOR, USER, Scenario
from tests.simulator.world.crew import SEAL
from tests.simulator.world.faults import LOSES_LEDGER
from tests.simulator.world.law import OUTSIDER, REQUESTER
from tests.simulator.world.people import Say
from tests.simulator.world.world import World

STALLING = ("non_determinism", "unknown_agent", "unknown_version", "MemoryError", "ImportError", "hung")
"""What a run is stalled for."""

SOON_MS = 100
"""How much earlier than by a second request a call is answered whose result is sent again."""

HEARD_MS = 500
"""How long a signal may take without any fault: many turns."""


def objections(world: World, scenario: Scenario, *, at_rest: bool) -> list[str]:
    """Everything that is wrong, each with the name of the promise that it breaks; empty when all is well."""
    found = world.witness.wrong
    found += _starts(world, scenario)
    for run in world.witness.history.runs.values():
        for call in run.calls.values():
            found += _effects(world, call, scenario.verdict)
            found += _sources(world, call)
    found += decisions(world, scenario.verdict)
    found += _failures(world)
    found += _again(world, scenario.verdict)
    found += _strangers(world)
    found += _ledger(world)
    found += _letters(world, scenario)
    found += waits.objections(world, scenario, at_rest=at_rest)
    found += families.objections(world, at_rest=at_rest)
    found += generations.objections(world, at_rest=at_rest)
    found += forks.objections(world)
    found += pauses.objections(world)
    found += versions.objections(world)
    found += budgets.objections(world, scenario, at_rest=at_rest)
    found += erasures.objections(world, scenario, at_rest=at_rest)
    found += minds.objections(world, scenario)
    found += world.store.wrong + world.tools.wrong
    found += folded_again(world)
    found += statuses(world)
    rules = world.settings.rules
    longest_ms = TIMEOUT_MS + rules.redispatch_cap_ms
    back = world.hit("truncate-log")
    # Two in one: a process dies beside what is lost, or is started again a second time.
    faults = len(world.struck) + sum(":forget" in each or ":deploy" in each or "-die" in each for each in world.struck)
    forgot = sum(any(mode in fault for mode in (*LOSES_LEDGER, "mirror")) for fault in world.struck)
    found += world.witness.toil.objections(
        faults=faults, forgot=forgot, deadline_ms=longest_ms, lost_ms=world.lost_ms, went_back=back
    )
    found += _prompt(world)
    # What a decree takes back is tried again, or doubted, for that.
    if not scenario.decrees and all(fault.endswith(":drain") for fault in world.struck):
        found += charges(world.witness.history, world.tools.ran, world.settings)
        if world.counts["drains_cut_short"]:
            found.append("slow: a process that was told to end waited for something that did not come")
    if at_rest:
        found += _orders(world)
        found += _approvals(world)
        found += _outcomes(world)
        found += _positions(world)
        found += kept(world)
        found += _told(world)
        found += _heard(world, scenario)
    return found


def _prompt(world: World) -> Iterator[str]:
    """A result whose way into the log was uncertain goes out again at once: its call need not be asked for again."""
    if len(world.struck) != 1 or world.uncertain != [ANSWERS]:
        return
    most_ms = TIMEOUT_MS + world.settings.rules.redispatch_ms - SOON_MS
    for run in world.witness.history.runs.values():
        for call in run.calls.values():
            if call.waited_ms > most_ms and not run.pauses.spans:
                yield f"slow: {call.id} of run {run.id} waited {call.waited_ms} ms for a result that may be sent"


def _told(world: World) -> Iterator[str]:
    """What a tool has told a process that lived on, the log is told: nothing is dropped because it comes late."""
    if not all(any(harmless in fault for harmless in ("freeze", "pause", "delayed")) for fault in world.struck):
        return  # with a process or its ledger a result may go, too
    known: set[tuple[str, str]] = set()
    for record in world.witness.written.get(ANSWERS, ()):
        if record.value and record.read_headers():
            result = read_value(record.value)
            known.add((result["call_id"], result["result"]))
    for call, text in world.tools.told:
        if (call, text) not in known:
            yield f"dropped: call {call} had the result {text}, and nobody was told"


def _heard(world: World, scenario: Scenario) -> Iterator[str]:
    """What a user says of a run that goes on, it hears; of one that is asked for later it is refused."""
    early = _refused_early(world, scenario)
    for given in scenario.inputs:
        if given.kind != "signal" or world.struck or given.key in early:
            continue
        run = generations.latest(world, (given.key or b"").decode().partition("/")[0])
        said_ms = world.settings.epoch_ms + given.at_ms
        if run and run.requester != USER and given.topic == RUN_SIGNALLED:
            continue
        if run and "RunRetried" in run.order:
            continue  # it had failed when that was said
        if run and run.status != "cancelled" and run.at_ms > said_ms + HEARD_MS:
            yield f"unheard: run {run.id} was to be cancelled and is {run.status} {run.at_ms - said_ms} ms later"


def _strangers(world: World) -> Iterator[str]:
    """A run ends by the word of whoever asked for it, or of an operator."""
    for run in world.witness.history.runs.values():
        actor = run.end["actor"] if run.end and run.status == "cancelled" else OPERATOR
        if actor not in (run.requester, OPERATOR) and not families.may_cancel(world, run, actor):
            yield f"foreign: run {run.id} of {run.requester} was cancelled by {actor}"


def _starts(world: World, scenario: Scenario) -> Iterator[str]:
    """Every request that was taken became a run, and none became another run; a log that was cut may have parked it."""
    parked = world.parked()
    asked: dict[str, list[tuple[str, Any]]] = {}
    for given in scenario.inputs:
        if given.kind in ("run", "repeat", "conflict"):
            value = json.loads(given.value or b"")
            asked.setdefault(value["run_id"], []).append((value["agent"], value["input"]))
    for name, wanted in asked.items():
        run = world.witness.history.runs.get(name)
        if run is None:
            if name in parked:
                world.counts["parked"] += 1
                continue
            yield f"lost: the request for run {name} has left no trace"
        elif (run.request[0], json.loads(run.request[1])) not in wanted:
            yield f"lost: run {name} is not what was asked for"
    roots = {name for name, run in world.witness.history.runs.items() if "." not in name and not run.fork}
    roots = {name for name in roots if "+" not in name}
    for name in roots - asked.keys() - families.submitted(world).keys():
        yield f"invented: nobody asked for run {name}"


def _failures(world: World) -> Iterator[str]:
    """No run ends because of the code that a planner happens to have, or of its machine."""
    for run in world.witness.history.runs.values():
        code = run.end["failure"]["code"] if run.end and run.status == "failed" else ""
        if code in STALLING:
            yield f"failed: run {run.id} is over for {code}, which is not its own fault"


def _sent_twice(world: World, call: LoggedCall) -> bool:
    """True if the request of a call went out more than once: who has forgotten what is done acts on the second."""
    sent = (record for record in world.witness.written.get(ORDERS, ()) if record.key == call.id.encode())
    return sum(record.value is not None for record in sent) > 1


def _effects(world: World, call: LoggedCall, verdict: str) -> Iterator[str]:
    """The classes keep their word, and no result is without its effect."""
    done = [effect for effect in world.receiver.done if effect.call == call.id]
    if world.hit("truncate-log"):  # a log that went back may have numbered its calls otherwise
        done = [effect for effect in done if effect.key == call.key]
    if call.effect == "pure":
        return
    applied = sum(effect.applied for effect in done)
    wrongly = 0 if verdict == "truth" else sum(said == "did_not_happen" for said in call.said.values())
    if applied > 1 + wrongly:
        yield f"twice: call {call.id} ({call.effect}) had its effect {applied} times"
    if len({effect.key for effect in done}) > 1:
        yield f"key: call {call.id} used more than one key"
    told = call.answered or "happened" in call.said.values()
    # Of a call that people have edited, and whose log has lost that, the result is what is left (docs/limits.md).
    lost = world.hit("truncate-log") and bool(world.settings.approvals)
    mine = (effect for effect in world.receiver.done if effect.key == call.key or (lost and effect.call == call.id))
    results = {effect.result for effect in mine}
    if call.phase == "completed" and not told and call.result not in results:
        yield f"invented: call {call.id} has the result {call.result} and no such effect"
    # Without its ledger a call whose request was sent twice may still run after its failure was accepted: the key or
    # the probe keeps that single, and a `once` call is in doubt.
    forgot = call.effect != "once" and (world.forgot or (world.hit("expire", "outage") and _sent_twice(world, call)))
    misled = bool(call.said) and verdict != "truth"
    # What had been let through, and is lost, is judged anew (docs/limits.md).
    misled |= lost and call.failure in ("denied", "rejected", "approval_expired")
    # Of a result that its topic refuses only that can be told.
    misled |= call.failure == "too_large" and (ANSWERS, call.id) in world.refused
    if call.phase == "failed" and done and not forgot and not misled and call.failure not in ("given_up", "bad_result"):
        yield f"lie: call {call.id} counts as failed ({call.failure}) and had its effect"


def _sources(world: World, call: LoggedCall) -> Iterator[str]:
    """A result comes from the ledger or from a status hook only where that answered, and after the effect."""
    answered = {"stored": world.witness.stored, "probed": world.tools.happened}.get(call.how)
    if answered is None:
        return
    if call.key not in answered:
        yield f"source: the result of call {call.id} is recorded as {call.how}, and nobody has answered so"
    if not any(effect.key == call.key for effect in world.receiver.done):
        yield f"source: the result of call {call.id} is recorded as {call.how}, and the receiver had no effect"


def _again(world: World, verdict: str) -> Iterator[str]:
    """Under one key there is one effect, however often its run has failed and gone on."""
    for run in world.witness.history.runs.values():
        for key in {call.key for call in run.calls.values() if call.effect != "pure"} if run.again else ():
            calls = [call for call in run.calls.values() if call.key == key]
            wrongly = sum(said == "did_not_happen" for call in calls for said in call.said.values())
            applied = sum(effect.applied for effect in world.receiver.done if effect.key == key)
            if applied > 1 + (wrongly if verdict != "truth" else 0):
                yield f"twice: {calls[0].tool} of run {run.id} had its effect {applied} times under one key"


def decisions(world: World, verdict: str = "truth") -> Iterator[str]:
    """A decision is good for one effect of one call, whatever the ledger has forgotten.

    A human who is wrong about a call in doubt may double what no receiver knows.
    """
    harmful = [e for e in world.receiver.done if e.applied and e.decision and FACTS[e.tool].effect != "pure"]
    wrongly = _called_undone(world) if verdict != "truth" else Counter[str]()
    for token, count in Counter(effect.decision for effect in harmful).items():
        calls = sorted({effect.call for effect in harmful if effect.decision == token})
        if count > 1 + sum(wrongly[call] for call in calls) or len(calls) > 1:
            yield f"single: one decision was good for {count} effects of {', '.join(calls)}"


def _called_undone(world: World) -> Counter[str]:
    runs = world.witness.history.runs.values()
    return Counter(call.id for run in runs for call in run.calls.values() if "did_not_happen" in call.said.values())


def _approvals(world: World) -> Iterator[str]:
    """What nobody waits for any more is closed, but for what a zombie, the network or a mirror brought.

    Of a question whose entry the log has lost no planner knows: it is closed when people have decided it.
    """
    belated = world.hit("delayed", "mirror", "truncate-log") or (len(world.struck) > 1 and world.hit("freeze"))
    waiting = {
        call.asked.name
        for run in world.witness.history.runs.values()
        for call in run.calls.values()
        if call.asked is not None and not run.over
    }
    for name in world.witness.approvals.open:
        if name not in waiting and not belated:
            yield f"orders: approval {name} is over and its request still open"


def _ledger(world: World) -> Iterator[str]:
    """Ledger and log do not say different things of a call."""
    calls = {call.id: call for run in world.witness.history.runs.values() for call in run.calls.values()}
    for (place, _, key), entry in world.ledger.entries().items():
        name = entry.call
        if name not in calls:
            if not world.hit("truncate-log"):
                yield f"ledger: it knows a call {name} that the log does not"
            continue
        call = calls[name]
        if call.key != key and world.hit("truncate-log"):
            continue  # it is of a call that had this number before the log went back
        if entry.state == "done" and entry.success and call.phase == "completed" and call.effect != "pure":
            result = read_value(SEAL.open("result", place, entry.result)[1])["result"]
            if result != call.result and not call.said and result not in call.late:
                yield f"ledger: call {name} is {result} there and {call.result} in the log"


def _letters(world: World, scenario: Scenario) -> Iterator[str]:
    """Poison becomes a dead letter with its position, and nothing else is."""
    letters = [read_value(record.value) for record in world.witness.laid(*DEAD_LETTERS) if record.value]
    # A tombstone says that an input was erased: nobody has to be told of that.
    bad = [given for given in scenario.inputs if given.kind == "poison" and given.value is not None]
    conflicts = {given.key for given in scenario.inputs if given.kind == "conflict"}
    cleaned = world.hit("clean", "mirror")  # of two starts that nobody has read so far the last one stays
    refused = {letter["key"] for letter in letters if letter["code"] in ("conflict", "erased")}
    for given in bad:
        if world.counts[f"truncated: {given.topic}"]:
            continue  # the topic may have lost it before anybody had read it
        if not any(letter["topic"] == given.topic and letter["value"] == (given.value or b"") for letter in letters):
            yield f"poison: {given.value!r} on {given.topic} has no dead letter"
    for key in () if cleaned else conflicts - refused:
        yield f"poison: the contradictory start of {key!r} has no dead letter"
    for letter in letters:
        written = world.witness.written.get(letter["topic"], ())
        place = letter["partition"], letter["offset"]
        # A topic that lost its end may have held more than one record at a place.
        if letter["value"] not in [r.value or b"" for r in written if (r.partition, r.offset) == place]:
            yield f"poison: a dead letter names {letter['topic']}/{letter['offset']}, where something else lies"
        known = any((given.topic, given.value or b"") == (letter["topic"], letter["value"]) for given in bad)
        resolving = letter["topic"] == RUN_OPERATED and letter["code"] in ("conflict", "stalled")
        # A result of a call, or of a run, that the log knew once, and does not know again so far.
        unknown = letter["topic"] == ANSWERS and letter["code"] in ("unknown_call", "unknown_run")
        resolving |= unknown and world.hit("truncate-log")
        named = _run_named(letter["key"].decode(errors="replace"))
        run = world.witness.history.runs.get(RunId(named))
        # What is said to a fork that the log has lost: its request was answered, so it does not begin again.
        lost = letter["code"] == "unknown_run" and run is None and "-fork" in named
        resolving |= lost and world.hit("truncate-log")
        # Its request was written where a lost one had lain, and is said again once it has no answer.
        requested = RUN_REQUESTED, home(RunId(named), world.settings.partitions)
        resolving |= letter["code"] == "unknown_run" and requested in world.regrown
        early = letter["code"] == "unknown_run" and _said_early(world, letter, scenario)
        once = sum((given.topic, given.key) == (letter["topic"], letter["key"]) for given in scenario.inputs) == 1
        yield from _alive(world, letter, run) if early and once else ()
        foreign = letter["code"] == "operators_only" and (run is None or run.requester != USER)
        # While the history of a run that goes on is read, so much is kept for it: of more its sender is told.
        resolving |= letter["code"] == "stalled" and bool(run and run.ends) and "backlog" in scenario.changes
        if (
            not known
            and not foreign
            and not early
            and letter["key"] not in conflicts
            and not resolving
            and not versions.refuses(letter)
            and not _said_in_vain(letter, scenario)
            and not erasures.said_in_vain(world, letter)
            and not waits.said_in_vain(world, letter)
        ):
            why = f"{letter['code']}: {letter['reason']}"
            yield f"poison: a good input of {letter['topic']} became a dead letter ({why})"


def _run_named(key: str) -> str:
    """The run that the key of an input names, by itself or by the token of a callback."""
    try:
        return parse_callback_token(key)
    except MalformedError:
        return key.partition("/")[0]


def _refused_early(world: World, scenario: Scenario) -> set[bytes]:
    """The keys of what was refused because its run was asked for later."""
    letters = [read_value(record.value) for record in world.witness.laid(*DEAD_LETTERS) if record.value]
    return {each["key"] for each in letters if each["code"] == "unknown_run" and _said_early(world, each, scenario)}


def _alive(world: World, letter: Datum, run: LoggedRun | None) -> Iterator[str]:
    """What was refused before its run was asked for is not said anew."""
    # Its position may not have been kept so far, all is read from the start where a log was cut, or a mirror has put a
    # copy behind its tombstone (docs/limits.md).
    read_again = world.hit("outage", "truncate") or any(fault.endswith(":mirror") for fault in world.struck)
    if run is not None and run.status == "cancelled" and not read_again:
        yield f"alive: {letter['key']!r} was refused before run {run.id} was asked for, and has cancelled it"


def _said_early(world: World, letter: Datum, scenario: Scenario) -> bool:
    """True if what a dead letter has was said before its run was asked for; who says it again later is heard."""
    run = _run_named(letter["key"].decode(errors="replace")).encode()
    place = letter["partition"], letter["offset"]
    said = [each.at_ms for each in world.witness.written.get(letter["topic"], ()) if each[1:3] == place]
    asked = [given.at_ms for given in scenario.inputs if given.kind == "run" and given.key == run]
    return len(asked) == 1 and bool(said) and said[0] < world.settings.epoch_ms + asked[0]


def _said_in_vain(letter: Datum, scenario: Scenario) -> bool:
    """Whether a vote or a decision may be void: votes come late, and keys and roles change."""
    if letter["topic"] == APPROVAL_VOTED:
        odd = scenario.people is None or any(map(_odd, scenario.people))
        return (
            odd
            or letter["code"] in ("late", "outlived", "requester")
            or any(o.change == "roles" for o in scenario.decrees)
        )
    changed = any(order.change in ("revoke", "rotate") for order in scenario.decrees)
    return letter["topic"] == APPROVAL_DECIDED and letter["code"] == "unauthorised" and changed


def _odd(say: Say) -> bool:
    odd = say.question or say.key == "stranger" or say.actor in (REQUESTER, OUTSIDER)
    return bool(odd) or say.action not in ("approve", "reject")


def _orders(world: World) -> Iterator[str]:
    """Every accepted dispatch went out, and every call that is settled was closed."""
    sent: set[tuple[str, int]] = set()
    last: dict[bytes | None, bytes | None] = {}
    # What a mirror has repeated of old, executors do not take, so that nobody hears of it.
    stale = world.hit("mirror") and world.hit("outage")
    belated = len(world.struck) > 1 and (world.hit("delayed", "freeze") or stale)
    # What Kafka has lost since lies open nowhere.
    lies = _lying(world)
    for record in world.witness.written.get(ORDERS, ()):
        last[record.key] = record.value if record.value in lies else None
        if record.value and record.read_headers():  # a client's poison has none
            ask = read_value(record.value)
            sent.add((ask["call_id"], ask["attempt"]))
    for run in world.witness.history.runs.values():
        for call in run.calls.values():
            yield from _never_sent(world, call, sent)
            # A stale request that a zombie or the network brings is closed again when it is answered. Superseded by a
            # later attempt, or closed in the ledger, nobody answers it: then it stays, harmless, until it is compacted.
            left = last.get(call.id.encode())
            if _mirrored(world, run, left):
                continue
            if left is not None and read_value(left)["attempt"] == call.attempt and not belated:
                yield f"orders: call {call.id} is settled and its request still open"


def _lying(world: World) -> set[bytes | None]:
    return {each.value for n in range(world.broker.partitions) for each in world.broker.log(ORDERS, n).records}


def _mirrored(world: World, run: LoggedRun, order: bytes | None) -> bool:
    """True if a mirror has brought an order after its closing, or after the end of the run whose retry asked for it.

    A ledger in which the call is closed says nothing to it: then it stays, harmless (docs/limits.md).
    """
    return order in world.broker.repeated or ("RunRetried" in run.order and run.over and world.hit("mirror"))


def _never_sent(world: World, call: LoggedCall, sent: set[tuple[str, int]]) -> Iterator[str]:
    # A call may be given up before its order could be sent: by the entry behind it, appended before that one is read.
    unsure = not call.settled or call.phase == "given_up"
    for attempt in call.attempts - {call.attempt} if unsure else call.attempts:
        if (call.id, attempt) not in {*sent, (call.id, call.never_sent)} and (ORDERS, call.id) not in world.refused:
            yield f"orders: attempt {attempt} of call {call.id} was accepted and never sent out"


def _outcomes(world: World) -> Iterator[str]:
    """Whoever waits for a run hears of its end, and nothing else."""
    told: dict[str, list[dict[str, Any]]] = {}
    for record in world.witness.written.get(RUN_COMPLETED, ()):
        if record.value is None:
            continue
        outcome = read_value(record.value)
        told.setdefault(outcome["run_id"], []).append(outcome)
    for run in world.witness.history.runs.values():
        if run.status != "continued":  # of which nobody is told
            yield from _told_of(world, run, told.pop(run.id, []))
    for name in told:
        yield f"outcome: run {name} was told to be over and is not"


def _told_of(world: World, run: LoggedRun, outcomes: list[Datum]) -> Iterator[str]:
    """Every outcome is an end of its run, and the last end was told.

    Who has not noticed that the log has lost its end tells, besides, what it believes (docs/limits.md). So does a
    planner that a retry reaches before the marker of the run's erasure: its outcome goes with the run's other records.
    """
    short = (RUN_COMPLETED, run.id) in world.refused  # it was told that it is too large
    right = [outcome for outcome in outcomes if _tells(outcome, run, short=short)]
    if run.over and not outcomes:
        yield f"outcome: run {run.id} is over and nobody was told"
    elif run.over and max((outcome["seq"] for outcome in right), default=0) < run.seq:
        yield f"outcome: run {run.id} is over once more, and nobody was told"
    believed = world.witness.unaware.runs.get(run.id)
    for outcome in outcomes:
        if run.id in world.erasures.unread and outcome["seq"] > run.seq:
            continue
        if outcome not in right and not (believed and _tells(outcome, believed, short=short)):
            yield f"outcome: run {run.id} is {run.status} and was told to be {outcome}"


def _tells(outcome: Datum, run: LoggedRun, *, short: bool) -> bool:
    """True if an outcome is an end of a run; a short one may have any result."""
    ends = ((status, seq, outcome["result"] if short else result) for status, seq, result in run.ends)
    return (outcome["status"], outcome["seq"], outcome["result"]) in ends


def _positions(world: World) -> Iterator[str]:
    """At rest every input is settled and committed, and every planner has folded what the log holds."""
    committed = world.broker.committed.get("refold-planner", {})
    waiting = world.parked() | generations.vanished(world)  # what comes for those waits for a repair, or is given up
    waits = {home(run, world.settings.partitions) for run in waiting}
    for partition, process in world.groups.owners["planner"].items():
        for topic in (*INPUTS, RUN_LOG):
            log, position = world.broker.log(topic, partition), committed.get((topic, partition), 0)
            end = log.end
            left = position < end and partition not in waits and log.read(position, end)
            if (position > end and not world.hit("truncate")) or left:
                yield f"stuck: {topic}/{partition} has {end} records and its low-water mark is {position}"
        planner = process.services[0]
        assert isinstance(planner, Planner), "a planner's process hosts a planner"
        lane = planner.lanes.get(partition)
        assert lane is not None, "it owns the partition"
        yield from _folded(world, lane)


def kept(world: World) -> Iterator[str]:
    """At rest a run that is over has a row in the snapshot and no other record, whichever planner wrote it."""
    for partition in range(world.settings.partitions):
        last = {record.key or b"": record for record in world.broker.log(RUN_SNAPSHOT, partition).records}
        for key, record in last.items():
            kind, _, name = key.partition(b"/")
            run = world.witness.history.runs.get(name.partition(b"/")[0].decode())
            if kind in (b"run", b"hold") and record.value is not None and run is not None and run.over:
                yield f"kept: {key!r} is in {RUN_SNAPSHOT}/{partition}, and run {run.id} is {run.status}"


def _folded(world: World, lane: Lane) -> Iterator[str]:
    for name, run in world.witness.history.runs.items():
        if home(name, world.settings.partitions) != lane.partition:
            continue
        state = lane.log.latest(RunId(name))
        if name in world.erasures.ever:
            if state is not None and not state.over:
                yield f"fold: the planner has run {name} at {state.head.seq} {state.status}, and it is erased"
            continue
        if state is None or (state.head.id, state.head.seq, state.status) != (run.head, run.seq, run.status):
            known = f"{state.head.seq} {state.status}" if state else "nothing"
            yield f"fold: the planner has run {name} at {known}, the log says otherwise"
    for name in lane.log.fold.states:
        if name not in world.witness.history.runs:
            yield f"fold: the planner has run {name}, the log has not"
