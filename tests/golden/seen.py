"""What users see of the recorded platform (`everything`): each command, what it printed, and its exit code.

`seen/*.txt` are goldens: a section for each command, `$ refold ...`, then stdout, stderr and the code where it is not
0. What users see may not change by accident. Where it changes on purpose, `python -m tests.golden.seen` writes the
files anew, and the commit that does so lists each difference with its reason.
"""

from __future__ import annotations

import copy
import json
import shlex
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from refold.cli import platform as cli_platform
from refold.cli.main import app
from refold.client.operations.approvals import Approvals
from refold.client.operations.runs import Runs
from refold.client.platform import Platform
from refold.core import events
from refold.core.errors import UnreachableError
from refold.core.events import Cause, Event
from refold.core.ids import RunId, callback_token, home
from refold.core.messages import ApprovalVote, DeadLetter, RunOperation, RunRequest, RunSignal
from refold.core.wire import codec
from refold.engine.adapters.memory.log import MemoryLogReader
from refold.engine.runtime import keys
from tests.cli.chronicle import NOW
from tests.core.decisions import VOTING
from tests.golden import everything
from tests.golden.everything import PARTITIONS, TOKEN
from tests.roots import PINNED, TRUST

GOLDENS = Path(__file__).with_name("seen")
LATER = NOW + 60_000
"""The time of the machine on which all commands are run."""

RUNS = [name for name in everything.build().states if not name.startswith("crowd-1.")]
SHOWN_AS_JSON = ("done-1", "evil-1", "large-1", "waiting-1", "granted-1", "doubt-2", "again-1", "budget-1", "parent-1")

Case = tuple[str, ...]


def reading() -> Iterator[tuple[str, Case]]:
    """Every command that reads, by the file of its golden."""
    for run in RUNS:
        yield "run-show", ("run", "show", run)
        yield "run-show-json", ("run", "show", run, "--json")
        yield "run-events", ("run", "events", run)
    for run in SHOWN_AS_JSON:
        yield "run-events-json", ("run", "events", run, "--json")
    for run in ("again-1", "granted-1", "waiting-1"):
        for at in ("1", "4", "2100-01-01T00:00Z", "999", "2001-01-01T00:00Z"):
            yield "run-at", ("run", "show", run, "--at", at)
        yield "run-at", ("run", "show", run, "--at", "3", "--json")
        yield "run-diff", ("run", "diff", run, "2", "5")
        yield "run-diff", ("run", "diff", run, "2", "5", "--json")
        yield "run-diff", ("run", "diff", run, "done-1")
        yield "run-audit", ("run", "events", run, "--audit")
    for name in ("", "cart", "status", "draft"):
        case = ("run", "value", "exposed-1", *([name] if name else ()))
        yield from (("run-value", (*case, *more)) for more in ((), ("--json",), ("--at", "5")))
    yield "run-value", ("run", "value", "done-1")
    yield "run-value", ("run", "value", "pending-1")
    yield "run-value", ("run", "value", "nobody")
    yield "run-value", ("run", "diff", "exposed-1", "5", "9")
    for case in (("list",), ("show", "nightly"), ("show", "none")):
        yield from (("schedule", ("schedule", *case, *more)) for more in ((), ("--json",)))
    yield "run-audit", ("run", "events", "noted-1", "--audit")
    yield "run-at", ("run", "show", "done-1", "--messages", "1")
    yield "run-diff", ("run", "diff", "done-1", "done-1")
    yield "run-diff", ("run", "diff", "done-1", "nobody")
    for run in ("done-1", "raced-1", "copied-1", "changed-1", "forked-1", "erased-1"):
        yield "run-raw", ("run", "events", run, "--raw")
        yield "run-raw", ("run", "events", run, "--raw", "--json")
    yield "run-events", ("run", "events", "large-1", "--full")
    yield "run-events", ("run", "events", "done-1", "--tail", "2")
    yield "run-events", ("run", "events", "done-1", "--since", "2100-01-01T00:00Z")
    for filters in (
        *(("--status", status) for status in ("failed", "suspended", "pending", "doubt", "held", "stalled", "paused")),
        *(
            ("--agent", "orders"),
            ("--session", "s-2"),
            ("--label", "team=shop"),
            ("--agent", "nobody"),
            ("--limit", "3"),
        ),
        (),
    ):
        yield "run-list", ("run", "list", "--limit", "200", *filters)
        yield "run-list-json", ("run", "list", "--limit", "200", *filters, "--json")
    for at in ("2023-11-14T22:13:21Z", "2100-01-01T00:00Z", "2001-01-01T00:00Z"):
        yield "run-list-at", ("run", "list", "--limit", "200", "--at", at)
        yield "run-list-at", ("run", "list", "--limit", "2", "--status", "suspended", "--at", at, "--json")
    yield "run-list-at", ("run", "list", "--status", "stalled", "--at", "2100-01-01T00:00Z")
    yield "run-list-at", ("run", "list", "--at", "yesterday")
    for run in ("", "done-1", "forked-1", "copied-1", "changed-1", "nobody"):
        yield "run-verify", ("verify", *(("--run", run) if run else ()), "--settle", "0")
        yield "run-verify", ("verify", *(("--run", run) if run else ()), "--settle", "0", "--json")
    for run in ("done-1", "failed-1", "stalled-1"):
        yield "run-watch", ("run", "watch", run, "--timeout", "1")
        yield "run-watch", ("run", "watch", run, "--timeout", "1", "--json")
    yield "run-watch", ("run", "events", "done-1", "--follow")
    yield "run-watch", ("run", "events", "done-1", "--follow", "--json")
    yield "run-watch", ("run", "watch", "backoff-1", "--tokens", "--timeout", "1")
    yield "run-watch", ("run", "watch", "backoff-1", "--tokens", "--timeout", "1", "--json")
    yield from _of_people()
    yield from _of_operators()


