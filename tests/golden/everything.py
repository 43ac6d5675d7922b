"""One recorded platform that has everything users can see: runs of every kind, people, budgets, letters, forks, a blob.

Nothing here depends on the clock, on chance or on what ran before, so the same records come out each time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from refold.core import events
from refold.core.approval import decision, signature
from refold.core.approval.authority import Authority
from refold.core.approval.ballot import Remember, Vote
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision, ToolFacts
from refold.core.approval.policy import Policy
from refold.core.approval.question import named
from refold.core.approval.signature import SigningKey
from refold.core.events import Event, Failure, ForkedFrom, RetryPolicy, Spendable, Used
from refold.core.ids import RunId, callback_digest, callback_token, home, log_key
from refold.core.messages import (
    ApprovalDecision,
    ApprovalRequest,
    ApprovalVote,
    CatalogEntry,
    DeadLetter,
    Hold,
    Member,
    MemberAgent,
    MemberTool,
    RunErased,
    RunRequest,
    RunSignal,
    StreamPart,
    WindowSpent,
)
from refold.core.planning import asking
from refold.core.planning.family import request_digest
from refold.core.planning.verdict import Rules
from refold.core.planning.windows import value_digest
from refold.core.run.erased import erased_key
from refold.core.run.state import RunState
from refold.core.wire import canonical, codec
from refold.core.wire.blobs import pointer_of
from refold.core.wire.canonical import idempotency_key
from refold.engine.adapters.memory.broker import MemoryBroker
from tests.cli.chronicle import NOW, TOPICS, Chronicle
from tests.core.decisions import VOTING
from tests.roots import TRUST, entry

PARTITIONS = 4
ENVIRONMENT = "dev"
SERVICE = SigningKey("approval", "decision", bytes(31) + b"d")
RETIRED = SigningKey("old-votes", "vote", bytes(31) + b"o")
PEOPLE = {"roles": {"lead": ["ada", "bob", "cyd"], "owner": ["dan"]}, "revoked": ["mal"]}
ALL_TOPICS = (*TOPICS, "approval-voted", "approval-decided", "budget-spent", "member", "run-stream.default")
HOUR, DAY = 3_600_000, 86_400_000
EVIL = "a\x1b[2Jb\u202ec\x00d"
KEPT = {"for": "30d", "uses": 9}
POLICY = Policy.parse(
    {
        "doubt": {"approvers": ["role:lead"]},
        "rules": [
            {"name": "reads", "when": "tool.effect == 'pure'", "allow": True},
            {"name": "never", "when": "tool.name == 'nuke'", "deny": "not in this house"},
            {"name": "two", "when": "tool.name == 'wipe'", "require": {"approvers": ["role:lead"], "quorum": 2}},
            {
                "name": "rising",
                "when": "tool.name == 'raise'",
                "require": {
                    "approvers": ["dan"],
                    "expires": "2h",
                    "escalate": {"after": "1m", "to": ["role:lead"]},
                    "message": "look at the budget first",
                },
            },
            {"name": "asks", "when": "tool.name == 'push'", "require": {"approvers": ["role:lead"], "remember": KEPT}},
        ],
    }
)
OLD = Policy.parse({"rules": [{"name": "all", "when": "true", "allow": True}]})
TOOLS = {
    name: ToolFacts(name, "1", f"schema of {name}", effect)
    for name, effect in (("look", "pure"), ("push", "keyed"), ("wipe", "once"), ("raise", "keyed"), ("nuke", "once"))
}


@dataclass
class Platform(Chronicle):
    """The topics, and hands that write into them as the services do."""

    broker: MemoryBroker = field(default_factory=lambda: MemoryBroker(ALL_TOPICS, PARTITIONS, clock_ms=lambda: NOW))
    catalog: Catalog = field(default_factory=lambda: Catalog(TRUST))
    published: int = 0

    def publish(self, name: str, kind: str, content: Any, *, counter: int = 0) -> None:
        """Writes an entry of the catalog into every partition, signed by the authority."""
        self.published += 1
        made = entry(name, kind, content, actor="ann", at_ms=NOW, counter=counter or self.published)
        self.spread("catalog", name.encode(), codec.encode(made))
        self.catalog.follow(self.catalog.position, name.encode(), codec.encode(made))

    def spread(self, topic: str, key: bytes, value: bytes | None) -> None:
        """One record in every partition."""
        for number in range(PARTITIONS):
            self.write(topic, "", key=key, value=value, partition=number)

    def begin(self, run: str, agent: str = "deploy", given: str = "{}", **more: Any) -> None:
        """A run and the start of its code."""
        self.add(run, [requested(agent, given, **more)], [started()], tells=True)

    def go(self, run: str, *batches: Sequence[Event]) -> None:
        """Entries that say whether the run waits, as those of a planner do."""
        self.add(run, *batches, tells=True)

    def state(self, run: str) -> RunState:
        """A run by its log."""
        return self.states[run]

    def call(self, run: str, tool: str = "look", args: str = "{}", **more: Any) -> int:
        """A call that went out; returns its step."""
        step = len(self.state(run).steps) + 1
        self.go(run, [self.proposed(run, tool, args, **more), events.CallDispatched(step, 1, NOW + 60_000)])
        return step

    def proposed(self, run: str, tool: str, args: str = "{}", **more: Any) -> events.CallProposed:
        """A call of the next step."""
        step = len(self.state(run).steps) + 1
        key = idempotency_key(environment=ENVIRONMENT, run=RunId(run), step=step, tool=tool, args=args)
        retry = more.pop("retry", RetryPolicy(3, 1_000, 8_000))
        effect = TOOLS[tool].effect if tool in TOOLS else "keyed"
        return events.CallProposed(step, tool, args, key, "default", effect, 30_000, retry, **more)

    def ask(self, run: str, tool: str = "push", args: str = "{}") -> ApprovalRequest:
        """A call about which the policy asks people; returns what they are asked."""
        state = self.state(run)
        authority = Authority(TOOLS, ENVIRONMENT, self.catalog)
        new, at_ms = self.proposed(run, tool, args), NOW + self.nonce + 1
        call, asked = asking.propose(state, new, authority, at_ms, seq=state.head.seq + 1, ahead=0)
        assert isinstance(asked, events.ApprovalRequested), f"{tool} asks nobody"
        self.go(run, [call, asked])
        return self.question(run, call.step)

    def question(self, run: str, step: int) -> ApprovalRequest:
        """What people are asked about a step now."""
        state = self.state(run)
        return asking.question_of(state, state.call(step), state.open[step])

    def doubt(self, run: str, *, ask: bool) -> None:
        """The outcome of a new call is unknown; with `ask` the policy's people are asked for it."""
        step = self.call(run, "wipe", '{"table":"users"}')
        doubted: list[Event] = [events.CallDoubted(step, 1, Failure("lost", "the executor died"))]
        if ask:
            state, now = self.state(run), NOW + self.nonce + 1
            rules = replace(Rules(), authority=Authority(TOOLS, ENVIRONMENT, self.catalog))
            doubted += asking.ask_what_came(asking.foreseen(state, doubted, now), step, now, rules)
        self.go(run, doubted)

    def vote(self, asked: ApprovalRequest, actor: str, action: str = "approve", **more: Any) -> Vote:
        """A signed vote."""
        self.nonce += 1
        vote = Vote(
            approval=asked.approval_id,
            vote=f"{actor}-{action}-{self.nonce}",
            question=asked.question,
            environment=asked.environment,
            actor=actor,
            action=action,
            issued=NOW + self.nonce,
            **more,
        )
        self.say(vote)
        return vote

    def say(self, vote: Vote, key: SigningKey = VOTING) -> int:
        """Writes a vote as a gateway does; returns its offset."""
        run = vote.approval.partition("/")[0]
        message = ApprovalVote(vote.approval, vote.vote, RunId(run), signature.sign(vote.payload(), key))
        name = f"{vote.approval}/{vote.vote}".encode()
        return self.write("approval-voted", run, key=name, value=codec.encode(message))

    def decided(self, asked: ApprovalRequest, verdict: str, *votes: Vote, **more: Any) -> tuple[Decision, str]:
        """A signed decision by these votes, in its topic."""
        cast = tuple(decision.Cast(v.actor, "role:lead", VOTING.kid, v.vote, v.issued) for v in votes)
        tokens = tuple(signature.sign(v.payload(), VOTING) for v in votes)
        given = {"votes": cast, "tokens": tokens, "issued_ms": NOW + self.nonce, "nonce": f"n{self.nonce}"}
        made = decision.build(asked, verdict, **{**given, **more})  # type: ignore[arg-type]
        token = signature.sign(made.payload(), SERVICE)
        message = ApprovalDecision(asked.approval_id, asked.run_id, token)
        self.write("approval-decided", asked.run_id, key=asked.approval_id.encode(), value=codec.encode(message))
        return made, token

    def accept(self, asked: ApprovalRequest, made: Decision, token: str) -> None:
        """The planner takes a decision, with what follows of it."""
        rules = replace(Rules(), authority=Authority(TOOLS, ENVIRONMENT, self.catalog))
        run, now = asked.run_id, NOW + self.nonce + 1
        self.go(run, asking.accepted(self.state(run), asked.step, made, token, now=now, rules=rules))

    def done(self, run: str, step: int, result: str = '"ok"') -> None:
        """The result of a call."""
        attempt = self.state(run).open[step].attempt
        self.go(run, [events.CallCompleted(step, attempt, result)])


