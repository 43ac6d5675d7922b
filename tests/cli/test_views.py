"""What people see of a run and of what comes from logs: nothing hidden, nothing cut, nothing that is not so."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
import structlog
from rich.console import Console

from refold.cli import output
from refold.cli.views import runs
from refold.cli.views import watching as records
from refold.client.operations.runs import Runs
from refold.client.reading.run import events_of, info_of, row_of
from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    CallFailed,
    CallProposed,
    CheckpointReached,
    Event,
    Failure,
    Requirement,
    RunCancelled,
    RunFailed,
    RunRetried,
    SleepEnded,
    SleepStarted,
    StatusSet,
    TaskFailed,
)
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.ports.effects import Effect, Item, LanesNow, News, Now
from refold.engine.ports.log import Membership
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.host import Host
from tests.cli.chronicle import NOW, Chronicle, ended, proposed, requested

EVIL = "a\x1b[2Jb\u202ec\nd\u2028e\x00f"
SPELT = "a<U+001B>[2Jb<U+202E>c<U+000A>d<U+2028>e<U+0000>f"
TWO_DAYS = NOW + 2 * 86_400_000


def asked(rule: str = "outside", people: tuple[str, ...] = ("ada", "bob"), quorum: int = 1) -> Event:
    """A question to people about the first call, the third event of its run."""
    needed = Requirement(list(people), quorum)
    return ApprovalRequested(1, 1, 1, "digest", rule, needed, "dev", "", "", "question", expires_ms=TWO_DAYS)


def seen(*events: Event) -> str:
    """What `refold run show` draws of a run whose first call these events are about."""
    chronicle = Chronicle()
    chronicle.add("r", requested(), [proposed(1)[0], *events], emit=False)
    return drawn(chronicle)


def drawn(chronicle: Chronicle) -> str:
    """What `refold run show` draws of the run `r`."""
    console = Console(width=1_000, emoji=False)
    with console.capture() as captured:
        console.print(runs.run_view(info_of(Runs(chronicle.reader).get("r"))))
    return captured.get()


def test_what_a_terminal_would_obey_is_spelt_out_wherever_it_comes_from() -> None:
    said = seen(asked(people=(EVIL,)), ApprovalDecided(1, 4, "edit", actors=[EVIL], message=EVIL, args=EVIL))

    assert said.count(SPELT) == 3
    assert not set(EVIL) - set("abcdef[2J\n") & set(said)


def test_an_event_is_a_line_whatever_its_values_are() -> None:
    chronicle = Chronicle()
    chronicle.add("r", requested(given=f'"{EVIL}"'.replace("\n", "\\n")), [RunCancelled(EVIL, EVIL)], emit=False)

    lines = [records.event_line(row) for row in events_of(Runs(chronicle.reader).get("r"))]

    assert all(len(line.splitlines()) == 1 and line.isprintable() for line in lines)
    assert lines[-1].count(SPELT) == 2


def test_no_word_becomes_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(output.escape("role:skull: [bold]"))

    assert capsys.readouterr().out == "role:skull: [bold]\n"
    assert "d:skull:" in seen(asked(people=("d:skull:",)))


def test_a_table_in_a_pipe_has_a_line_for_each_row_with_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = ("call-1/3", "x" * 300, "y " * 300)

    output.print_table(("call", "when", "then"), [row])

    lines = [line for line in capsys.readouterr().out.splitlines() if "call-1/3" in line]
    assert [" ".join(line.split()) for line in lines] == [" ".join(" ".join(row).split())]


def test_a_question_says_whom_it_waits_for_until_which_day_and_how_to_learn_why() -> None:
    said = seen(asked(quorum=2))

    assert "waits for 2 of ada, bob until 2023-11-16 22:13:20 UTC" in said
    assert "refold approval show r/3" in said
    assert "refold policy show r/3" in said


def test_a_question_that_closed_by_itself_is_not_said_to_have_run_out_of_time() -> None:
    why = "the decision did not hold any more when it came"

    assert f"closed without a decision: {why}" in seen(asked(), ApprovalDecided(1, 4, "expire", message=why))
    assert "nobody of" not in seen(asked(), ApprovalDecided(1, 4, "expire", message=why))
    assert "expired, nobody of ada, bob in time" in seen(asked(), ApprovalDecided(1, 4, "expire"))


def test_a_run_that_is_over_asks_nobody() -> None:
    said = seen(asked(), RunCancelled("enough", "ann"))

    assert "refold approval show" not in said
    assert "ada, bob had not decided when the run ended" in said


def test_a_rejection_is_told_once() -> None:
    refusal = CallFailed(1, 0, Failure("rejected", "too much", "ada"))

    said = seen(asked(), ApprovalDecided(1, 4, "reject", actors=["ada"], message="too much"), refusal)

    assert said.count("rejected") == said.count("too much") == 1


@pytest.mark.parametrize(
    ("at_ms", "expected"), [(0, "-"), (NOW, "2023-11-14T22:13:20.000Z"), (1 << 80, f"{1 << 80} ms")]
)
def test_a_moment_has_its_day_and_its_zone(at_ms: int, expected: str) -> None:
    assert output.moment(at_ms) == expected


class RunJournal:
    """A service that has something to tell, once."""

    def __init__(self, *names: str) -> None:
        self.counts: Counter[str] = Counter()
        self.news: list[News] = [(name, {}) for name in names]

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        """See `Service`."""
        return []

    def lanes_now(self) -> LanesNow:
        """See `Service`."""
        return LanesNow()

    def next_due_ms(self) -> int | None:
        """See `Service`."""
        return None


def test_alarms_are_warnings_in_the_log() -> None:
    log = MemoryEventLog(MemoryBroker(["run-log"]), Membership("g", "m", ("run-log",)))
    alarms = "unauthorised", "call.unauthorised", "approval.held", "call.late", "run.frozen", "input.dead"

    with structlog.testing.capture_logs() as told:
        Host([RunJournal("approval.decided", *alarms)], log).pump([])

    assert {line["event"]: line["log_level"] for line in told} == {
        "approval.decided": "info",
        **dict.fromkeys(alarms, "warning"),
    }


def test_what_an_agent_says_stands_apart_from_what_runs() -> None:
    said = seen(StatusSet(f"reading {EVIL}"), CheckpointReached(2, EVIL), TaskFailed(EVIL, Failure("Boom", EVIL)))

    assert f"  says reading {SPELT}" in said.splitlines()
    assert f"nobody awaited {SPELT}, which failed: Boom: {SPELT}" in said
    assert said.count(SPELT) == 4
    assert not set(EVIL) - set("abcdef[2J\n") & set(said)


def test_a_label_has_a_line_of_its_own_and_never_the_place_of_the_tool() -> None:
    chronicle = Chronicle()
    [call, *rest] = proposed(1)
    assert isinstance(call, CallProposed)
    lie = replace(call, label=f"push (pure)  r/3 {EVIL}")
    chronicle.add("r", requested(), [lie, *rest], emit=False)

    lines = drawn(chronicle).splitlines()

    [step] = [line for line in lines if "push" in line and "called" not in line]
    assert call.tool in step
    assert [line for line in lines if "called" in line] == [f"       called push (pure)  r/3 {SPELT}"]


def test_what_a_run_waits_for_is_said_beside_what_it_says_itself() -> None:
    chronicle = Chronicle()
    chronicle.add("r", requested(), [StatusSet("sleeping"), SleepStarted(1, NOW)], emit=False)
    run = Runs(chronicle.reader).get("r")

    assert "  waits: sleep 2023-11-14T22:13:20.000Z" in drawn(chronicle).splitlines()
    assert row_of(run).says == "sleeping"
    assert row_of(run).suspended == {"reason": "sleep", "blocked_by": "2023-11-14T22:13:20.000Z"}


def test_a_run_that_is_over_says_nothing_any_more() -> None:
    chronicle = Chronicle()
    chronicle.add("r", requested(), [StatusSet("waits for the refund"), *ended()], emit=False)

    assert "waits for the refund" not in drawn(chronicle)
    assert row_of(Runs(chronicle.reader).get("r")).says == ""


def test_another_planner_that_goes_on_is_named_where_it_begins() -> None:
    chronicle = Chronicle()
    chronicle.add("r", requested(), [SleepStarted(1, NOW)], emit=False)
    chronicle.actor = "planner/2"
    chronicle.add("r", [SleepEnded(1), SleepStarted(2, NOW)], [SleepEnded(2), *ended()], emit=False)
    run = Runs(chronicle.reader).get("r")

    lines = drawn(chronicle).splitlines()

    [place] = [number for number, line in enumerate(lines) if "planner/2 goes on from seq 4" in line]
    assert " 1 sleep" in lines[place - 1]
    assert " 2 sleep" in lines[place + 1]
    assert [(each.seq, each.step) for each in info_of(run).successors] == [(4, 2)]


def test_a_list_of_runs_has_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    chronicle = Chronicle()
    chronicle.add("r", requested(), [StatusSet(f"at {EVIL}")], emit=False)

    runs.print_runs([row_of(run) for run in Runs(chronicle.reader).all()], hidden=0, now_ms=clock_ms())

    assert f"at {SPELT}" in capsys.readouterr().out


def test_a_step_shows_its_arguments_and_its_result_and_when_it_was() -> None:
    chronicle = Chronicle()
    call = replace(proposed(1)[0], args='{"$run":{"id":"x"},"path":"a.py"}')
    chronicle.add(
        "r", requested(), [call, CallDispatched(1, 1, NOW)], [CallCompleted(1, 1, "90"), *ended()], emit=False
    )

    lines = drawn(chronicle).splitlines()

    assert "requested 2023-11-14 22:13:20 UTC, took" in lines[1]
    assert re.search(r'completed \+\d+ ms took \d+ ms  \{"path":"a.py"\} -> 90$', lines[2])


@pytest.mark.parametrize(
    ("how", "shown"), [("", ""), ("stored", " (from the ledger)"), ("probed", " (probed)"), ("late", " (late)")]
)
def test_a_call_shows_the_source_of_its_result(how: str, shown: str) -> None:
    chronicle = Chronicle()
    done = CallCompleted(1, 1, "90", how, NOW + 5, 70)
    chronicle.add("r", requested(), [*proposed(1), CallDispatched(1, 1, NOW)], [done, *ended()], emit=False)
    (step,) = Runs(chronicle.reader).get("r").timeline.steps

    line = drawn(chronicle).splitlines()[2]

    assert f"completed{shown} +" in line
    assert (step.how, step.began_ms, step.took_ms) == (how, NOW + 5, 70)


def test_a_call_that_is_asked_for_again_has_no_source_so_far() -> None:
    chronicle = Chronicle()
    done = CallCompleted(1, 1, "90", "stored", NOW + 5, 70)
    failed = RunFailed(Failure("agent_error", ""))
    chronicle.add("r", requested(), [*proposed(1), CallDispatched(1, 1, NOW)], [done, failed], emit=False)
    chronicle.add("r", [RunRetried("ada", again=[1])], emit=False)

    (step,) = Runs(chronicle.reader).get("r").timeline.steps

    assert (step.how, step.began_ms, step.took_ms) == ("", 0, 0)


def test_a_failure_that_comes_again_is_told_once() -> None:
    refused, end = Failure("ToolError", "the bank says no"), Failure("call_failed", "step 1 has failed")
    tries = [
        *(CallDispatched(1, 1, NOW), AttemptFailed(1, 1, refused, False, NOW)),
        *(CallDispatched(1, 2, NOW), AttemptFailed(1, 2, refused, False, NOW)),
        *(CallDispatched(1, 3, NOW), CallFailed(1, 3, refused)),
    ]

    said = seen(*tries, RunFailed(end))

    assert said.count("the bank says no") == 1
    assert said.count("ToolError, as before") == 2


def test_a_list_of_runs_fits_eighty_columns_and_has_no_empty_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    chronicle = Chronicle()
    for name in ("order-1", "order-2"):
        chronicle.add(name, requested(), [StatusSet("packs"), *ended()], emit=False)

    runs.print_runs([row_of(run) for run in Runs(chronicle.reader).all()], hidden=0, now_ms=clock_ms())

    _, head, _, *rows, _ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["run", "agent", "status", "steps", "began", "took"]
    assert [row[0] for row in rows] == ["order-1", "order-2"]
    assert rows[0][4:] == ["2023-11-14", "22:13", "1", "ms"]


@pytest.mark.parametrize(
    ("ms", "told"),
    [(81, "81 ms"), (3_200, "3.2 s"), (192_000, "3 m 12 s"), (7_500_000, "2 h 5 m"), (273_600_000, "3 d 4 h")],
)
def test_a_duration_has_two_units_at_most(ms: int, told: str) -> None:
    assert output.duration(ms) == told
