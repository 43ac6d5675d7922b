"""A second reading of the run log, sharing no code with `core`: what the checker believes.

The chain rule written down once more, and a fold of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import blake2b, sha256

from refold.engine.ports.log import Record
from tests.simulator.reading.budgets import OF_BUDGETS
from tests.simulator.reading.children import OF_CHILDREN
from tests.simulator.reading.forks import is_copy, left_open, unlike
from tests.simulator.reading.limits import LoggedLimits
from tests.simulator.reading.logged import ENDS, GOES_ON, LoggedCall, LoggedRun, Question
from tests.simulator.reading.pauses import GOES_OUT, OF_PAUSES
from tests.simulator.reading.spending import cost_of, let_out
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.reading.versions import OF_VERSIONS
from tests.simulator.reading.waits import OF_WAITS

_CAME = {"approve": "did_not_happen", "answer": "happened", "reject": "give_up"}
_ANCHOR_KEY = re.compile(rb"anchor/0000000000/[0-9a-f]{32}\Z")
_LOG_KEY = re.compile(rb"(.+)/(\d{10})/([0-9a-f]{32})\Z")
_TELLS = {"RunSuspended": "suspended", "RunResumed": "running"}
_ASIDE = ("NoteRecorded", "CheckpointReached", "StatusSet", "TaskFailed", "PatchTaken", "RunMigrated", "SignalAnswered")

_TRIES = {"push_or_hold": 2, "pay_or_hold": 1}
"""The attempts of calls that wait for an operator then."""
_UNSENT = ("decision_expired", "decision_revoked", "halted", "policy_changed", "tool_changed")


class History:
    """The run log as far as it was followed. `wrong` collects what no history may hold; the histories of runs that
    are `repaired` may be there once more, and of those that are `forked` there are records that do not count. What is
    `erased` has tombstones. `known` are all entries that have ever counted, `losers`
    those that did not when they came (run, last event, id).

    `on_decided` is told of every decision that is accepted, with the question, the event and its partition.
    """

    def __init__(self) -> None:
        self.runs, self.limits = dict[str, LoggedRun](), LoggedLimits()
        self.void = 0
        self.wrong: list[str] = []
        self.repaired, self.forked, self.erased = set[str](), set[str](), set[str]()
        self.on_decided: Callable[[LoggedRun, Question, Datum, int], None] = lambda *_: None
        self.known: dict[bytes, Datum] = {}
        self.losers: list[tuple[str, int, bytes]] = []
        self._seen: set[bytes] = set()
        self._counting: set[bytes] = set()
        self._early: dict[tuple[str, bytes], list[tuple[bytes, Datum]]] = {}
        self._causes: set[tuple[str, str, int, int]] = set()
        self._reused: dict[tuple[str, int], int] = {}
        self._partition = self._offset = 0
        self._cost: int | None = None

    def follow(self, record: Record) -> list[Datum]:
        """Takes the next record of a partition; gives the entries that count by it, in their order."""
        if _ANCHOR_KEY.match(record.key or b""):
            return []  # it is of no run, and no fork: a mirror would never be tried where it counted as one
        found = self._read(record)
        if found is None:
            self.void += record.value is not None and not _ANCHOR_KEY.match(record.key or b"")
            return []
        name, entry = found
        if entry["run_id"] in self.erased:
            self.void += 1
            return []
        run = self.runs.get(entry["run_id"]) or LoggedRun(entry["run_id"])
        counting: list[Datum] = []
        waiting = [(name, entry)]
        while waiting:
            name, entry = waiting.pop(0)
            if entry["prev"] == run.head and entry["seq"] == run.seq + 1:
                self.runs[run.id] = run
                if is_copy(run, entry):
                    self._copy(run, name, entry, record)
                else:
                    self._check_cause(entry)
                    self._extend(run, name, entry, record)
                    self.wrong += left_open(run, entry)
                counting.append(entry)
                # What came before its predecessor counts from here on; of two the first.
                waiting = self._early.pop((run.id, name), [])
            else:
                self.void += 1
                self.forked.add(run.id)
                self.losers.append((run.id, entry["seq"] + len(entry["events"]) - 1, name))
                self._early.setdefault((run.id, entry["prev"]), []).append((name, entry))
        return counting

    def restart(self, logs: Iterable[Iterable[Record]]) -> None:
        """Some of what was followed never was: reads what is left of all partitions, and complains of it once."""
        wrong, void, on_decided = self.wrong, self.void, self.on_decided
        self.runs, self._early = {name: run for name, run in self.runs.items() if name in self.erased}, {}
        self._seen, self._counting = set(), set()
        self._causes = {cause for cause in self._causes if cause[0] in self.erased}
        self.wrong, self.on_decided = [], lambda *_: None
        before, self.limits = self.limits, LoggedLimits(singly=self.limits.singly)
        for record in (record for log in logs for record in log):
            if (record.key or b"").partition(b"/")[0].decode() not in self.erased:
                self.follow(record)
        self.wrong, self.void, self.on_decided = wrong, void, on_decided
        self.limits = replace(before, sums=self.limits.sums)

    def caused(self, run: str, topic: str, partition: int, offset: int) -> bool:
        """Whether an entry that counts answers an input."""
        return (run, topic, partition, offset) in self._causes

    def forget(self, topic: str, partition: int, end: int) -> None:
        """The inputs of a partition from an offset on are gone, and others will lie there."""
        self._reused[topic, partition] = end

    def _extend(self, run: LoggedRun, name: bytes, entry: Datum, record: Record) -> None:
        retried = entry["events"][0][0].endswith(".RunRetried")
        if run.over and not (retried and run.status == "failed"):
            self.wrong.append(f"terminal: run {run.id} has an entry that counts after its end (seq {entry['seq']})")
        # Time goes on within a run; between runs of a partition an older planner's late record may lag.
        if entry["at_ms"] < run.at_ms:
            self.wrong.append(f"clock: run {run.id} goes back in time at seq {entry['seq']}")
        run.before_ms, run.at_ms = run.at_ms, entry["at_ms"]
        self._partition, self._offset = record.partition, record.offset
        run.heads.append(name)
        self.known[name] = entry
        self._counting.add(name)
        asked, self._cost = run.asked, None
        for kind, event in entry["events"]:
            run.seq += 1
            run.asked = max(run.asked, event.get("step", 0))
            self._apply(run, event_name := kind.rpartition(".")[2], event, entry["at_ms"])
            if event_name in OF_VERSIONS:
                place = {"seq": run.seq, "entry": entry["seq"]}
                revised = run.revisions.follow(run.request[0], event_name, event, **place, cause=entry["cause"])
                self.wrong += [f"{why} (run {run.id})" for why in revised]
        run.mail.asked_before = asked
        if not run.over and not entry["held"]:  # held, the code has not said so far what it waits for
            self.wrong += [f"{why} (run {run.id})" for why in run.mail.left(run.at_ms)]

    def _copy(self, run: LoggedRun, name: bytes, entry: Datum, record: Record) -> None:
        """An entry of another run: what is wrong with it was said of that one, and nobody is told of it."""
        said, on_decided = self.wrong, self.on_decided
        self.wrong, self.on_decided = [], lambda *_: None
        run.calls = run.fork.kept if run.fork else {}
        self._extend(run, name, entry, record)
        assert run.fork is not None, "it begins so"
        run.fork.kept, run.calls = run.calls, {}
        run.purse.copies(entry["events"])
        run.revisions.changes.clear()
        self.wrong, self.on_decided = said, on_decided
        self.wrong += unlike(self.known, run, entry)

    def _read(self, record: Record) -> tuple[bytes, Datum] | None:
        match = _LOG_KEY.match(record.key or b"")
        if not match or not record.value:
            if record.value:
                self.wrong.append(f"key: {record.key!r} is not the key of an entry")
            elif match and match[1].decode() not in self.erased:
                self._bury(bytes.fromhex(match[3].decode()))
            return None
        if match[3] in self._seen and match[1].decode() in self.repaired:
            return None  # the operator had its history written once more, in order
        if match[3] in self._seen:
            self.wrong.append(f"bytes: entry {record.key!r} was sent twice with the same bytes")
        self._seen.add(match[3])
        if blake2b(record.value[5:], digest_size=16).hexdigest().encode() != match[3]:
            self.wrong.append(f"key: {record.key!r} does not name its entry")
            return None
        try:
            entry = read_value(record.value)
        except (ValueError, KeyError, IndexError, EOFError):
            return None
        same = entry["run_id"].encode() == match[1] and entry["seq"] == int(match[2])
        return (bytes.fromhex(match[3].decode()), entry) if same and entry["events"] else None

    def _bury(self, name: bytes) -> None:
        """A tombstone is for what can never count, and takes it out of what waits for its predecessor."""
        if name in self._counting:
            self.wrong.append(f"buried: entry {name.hex()} counts, and has a tombstone")
        for waiting in self._early.values():
            waiting[:] = [each for each in waiting if each[0] != name]

    def _check_cause(self, entry: Datum) -> None:
        # What a run had no room for was not applied: who takes over before its position is kept reads it once more.
        dropped = any(name.endswith("SignalDropped") for name, _ in entry["events"])
        if (cause := entry["cause"]) and not dropped:
            known = (entry["run_id"], cause["topic"], cause["partition"], cause["offset"])
            if known in self._causes and known[3] < self._reused.get(known[1:3], known[3] + 1):
                self.wrong.append(f"twice: input {known[1:]} was applied twice to run {entry['run_id']}")
            self._causes.add(known)

    def _apply(self, run: LoggedRun, name: str, event: Datum, at_ms: int) -> None:
        run.order.append(name)
        if name in GOES_OUT and (why := run.pauses.goes(name, at_ms)):
            self.wrong.append(f"{why} of run {run.id}")
        if name == "RunRequested":
            run.begin(event)
        elif name == "RunStarted":
            run.status = "running"
            self._not_early(run, at_ms, run.not_before_ms, name)
        elif name == "CallProposed":
            # What a policy is told is what the run had cost when its code was asked.
            self._cost = cost_of(self.runs, run) if self._cost is None else self._cost
            self._check_key(run, run.propose(event, self._cost))
        elif name == "SleepStarted":
            run.sleeps[event["step"]] = event["until_ms"]
        elif name == "SleepEnded":
            if event["step"] not in run.sleeps:
                self.wrong.append(f"unasked: a sleep of step {event['step']} of run {run.id} ends, and none began")
            self._not_early(run, at_ms, run.sleeps.pop(event["step"], 0), name)
        elif name in OF_WAITS:
            self.wrong += [f"{why} (run {run.id})" for why in run.mail.follow(name, event, at_ms)]
        elif name in OF_CHILDREN:
            self.wrong += [f"{why} (run {run.id})" for why in run.children.follow(name, event)]
            if event.get("used"):
                run.purse.heard.append(f"{run.id}.{event['step']}")
        elif name == "StepGivenUp":
            self._given_up(run, event["step"], at_ms)
        elif name in OF_BUDGETS:
            self.limits.follow(self.runs, run, name, event, at_ms=at_ms)
        elif name in OF_PAUSES:
            run.pauses.follow(name, event, at_ms)
        elif name in _TELLS:
            if run.status == _TELLS[name]:
                self.wrong.append(f"status: {name} at seq {run.seq} of run {run.id}, which is {run.status}")
            run.status = _TELLS[name]
        elif name in ENDS:
            run.status, run.end = ENDS[name], event
            run.ends.append((run.status, run.seq, event.get("result", "null")))
        elif name in GOES_ON:
            self.wrong += run.go_on(name, event, at_ms)
            if name == "CallRenewed":
                run.calls[event["step"]].cost = cost_of(self.runs, run)
                self._check_key(run, run.calls[event["step"]])
        elif name.startswith("Approval") or name == "CallJudged":
            self._approval(run, name, event, at_ms)
        elif name == "RunAnnotated":
            self.wrong += run.annotate(event)
        elif name not in _ASIDE:
            self._call(run, name, event, at_ms)

    def _given_up(self, run: LoggedRun, step: int, at_ms: int) -> None:
        """The agent waits no longer: a doubt stays with people, all else is over."""
        call = run.calls.get(step)
        if call is None:
            given = run.mail.give_up(step) or run.children.give_up(step, at_ms)
            if step not in run.sleeps and not given:
                self.wrong.append(f"fold: step {step} of run {run.id} was given up and is not open")
            if step in run.sleeps:
                run.gone[step] = run.sleeps.pop(step)
            return
        if call.settled:
            self.wrong.append(f"terminal: call {call.id} was given up after its outcome")
        if call.phase == "dispatched":
            ordered = call.ordered[call.attempt]
            if ordered == [at_ms] or run.pauses.keeps_back(ordered[-1], at_ms):
                call.never_sent = call.attempt
        if call.phase != "doubt":
            call.phase, call.asked = "given_up", None
        call.left = call.phase == "doubt"

    def _check_key(self, run: LoggedRun, call: LoggedCall) -> None:
        if _key_of(run, call) != call.key:
            self.wrong.append(f"key: call {call.id} has an idempotency key that is not its own")

    def _call(self, run: LoggedRun, name: str, event: Datum, at_ms: int) -> None:
        call = run.calls.get(event["step"])
        if call is None:
            self.wrong.append(f"fold: {name} of run {run.id} is about no call")
            return
        if call.settled and name != "LateResultRecorded":
            self.wrong.append(f"terminal: {name} after the outcome of call {call.id}")
        attempt = event["attempt"]
        if call.phase == "held" and name not in ("DoubtResolved", "CallCompleted", "LateResultRecorded"):
            self.wrong.append(f"held: {name} of call {call.id}, and no operator has said a word")
        if name == "CallDispatched":
            if attempt - call.spent > _TRIES.get(call.tool, attempt):
                self.wrong.append(f"held: attempt {attempt} of {call.id} goes out, and no operator has said a word")
            if attempt not in call.attempts:
                self._not_early(run, at_ms, call.retry_ms, name)
                self.wrong += call.undecided(attempt, at_ms)
            call.ordered.setdefault(attempt, []).append(at_ms)
            call.phase, call.attempt = "dispatched", attempt
            self.wrong += let_out(self.runs, run, call, attempt)
            call.attempts.add(attempt)
            return
        if call.phase == "dispatched":
            call.waited_ms = max(call.waited_ms, at_ms - call.ordered[call.attempt][-1])
            call.never_sent = call.attempt if call.ordered[call.attempt] == [at_ms] else 0
        if name == "AttemptFailed":
            call.phase, call.retry_ms = "backoff", event["retry_ms"]
            call.spent += event["failure"]["code"] in _UNSENT  # it was not sent at all
        elif name == "CallCompleted":
            call.phase, call.result, call.how = "completed", event["result"], event["how"]
        elif name == "CallFailed":
            call.phase, call.failure = "failed", event["failure"]["code"]
        elif name == "CallDoubted":
            call.phase, call.attempt, call.back = "doubt", attempt, (attempt, at_ms)
        elif name == "CallHeld":
            call.failure = event["failure"]["code"]
            enough = attempt - call.spent >= _TRIES.get(call.tool, attempt + 1)
            if not enough and not call.failure.startswith("budget_"):
                self.wrong.append(f"held: call {call.id} waits for an operator after attempt {attempt}")
            call.phase, call.attempt = "held", attempt
        elif name == "DoubtResolved" and call.phase == "held":
            call.phase, call.spent = "released", attempt
            run.purse.let_on |= call.failure.startswith("budget_") and event["verdict"] == "did_not_happen"
            if event["verdict"] != "did_not_happen":
                call.said[attempt] = event["verdict"]
        elif name == "DoubtResolved":
            # By people, where they were asked; what an operator says of a `once` call never lets it out again.
            told, call.told = call.told, ""
            if told != event["verdict"] and (told or (call.effect, event["verdict"]) == ("once", "did_not_happen")):
                self.wrong.append(f"doubt: {call.id} is resolved as {event['verdict']}, and people said {told!r}")
            call.said[attempt] = event["verdict"]
            call.spent = max(call.spent, attempt + 1 - _TRIES.get(call.tool, 0))
        elif name == "LateResultRecorded":
            call.late.append(event["result"])
        else:
            self.wrong.append(f"fold: {name} is not an event that the checker knows")

    def _approval(self, run: LoggedRun, name: str, event: Datum, at_ms: int) -> None:
        call = run.calls.get(event["step"])
        if call is None or call.settled:
            self.wrong.append(f"fold: {name} of run {run.id} is about no open call")
        elif name == "ApprovalRequested":
            self._asked(run, call, event, at_ms)
        elif name == "CallJudged":
            call.held, call.permit = call.tool.startswith("wipe_"), None
        elif call.asked is None or call.asked.seq != event["approval"]:
            self.wrong.append(f"fold: {name} of call {call.id} is about no open approval")
        elif name == "ApprovalEscalated":
            due = min(filter(None, (call.asked.escalates_ms, call.asked.expires_ms)))
            self._not_early(run, at_ms, due, name)
            call.asked.expires_ms, call.asked.escalates_ms = event["expires_ms"], 0
            call.asked.question, call.asked.name = event["question"], f"{call.id}~{event['question'][:32]}"
        else:
            self._decided(run, call, event, at_ms)

    def _asked(self, run: LoggedRun, call: LoggedCall, event: Datum, at_ms: int) -> None:
        if call.asked is not None:
            self.wrong.append(f"undecided: call {call.id} waits for two approvals")
        after_ms = event["requirement"]["escalate_ms"]
        escalates_ms = at_ms + after_ms if after_ms else 0
        name, about = f"{call.id}~{event['question'][:32]}", event["about"]
        call.asked = Question(
            name, run.seq, event["attempt"], event["question"], event["expires_ms"], escalates_ms, about
        )
        if about:
            if call.phase != "doubt" or event["attempt"] != call.attempt + 1:
                self.wrong.append(f"doubt: people are asked what came of {call.id}, which is not in doubt")
            return
        if not call.held:
            call.held, call.held_from = True, self._offset
        call.phase, call.permit, call.back = "approval", None, (event["attempt"] - 1, at_ms)

    def _decided(self, run: LoggedRun, call: LoggedCall, event: Datum, at_ms: int) -> None:
        question = call.asked
        assert question is not None, "only what was asked is decided"
        call.asked, call.phase = None, call.phase if question.about else "proposed"
        if event["verdict"] == "expire":
            # Earlier than that only a decision ends it that does not hold, which is told by the message.
            self._not_early(run, at_ms, 0 if event["message"] else question.expires_ms, "ApprovalDecided")
            return
        self.on_decided(run, question, event, self._partition)
        if question.about:
            call.told = _CAME.get(event["verdict"], "nothing")
            return
        if event["verdict"] in ("approve", "edit"):
            call.permit = event["covers"], event["expires_ms"]
            call.permits.append((event["token"], question.attempt, event["covers"]))
        if event["verdict"] in ("edit", "amend"):
            if call.attempts:
                self.wrong.append(f"key: call {call.id} was edited after it was sent")
            call.args, call.key = event["args"], event["key"]
            self._check_key(run, call)
        call.answered = event["verdict"] == "answer"

    def _not_early(self, run: LoggedRun, at_ms: int, due_ms: int, name: str) -> None:
        if at_ms < due_ms:
            self.wrong.append(f"early: {name} of run {run.id} at {at_ms}, due at {due_ms}")


def _key_of(run: LoggedRun, call: LoggedCall) -> str:
    parts = {"environment": "sim", "run": run.id, "step": call.step, "tool": call.tool}
    text = json.dumps({"args": json.loads(call.args), **parts}, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()