def requested(agent: str = "deploy", given: str = "{}", **more: Any) -> events.RunRequested:
    """The request of a run."""
    digest = request_digest(RunRequest(RunId(""), agent, given))
    return events.RunRequested(agent, given, digest, "seed", more.pop("requester", "ann"), **more)


def started() -> events.RunStarted:
    """The start of its code."""
    return events.RunStarted("1+py3.11", "shop", {"code": "c0de", "tools": "7001", "python": "3.11"})


def build() -> Platform:
    """The platform, made anew."""
    found = Platform()
    for chapter in (_authority, _ends, _steps, _waits, _people, _decisions, _doubts, _families, _holds, _redriven):
        chapter(found)
    for chapter in (_budgets, _changes, _records, _letters, _live, _members, _forks, _values, _schedules):
        chapter(found)
    return found


def _authority(log: Platform) -> None:
    for key in (VOTING, SERVICE, RETIRED):
        content = key.public().content()
        log.publish(f"key/{key.kid}", "key", {**content, "revoked": True} if key is RETIRED else content)
    log.publish("roles", "roles", PEOPLE)
    for policy in (OLD, POLICY):
        log.publish(f"policy/{policy.digest}", "policy", policy.content)
    log.publish("current", "current", POLICY.digest)
    log.publish("halt/tool/nuke", "halt", "too dangerous")
    log.publish("halt/agent/batch", "halt", "wait for the audit")
    forged = CatalogEntry("roles", "roles", '{"roles":{"lead":["mal"]},"revoked":[]}', "mal", NOW, 99, "no signature")
    log.write("catalog", "", key=b"roles", value=codec.encode(forged), partition=2)