def _of_people() -> Iterator[tuple[str, Case]]:
    for state in ("open", "decided", "closed", "all", "odd"):
        yield "approval-list", ("approval", "list", "--state", state)
        yield "approval-list", ("approval", "list", "--state", state, "--json")
    for more in (("--tool", "wipe"), ("--run", "parent-1"), ("--approver", "dan"), ("--mine",), ("--agent", "deploy")):
        yield "approval-list", ("approval", "list", *more)
    for name in asked():
        yield "approval-show", ("approval", "show", name)
        yield "approval-show-json", ("approval", "show", name, "--json")
    for name in ("parent-1", "done-1", "nobody/3", "nonsense"):
        yield "approval-show", ("approval", "show", name)
    yield "approval-list", ("approval", "list", "--grants")
    yield "approval-list", ("approval", "list", "--grants", "--json")
    for call in ("granted-1/3", "denied-1/3", "judged-1/3", "failed-1/3", "asked-4/3"):
        yield "policy", ("policy", "show", call)
        yield "policy", ("policy", "show", call, "--json")
    yield "policy", ("policy", "show")
    yield "policy", ("policy", "show", "--json")
    for name in ("draft.json", "loose.json"):
        yield "policy", ("policy", "check", str(GOLDENS / name), "--recorded")
        yield "policy", ("policy", "check", str(GOLDENS / name), "--recorded", "--json")


def _of_operators() -> Iterator[tuple[str, Case]]:
    for words in (
        *(("limits",), ("limits", "--agent", "deploy"), ("limits", "--value", "acme")),
        *(("worker", "list", "--agents"), ("worker", "list", "--agents", "--agent", "gone")),
        *(("worker", "list", "--tools"), ("worker", "list", "--tools", "--tool", "push", "--pool", "other")),
        *(("deadletter", "list"), ("deadletter", "list", "--code", "future"), ("deadletter", "show", letter(0))),
        *(("deadletter", "show", letter(1)), ("deadletter", "show", "9/9"), ("deadletter", "show", "odd")),
        *(("deadletter", "replay", letter(0), "--dry-run"), ("deadletter", "replay", letter(2), "--dry-run")),
        *(("worker", "list", "--versions"), ("worker", "list", "--versions", "--agent", "orders")),
        *(("halt", "--list"), ("keys", "list")),
    ):
        yield "operators", words
        yield "operators", (*words, "--json")


