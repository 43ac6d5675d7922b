"""What an agent says for those who look on: recorded, bounded, in no key, and of no weight on replay."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest

from refold import App, Context, NonDeterminismError, Retry, UsageError
from refold.core.events import CallProposed, CheckpointReached, Event, RunCompleted, RunFailed, StatusSet, TaskFailed
from refold.testing import AgentRun, run, start

app = App("talking", plan=True)
said = ["first", "second"]
"""What the agents say: a test changes it, as a new version of an agent does."""


@app.tool(effect="pure")
def echo(text: str) -> str:
    return text


@app.tool(effect="pure", timeout=timedelta(seconds=1), retry=Retry(attempts=1))
def tag(label: str) -> str:
    return label


@app.agent
async def talker(ctx: Context) -> str:
    """Says what it does, and gets as far as it gets."""
    ctx.status(said[0])
    found = await ctx.call(echo, "a", label=said[0])
    ctx.status("between")
    ctx.status(said[1])
    ctx.checkpoint("half")
    await ctx.call(echo, "b", label=said[1])
    ctx.status(said[1])
    return found


def told(driven: AgentRun, *kinds: type[Event]) -> list[Event]:
    return [event for event in driven.events if isinstance(event, kinds)]


def test_the_last_word_of_an_entry_is_recorded_and_none_twice() -> None:
    driven = run(app, "talker")

    assert told(driven, StatusSet) == [StatusSet("first"), StatusSet("second")]
    assert driven.state.says == "second"


def test_a_checkpoint_is_a_step_and_a_status_is_none() -> None:
    driven = run(app, "talker")

    assert told(driven, CheckpointReached) == [CheckpointReached(2, "half")]
    assert len(driven.state.steps) == 3


def test_a_label_is_in_no_key() -> None:
    labelled = told(run(app, "talker"), CallProposed)
    said[:] = ["other", "words"]
    try:
        again = told(run(app, "talker"), CallProposed)
    finally:
        said[:] = ["first", "second"]

    assert [call.label for call in labelled if isinstance(call, CallProposed)] == ["first", "second"]
    assert [call.label for call in again if isinstance(call, CallProposed)] == ["other", "words"]
    keys = [[call.key for call in calls if isinstance(call, CallProposed)] for calls in (labelled, again)]
    assert keys[0] == keys[1]


def test_other_words_on_replay_are_no_other_code_and_are_not_written() -> None:
    driven = start(app, "talker")
    said[:] = ["other", "words"]
    try:
        driven.take_over()
        driven.finish()
    finally:
        said[:] = ["first", "second"]

    assert told(driven, StatusSet) == [StatusSet("first"), StatusSet("words")]
    assert driven.status == "completed"


@app.agent
async def moved(ctx: Context) -> str:
    """As the other, with a checkpoint of another name."""
    found = await ctx.call(echo, "a")
    ctx.checkpoint("more than half")
    await ctx.call(echo, "b")
    return found


def test_another_checkpoint_is_other_code() -> None:
    driven = run(app, "talker")

    with pytest.raises(NonDeterminismError, match="step 2 is checkpoint half in history and checkpoint more than half"):
        driven.check("moved")


@app.agent
async def verbose(ctx: Context) -> None:
    """Says more than anybody reads."""
    ctx.status("x" * 5_000)
    ctx.checkpoint("y" * 5_000)
    await ctx.call(echo, "a", label="z" * 5_000)


def test_words_are_cut() -> None:
    driven = run(app, "verbose")

    [call] = told(driven, CallProposed)
    [point] = told(driven, CheckpointReached)
    assert isinstance(call, CallProposed)
    assert isinstance(point, CheckpointReached)
    assert driven.state.says == "x" * 299 + "…"
    assert (call.label, point.name) == ("z" * 99 + "…", "y" * 99 + "…")


class Word(StrEnum):
    HERE = "here"


@app.agent
async def odd(ctx: Context, what: str) -> None:
    """Says what is no text."""
    word = {"number": 7, "surrogate": "\ud800", "enumeration": Word.HERE}[what]
    ctx.status(word)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["number", "surrogate"])
def test_what_is_no_text_is_refused(what: str) -> None:
    failed = run(app, "odd", what=what)

    assert failed.failure is not None
    assert "a status is" in failed.failure.message
    with pytest.raises(UsageError):
        _ = failed.value


def test_a_word_of_an_enumeration_is_its_text() -> None:
    assert run(app, "odd", what="enumeration").state.says == "here"


@app.agent
async def tagger(ctx: Context) -> str:
    """Calls a tool that has a parameter of this name."""
    return await ctx.call(tag, label="mine")


def test_a_tool_with_a_parameter_of_that_name_gets_it() -> None:
    driven = run(app, "tagger")

    [call] = told(driven, CallProposed)
    assert isinstance(call, CallProposed)
    assert (driven.value, call.args, call.label) == ("mine", '{"label":"mine"}', "")


MODEL_SAID = [{"text": "a", word: {"attempts": 3}} for word in ("retry", "timeout", "label", "reserve", "self")]


@app.agent
async def spreading(ctx: Context, said: dict[str, Any], *, safe: bool) -> list[Any]:
    """Calls a tool with what a model has said, and tells what is wrong with it."""
    try:
        return [await (ctx.call_with("echo", said, label="here") if safe else ctx.call("echo", **said))]
    except UsageError as error:
        return [error.message, error.hint]


@pytest.mark.parametrize("said", MODEL_SAID)
def test_what_a_model_says_is_no_word_of_a_call(said: dict[str, Any]) -> None:
    [spread, _] = run(app, "spreading", said=said, safe=False).value
    [given, _] = run(app, "spreading", said=said, safe=True).value

    word = next(iter(said.keys() - {"text"}))
    assert word in spread or (word, spread) == ("label", "a label is dict")
    assert given == f"tool echo: {word}: Extra inputs are not permitted"


def test_a_call_with_a_retry_that_is_none_says_what_to_write() -> None:
    said = run(app, "spreading", said=MODEL_SAID[0], safe=False).value

    assert said[0] == "tool echo is called with retry={'attempts': 3}"
    assert "ctx.call_with(tool, {...})" in said[1]


def test_a_call_with_a_mapping_is_the_same_call() -> None:
    driven = run(app, "spreading", said={"text": "a"}, safe=True)

    [call] = told(driven, CallProposed)
    assert isinstance(call, CallProposed)
    assert (driven.value, call.args, call.label) == (["a"], '{"text":"a"}', "here")


@app.agent
async def careless(ctx: Context) -> str:
    """Starts what fails, and never looks."""

    async def fail(number: int) -> None:
        await asyncio.sleep(1)
        raise ValueError(f"number {number}")

    tasks = [asyncio.create_task(fail(n), name=f"t\ud800{n}" if n == 1 else f"t{n}" * 100) for n in range(2)]
    await asyncio.sleep(2)
    return f"{len(tasks)}"


def test_tasks_that_failed_unheard_are_told_at_the_end() -> None:
    driven = run(app, "careless")

    first, second = told(driven, TaskFailed)
    assert isinstance(first, TaskFailed)
    assert isinstance(second, TaskFailed)
    assert (first.task, second.task) == (("t0" * 100)[:100], "t?1")
    assert (first.failure.code, first.failure.message) == ("ValueError", "number 0")
    assert isinstance(driven.events[-1], RunCompleted)


@app.agent
async def crowd(ctx: Context) -> None:
    """As many failures as it likes, and one that everybody hears of."""

    async def fail() -> None:
        raise ValueError

    _ = [asyncio.create_task(fail()) for _ in range(500)]
    await asyncio.sleep(1)
    raise KeyError("heard")


def test_of_many_failed_tasks_some_are_told_and_the_end_comes_last() -> None:
    driven = run(app, "crowd")

    assert len(told(driven, TaskFailed)) == 20
    assert isinstance(driven.events[-1], RunFailed)


def test_a_plan_marks_every_step_that_is_done() -> None:
    steps = [{"name": name, "tool": "echo", "args": {"text": name}} for name in ("one", "two")]

    driven = run(app, "plan", steps=steps)

    assert [point.name for point in told(driven, CheckpointReached) if isinstance(point, CheckpointReached)] == [
        "one",
        "two",
    ]