def _ends(log: Platform) -> None:
    log.begin("done-1", given='{"n":1}', labels={"team": "shop", "tenant": "acme"}, sessions=["s-1", "s-2"])
    step = log.call("done-1", "look", '{"path":"a.txt"}', label="read the plan")
    log.go(
        "done-1",
        [events.AttemptFailed(step, 1, Failure("net", "gone", "app.py:7"), unknown=True, retry_ms=NOW + 900)],
        [events.CallDispatched(step, 2, NOW + 60_000)],
        [events.CallDispatched(step, 2, NOW + 90_000)],
    )
    log.done("done-1", step, '{"text":"hello"}')
    log.actor = "planner/2"
    log.go(
        "done-1",
        [events.NoteRecorded(2, "plan", '{"parts":3}'), events.CheckpointReached(3, "half")],
        [events.StatusSet("almost there"), events.TaskFailed("Task-7", Failure("ValueError", "no", "app.py:9"))],
        [events.PatchTaken("faster")],
        [events.RunCompleted('{"sum":3}')],
    )
    log.actor = "planner"
    log.begin("failed-1", labels={"team": "shop"})
    step = log.call("failed-1", "look", '{"path":"b.txt"}')
    log.go("failed-1", [events.CallFailed(step, 1, Failure("boom", "it broke", "tools.py:3"), acted=True)])
    log.go("failed-1", [events.RunFailed(Failure("raised", "ValueError: no", "app.py:12 in deploy"))])
    log.begin("cancelled-1", requester="bob")
    log.call("cancelled-1")
    log.go("cancelled-1", [events.RunCancelled("enough", "bob")])
    log.add("pending-1", [requested("batch", not_before_ms=NOW + DAY, deadline_ms=NOW + 2 * DAY)])
    log.begin("halted-1", "batch")
    log.go("halted-1", [log.proposed("halted-1", "push", '{"to":"prod"}')])