def operating() -> Iterator[tuple[str, Case]]:
    """Every command that asks a run, or people's question, for something: refused before, dry, answered, refused."""
    for words in (
        *(("cancel", "nobody"), ("cancel", "done-1"), ("cancel", "cancelled-1"), ("cancel", "sleeping-1")),
        *(("cancel", "cancelled-1", "--session", "s-1"), ("cancel",), ("cancel", "waiting-1"), ("cancel", "asked-1")),
        *(("cancel", "--session", "s-6"), ("cancel", "--session", "s-6", "--yes"), ("cancel", "--session", "odd")),
        *(("cancel", "sleeping-1", "--as-operator", "--reason", "no"), ("cancel", "refused-1"), ("cancel", "silent-1")),
        *(
            ("annotate", "sleeping-1", "he called", "--id", "n-1"),
            ("annotate", "noted-1", "another", "--id", "n-1"),
            ("annotate", "done-1", "late"),
            ("annotate", "silent-1", ""),
            ("pause", "done-1"),
            ("pause", "sleeping-1", "--reason", "look"),
            ("pause", "paused-1"),
            ("pause", "halted-1"),
        ),
        *(("pause", "--label", "tenant=acme"), ("pause", "--label", "tenant=acme", "--yes"), ("pause", "nobody")),
        *(("resume", "done-1"), ("resume", "sleeping-1"), ("resume", "paused-1"), ("resume", "paused-1.1")),
        *(("resume", "--agent", "deploy"), ("resume", "--agent", "deploy", "--yes"), ("resume", "refused-1")),
        *(("retry", "done-1"), ("retry", "failed-1"), ("retry", "failed-1", "--steps", "9", "--usd", "2.5")),
        *(("retry", "stalled-1"), ("retry", "stalled-1", "--steps", "9"), ("retry", "failed-1", "--edit", "{}")),
        *(("retry", "failed-1", "--from", "1", "--edit", '{"a":1}', "--yes"), ("retry",), ("retry", "nobody")),
        *(("retry", "--agent", "deploy"), ("retry", "--agent", "deploy", "--yes"), ("retry", "--code", "odd")),
        *(("retry", "failed-1", "--agent", "a"), ("retry", "--agent", "a", "--from", "2"), ("retry", "parent-1.2")),
        *(
            ("cancel", "stalled-1", "--as-failed"),
            ("cancel", "done-1", "--as-failed"),
            ("cancel", "quarantined-1", "--as-failed", "--reason", "no code"),
        ),
        *(("repair", "copied-1"), ("repair", "forked-1", "--head", "odd"), ("repair", "nobody")),
        *(("resolve", "doubt-1/3", "--give-up"), ("resolve", "doubt-1/3"), ("resolve", "done-1/3", "--give-up")),
        *(("resolve", "doubt-1/3", "--happened", '{"n":1}'), ("resolve", "held-1/3", "--retry"), ("resolve", "odd")),
        *(("resolve", "settled-2/3", "--happened", "1"), ("resolve", "settled-2/3", "--give-up")),
        *(("resolve", "nobody/3", "--give-up"), ("resolve", "doubt-1/99", "--give-up")),
        *(("resolve", "doubt-2/3", "--did-not-happen", "--as-operator", "--comment", "seen"),),
        *(("signal", "done-1", "go"), ("signal", "waiting-1", "go", "--id", "x-1"), ("signal", "nobody", "go")),
        *(("signal", "waiting-1", "other", "--id", "n-1", "--actor", "bob"), ("signal", "waiting-1")),
        *(("signal", "go", "--session", "s-2"), ("signal", "go", "--session", "s-2", "--yes", "--id", "x-2")),
        *(("signal", "sleeping-1", "go", "--id", "x-3"), ("signal", "waiting-1", "a name"), ("signal", "full-1", "go")),
        *(("update", "exposed-1", "add", "--payload", '{"item": "pen"}', "--id", "u-1"), ("update", "done-1", "add")),
        *(
            ("update", "exposed-1", "add", "--payload", "7", "--id", "u-1"),
            ("update", "exposed-1", "add", "--id", "u-2"),
        ),
        *(("update", "exposed-1", "odd", "--timeout", "0.2", "--id", "u-3"), ("update", "nobody", "add")),
        *(("start", "deploy", "--id", "new-1", "--timeout", "1"), ("start", "deploy", "--id", "done-1")),
        *(("start", "deploy", "--id", "fresh-1"), ("start", "deploy", "--id", "refused-1", "--timeout", "1")),
        *(("start", "deploy", "--id", "sleeping-1"), ("start", "deploy", "--id", "a b"), ("show", "nobody")),
        *(("start", "deploy", "--id", "failed-1", "--timeout", "1"), ("start", "deploy", "--input", "{", "--id", "x")),
        ("erase", "done-1"),
    ):
        yield "operations", ("run", *words)
        yield "operations-json", ("run", *words, "--json")
    other: tuple[Case, ...] = (
        *(("run", "callback", TOKEN), ("run", "callback", TOKEN, "--fail", "declined", "--key", "k-1")),
        *(("run", "callback", "cb_nonsense"), ("run", "callback", TOKEN, "--fail", "")),
        *(("run", "callback", OTHER_TOKEN), ("run", "callback", ANSWERED), ("run", "callback", TOKEN[:-2])),
        *(("run", "migrate", "sleeping-1", "--to", "2"), ("run", "migrate", "done-1", "--to", "2")),
        *(("run", "migrate", "migrated-1", "--to", "2"), ("run", "migrate", "nobody", "--to", "2")),
        *(
            ("run", "migrate", "--agent", "orders", "--from", "1", "--to", "2"),
            ("run", "migrate", "--to", "2"),
        ),
        *(("run", "migrate", "--agent", "orders", "--from", "1", "--to", "2", "--dry-run"),),
        *(("approval", "approve", "asked-1/3"), ("approval", "approve", "nobody/3")),
    )
    for case in other:
        yield "operations", case
        yield "operations-json", (*case, "--json")
    yield from _votes()


