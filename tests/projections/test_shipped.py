"""The shipped tables say of a run what every other reader of the log says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.console.projections.shipped import tables
from refold.console.projections.shipped.projection import Shipped
from refold.core import events
from tests.projections.histories import NOW, USAGE, asked, begun, call, entries, log_of, long, marker
from tests.projections.judges import differences
from tests.projections.logs import RECOVERY, recorded, recovered, simulated
from tests.projections.test_disorder import bury
from tests.projections.viewed import Viewed

SEEDS = range(60)


@pytest.mark.parametrize("name", recorded())
def test_the_rows_of_a_recorded_log_agree_with_its_runs(name: str) -> None:
    assert differences(Viewed.of(recorded()[name])) == []


@pytest.mark.parametrize("module", RECOVERY)
def test_the_rows_of_what_recovery_leaves_agree_with_its_runs(module: str) -> None:
    logs = recovered(module)

    assert logs
    assert {name: wrong for name, log in logs.items() if (wrong := differences(Viewed.of(log)))} == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rows_of_a_simulated_world_agree_with_its_runs(seed: int) -> None:
    assert differences(Viewed.of(simulated(seed))) == []


def test_usage_has_a_cost_where_prices_are_given_and_no_bill_says_it() -> None:
    made, sent = call(2)
    billed: list[events.Event] = [made, events.CallReserved(2, 1, 500, 9), sent]
    paid: list[events.Event] = [events.CallCompleted(2, 1, USAGE), events.CallBilled(2, 6, 1, 100, 7)]
    log = log_of(entries("r-1", [*begun(), *call(1)], [events.CallCompleted(1, 1, USAGE), *billed], paid))

    plain = Viewed.of(log).row(tables.RUNS, "r-1")
    priced = Viewed.of(log, projection=Shipped(lambda usage, at_ms: usage["input_tokens"], "prices-3"))

    assert (plain["tokens"], plain["nano_usd"], plain["price_table"]) == (200, 7, "")
    run = priced.row(tables.RUNS, "r-1")
    assert (run["tokens"], run["nano_usd"], run["price_table"]) == (200, 77, "prices-3")
    day = priced.row(tables.DAILY, "2023-11-14", "shop", "pay", "acme:small", 0)
    assert (day["completed"], day["tokens"], day["nano_usd"]) == (2, 200, 77)


def test_usage_of_any_size_and_any_text_fits_a_row() -> None:
    odd = '{"usage":{"model":"\\ud800' + "x" * 500 + '","input_tokens":' + "9" * 30 + "}}"
    viewed = Viewed.of(log_of(entries("r-1", [*begun(), *call(1)], [events.CallCompleted(1, 1, odd)])))

    assert viewed.row(tables.RUNS, "r-1")["tokens"] == 1 << 48
    assert all(len(row["model"].encode()) <= 4 * tables.TEXT_CHARS for row in viewed.rows(tables.DAILY))


def test_a_call_is_timed_from_its_last_order_to_its_outcome() -> None:
    again: list[events.Event] = [events.CallDispatched(1, 1, 0)]
    log = log_of(entries("r-1", [*begun(), *call(1)], again, [events.CallCompleted(1, 1, "1")]))

    day = Viewed.of(log).row(tables.DAILY, "2023-11-14", "shop", "pay", "", 0)

    assert [name for name in day if name[1:].isdecimal() and day[name]] == ["b6"]  # the entries are 40 ms apart
    assert (day["attempts"], day["retries"]) == (1, 0)


def test_equal_calls_of_a_run_are_counted() -> None:
    viewed = Viewed.of(log_of(long("r-1")), 1)

    repeated = [row for row in viewed.rows(tables.REPEATED_CALLS) if row["times"] > 1]

    assert {(row["times"], row["first_step"], row["last_step"]) for row in repeated} == {(4, 1, 4), (2, 5, 6)}


def test_what_operators_do_is_a_row_with_their_name() -> None:
    actions: list[events.Event] = [
        events.RunPaused("ann", "later"),
        events.RunPaused("r-0", role="parent"),
        events.RunUnpaused("bob"),
        events.RunMigrated("2", "cyd"),
        events.RunMigrated("3", ""),
        events.RunAnnotated("n-1", "look", "eve"),
        events.RunCancelled("x" * 300, "dan"),
    ]
    rows = Viewed.of(log_of(entries("r-1", begun(), actions))).rows(tables.OPERATOR_ACTIONS)

    assert [(row["actor"], row["action"], row["detail"]) for row in rows] == [
        ("ann", "paused", "operator"),
        ("bob", "unpaused", "operator"),
        ("cyd", "migrated", "2"),
        ("eve", "annotated", "operator"),
        ("dan", "cancelled", ""),
    ]
    assert {len(row["reason"]) for row in rows} == {0, 4, 5, tables.TEXT_CHARS}


def test_a_question_about_a_call_that_is_asked_for_anew_is_not_open() -> None:
    doubted: list[events.Event] = [events.CallDoubted(1, 1, events.Failure("lost", "?"))]
    first, second = (replace(asked(1), about=events.DOUBT, question=f"{number:032x}") for number in (1, 2))
    again: list[events.Event] = [events.RunRetried("op"), events.CallRenewed(1), events.CallDispatched(1, 1, 0)]
    failed = events.RunFailed(events.Failure("limit", "too long"))
    log = log_of(entries("r-1", [*begun(), *call(1)], [*doubted, first], [failed], again, [*doubted, second]))

    viewed = Viewed.of(log)

    assert differences(viewed) == []
    assert sorted((row["approval_id"][-1], row["open"]) for row in viewed.rows(tables.APPROVALS)) == [
        ("1", 0),
        ("2", 1),
    ]


def test_a_question_that_is_decided_is_not_open() -> None:
    (row,) = Viewed.of(log_of(long("r-1"))).rows(tables.APPROVALS)

    assert (row["tool"], row["approvers"], row["verdict"], row["actors"], row["open"]) == (
        "pay",
        "ada",
        "approve",
        "ada",
        0,
    )


def test_arguments_and_results_lie_in_entries_alone() -> None:
    secret = "only in the log"
    made = call(1, f'{{"text":"{secret}"}}')
    log = log_of(entries("r-1", [*begun(), *made], [events.CallCompleted(1, 1, f'"{secret}"')]))

    viewed = Viewed.of(log)

    naming = {table.name for table in viewed.tables for row in viewed.store.scan(table) if secret in str(row)}
    assert naming == {"entries"}


def test_the_last_value_of_a_name_is_a_row_until_it_is_removed_or_erased() -> None:
    shown: list[list[events.Event]] = [
        [events.StatusSet("asks"), events.StatusSet("1", "cart"), events.StatusSet('"\\ud800\x00"', "odd")],
        [events.StatusSet("[2]", "cart"), events.StatusSet("", "odd")],
        [events.StatusSet(""), events.RunCompleted("1")],
    ]
    pairs = entries("r-1", begun(), *shown)

    viewed = Viewed.of(log_of(pairs), 1)

    assert differences(viewed) == []
    assert viewed.rows(tables.RUN_VALUES) == [
        {"run_id": "r-1", "name": "cart", "value": "[2]", "seq": 6, "at_ms": NOW + 40 * 6}
    ]
    assert viewed.row(tables.RUNS, "r-1")["says"] == ""

    viewed.add(marker("r-1", 0))
    bury(viewed, "r-1")

    assert viewed.rows(tables.RUN_VALUES) == []


@pytest.mark.parametrize("name", ["x" * 5_000, "\x00", "status"])
def test_a_name_that_no_agent_can_expose_stops_no_view(name: str) -> None:
    forged: list[events.Event] = [events.StatusSet("no JSON", name), events.StatusSet("7", "cart")]
    pairs = [*entries("r-1", begun(), forged), *entries("r-2", begun(), [events.StatusSet("7", "cart")])]

    viewed = Viewed.of(log_of(pairs), 1)

    assert {row["run_id"] for row in viewed.rows(tables.RUN_VALUES)} >= {"r-2"}


def test_an_answer_is_a_step_with_the_id_of_its_signal() -> None:
    first: list[events.Event] = [events.SignalReceived("u-1", "add", "1"), events.WaitEnded(1, "u-1")]
    second: list[events.Event] = [events.SignalReceived("u-2", "add", "1"), events.WaitEnded(3, "u-2")]
    refused = events.SignalAnswered(4, "u-2", "null", events.Failure("ValueError", "no"))
    first += [events.SignalAnswered(2, "u-1", "7"), events.WaitStarted(3, "add")]
    pairs = entries("r-1", [*begun(), events.WaitStarted(1, "add")], first, [*second, refused])

    viewed = Viewed.of(log_of(pairs), 1)

    assert differences(viewed) == []
    rows = [row for row in viewed.rows(tables.STEPS) if row["kind"] == "answer"]
    assert [(row["name"], row["status"], row["failure_code"]) for row in rows] == [
        ("u-1", "noted", ""),
        ("u-2", "failed", "ValueError"),
    ]