def _steps(log: Platform) -> None:
    log.begin("sleeping-1")
    log.go("sleeping-1", [events.SleepStarted(1, NOW + 1)], [events.SleepEnded(1), events.SleepStarted(2, NOW + HOUR)])
    log.begin("backoff-1")
    step = log.call("backoff-1", "push", '{"to":"prod"}')
    log.go("backoff-1", [events.AttemptFailed(step, 1, Failure("busy", "try later"), unknown=False, retry_ms=NOW + 77)])
    log.begin("given-up-1", sessions=["s-2"])
    first = log.call("given-up-1", "push", '{"n":1}')
    second = log.call("given-up-1", "agent:helper@1", '{"n":2}', label=f"push (pure) {EVIL}")
    log.go("given-up-1", [events.StepGivenUp(first)])
    log.go("given-up-1", [events.LateResultRecorded(first, 1, "completed", '"late"', contradicts=False)])
    log.done("given-up-1", second)
    log.begin("evil-1", given=json.dumps(EVIL), labels={"team": EVIL}, requester=EVIL)
    log.go("evil-1", [events.StatusSet(f"reading {EVIL}"), events.CheckpointReached(1, EVIL)])
    log.call("evil-1", "push", json.dumps({"text": EVIL}), label=EVIL)
    log.begin("large-1", given=json.dumps("x" * 300))
    step = log.call("large-1", "look", pointer_of(LARGE))
    log.done("large-1", step, pointer_of(LARGE))
    log.call("large-1", "look", json.dumps({"looks": "like", "a": pointer_of(LARGE)}))


LARGE = json.dumps("y" * 70_000).encode()
TOKEN = callback_token(RunId("waiting-1"), "seed", 1)


def _waits(log: Platform) -> None:
    log.begin("waiting-1", labels={"tenant": "acme"}, sessions=["s-3"])
    paid = events.CallbackCreated(1, "paid", callback_digest(TOKEN), '{"type":"integer"}', NOW + HOUR)
    log.go("waiting-1", [paid, events.WaitStarted(2, "go", "data.n == 1", NOW + DAY)])
    log.go("waiting-1", [events.SignalReceived("s-1", "go", '{"m":2}', EVIL), events.MatchFailed(2, "s-1", "no key n")])
    log.go("waiting-1", *[[events.SignalReceived(f"n-{n}", "other", str(n), "bob")] for n in range(7)])
    log.go("waiting-1", [events.SignalDropped("big", "other", 70_000, "bob"), events.WaitsPostponed(2)])
    log.begin("waited-1")
    log.go("waited-1", [events.WaitStarted(1, "go"), events.WaitStarted(2, "never", until_ms=NOW + 5)])
    log.go("waited-1", [events.SignalReceived("s-1", "go", '{"ok":true}', "bob"), events.WaitEnded(1, "s-1")])
    log.go("waited-1", [events.WaitExpired(2)])
    for step, name in ((3, "paid"), (4, "refused")):
        token = callback_token(RunId("waited-1"), "seed", step)
        log.go("waited-1", [events.CallbackCreated(step, name, callback_digest(token))])
    log.go("waited-1", [events.CallbackCompleted(3, "7", "k-1", "psp")])
    log.go("waited-1", [events.CallbackFailed(4, Failure("failed", "declined"), "k-2", "psp")])
    log.go("waited-1", [events.SignalSent(5, "waiting-1", "go", '{"n":1}'), SUBMITTED, events.RunCompleted("null")])


SUBMITTED = events.RunSubmitted(6, "late-1", "late", '{"day":3}')


def _people(log: Platform) -> None:
    """Questions that are open, with all that may be said of them."""
    for run in ("asked-1", "asked-2", "asked-3", "asked-4"):
        log.begin(run, policy=POLICY.digest, sessions=["s-4"])
    log.ask("asked-1", "push", canonical.dumps({"before": "a\nb", "after": "a\nc", "text": "one\ntwo"}))
    two = log.ask("asked-2", "wipe", canonical.dumps({"table": "users", "note": "x" * 120}))
    taken_back = log.vote(two, "bob")
    log.vote(two, "ada")
    log.vote(two, "ada", "approve", message="I looked")
    log.vote(two, "bob", "withdraw")
    log.vote(two, "eve", "approve")
    log.vote(two, "cyd", "delegate", to=("fay",))
    log.vote(two, "ada", "comment", message=f"why now? {EVIL}")
    log.vote(two, "cyd", "remind")
    log.say(replace(taken_back, vote="forged"), RETIRED)
    log.ask("asked-3", "raise", '{"by":10}')
    log.go("asked-3", asking.due(log.state("asked-3"), 1, NOW + 60_000))
    edited = log.ask("asked-4", "wipe", '{"table":"users"}')
    log.vote(edited, "ada", "edit", args='{"table":"test"}')
    lie = log.question("asked-1", 1)
    rival = named(replace(lie, requester="mal"))
    log.write("approval-requested", "asked-1", key=rival.approval_id.encode(), value=codec.encode(rival))
    log.write("approval-requested", "asked-2", key=b"asked-2/9~beef", value=codec.encode(lie))


