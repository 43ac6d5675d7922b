"""The client for programs on asyncio: the methods of `Client`, to be awaited.

One per process is enough, for all tasks of one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, TypeVar

from refold.client.redrive import Changes
from refold.client.shared import WAIT, Action, Came, ClientBase, State, action_for, said_with, seconds, too_late
from refold.client.streams import LivePart
from refold.core.events import DOUBT
from refold.core.planning.pausing import PAUSE, RESUME
from refold.sdk.budget import Budget
from refold.views.approval import Question
from refold.views.outcome import Said, Started, Told, Voted
from refold.views.run import Ended, RunEvent, RunInfo

THREADS = 16
"""Words to runs that are under way at once: each waits in a thread for what becomes of it."""

_T = TypeVar("_T")


class AsyncClient(ClientBase):
    """`Client` for asyncio: the same methods, to be awaited. Ends and events take no thread however many there are."""

    def __init__(self, *, kafka: str = "", data: str = "", actor: str = "", key: str = "", vote_key: str = "") -> None:
        super().__init__(kafka=kafka, data=data, actor=actor, key=key, vote_key=vote_key)
        self._threads = ThreadPoolExecutor(THREADS, "refold-client-word")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """See `Client`."""
        await self._do(self._desk.close)
        self._threads.shutdown(wait=False)

    async def start(
        self,
        agent: str,
        input: object = None,
        *,
        id: str = "",
        labels: Mapping[str, str] | None = None,
        sessions: Sequence[str] = (),
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        budget: Budget | None = None,
        timeout: timedelta | None = WAIT,
    ) -> Started:
        """See `Client`."""
        asked = await self._do(
            self._desk.start,
            agent,
            input,
            run=id,
            labels=labels or {},
            sessions=sessions,
            not_before=not_before,
            deadline=deadline,
            budget=budget,
        )
        return await _heard(asked, timeout, f"no planner has taken the request for {id or agent}")

    async def result(self, run: str, *, timeout: timedelta | None = None) -> Any:
        """See `Client`."""
        ended = await self.wait(run, timeout=timeout)
        ended.check()
        return ended.value

    async def wait(self, run: str, *, timeout: timedelta | None = None) -> Ended:
        """See `Client`."""
        ended = await _heard(await self._do(self._desk.ended, run), timeout, f"run {run} is not over")
        return await self._do(self._desk.whole, ended)

    async def get(self, run: str) -> RunInfo:
        """See `Client`."""
        return await self._do(self._desk.get, run)

    async def events(
        self,
        run: str,
        *,
        after: int = 0,
        timeout: timedelta | None = None,
    ) -> AsyncIterator[RunEvent]:
        """See `Client`. Whoever leaves it early closes it, with `contextlib.aclosing`."""
        told: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        tell = partial(_tell, asyncio.get_running_loop(), told)
        over = await self._do(self._desk.events, run, after, tell)
        over.add_done_callback(lambda _: tell(None))
        try:
            while (event := await _within(told.get(), timeout, f"nothing new of run {run}")) is not None:
                yield event
            over.result()
        finally:
            over.cancel()

    async def stream(self, run: str, *, timeout: timedelta | None = None) -> AsyncIterator[LivePart]:
        """See `Client`."""
        parts = await self._do(self._desk.stream, run, timeout)
        over = object()
        try:
            while (part := await self._do(next, parts, over)) is not over:
                if isinstance(part, LivePart):
                    yield part
        finally:
            self._threads.submit(parts.close)  # which the thread of a task that was cancelled may be in

    async def signal(
        self,
        run: str,
        name: str,
        data: object = None,
        *,
        id: str = "",
        timeout: timedelta | None = WAIT,
    ) -> Told:
        """See `Client`."""
        return await self._do(self._desk.signal, run, name, data, id, seconds(timeout))

    async def complete(
        self,
        token: str,
        data: object = None,
        *,
        key: str = "",
        timeout: timedelta | None = WAIT,
    ) -> Told:
        """See `Client`."""
        return await self._do(self._desk.answer, token, data, "", key, seconds(timeout))

    async def fail(self, token: str, message: str, *, key: str = "", timeout: timedelta | None = WAIT) -> Told:
        """See `Client`."""
        return await self._do(self._desk.answer, token, None, message, key, seconds(timeout))

    async def cancel(self, run: str, *, reason: str = "", timeout: timedelta | None = WAIT) -> Said:
        """See `Client`."""
        return await self._do(self._desk.cancel, run, reason, seconds(timeout))

    async def pause(self, run: str, *, reason: str = "", timeout: timedelta | None = WAIT) -> Said:
        """See `Client`."""
        return await self._do(self._desk.hold, run, PAUSE, reason, seconds(timeout))

    async def resume(self, run: str, *, timeout: timedelta | None = WAIT) -> Said:
        """See `Client`."""
        return await self._do(self._desk.hold, run, RESUME, "", seconds(timeout))

    async def retry(self, run: str, *, reason: str = "", timeout: timedelta | None = WAIT) -> Said:
        """See `Client`."""
        return await self._do(self._desk.retry, run, Changes(reason=reason), seconds(timeout))

    async def approvals(self, state: State = "open") -> list[Question]:
        """See `Client`."""
        return await self._do(self._desk.questions, state)

    async def approval(self, name: str) -> Question:
        """See `Client`."""
        return await self._do(self._desk.question, name)

    async def decide(
        self,
        approval: str,
        action: Action,
        *,
        args: Mapping[str, object] | None = None,
        result: object = None,
        message: str = "",
        timeout: timedelta = WAIT,
    ) -> Voted:
        """See `Client`."""
        said = said_with(action, args, result, message)
        return await self._do(self._desk.decide, approval, action, said, timeout.total_seconds())

    async def resolve(
        self,
        approval: str,
        verdict: Came,
        *,
        result: object = None,
        message: str = "",
        timeout: timedelta = WAIT,
    ) -> Voted:
        """See `Client`."""
        said = said_with(action := action_for(verdict), None, result, message)
        return await self._do(self._desk.decide, approval, action, said, timeout.total_seconds(), about=DOUBT)

    async def _do(self, work: Callable[..., _T], *args: Any, **named: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **named))


async def _heard(answer: Future[_T], timeout: timedelta | None, what: str) -> _T:
    try:
        return await _within(asyncio.wrap_future(answer), timeout, what)
    finally:
        answer.cancel()


async def _within(answer: Awaitable[_T], timeout: timedelta | None, what: str) -> _T:
    try:
        return await asyncio.wait_for(answer, seconds(timeout))
    except TimeoutError:
        raise too_late(what, timeout) from None


def _tell(loop: asyncio.AbstractEventLoop, told: asyncio.Queue[_T], event: _T) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody listens any more
        loop.call_soon_threadsafe(told.put_nowait, event)
