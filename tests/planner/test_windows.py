"""Limits of a day and a month, over all runs of an agent or of a label's value: in a lane, and from day to day."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from refold import Limit, UsageError
from refold.core.events import BudgetReached, CallBilled, CallDispatched, CallHeld, RunFailed
from refold.core.ids import home
from refold.core.messages import ToolRequest, ToolResult
from refold.core.planning.windows import WindowKey, end_of, value_digest, window_at
from refold.core.run.account import Amount
from refold.engine.planner.log import windows
from tests.planner.paid import Paid, completed, ended, made, pays, usage

CALL = 6_000_000
"""What a call of the big model reserves and takes, in billionths of a dollar."""

TODAY, TOMORROW, MONTH = "2023-11-14", "2023-11-15", "2023-11"
HOUR = 3_600_000
A, B = {"tenant": "a"}, {"tenant": "b"}


def of_tenants(**more: object) -> Limit:
    """So many calls, or dollars, for each tenant a day."""
    return Limit("day", label="tenant", **more)  # type: ignore[arg-type]


def status(world: Paid, run: str) -> str:
    """What became of a run, and why."""
    state = world.state(run)
    return state.end.failure.code if isinstance(state.end, RunFailed) else state.status


def why(world: Paid, run: str) -> str:
    """What is said of the failure of a run."""
    return str(world.told(run, RunFailed)[-1].failure.message)


def sent(world: Paid, *runs: str) -> int:
    """How many attempts of runs went out."""
    return sum(len(world.told(run, CallDispatched)) for run in runs)


def total(world: Paid, key: WindowKey, lane: int = 0) -> Amount:
    """What a lane takes for spent."""
    served = next(each for each in world.planner.lanes if each.partition == lane)
    return served.log.windows.total(key)


def living_in(lane: int, number: int = 0) -> str:
    """The name of a run whose home is this lane, of two."""
    return [name for name in (f"r{n}" for n in range(99)) if home(name, 2) == lane][number]


def test_a_limit_is_for_each_value_of_a_label() -> None:
    world = Paid(made(limits=[of_tenants(usd="0.015")]))

    for run, labels in (("r1", A), ("r2", A), ("r3", B), ("r4", {})):
        world.start(run, "thinker", labels=labels, times=2 if labels else 5)
        world.pump()

    assert [status(world, run) for run in ("r1", "r2", "r3", "r4")] == [
        "completed",
        "limit_usd",
        "completed",
        "limit_usd",
    ]
    assert sent(world, "r2") == 0
    assert "without, asked for by ann take" in why(world, "r4")
    assert f"all runs of {TODAY} tenant=a take $0.018 of their limit, $0.015" in why(world, "r2")


@pytest.mark.parametrize(("limit", "code"), [({"tokens": 3_100}, "limit_tokens"), ({"calls": 2}, "limit_calls")])
def test_a_limit_bounds_tokens_and_calls(limit: dict[str, int], code: str) -> None:
    world = Paid(made(limits=[Limit("month", **limit)]))  # type: ignore[arg-type]

    world.start("r", "thinker", times=9)
    world.pump()

    assert (status(world, "r"), sent(world, "r")) == (code, 2)


def test_what_goes_out_at_once_counts_before_the_log_has_it() -> None:
    world = Paid(made(limits=[Limit("day", calls=5)]))

    for number in range(8):
        world.start(f"r{number}", "thinker", times=1)
    world.start("all", "crowd", times=6)
    world.pump()

    assert sent(world, *(f"r{number}" for number in range(8)), "all") == 5


def test_a_bill_makes_room_in_the_entry_that_has_it() -> None:
    world = Paid(made(limits=[Limit("day", usd="0.007")]), lambda asked: completed(asked, usage(read=100, written=10)))

    world.start("r", "thinker", times=5)
    world.pump()

    assert status(world, "r") == "completed"


def test_a_day_ends_and_a_month_goes_on() -> None:
    world = Paid(made(limits=[Limit("day", calls=2), Limit("month", calls=3)]))
    world.start("r1", "looker", times=3)
    world.pump()

    world.later(2 * HOUR)
    for run in ("r2", "r3"):
        world.start(run, "looker", times=1)
        world.pump()

    assert [status(world, run) for run in ("r1", "r2", "r3")] == ["limit_calls", "completed", "limit_calls"]
    assert f"all runs of {MONTH} take 4 calls" in why(world, "r3")


def test_what_a_call_took_counts_where_it_was_reserved() -> None:
    world = Paid(made(limits=[Limit("day", usd="1")]), lambda asked: None)
    world.start("r", "thinker", times=1)
    world.pump()
    world.later(2 * HOUR)

    world.say(completed(world.made[0], usage(written=0)))
    world.pump()

    assert world.told("r", CallBilled)[0].since_ms
    assert total(world, WindowKey(TODAY, "", "", "")).nano_usd == 1_000_000
    assert total(world, WindowKey(TOMORROW, "", "", "")).nano_usd == 0


def test_a_run_that_met_a_limit_goes_on_in_another_window() -> None:
    world = Paid(made(limits=[Limit("day", calls=2)]))
    world.start("r", "looker", times=3)
    world.pump()
    world.later(2 * HOUR)

    world.operate("r", "retry", seq=world.state("r").head.seq)
    world.pump()

    assert status(world, "r") == "completed"


def test_children_count_under_their_own_agent_and_the_labels_of_their_family() -> None:
    world = Paid(made(limits=[Limit("day", agent="hand", label="tenant", calls=3)]))

    world.start("r", "boss", labels=A, hands=2, times=2)
    world.pump()

    assert total(world, WindowKey(TODAY, "hand", "tenant", value_digest("a"))) == Amount(4_500, 3 * CALL, 3)
    assert total(world, WindowKey(TODAY, "boss", "tenant", value_digest("a"))) == Amount()


def test_a_lost_answer_stays_booked_and_what_did_not_happen_does_not() -> None:
    def unsteady(asked: ToolRequest) -> ToolResult:
        return ended(asked, {1: "unknown", 2: "failed"}[asked.attempt]) if asked.attempt < 3 else pays(asked)

    world = Paid(made(limits=[Limit("day", usd="1")]), unsteady)
    world.start("r", "thinker", times=1)
    world.pump()
    for _ in range(3):
        world.later(60_000)
        world.pump()

    assert total(world, WindowKey(TODAY, "", "", "")) == Amount(3_000, 2 * CALL, 3)


def test_a_soft_threshold_is_told_and_asks() -> None:
    world = Paid(made(limits=[Limit("day", calls=10, soft=0.3, then="ask")]))
    world.start("r1", "looker", times=3)
    world.pump()
    world.start("r2", "looker", times=2)
    world.pump()
    held = world.told("r2", CallHeld, BudgetReached)

    world.operate("r2", "resolve", step=1, attempt=0, verdict="did_not_happen")
    world.pump()

    assert held[0] == BudgetReached(TODAY, "calls", 4, 10, "ask")
    assert held[1].failure.code == "limit_calls"
    assert (status(world, "r2"), sent(world, "r2")) == ("completed", 2)


def test_a_limit_that_degrades_keeps_what_is_left_for_the_cheaper_way() -> None:
    world = Paid(made(limits=[Limit("day", usd="0.02", soft=0.7, then="degrade")]))

    world.start("r", "wise", times=3)
    world.pump()

    assert '["big","big","degrade"]' in world.state("r").end.result  # type: ignore[union-attr]


def test_an_app_without_limits_tells_nothing_and_reads_nothing() -> None:
    world = Paid(made())

    world.start("r", "thinker", times=3)
    world.pump()
    world.later(10_000)

    assert world.records("budget-spent") == []
    assert all(bill.since_ms == 0 for bill in world.told("r", CallBilled))
    assert world.state("r").request.budget is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wrong",
    [
        {"per": "week", "calls": 1},
        {"per": "day"},
        {"per": "day", "usd": 1.5},
        {"per": "day", "calls": -1},
        {"per": "day", "calls": 1, "soft": 0},
    ],
)
def test_what_is_no_limit_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Limit(**wrong)  # type: ignore[arg-type]


def test_two_limits_of_the_same_are_refused() -> None:
    with pytest.raises(UsageError, match="two limits"):
        made(limits=[Limit("day", calls=1), Limit("day", usd="1")])


def test_windows_are_days_and_months_of_utc() -> None:
    late = datetime(2023, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    at_ms = int(late.timestamp() * 1000)

    found = [(name, end_of(name) - at_ms) for name in (window_at("day", at_ms), window_at("month", at_ms))]

    assert found == [("2023-12-31", 1), ("2023-12", 1)]
    assert [window_at(per, at_ms + 1) for per in ("day", "month")] == ["2024-01-01", "2024-01"]  # type: ignore[arg-type]


def test_a_limit_gives_back_nothing_that_it_did_not_count() -> None:
    limits = [Limit("day", usd="0.06")]
    world = Paid(made(limits=[Limit("day", agent="nobody", usd="1")]), lambda asked: None)
    world.start("before", "crowd", times=30)
    world.pump()

    world.deploy(made(limits=limits))
    world.answer = lambda asked: completed(asked, usage(read=1, written=0))
    for asked in list(world.made):
        world.say(completed(asked, usage(read=1, written=0)))
    world.pump()

    assert total(world, WindowKey(TODAY, "", "", "")).nano_usd == world.account("before").spent.nano_usd > 0
    world.answer = lambda asked: None
    world.start("after", "crowd", times=11)
    world.pump()
    assert status(world, "after") == "limit_usd"


def test_values_that_somebody_makes_up_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST_VALUES", 3)
    world = Paid(made(limits=[of_tenants(calls=2)]))
    for number in range(6):
        world.start(f"r{number}", "looker", labels={"tenant": f"t-{number}"}, times=2)
        world.pump()
    world.start("known", "looker", labels={"tenant": "t-0"}, times=1)
    world.pump()

    assert [status(world, f"r{number}") for number in range(6)] == ["completed"] * 4 + ["limit_calls"] * 2
    assert "tenant=(others)" in why(world, "r5")
    assert status(world, "known") == "limit_calls"
    world.later(2_000)
    assert len({key.value for key in next(iter(world.planner.lanes)).log.windows._own}) == 4