def _decisions(log: Platform) -> None:
    def asked(run: str, args: str = '{"to":"prod"}') -> ApprovalRequest:
        log.begin(run, policy=POLICY.digest)
        return log.ask(run, "push", args)

    given = asked("granted-1")
    vote = log.vote(given, "ada", "approve", remember=Remember(HOUR, 3), message="go")
    made, token = log.decided(given, "approve", vote, grant=decision.Grant(given.approval_id, "run", NOW + DAY, 3, 0))
    log.accept(given, made, token)
    log.done("granted-1", 1)
    again = log.ask("granted-1", "push", '{"to":"prod"}')
    assert made.grant is not None
    used, by = log.decided(again, "approve", grant=made.grant._replace(use=1), votes=made.votes, given=token)
    log.accept(again, used, by)
    for run, verdict, more in (
        ("approved-1", "approve", {}),
        ("edited-1", "edit", {"args": '{"to":"test"}'}),
        ("rejected-1", "reject", {"message": "too much"}),
        ("answered-1", "answer", {"result": '"by hand"'}),
    ):
        question = asked(run)
        vote = log.vote(question, "ada", verdict, **more)
        told = {"message": more["message"]} if "message" in more else {}
        told |= {"edited": more["args"]} if "args" in more else {}
        told |= {"result": more["result"]} if "result" in more else {}
        made, token = log.decided(question, verdict, vote, **told)
        log.accept(question, made, token)
    why, late = "the decision did not hold any more when it came", asked("expired-1")
    expired = events.ApprovalDecided(1, 3, "expire", message=why, question=late.question)
    log.go("expired-1", [expired, events.CallFailed(1, 0, Failure("approval_expired", "nobody decided in time"))])
    closed = asked("closed-1")
    log.vote(closed, "ada", "comment", message="too late")
    log.go("closed-1", [events.RunCancelled("enough", "ann")])
    refused = asked("refused-1")
    offset = log.say(replace(log.vote(refused, "bob"), vote="again", action="approve", issued=NOW + 9_999))
    letter = DeadLetter("approval-voted", home("refused-1", 4), offset, "future", "it is ahead", b"k", b"v", "a", NOW)
    log.write("dead-letter-approval", "refused-1", key=b"k", value=codec.encode(letter))


def _doubts(log: Platform) -> None:
    log.begin("doubt-1")
    log.doubt("doubt-1", ask=False)
    log.begin("doubt-2", policy=POLICY.digest)
    log.doubt("doubt-2", ask=True)
    asked = log.question("doubt-2", 1)
    log.vote(asked, "ada", "comment", message="I am on it")
    log.begin("settled-1", policy=POLICY.digest)
    log.doubt("settled-1", ask=True)
    asked = log.question("settled-1", 1)
    vote = log.vote(asked, "bob", "approve", message="nothing there")
    log.accept(asked, *log.decided(asked, "approve", vote, message="nothing there"))
    log.begin("settled-2")
    log.doubt("settled-2", ask=False)
    said = events.DoubtResolved(1, 1, "happened", "op", "seen in the ledger")
    log.go("settled-2", [said, events.CallCompleted(1, 1, '{"rows":3}')])
    log.go("settled-2", [events.LateResultRecorded(1, 1, "completed", '{"rows":4}', contradicts=True)])
    log.begin("held-1")
    step = log.call("held-1", "push", "{}", retry=RetryPolicy(1, 1, 1, [], "hold"))
    log.go("held-1", [events.CallHeld(step, 1, Failure("busy", "no seats left"))])


def _families(log: Platform) -> None:
    log.begin("parent-1", "orders", '{"order":7}', sessions=["s-5"])
    log.go("parent-1", [events.ChildStarted(1, "packer", '{"box":1}'), events.ChildStarted(2, "payer", "{}")])
    log.go("parent-1", [events.ChildStarted(3, "mailer", "{}", outlives=True)])
    log.go("parent-1", [events.EventPublished(4, "paid", '{"sum":3}', ["packer", "payer"])])
    for child, agent in (("parent-1.1", "packer"), ("parent-1.2", "payer"), ("parent-1.4_1", "packer")):
        log.begin(child, agent, above=["orders"])
    log.begin("parent-1.1.1", "picker", above=["orders", "packer"], policy=POLICY.digest)
    log.ask("parent-1.1.1", "push", '{"shelf":9}')
    log.go("parent-1.2", [events.RunFailed(Failure("raised", "no money"))])
    log.go("parent-1", [events.ChildCompleted(2, "failed", failure=Failure("raised", "no money"), used=Used(5, 6, 1))])
    log.go("parent-1.4_1", [events.RunCompleted('"packed"')])
    log.go("parent-1", [events.ChildBilled("parent-1.4_1", Used(1, 2, 3))])
    log.begin("crowd-1", "orders")
    for step in range(1, 43):
        log.go("crowd-1", [events.ChildStarted(step, "packer", "{}")])
        log.begin(f"crowd-1.{step}", "packer", above=["orders"])
        if step % 2:
            log.go(f"crowd-1.{step}", [events.RunCompleted("1")])


