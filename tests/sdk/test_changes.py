"""What has changed in code that does not go with its history is named: the words of the error, and a field for CI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from refold.core.errors import NonDeterminismError
from tests.sdk.replays import Code, Run, call, note


def in_turn(*tools: str) -> Callable[[], Code]:
    """One call after the other. What stands behind a colon is its arguments, and a `~` makes it a note."""

    async def code() -> None:
        for tool in tools:
            name, _, args = tool.partition(":")
            if name.startswith("~"):
                note(name[1:], args or "{}")
            else:
                await call(name, args or "{}")

    return code


def at_once(*tools: str) -> Callable[[], Code]:
    async def code() -> None:
        await asyncio.gather(*(call(tool) for tool in tools))

    return code


def difference(old: Callable[[], Code], new: Callable[[], Code], settled: Sequence[int]) -> NonDeterminismError:
    run = Run(old)
    for step in settled:
        run.settle(step)
    with pytest.raises(NonDeterminismError) as caught:
        run.again(new)
    return caught.value


@pytest.mark.parametrize(
    ("new", "step", "change", "words"),
    [
        (in_turn("fetch", "~plan", "build:{}:1", "push"), 2, "added", "note plan was added"),
        (in_turn("fetch", "fetch", "build:{}:1", "push"), 2, "added", "call fetch({}) was added once more"),
        (in_turn("fetch", "push"), 2, "removed", "call build({}:1) was removed"),
        (in_turn("fetch"), 2, "removed", "call build({}:1) was removed"),
        (in_turn("fetch", "push", "build:{}:1"), 2, "reordered", "call build({}:1) and call push({}) were reordered"),
        (in_turn("fetch", "compile:{}:1", "push"), 2, "renamed", "it is compile by now"),
        (in_turn("fetch", "build:{}:2", "push"), 2, "arguments", "the arguments of build were changed"),
        (in_turn("fetch", "test:{}:9", "build:{}:1", "push"), 2, "replaced", "or something was added before it"),
    ],
)
def test_a_change_between_calls_is_named(new: Callable[[], Code], step: int, change: str, words: str) -> None:
    error = difference(in_turn("fetch", "build:{}:1", "push"), new, [1, 2, 3])

    assert (error.fields["step"], error.fields["change"]) == (step, change)
    assert words in error.message


@pytest.mark.parametrize(
    ("new", "step", "change"),
    [
        (at_once("x", "a", "b", "c"), 1, "added"),
        (at_once("a", "b", "c", "x"), 4, "added"),
        (at_once("b", "c"), 1, "removed"),
        (at_once("a", "b"), 3, "removed"),
        (at_once("b", "a", "c"), 1, "reordered"),
        (at_once("a", "c", "b"), 2, "reordered"),
        (at_once("a", "y", "c"), 2, "renamed"),
    ],
)
def test_a_change_among_calls_that_are_made_at_once_is_named(new: Callable[[], Code], step: int, change: str) -> None:
    error = difference(at_once("a", "b", "c"), new, [])

    assert (error.fields["step"], error.fields["change"]) == (step, change)


def test_a_note_that_says_something_else_is_a_change_of_arguments_or_of_its_name() -> None:
    old = in_turn("~plan:1", "fetch")

    assert difference(old, in_turn("~plan:2", "fetch"), []).fields["change"] == "arguments"
    assert difference(old, in_turn("~idea:1", "fetch"), []).fields["change"] == "renamed"


def test_code_that_raises_has_removed_nothing() -> None:
    async def broken() -> None:
        await call("fetch")
        raise ValueError("mine")

    assert difference(in_turn("fetch", "push"), broken, [1]).fields["change"] == "raised"
