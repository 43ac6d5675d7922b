"""Values that an agent exposes: recorded with an entry that is written anyway, bounded, and of no weight on replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import SecretStr

from refold import App, Context, Secret, UsageError
from refold.core.events import Event, StatusSet
from refold.core.run.intents import EXPOSED_BYTES, MOST_EXPOSED
from refold.testing import AgentRun, crash_matrix, run, start

app = App("exposing")
version = {"more": False, "less": False}
"""What the code exposes: a test changes it, as a new version of an agent does."""


@app.tool(effect="pure")
def echo(text: str) -> str:
    return text


@dataclass
class Line:
    item: str
    count: int


@app.agent
async def shopper(ctx: Context) -> int:
    """Exposes a cart that grows."""
    lines: list[Line] = []
    ctx.status("begins")
    for item in ("pen", "ink"):
        lines.append(Line(item, len(lines)))
        ctx.expose("cart", "passed over")
        ctx.expose("cart", lines)
        if not version["less"]:
            ctx.expose("same", {"b": 1, "a": [None, True]})
        if version["more"]:
            ctx.expose("item", item)
        await ctx.call(echo, item)
    ctx.expose("total", len(lines))
    return len(lines)


@pytest.fixture
def changed() -> Iterator[dict[str, bool]]:
    """Gives the version of the code, which is set back afterwards."""
    yield version
    version.update(more=False, less=False)


def exposed(driven: AgentRun) -> list[Event]:
    return [event for event in driven.events if isinstance(event, StatusSet)]


CART = '[{"count":0,"item":"pen"}]', '[{"count":0,"item":"pen"},{"count":1,"item":"ink"}]'
SAME = StatusSet('{"a":[null,true],"b":1}', "same")


def test_the_last_value_of_an_entry_is_recorded_and_none_twice() -> None:
    driven = run(app, "shopper")

    first = [StatusSet("begins"), StatusSet(CART[0], "cart"), SAME]
    assert exposed(driven) == [*first, StatusSet(CART[1], "cart"), StatusSet("2", "total")]
    cart = [{"item": "pen", "count": 0}, {"item": "ink", "count": 1}]
    assert driven.values == {"status": "begins", "cart": cart, "same": {"a": [None, True], "b": 1}, "total": 2}


def test_values_are_no_steps_and_cause_no_entry() -> None:
    driven = run(app, "shopper")

    assert len(driven.state.steps) == 2
    assert driven.entries == 3


def test_a_run_killed_anywhere_exposes_the_same() -> None:
    ends: list[Any] = []

    crash_matrix(app, "shopper", {}, drive=lambda driven: ends.append((driven.finish().values, exposed(driven))))

    assert len(ends) > 6
    assert all(end == ends[0] for end in ends)


def test_other_values_on_replay_are_no_other_code_and_come_with_the_next_entry(changed: dict[str, bool]) -> None:
    driven = start(app, "shopper")
    changed.update(more=True, less=True)
    driven.take_over()
    driven.check()

    assert "item" not in driven.values

    driven.settle(1)

    added = exposed(driven)[3:]
    assert added == [StatusSet(CART[1], "cart"), StatusSet('"ink"', "item"), StatusSet("", "same")]
    assert sorted(driven.values) == ["cart", "item", "status"]


@app.agent
async def exposing(ctx: Context, name: str, number: int, size: int) -> None:
    """Exposes values of this size."""
    ctx.status("x" * 300)
    for each in range(number):
        ctx.expose(f"{name}{each}", "y" * size)
    for each in range(number):
        ctx.expose(f"{name}{each}", "z" * size)


@pytest.mark.parametrize(("number", "size"), [(MOST_EXPOSED, 10), (1, EXPOSED_BYTES - 4), (8, EXPOSED_BYTES // 8 - 4)])
def test_values_within_their_limits_are_recorded(number: int, size: int) -> None:
    driven = run(app, "exposing", name="v", number=number, size=size)

    assert driven.status == "completed"
    assert {len(text) - 2 for name, text in driven.state.values.items() if name} == {size}


@pytest.mark.parametrize(
    ("number", "size"), [(MOST_EXPOSED + 1, 10), (1, EXPOSED_BYTES - 3), (8, EXPOSED_BYTES // 8 - 3)]
)
def test_more_than_the_limits_is_refused_in_the_agent(number: int, size: int) -> None:
    failed = run(app, "exposing", name="v", number=number, size=size)

    assert failed.failure is not None
    assert (failed.failure.code, "the run exposes" in failed.failure.message) == ("usage", True)
    assert len(failed.state.values) <= MOST_EXPOSED + 1
    failed.check()


class Odd:
    """Has no JSON form."""


ODD: dict[str, Callable[[], tuple[Any, Any]]] = {
    "set": lambda: ("cart", {1, 2}),
    "object": lambda: ("cart", Odd()),
    "secret": lambda: ("cart", Secret("stripe")),
    "surrogate": lambda: ("cart", "\ud800"),
    "space": lambda: ("a cart", 1),
    "empty": lambda: ("", 1),
    "number": lambda: (7, 1),
    "status": lambda: ("status", "busy"),
}


@app.agent
async def odd(ctx: Context, case: str) -> None:
    """Exposes what is no value."""
    ctx.expose(*ODD[case]())


@pytest.mark.parametrize("case", ODD)
def test_other_names_and_values_are_refused(case: str) -> None:
    failed = run(app, "odd", case=case)

    assert failed.failure is not None
    assert failed.values == {}
    with pytest.raises(UsageError):
        _ = failed.value


@app.agent
async def careful(ctx: Context) -> None:
    """Exposes a secret in the type that hides one."""
    ctx.expose("keys", [SecretStr("s3cr3t")])


def test_a_hidden_secret_stays_hidden() -> None:
    shown = run(app, "careful")

    assert shown.values == {"keys": ["**********"]}
    assert "s3cr3t" not in shown.story