def _holds(log: Platform) -> None:
    for run, kind, more in (
        ("stalled-1", "stalled", {"needs": "1+py3.11", "code": "c0de2"}),
        ("quarantined-1", "quarantined", {"retry_ms": NOW + 60_000, "tries": 2}),
    ):
        log.begin(run, sessions=["s-6"])
        log.call(run)
        hold = Hold(RunId(run), kind, "non_determinism", "step 1 is another call", "app.py:7\napp.py:9", **more)
        hold = replace(hold, member="p-1", at_ms=NOW + 5)
        log.write("run-snapshot", run, key=f"hold/{run}".encode(), value=codec.encode(hold))
    log.begin("paused-1", labels={"team": "shop"})
    log.call("paused-1")
    log.go("paused-1", [events.RunPaused("op", "look first")])
    log.begin("paused-1.1", above=["deploy"])
    log.go("paused-1.1", [events.RunPaused("op", "", "parent")])
    log.begin("resumed-1")
    log.go("resumed-1", [events.RunPaused("ann", "", "requester")], [events.RunUnpaused("ann", "requester")])
    log.go("resumed-1", [events.SleepStarted(1, NOW + HOUR)])


def _redriven(log: Platform) -> None:
    log.begin("again-1")
    first = log.call("again-1", "push", '{"n":1}')
    log.done("again-1", first)
    second = log.call("again-1", "push", '{"n":2}')
    log.go("again-1", [events.CallFailed(second, 1, Failure("boom", "it broke"))])
    log.go("again-1", [events.RunFailed(Failure("raised", "boom"))])
    retried = events.RunRetried("op", "mended", 2, [], '{"n":3}', 50, 0, NOW + DAY, 3, 1_000, 2_000, 9)
    log.go("again-1", [retried, events.RunResumed("op")])
    third = log.call("again-1", "push", '{"n":3}', asked='{"n":2}')
    log.done("again-1", third)
    log.go("again-1", [events.RunCompleted('"at last"')])
    log.begin("again-2")
    step = log.call("again-2", "push", '{"n":1}')
    failed: list[Event] = [
        events.CallFailed(step, 1, Failure("boom", "it broke")),
        events.RunFailed(Failure("call_failed", "boom")),
    ]
    log.go("again-2", failed)
    log.go("again-2", [events.RunRetried("op", again=[1]), events.CallRenewed(1)])
    log.go("again-2", [events.CallDispatched(1, 1, NOW + 60_000)])


def _forks(log: Platform) -> None:
    log.begin("source-1")
    for run in ("source-1", "live-1"):
        if run == "live-1":
            head = log.state("source-1").head
            source = ForkedFrom("source-1", head.seq, head.id, ["source-1"])
            log.begin(run, forked=source)
        first = log.call(run, "push", '{"n":1}')
        log.done(run, first)
        second = log.call(run, "push", '{"n":2}')
    key = idempotency_key(environment=ENVIRONMENT, run=RunId("live-1"), step=second, tool="push", args='{"n":2}')
    forked = events.RunForked(source, "op", "to see", '{"n":4}', "push", NOW + DAY, {str(second): key})
    log.go("live-1", [forked, events.CallRenewed(second), events.CallDispatched(second, 1, NOW + 60_000)])
    log.done("live-1", second)