def _votes() -> Iterator[tuple[str, Case]]:
    two, other = asked("asked-2")[0], asked("closed-1")[0]
    for words in (
        *(
            ("approve", two),
            ("reject", two, "-m", "no"),
            ("approve", two, "--set", "table=test"),
            ("approve", two, "--args", "{}"),
        ),
        *(
            ("answer", two, '"done"'),
            ("delegate", two, "gus"),
            ("delegate", two, "dan", "ada", "--replace"),
            ("comment", two, "hm"),
        ),
        *(("remind", two), ("withdraw", two), ("approve", other), ("approve", two, "--remember", "run")),
        *(
            ("approve", two, "--for", "1h"),
            ("approve", two, "--set", "odd=1"),
            ("comment", two, " "),
            ("reject", "odd"),
        ),
        ("withdraw", asked("granted-1")[0], "--grant"),
    ):
        for actor in ("ada", "eve"):
            yield "votes", ("approval", *words, "--actor", actor, "--timeout", "1")
        yield "votes", ("approval", *words, "--actor", "bob", "--timeout", "0.2", "--json")
    yield "votes", ("run", "resolve", asked("doubt-2")[0], "--give-up", "--actor", "bob", "--timeout", "1")


OTHER_TOKEN = callback_token(RunId("waiting-1"), "seed", 9)
ANSWERED = callback_token(RunId("waited-1"), "seed", 3)


@cache
def recorded() -> everything.Platform:
    """The platform, which nobody changes."""
    return everything.build()


def asked(run: str = "") -> list[str]:
    """The ids of all approvals, or of those of a run, in their order."""
    reader = MemoryLogReader(recorded().broker)
    found = Approvals(reader, TRUST, partitions=PARTITIONS).read().all()
    return [each.request.approval_id for each in found if run in ("", each.request.run_id)]


def letter(number: int) -> str:
    """Where a dead letter about `done-1` lies."""
    lies = list(MemoryLogReader(recorded().broker).scan("dead-letter", home("done-1", PARTITIONS)))
    return f"{lies[number].partition}/{lies[number].offset}"


