"""What programs are made of that anyio has."""

from __future__ import annotations

from typing import Any

import anyio

from tests.sdk.programs.parts import Node, World, do, each, tree
from tests.sdk.programs.plain import calls
from tests.sdk.replays import call


@tree
async def anyio_group(w: World, node: Node) -> Any:
    async with anyio.create_task_group() as group:
        for part in [*node.parts, *node.parts]:
            group.start_soon(do, w, part)
        if node.chance & 1:
            await calls(w, node)
            group.cancel_scope.cancel()


@tree
async def anyio_nested(w: World, node: Node) -> Any:
    async def inner(part: Node) -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await do(w, part)
        w.mark(scope.cancelled_caught)

    scopes: list[anyio.CancelScope] = []
    async with anyio.create_task_group() as group:
        for part in [*node.parts, *node.parts]:
            group.start_soon(inner, part)
        await calls(w, node)
        if node.chance & 1:
            scopes[0].cancel()
        else:
            group.cancel_scope.cancel()


@tree
async def moves_on(w: World, node: Node) -> Any:
    with anyio.move_on_after(node.seconds, shield=bool(node.chance & 1)) as scope:
        await each(w, node)
    return scope.cancelled_caught


@tree
async def fails_after(w: World, node: Node) -> Any:
    with anyio.fail_after(node.seconds):
        await each(w, node)


@tree
async def cleans_shielded(w: World, node: Node) -> Any:
    try:
        await each(w, node)
    finally:
        with anyio.CancelScope(shield=True):
            w.mark(await call("clean", str(w.trace)))


@tree
async def pipes(w: World, node: Node) -> Any:
    send, receive = anyio.create_memory_object_stream[int](node.chance % 3)

    async def feed(part: Node, into: Any) -> None:
        async with into:
            await into.send(await do(w, part))

    async with anyio.create_task_group() as group:
        async with send:
            for part in node.parts:
                group.start_soon(feed, part, send.clone())
        async with receive:
            async for value in receive:
                w.mark(value)


@tree
async def anyio_starts(w: World, node: Node) -> Any:
    async def serves(part: Node, *, task_status: anyio.abc.TaskStatus[int]) -> None:
        await calls(w, part)
        task_status.started(w.trace)
        await do(w, part)

    limiter, over = anyio.CapacityLimiter(1), anyio.Event()
    async with anyio.create_task_group() as group:
        for part in node.parts:
            async with limiter:
                w.mark(await group.start(serves, part))
        over.set()
        await over.wait()