def _budgets(log: Platform) -> None:
    limits = Spendable(tokens=1_000, nano_usd=2_500_000_000, calls=10, ms=DAY, then="ask", same=2)
    log.begin("budget-1", budget=limits)
    step = len(log.state("budget-1").steps) + 1
    call = log.proposed("budget-1", "look")
    held = events.CallReserved(step, 1, 400, 1_000_000_000)
    log.go("budget-1", [call, held, events.CallDispatched(step, 1, NOW + 60_000)])
    seq = log.state("budget-1").seqs[0]
    log.go("budget-1", [events.CallCompleted(step, 1, '"a"'), events.CallBilled(step, seq, 1, 350, 900_000_000)])
    log.go("budget-1", [events.BudgetReached("budget-1", "tokens", 850, 1_000, "ask")])
    log.go("budget-1", [events.CallRepeated(1, 2)])
    call = log.proposed("budget-1", "look", '{"n":2}')
    log.go("budget-1", [call, events.CallReserved(2, 1, 100, 5), events.CallDispatched(2, 1, NOW + 60_000)])
    log.go("budget-1", [events.RunCancelled("enough money", "ann")])
    said = {"tokens": 900, "nano_usd": 1_500_000_000, "calls": 7, "limits": Spendable(1_000, 2_000_000_000, 0)}
    for lane, (window, agent, label, value) in enumerate(
        (("2023-11-14", "", "", ""), ("2023-11", "deploy", "", ""), ("2023-11", "", "tenant", value_digest("acme")))
    ):
        spent = WindowSpent(window, agent, label, value, lane, 5, **said)  # type: ignore[arg-type]
        for number in range(PARTITIONS):
            key = f"{window}/{agent}{label}{value}/{lane}/p".encode()
            log.write("budget-spent", "", key=key, value=codec.encode(spent), partition=number)
    second = WindowSpent("2023-11-14", "", "", "", 3, 9, 200, 600_000_000, 1, Spendable(1_000, 2_000_000_000, 0))
    log.write("budget-spent", "", key=b"2023-11-14//3/p", value=codec.encode(second), partition=3)
    log.write("budget-spent", "", key=b"odd", value=b"odd", partition=0)


def _members(log: Platform) -> None:
    manifest = {"code": "c0de", "tools": "7001", "python": "3.11"}
    agents = [MemberAgent("deploy", "1", manifest), MemberAgent("deploy", "2", {**manifest, "code": "c0d2"})]
    schema = '{"properties":{"to":{"type":"string"}},"type":"object"}'
    push = MemberTool("push", "3", "keyed", "default", ["shop"], True, schema)
    look = MemberTool(EVIL, "", "pure", "default", [], False, "")
    members = [
        Member("planner-1", "planner", "shop", NOW, agents=agents[:1]),
        Member("planner-2", "planner", "shop", NOW + 5, agents=agents),
        Member("executor-1", "executor", "shop", NOW, "default", tools=[push]),
        Member("executor-2", "executor", "shop", NOW, "default", tools=[push, look], cut=True),
        Member("executor-3", "executor", "shop", NOW, "default", tools=[look]),
    ]
    for member in members:
        log.write("member", "", key=member.name.encode(), value=codec.encode(member), partition=0)
    log.write("member", "", key=b"executor-3", value=None, partition=0)
    log.write("member", "", key=b"planner-3", value=codec.encode(members[0]), partition=1)
    log.write("member", "", key=b"odd", value=b"odd", partition=0)


def _changes(log: Platform) -> None:
    log.begin("migrated-1")
    log.call("migrated-1")
    log.go("migrated-1", [events.RunMigrated("2+py3.11", "op", {"code": "c0de2"})])
    log.begin("judged-1", policy=OLD.digest)
    log.go("judged-1", [log.proposed("judged-1", "look", "{}", rule="all")])
    log.go("judged-1", [events.CallJudged(1, POLICY.digest, "reads"), events.CallDispatched(1, 1, NOW + 60_000)])
    log.begin("denied-1", policy=POLICY.digest)
    log.go("denied-1", [log.proposed("denied-1", "nuke"), events.CallFailed(1, 0, Failure("denied", "no", "never"))])


def _records(log: Platform) -> None:
    """Records that do not count, and runs whose records are not what they should be."""
    log.begin("raced-1")
    log.call("raced-1")
    log.void("raced-1")
    log.void("raced-1", prev=b"0" * 16, seq=99)
    log.write("run-log", "raced-1", key=b"junk", value=b"junk")
    log.begin("copied-1")
    log.call("copied-1")
    first = next(r for r in log.broker.log("run-log", home("copied-1", 4)).records if r.key.startswith(b"copied-1/"))  # type: ignore[union-attr]
    assert first.key is not None
    log.write("run-log", "copied-1", key=first.key, value=first.value)
    log.begin("changed-1")
    name, entry_, value = log.entry("changed-1", [events.StatusSet("hi")], seq=3, prev=log.state("changed-1").head.id)
    log.write("run-log", "changed-1", key=log_key(RunId("changed-1"), entry_.seq, name), value=value + b"x")
    log.begin("strayed-1")
    name, entry_, value = log.entry("strayed-1", [events.StatusSet("hi")], seq=3, prev=log.state("strayed-1").head.id)
    log.write("run-log", "", key=log_key(RunId("strayed-1"), entry_.seq, name), value=value, partition=0)
    log.begin("forked-1")
    head = log.state("forked-1").head
    for text in ("left", "right"):
        name, entry_, value = log.entry("forked-1", [events.StatusSet(text)], seq=head.seq + 1, prev=head.id)
        log.write("run-log", "forked-1", key=log_key(RunId("forked-1"), entry_.seq, name), value=value)
    log.begin("erased-1")
    key = log_key(RunId("erased-1"), 1, log.state("erased-1").heads[0].id)
    log.write("run-log", "erased-1", key=key, value=None)
    marker = RunErased(RunId("erased-1"), "beef", "d1ge57", "a/b.avro", ["default"], NOW)
    log.write("run-snapshot", "erased-1", key=erased_key(RunId("erased-1")), value=codec.encode(marker))


