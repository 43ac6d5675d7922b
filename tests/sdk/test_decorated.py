"""Tools, probes and agents behind decorators that other modules have."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from refold import App, Context
from refold.testing import run


class Item(BaseModel):
    name: str


@contextlib.contextmanager
def span() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def async_span() -> AsyncIterator[None]:
    yield


def test_types_are_looked_up_where_a_decorated_function_was_written() -> None:
    app = App("shop")

    @app.tool(effect="pure")
    @span()
    @span()
    def price(item: Item) -> int:
        return len(item.name)

    @span()
    def probe(item: Item) -> Item:
        return item

    @app.tool(effect="probed", probe=probe)
    @span()
    def order(item: Item) -> Item:
        return item

    @app.agent
    @async_span()
    async def shop(ctx: Context, item: Item) -> list[Any]:
        return [await ctx.call(price, item), (await ctx.call(order, item)).name]

    assert run(app, "shop", name="egg").value == [3, "egg"]


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


async def send(to: str) -> list[str]:
    return [to, "sent"]


async def send_parts(to: str) -> list[str]:  # type: ignore[misc]
    yield to
    yield "sent"


def send_later(to: str) -> list[str]:
    return send(to)  # type: ignore[return-value]


async def fails(to: str) -> list[str]:
    raise ValueError(to)


@pytest.mark.parametrize(
    "function", [wrapped(send), wrapped(wrapped(send)), send_parts, wrapped(send_parts), send_later]
)
def test_what_a_sync_function_returns_is_awaited(function: Callable[..., Awaitable[list[str]]]) -> None:
    app = App("mail")
    app.tool(effect="once", name="send")(function)

    @app.agent
    async def agent(ctx: Context) -> list[str]:
        sent: list[str] = await ctx.call("send", to="ada")
        return sent

    assert run(app, "agent").value == ["ada", "sent"]


def test_an_error_of_what_is_awaited_is_that_of_the_tool() -> None:
    app = App("mail")
    app.tool(effect="once", name="send")(wrapped(fails))

    @app.agent
    async def agent(ctx: Context) -> None:
        await ctx.call("send", to="ada")

    failed = run(app, "agent")

    assert "ada" in str(failed.events)
    assert "bad_result" not in str(failed.events)