@dataclass
class DecideLoop:
    """A publisher into a copy of the platform, with a planner that answers some inputs."""

    platform: everything.Platform
    sent: list[str] = field(default_factory=list)

    def send(self, message: RunRequest | RunSignal | RunOperation | ApprovalVote) -> tuple[int, int]:
        """Writes an input, and what a planner makes of it."""
        topic = codec.SUBJECTS[type(message)]
        self.sent.append(f"{topic} {json.dumps(everything_of(message))}")
        offset = self.platform.write(topic, message.run_id, key=b"key", value=codec.encode(message))
        cause = Cause(topic, home(message.run_id, PARTITIONS), offset)
        if isinstance(message, ApprovalVote) or message.run_id == "silent-1":
            return cause.partition, offset
        if message.run_id == "refused-1":
            self._refuse(cause, message.run_id, "conflict")
        elif isinstance(message, RunRequest):
            self._begin(cause, message)
        else:
            self._answer(cause, message)
        return cause.partition, offset

    def send_raw(self, *_: object, **__: object) -> tuple[int, int]:
        """Nothing here is sent raw but by commands that are not recorded."""
        raise AssertionError("no recorded command sends bytes")

    def _begin(self, cause: Cause, message: RunRequest) -> None:
        if message.run_id in self.platform.states:
            return
        wanted = everything.requested(message.agent, message.input, requester=message.requester)
        self.platform.add(message.run_id, [wanted, everything.started(), events.RunCompleted('"new"')], cause=cause)

    def _answer(self, cause: Cause, message: RunSignal | RunOperation) -> None:
        run, state = message.run_id, self.platform.states[message.run_id]
        fresh = _PLANNER.get(message.kind, lambda *_: [])(message, state)
        if message.kind == "repair":
            first = next(
                r
                for r in self.platform.reader.scan("run-log")
                if r.key and r.key.endswith(state.head.id.hex().encode())
            )
            self.platform.write("run-log", run, key=first.key or b"", value=first.value)
        elif message.kind == "retry" and run == "stalled-1":
            self.platform.write("run-snapshot", run, key=f"hold/{run}".encode(), value=None)
        elif fresh and not (state.over and state.status != "failed"):
            self.platform.add(run, fresh, cause=cause, tells=True)

    def _refuse(self, cause: Cause, run: str, code: str) -> None:
        letter = DeadLetter(
            cause.topic, cause.partition, cause.offset, code, "the planner said no", b"k", b"v", "p", NOW
        )
        self.platform.write("dead-letter", run, key=b"k", value=codec.encode(letter))


def _signalled(said: Any, state: Any) -> list[Event]:
    if said.signal_id in state.mail.kept or said.signal_id in state.mail.taken:
        return []
    came = events.SignalReceived(said.signal_id, said.name, said.data, said.actor)
    waits = [step for step, opened in state.open.items() if opened.phase == "wait"]
    return [came, events.WaitEnded(waits[0], said.signal_id)] if waits and said.name == "go" else [came]


def _resolved(said: Any, state: Any) -> list[Event]:
    content = json.loads(said.data)
    step, attempt, verdict = content["step"], content["attempt"], content["verdict"]
    if step not in state.open:
        return []
    told: list[Event] = [events.DoubtResolved(step, attempt, verdict, said.actor, content["comment"])]
    if verdict == "happened":
        return [*told, events.CallCompleted(step, attempt, json.dumps(content["result"]))]
    if verdict == "give_up":
        return [*told, events.CallFailed(step, attempt, events.Failure("given_up", "a human gave the call up"))]
    return [*told, events.CallDispatched(step, attempt + 1, NOW + 90_000)]


_PLANNER: dict[str, Any] = {
    "cancel": lambda said, _: [events.RunCancelled(json.loads(said.data)["reason"], said.actor)],
    "annotate": lambda said, _: [events.RunAnnotated(said.signal_id, json.loads(said.data)["note"], said.actor)],
    "pause": lambda said, state: [] if state.paused else [events.RunPaused(said.actor, "", "operator")],
    "resume": lambda said, state: [events.RunUnpaused(said.actor)] if state.paused else [],
    "retry": lambda said, _: [events.RunRetried(said.actor)],
    "fail": lambda said, _: [events.RunFailed(events.Failure("stalled", "somebody ended it"))],
    "resolve": _resolved,
    "migrate": lambda said, _: [events.RunMigrated(json.loads(said.data)["to"], said.actor)],
    "signal": _signalled,
    "callback": lambda said, state: [
        events.CallbackFailed(1, events.Failure("failed", said.failure), said.key, said.actor)
        if said.failure
        else events.CallbackCompleted(1, said.data, said.key, said.actor)
    ],
}


def everything_of(message: Any) -> dict[str, Any]:
    """What an input says, without what is empty."""
    fields = {name: getattr(message, name) for name in message.__dataclass_fields__}
    return {name: value for name, value in fields.items() if value and name != "token"}


class Recorded(Platform):
    """The recorded platform in memory, where commands look for one on Kafka."""

    copied: everything.Platform
    hand: DecideLoop

    @cached_property
    def runs(self) -> Runs:
        """Its runs."""
        return Runs(MemoryLogReader(self.copied.broker))

    @cached_property
    def approvals(self) -> Approvals:
        """Its approvals, where nothing more is waited for."""
        return Approvals(self.runs.reader, self.trust, partitions=PARTITIONS, settle_s=0)

    @cached_property
    def publisher(self) -> Any:
        """What writes into it."""
        return self.hand

    def knock(self) -> None:
        """It is there."""

    def topics(self, kinds: object) -> Any:
        """See `Platform`."""
        raise UnreachableError("there are no topics in memory")

    def groups(self, names: object) -> Any:
        """It has none: nobody is alive or dead."""
        raise UnreachableError("there are no groups in memory")

    def wait(self, timeout_s: float, tell: object) -> None:
        """It is there."""