def _letters(log: Platform) -> None:
    said = RunSignal(RunId("done-1"), "x-1", "sing", '{"song":1}', "bob")
    offset = log.write("run-signalled", "done-1", key=b"done-1/x-1", value=codec.encode(said))
    place = home("done-1", 4)
    content = DeadLetter(
        "run-signalled",
        place,
        offset,
        "malformed",
        f"nobody sings {EVIL}",
        b"done-1/x-1",
        codec.encode(said),
        "planner",
        NOW,
    )
    log.write("dead-letter", "done-1", key=b"done-1/x-1", value=codec.encode(content))
    log.write("dead-letter", "done-1", key=b"odd", value=b"odd")
    other = replace(content, topic="tool-completed.default", code="conflict", at_ms=NOW + 7)
    log.write("dead-letter", "done-1", key=b"other", value=codec.encode(other))


def _live(log: Platform) -> None:
    name = log.state("backoff-1").call_id(1)
    for attempt, number, data in ((1, 1, {"text": "Hel"}), (1, 2, {"text": "lo"}), (2, 1, {"text": f"Again {EVIL}"})):
        part = StreamPart(RunId("backoff-1"), name, attempt, attempt * 10, number, "text", canonical.dumps(data))
        log.write("run-stream.default", "backoff-1", key=name.encode(), value=codec.encode(part))
    log.begin("noted-1")
    log.go("noted-1", [events.RunAnnotated("n-1", f"he called {EVIL}", "ann", "requester")])


def _schedules(log: Platform) -> None:
    spec = {"agent": "deploy", "cron": "15 2 * * *", "every": "PT0S", "zone": "Europe/Berlin"}
    ends = [{"tick": "2023-11-14T02:15:00+01:00", "run": "nightly.2", "status": "completed"}]
    shown = {"spec": spec, "next": ["2023-11-15T02:15:00+01:00"], "started": 1, "skipped": 2, "failed": 0}
    log.begin("nightly", "refold.schedule", labels={"schedule": "nightly"})
    log.go(
        "nightly", [events.StatusSet(json.dumps(shown | {"outcomes": ends}), "schedule"), events.WaitStarted(1, "set")]
    )
    log.begin("odd", "refold.schedule", labels={"schedule": EVIL})
    log.go("odd", [events.RunCancelled(EVIL, "ann")])


def _values(log: Platform) -> None:
    log.begin("exposed-1")
    shown = events.StatusSet("checks the cart"), events.StatusSet('[{"item":"pen","count":2}]', "cart")
    log.go("exposed-1", [*shown, events.StatusSet('{"text":"' + "long " * 20 + '"}', "draft")])
    log.call("exposed-1")
    log.go("exposed-1", [events.StatusSet('{"euro":7.5}', "total"), events.StatusSet(json.dumps(EVIL), "odd")])
    log.go("exposed-1", [events.StatusSet("7", EVIL), events.StatusSet("", "draft")])
    log.go("exposed-1", [events.WaitStarted(2, "add")])
    taken = events.SignalReceived("u-1", "add", '{"item":"pen"}', "ann"), events.WaitEnded(2, "u-1")
    log.go("exposed-1", [*taken, events.SignalAnswered(3, "u-1", '{"lines":1}'), events.WaitStarted(4, "add")])
    taken = events.SignalReceived("u-2", "add", "null", "ann"), events.WaitEnded(4, "u-2")
    refused = Failure("ValueError", f"no item {EVIL}", "shop.py:9 in add")
    log.go("exposed-1", [*taken, events.SignalAnswered(5, "u-2", "null", refused), events.WaitStarted(6, "add")])
    log.begin("living-1")
    log.go("living-1", [events.RunContinued('{"seen":3}')])
    link = events.Continued(log.state("living-1").head.id, b"12345678")
    log.add("living-1+2", [replace(requested(given='{"seen":3}'), continues=link)], [started()], tells=True)
