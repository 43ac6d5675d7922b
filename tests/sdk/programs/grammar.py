"""Random programs of asyncio and anyio: trees of what people write, whose tasks share a trace of all that was done.

Every call and note has the trace in its arguments, so that any other order of two things anywhere shows in what the
program asks for next.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import anyio

from refold.core.errors import CallFailed
from tests.sdk.replays import call, note

DEPTH = 4
HANDLED = (CallFailed, TimeoutError, ExceptionGroup, ValueError, asyncio.BrokenBarrierError, asyncio.QueueFull)

PLACE: contextvars.ContextVar[int] = contextvars.ContextVar("place", default=0)


class World:
    """What the tasks of a program share."""

    def __init__(self) -> None:
        self.trace = 0
        self.lock, self.permits, self.changed = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Condition()
        self.event, self.queue, self.limiter = asyncio.Event(), asyncio.Queue[int](3), asyncio.LifoQueue[int]()
        self.left: list[Any] = []

    def mark(self, *done: Any) -> int:
        """Notes what was done, in the trace of all that comes after it."""
        self.trace = crc32(repr(done).encode(), self.trace)
        return self.trace


@dataclass(slots=True)
class Node:
    """A construct with its parts. `chance` is a number for what it does one way or another."""

    kind: str
    number: int
    chance: int
    handles: bool
    parts: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind}{'?' if self.handles else ''}({', '.join(map(str, self.parts))})"

    @property
    def seconds(self) -> float:
        """A short while."""
        return (self.chance % 40) / 10


Construct = Callable[[World, Node], Awaitable[Any]]
LEAVES: dict[str, Construct] = {}
TREES: dict[str, Construct] = {}


def leaf(construct: Construct) -> Construct:
    LEAVES[construct.__name__] = construct
    return construct


def tree(construct: Construct) -> Construct:
    TREES[construct.__name__] = construct
    return construct


def program(seed: int) -> Node:
    """The program of a seed, the same in every process."""
    chance, count = random.Random(f"program {seed}"), iter(range(10_000))

    def grow(depth: int) -> Node:
        is_leaf = depth == 0 or chance.random() < (0.25 if depth < DEPTH else 0)
        kind = chance.choice(list(LEAVES if is_leaf else TREES))
        node = Node(kind, next(count), chance.randrange(1 << 20), chance.random() < 0.6)
        node.parts = [] if is_leaf else [grow(depth - 1) for _ in range(chance.choice((1, 2, 2, 3, 3)))]
        return node

    return grow(DEPTH)


async def do(w: World, node: Node) -> int:
    """Does what a node says, and leaves in the trace what came of it."""
    w.mark(node.number)
    try:
        value = await (LEAVES.get(node.kind) or TREES[node.kind])(w, node)
    except asyncio.CancelledError:
        w.mark(node.number, "cancelled")
        raise
    except HANDLED as error:
        w.mark(node.number, type(error).__name__)
        if not node.handles:
            raise
        value = None
    return w.mark(node.number, value)


async def main(w: World, node: Node) -> int:
    """A program."""
    try:
        return await do(w, node)
    finally:
        if node.chance & 1:
            w.mark(await call("last", str(w.trace)))


async def each(w: World, node: Node) -> None:
    for part in node.parts:
        await do(w, part)


def tasks(w: World, node: Node) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(do(w, part)) for part in node.parts]


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
    return [*drawn, time.time(), time.time_ns(), await call("draws", str(w.mark(drawn)))]


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
    made |= {asyncio.gather(calls(w, node), calls(w, node)) for _ in range(2)}  # type: ignore[arg-type]
    for future in made:
        with suppress(*HANDLED):
            w.mark(await future)


# anyio


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
