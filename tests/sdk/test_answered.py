"""Signals that an agent answers: once, with a result or a failure, and the same in every replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from refold import App, CallFailed, Context, NonDeterminismError, TerminalError, UsageError
from refold.core.events import Failure, SignalAnswered, SignalReceived, StepGivenUp, WaitEnded
from refold.testing import AgentRun, crash_matrix, run, start

app = App("answering")


@app.tool(effect="pure")
def reserve(item: str) -> str:
    """Looks if there is an item."""
    if item == "ink":
        raise TerminalError("sold out")
    return item


@dataclass
class Line:
    item: str
    count: int = 1


@app.agent
async def basket(ctx: Context, handled: bool = True) -> list[str]:
    """Takes items until it is closed."""
    lines: list[str] = []

    @ctx.on("add")
    async def add(item: str, count: int = 1) -> list[Line]:
        lines.append(item)
        await ctx.call(reserve, item)
        if count > 9:
            raise ValueError(f"too many: {count}")
        ctx.expose("lines", lines)
        return [Line(item, count)]

    close = await ctx.wait_for("close")
    ctx.answer(close, {"lines": len(lines)})
    if close.data:
        raise ValueError("no")
    return lines


def answers(driven: AgentRun) -> list[SignalAnswered]:
    return [event for event in driven.events if isinstance(event, SignalAnswered)]


def added(driven: AgentRun, signal_id: str, **data: Any) -> Any:
    """Send an update, and let the run reserve what it asks for."""
    driven.signal("add", data or None, signal_id=signal_id).finish()
    return driven.answers[signal_id]


def test_a_handler_gets_the_data_by_name_and_its_result_is_the_answer() -> None:
    driven = start(app, "basket")

    assert added(driven, "u-1", item="pen") == [{"item": "pen", "count": 1}]
    assert added(driven, "u-2", item="cap", count=3) == [{"item": "cap", "count": 3}]
    assert driven.values == {"lines": ["pen", "cap"]}
    assert driven.update("close", signal_id="u-3") == {"lines": 2}
    assert driven.value == ["pen", "cap"]
    assert [event.signal_id for event in answers(driven)] == ["u-1", "u-2", "u-3"]


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        ({"item": "pen", "count": 10}, "ValueError", "too many: 10"),
        ({"item": "ink"}, "terminal", "sold out"),
        ({"item": "pen", "colour": "red"}, "usage", "update add"),
        ({"count": 1}, "usage", "item"),
        ({"item": 7}, "usage", "update add"),
        (None, "usage", "item"),
        ([1], "usage", "update add"),
        ("pen", "usage", "update add"),
    ],
)
def test_what_a_handler_raises_is_the_answer_and_the_run_goes_on(data: Any, code: str, words: str) -> None:
    driven = start(app, "basket")

    driven.signal("add", data, signal_id="u-1").finish()

    failure = driven.answers["u-1"]
    assert isinstance(failure, Failure)
    assert (failure.code, words in failure.message) == (code, True)
    assert added(driven, "u-2", item="cap") == [{"item": "cap", "count": 1}]
    driven.check()


def test_updates_are_handled_one_after_the_other_and_one_that_came_first_is_kept() -> None:
    driven = start(app, "basket")

    for number in range(3):
        driven.signal("add", {"item": f"i{number}"}, signal_id=f"u-{number}")

    assert len(driven.calls) == 1
    with pytest.raises(UsageError, match="no answer so far"):
        driven.update("add", {"item": "i3"}, signal_id="u-3")

    driven.finish()

    assert list(driven.answers) == ["u-0", "u-1", "u-2", "u-3"]
    assert [call.args["item"] for call in driven.calls] == ["i0", "i1", "i2", "i3"]


def test_a_repeated_id_is_one_update_with_one_answer() -> None:
    driven = start(app, "basket")
    before = added(driven, "u-1", item="pen")

    assert added(driven, "u-1", item="pen") == before
    assert len(answers(driven)) == 1
    with pytest.raises(UsageError, match="conflict"):
        driven.signal("add", {"item": "cap"}, signal_id="u-1")


def test_an_update_in_progress_at_the_end_has_no_answer() -> None:
    driven = start(app, "basket")
    driven.signal("add", {"item": "pen"}, signal_id="u-1").signal("close")

    assert driven.status == "completed"
    assert "u-1" not in driven.answers


def drive(driven: AgentRun) -> None:
    """Two updates, a failed one, and the end."""
    driven.signal("add", {"item": "pen"}, signal_id="u-1").finish()
    driven.signal("add", {"item": "ink"}, signal_id="u-2").finish()
    driven.signal("close", signal_id="u-3").finish()
    codes = {number: getattr(answer, "code", answer) for number, answer in driven.answers.items()}
    ENDS.append((codes, driven.values, driven.value))


ENDS: list[Any] = []


def test_a_run_killed_anywhere_gives_the_same_answers() -> None:
    ENDS.clear()

    crash_matrix(app, "basket", {}, drive=drive)

    assert len(ENDS) > 10
    assert [end for end in ENDS if end != ENDS[0]] == []
    assert list(ENDS[0][0]) == ["u-1", "u-2", "u-3"]


version = {"answer": 1}


@app.agent
async def twice(ctx: Context, again: bool = False) -> list[str]:
    """Answers with what a test changes, as a new version does."""
    seen: list[str] = []
    async with asyncio.timeout(60):
        signal = await ctx.wait_for("go")
    ctx.answer(signal, version["answer"])
    if again:
        try:
            ctx.answer(signal, 7)
        except UsageError as error:
            seen.append(error.code)
    await ctx.call(reserve, "pen")
    return seen


def test_a_second_answer_is_refused_in_the_code() -> None:
    driven = start(app, "twice", again=True)

    assert driven.update("go", signal_id="u-1") == 1
    assert driven.finish().value == ["usage"]
    assert driven.answers == {"u-1": 1}


def test_another_answer_on_replay_is_other_code() -> None:
    driven = start(app, "twice")
    driven.update("go", signal_id="u-1")
    version["answer"] = 2
    try:
        with pytest.raises(NonDeterminismError, match="answer to signal u-1"):
            driven.check()
    finally:
        version["answer"] = 1


@dataclass
class Address:
    """Has another text in each process."""


@app.agent
async def vague(ctx: Context) -> None:
    """Answers with a failure whose text is another in each replay."""
    signal = await ctx.wait_for("go")
    ctx.answer(signal, LookupError(f"no {object()}"))
    await ctx.call(reserve, "pen")


def test_a_failure_is_the_same_by_its_code() -> None:
    driven = start(app, "vague")

    assert driven.update("go").code == "LookupError"
    driven.check()
    assert driven.finish().status == "completed"


class Odd:
    """Has no JSON form."""


ODD: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "no signal": lambda signal: ("u-1", 1),
    "set": lambda signal: (signal, {1}),
    "object": lambda signal: (signal, Odd()),
}


@app.agent
async def odd(ctx: Context, case: str) -> None:
    """Answers with what is no answer."""
    ctx.answer(*ODD[case](await ctx.wait_for("go")))


@pytest.mark.parametrize("case", ODD)
def test_what_is_no_answer_is_refused(case: str) -> None:
    driven = start(app, "odd", case=case).signal("go")

    assert driven.failure is not None
    assert driven.failure.code == "usage"
    assert answers(driven) == []


@app.agent
async def wrong(ctx: Context, name: str) -> None:
    """Has a handler that is none."""

    def plain(item: str) -> None: ...

    async def starred(*items: str) -> None: ...

    ctx.on("a name" if name == "name" else "add")(plain if name == "plain" else starred)  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["name", "plain", "starred"])
def test_what_is_no_handler_is_refused(name: str) -> None:
    failed = run(app, "wrong", name=name)

    assert failed.failure is not None
    assert failed.failure.code == "usage"


@app.agent
async def hasty(ctx: Context) -> None:
    """Cancels what its handler waits for, and not the handler."""

    @ctx.on("ask")
    async def ask(cancel: bool = True) -> str:
        task = asyncio.create_task(ctx.call(reserve, "pen"))
        if cancel:
            task.cancel()
        return await task

    await ctx.wait_for("close")


def test_a_handler_whose_wait_is_cancelled_fails_and_the_next_one_is_called() -> None:
    driven = start(app, "hasty")

    assert driven.update("ask").code == "CancelledError"
    assert driven.signal("ask", {"cancel": False}, signal_id="u-2").finish().answers["u-2"] == "pen"


@app.agent
async def patient(ctx: Context) -> str:
    """Is left by its caller while it works."""

    @ctx.on("ask")
    async def ask(question: str) -> str:
        try:
            return await asyncio.wait_for(ctx.call(reserve, question), timedelta(milliseconds=500).total_seconds())
        except (TimeoutError, CallFailed):
            return "later"

    await ctx.wait_for("close")
    return "closed"


def test_a_handler_may_wait_with_a_limit() -> None:
    driven, kinds = start(app, "patient"), (SignalReceived, WaitEnded, StepGivenUp, SignalAnswered)

    driven.signal("ask", {"question": "pen"}, signal_id="u-1").finish()

    assert driven.answers == {"u-1": "later"}
    assert [type(event) for event in driven.events if isinstance(event, kinds)] == list(kinds)
