"""`Client`, the blocking client: `AsyncClient` on an event loop in a thread."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from copy import copy
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from refold.client.awaiting import AsyncClient
from refold.core.errors import UsageError

MOST_THREADS = 256
"""Most concurrent operations of all threads."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _blocking_method(
    method: Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate["Client", _P], _T]:
    @wraps(method)
    def call(self: "Client", /, *args: _P.args, **named: _P.kwargs) -> _T:
        return self._run_on_loop(method(self._client, *args, **named))

    return call


def _blocking_iterator(
    method: Callable[Concatenate[AsyncClient, _P], AsyncIterator[_T]],
) -> Callable[Concatenate["Client", _P], Iterator[_T]]:
    @wraps(method)
    def call(self: "Client", /, *args: _P.args, **named: _P.kwargs) -> Iterator[_T]:
        items: Any = method(self._client, *args, **named)
        over: Any = object()

        async def more() -> _T:
            return await anext(items, over)

        try:
            while (item := self._run_on_loop(more())) is not over:
                yield item
        finally:
            if not self._main._closed:
                self._run_on_loop(items.aclose())

    return call


class Client:
    """`AsyncClient` for programs without asyncio: the same arguments and methods, which block. Thread-safe. One per
    process is enough, made after a fork. After `close` all methods raise UsageError."""

    def __init__(self, *, kafka: str = "", data: str = "", actor: str = "", key: str = "", vote_key: str = "") -> None:
        more = {"key": key, "vote_key": vote_key}
        self._client = AsyncClient(kafka=kafka, data=data, actor=actor, threads=MOST_THREADS, **more)
        self._start_lock, self._closed = threading.Lock(), False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    start = _blocking_method(AsyncClient.start)
    result = _blocking_method(AsyncClient.result)
    wait = _blocking_method(AsyncClient.wait)
    get = _blocking_method(AsyncClient.get)
    events = _blocking_iterator(AsyncClient.events)
    stream = _blocking_iterator(AsyncClient.stream)
    signal = _blocking_method(AsyncClient.signal)
    update = _blocking_method(AsyncClient.update)
    complete = _blocking_method(AsyncClient.complete)
    fail = _blocking_method(AsyncClient.fail)
    cancel = _blocking_method(AsyncClient.cancel)
    pause = _blocking_method(AsyncClient.pause)
    resume = _blocking_method(AsyncClient.resume)
    retry = _blocking_method(AsyncClient.retry)
    agents = _blocking_method(AsyncClient.agents)
    tools = _blocking_method(AsyncClient.tools)
    approvals = _blocking_method(AsyncClient.approvals)
    approval = _blocking_method(AsyncClient.approval)
    decide = _blocking_method(AsyncClient.decide)
    resolve = _blocking_method(AsyncClient.resolve)
    vote = _blocking_method(AsyncClient.vote)

    def of(self, actor: str, *, key: str = "", vote_key: str = "", roles: Sequence[str] = ()) -> Self:
        """Returns this client for another actor, as `AsyncClient.of`."""
        client = copy(self)
        vars(client).update(_client=self._client.of(actor, key=key, vote_key=vote_key, roles=roles))
        return client

    def close(self) -> None:
        """Ends pending waits with UsageError and closes the consumer. Does nothing on a client made by `of`."""
        if self._main is not self or self._client.pid not in (0, os.getpid()):
            return
        with self._start_lock:
            again, self._closed = self._closed, True
        if self._loop is not None and not again:
            asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
            asyncio.run_coroutine_threadsafe(_stop_loop(self._loop), self._loop)

    def _run_on_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._main is not self:
            return self._main._run_on_loop(work)
        self._client.check_process()
        with self._start_lock:
            if self._closed:
                work.close()
                raise UsageError("the client is closed", hint="make another one")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_loop, args=[self._loop], name="refold-client-loop", daemon=True).start()
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        finally:
            done.cancel()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
    loop.stop()
