"""What programs are made of that plain asyncio has."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import anyio

from tests.sdk.programs.parts import HANDLED, LEAVES, PLACE, Node, World, do, each, leaf, tasks, tree
from tests.sdk.replays import call, note

# What has no parts


@leaf
async def calls(w: World, node: Node) -> Any:
    return await call(f"tool{node.number}", str(w.trace))


@leaf
async def calls_again(w: World, node: Node) -> Any:
    return [await call(f"tool{n}", str(w.trace)) for n in range(1 + node.chance % 2)]


@leaf
async def sleeps(w: World, node: Node) -> Any:
    before = asyncio.get_running_loop().time()
    await asyncio.sleep(node.seconds)
    return round(asyncio.get_running_loop().time() - before, 3)


@leaf
async def notes(w: World, node: Node) -> Any:
    note(f"kind{node.number}", str(w.trace))


@leaf
async def draws(w: World, node: Node) -> Any:
    drawn = [random.random(), random.sample(range(9), 3), uuid.uuid4().hex, secrets.token_hex(2), os.urandom(2)]
    clocks = [time.time(), time.time_ns(), time.monotonic(), time.perf_counter_ns()]
    return [*drawn, *clocks, await call("draws", f"{w.mark(drawn)} {clocks}")]


@leaf
async def waits_for_event(w: World, node: Node) -> Any:
    if node.chance % 3:
        w.event.set()
        await asyncio.sleep(0)
        w.event.clear()
        return None
    return await asyncio.wait_for(w.event.wait(), node.seconds)


@leaf
async def puts(w: World, node: Node) -> Any:
    for number in range(node.chance % 3):
        w.queue.put_nowait(w.mark(number))


@leaf
async def gets(w: World, node: Node) -> Any:
    async with asyncio.timeout(node.seconds):
        return [await w.queue.get(), await w.queue.get()]


@leaf
async def notifies(w: World, node: Node) -> Any:
    async with w.changed:
        w.changed.notify(1 + node.chance % 2)


@leaf
async def waits_for_change(w: World, node: Node) -> Any:
    with anyio.move_on_after(node.seconds) as scope:
        async with w.changed:
            await w.changed.wait()
    return scope.cancelled_caught


@leaf
async def runs_inline(w: World, node: Node) -> Any:
    return await asyncio.to_thread(w.mark, node.number)


@leaf
async def calls_back(w: World, node: Node) -> Any:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    timer = loop.call_later(node.seconds, lambda: future.done() or future.set_result(w.mark("called back")))
    if node.chance % 3 == 0:
        timer.cancel()
        loop.call_soon(future.set_result, 1)
    return await future


# What has parts


@tree
async def one_by_one(w: World, node: Node) -> Any:
    await each(w, node)


@tree
async def gathers(w: World, node: Node) -> Any:
    return await asyncio.gather(*(do(w, part) for part in node.parts))


@tree
async def gathers_all(w: World, node: Node) -> Any:
    results = await asyncio.gather(*(do(w, part) for part in node.parts), return_exceptions=True)
    return [type(result).__name__ for result in results]


@tree
async def waits(w: World, node: Node) -> Any:
    conditions = (asyncio.FIRST_COMPLETED, asyncio.FIRST_EXCEPTION, asyncio.ALL_COMPLETED)
    until = node.seconds if node.chance & 1 else None
    made = [*tasks(w, node), asyncio.create_task(calls(w, node), name=f"extra-{node.number}")]
    done, pending = await asyncio.wait(made, timeout=until, return_when=conditions[node.chance % 3])
    for task in done:
        w.mark(made.index(task), task.cancelled() or repr(type(task.exception())))
    for task in pending:
        w.mark(made.index(task))
        if node.chance & 2:
            task.cancel()
    if node.chance & 4 and pending:
        await asyncio.wait(pending)
    return len(done)


@tree
async def as_completed(w: World, node: Node) -> Any:
    until = node.seconds if node.chance & 1 else None
    for ended in asyncio.as_completed([do(w, part) for part in [*node.parts, *node.parts]], timeout=until):
        w.mark(await ended)
        if node.chance % 5 == 0:
            break


@tree
async def group(w: World, node: Node) -> Any:
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(do(w, part)) for part in node.parts]
        if node.chance & 1:
            await calls(w, node)
    return [task.result() for task in made]


@tree
async def times_out(w: World, node: Node) -> Any:
    async with asyncio.timeout(node.seconds) as until:
        await each(w, node)
        until.reschedule(asyncio.get_running_loop().time() + 1)
        await each(w, node)


@tree
async def waits_for(w: World, node: Node) -> Any:
    return await asyncio.wait_for(do(w, node.parts[0]), node.seconds)


@tree
async def shields(w: World, node: Node) -> Any:
    inner = tasks(w, node)
    w.left.extend(inner)
    with suppress(TimeoutError):
        async with asyncio.timeout(node.seconds):
            await asyncio.shield(inner[0])
    return await asyncio.gather(*inner, return_exceptions=True) and len(inner)


@tree
async def cancels(w: World, node: Node) -> Any:
    made = [asyncio.gather(*tasks(w, node)), asyncio.ensure_future(cleans_up(w, node))]
    await (asyncio.sleep(node.seconds) if node.chance & 1 else calls(w, node))
    w.mark([task.cancel() for task in made])
    for task in made:
        with suppress(asyncio.CancelledError, *HANDLED):
            await task


@tree
async def leaves_behind(w: World, node: Node) -> Any:
    w.left.extend(tasks(w, node))
    return await calls(w, node)


@tree
async def cleans_up(w: World, node: Node) -> Any:
    try:
        await each(w, node)
    finally:
        more = [makes(w, node) for makes in (calls, calls_again)[: node.chance % 3]]
        w.mark(await asyncio.gather(call("clean", str(w.trace)), *more))


@tree
async def swallows(w: World, node: Node) -> Any:
    task = asyncio.create_task(each(w, node))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        w.mark("not me")
        await calls(w, node)
    return task.done()


@tree
async def locks(w: World, node: Node) -> Any:
    async def inside(part: Node) -> None:
        async with w.lock if node.chance & 1 else w.permits:
            await do(w, part) if part.kind in LEAVES else await calls(w, part)

    await asyncio.gather(*(inside(part) for part in node.parts), inside(node))


@tree
async def works_off(w: World, node: Node) -> Any:
    ahead: asyncio.Queue[Any] = asyncio.PriorityQueue() if node.chance & 1 else asyncio.Queue()
    for number, part in enumerate([*node.parts, *node.parts]):
        ahead.put_nowait((-number, part.number, part))

    async def worker() -> None:
        while True:
            part = (await ahead.get())[2]
            try:
                await do(w, part)
            finally:
                ahead.task_done()

    workers = [asyncio.create_task(worker()) for _ in range(2)]
    emptied = asyncio.create_task(ahead.join())
    await asyncio.wait([emptied, *workers], return_when=asyncio.FIRST_COMPLETED)
    for task in [emptied, *workers]:
        task.cancel()
    await asyncio.gather(*workers, emptied, return_exceptions=True)
    return ahead.qsize()


@tree
async def meets(w: World, node: Node) -> Any:
    barrier = asyncio.Barrier(len(node.parts))

    async def comes(part: Node) -> None:
        try:
            await do(w, part)
        except BaseException:
            await barrier.abort()
            raise
        w.mark(await barrier.wait())

    return await asyncio.gather(*(comes(part) for part in node.parts))


async def stream(w: World, node: Node) -> AsyncGenerator[int, None]:
    try:
        for part in [*node.parts, *node.parts]:
            yield await do(w, part)
    finally:
        w.mark("closed", node.number)
        if node.chance & 2:
            w.mark(await call("closes", str(w.trace)))


@tree
async def drops_generator(w: World, node: Node) -> Any:
    made: list[Any] = [stream(w, node)]
    if node.chance & 1:
        made.append(made)  # a cycle, which only a collector finds
    async for value in made[0]:
        w.mark(value)
        break


@tree
async def loses_generator(w: World, node: Node) -> Any:
    try:
        async for value in stream(w, node):
            raise ValueError(w.mark(value))
    except ValueError as error:
        error.itself = error  # type: ignore[attr-defined]  # its frame holds the generator


@tree
async def closes_generator(w: World, node: Node) -> Any:
    async with aclosing(stream(w, node)) as values:
        async for value in values:
            w.mark(value)
            if node.chance & 1:
                break


@tree
async def sees_context(w: World, node: Node) -> Any:
    token = PLACE.set(PLACE.get() + node.number)

    async def inner(part: Node) -> int:
        PLACE.set(PLACE.get() + await do(w, part))
        return PLACE.get()

    results = await asyncio.gather(*(inner(part) for part in node.parts))
    w.mark(PLACE.get())
    PLACE.reset(token)
    return results


@tree
async def calls_done(w: World, node: Node) -> Any:
    made = tasks(w, node)
    for task in made:
        task.add_done_callback(lambda task: w.mark(made.index(task), task.cancelled()))
    return await asyncio.gather(*made)


@tree
async def iterates_sets(w: World, node: Node) -> Any:
    made = {asyncio.ensure_future(do(w, part)) for part in [*node.parts, *node.parts]}
    made |= {asyncio.gather(calls(w, node), calls(w, node)) for _ in range(2)}  # type: ignore[arg-type, misc]
    for future in made:
        with suppress(*HANDLED):
            w.mark(await future)