@dataclass
class Clock:
    """A clock that goes on a little whenever it is read, so that waiting costs no time. **Units**: seconds."""

    now: float = 0.0

    def read(self) -> float:
        """See `time.monotonic`."""
        self.now += 0.001
        return self.now

    def pass_by(self, seconds: float) -> None:
        """See `time.sleep`."""
        self.now += seconds


@contextmanager
def played(*, writes: bool) -> Iterator[DecideLoop]:
    """The recorded platform where commands look for one, at a time and with chances that are always the same."""
    found = recorded()
    if writes:
        found = copy.copy(found)
        found.broker, found.states = found.broker.copied(), dict(found.states)
    hand, numbers, clock = DecideLoop(found), count(1), Clock()
    named = type("Named", (Recorded,), {"copied": found, "hand": hand})
    with pytest.MonkeyPatch.context() as patch, structlog_reset():
        patch.setattr(cli_platform, "Platform", named)
        patch.setattr("time.time_ns", lambda: LATER * 1_000_000)
        patch.setattr("time.monotonic", clock.read)
        patch.setattr("time.sleep", clock.pass_by)
        patch.setattr("secrets.token_hex", lambda size=16: f"{next(numbers):0{size * 2}x}")
        patch.setenv("REFOLD_TRUST", PINNED)
        patch.setenv("LOGNAME", "ann")
        patch.setenv("REFOLD_KAFKA__BOOTSTRAP", "127.0.0.1:1")
        for name in ("REFOLD_DATA", "REFOLD_ARCHIVE__URL", "REFOLD_BLOBS__URL", "REFOLD_ENVIRONMENT"):
            patch.delenv(name, raising=False)
        yield hand


@contextmanager
def structlog_reset() -> Iterator[None]:
    """What a command does to the logs of this process is undone."""
    try:
        yield
    finally:
        structlog.reset_defaults()


WAITING = ("cancel", "pause", "resume", "retry", "repair", "resolve", "signal", "callback", "migrate")


def run(case: Case, *, writes: bool) -> str:
    """What a command prints: stdout, stderr, what it has sent, and the exit code."""
    words = list(case)
    if writes:
        if words[1] in WAITING:
            words += [] if "--timeout" in words else ["--timeout", "2"]
        if words[0] == "approval" or words[:2] == ["run", "resolve"]:
            words += ["--key", _vote_key()]
    with played(writes=writes) as hand:
        result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    whole = result.stdout if result.stdout.endswith("\n") or not result.stdout else f"{result.stdout}%\n"
    told = [whole, *(f"! {line}\n" for line in result.stderr.splitlines())]
    told += [f"> {line}\n" for line in hand.sent]
    told += [f"= {result.exit_code}\n"] if result.exit_code else []
    return "".join(told)


@cache
def _vote_key() -> str:
    """A file of the key that signs votes, as people have one."""
    path = Path(tempfile.mkdtemp()) / "vote.json"
    keys.save(VOTING, path)
    return str(path)


def headline(case: Case) -> str:
    """The line that begins a section."""
    return "$ refold " + shlex.join(word.replace(str(GOLDENS), "SEEN") for word in case)


def cases() -> list[tuple[str, Case, bool]]:
    """The file of the golden, the command, and whether it writes."""
    return [(*case, False) for case in reading()] + [(*case, True) for case in operating()]


@cache
def kept(name: str) -> dict[str, str]:
    """The sections of a golden by their first line."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    path = GOLDENS / f"{name}.txt"
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.startswith("$ refold "):
            lines = sections.setdefault(line.rstrip("\n"), [])
        else:
            lines.append(line)
    return {head: "".join(body) for head, body in sections.items()}


def record(only: Sequence[str] = ()) -> None:
    """Writes the goldens anew."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, case, writes in cases():
        if not only or name in only:
            found[name].append(f"{headline(case)}\n{run(case, writes=writes)}")
    for name, sections in found.items():
        (GOLDENS / f"{name}.txt").write_text("".join(sections))


if __name__ == "__main__":
    record(sys.argv[1:])
