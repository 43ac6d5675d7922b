"""A planner whose agents handle large values, and the store that has them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from refold import App, CallFailed, Context, Reserve
from refold.core import topics
from refold.core.errors import BlobError, MalformedError
from refold.core.events import (
    Failure,
    RunCompleted,
    RunFailed,
)
from refold.core.ids import RunId
from refold.core.messages import RunRequest, ToolRequest
from refold.core.wire import codec
from refold.core.wire.blobs import checked, folder_of, parse_pointer, pointer_of
from refold.engine.ports.effects import BlobLoaded, BlobSaved, LoadBlob, SaveBlob
from tests.planner.rig import Rig, World, _items

LARGE = 100_000

app = App("large")


@app.tool(effect="keyed")
async def fetch(n: int, *, idempotency_key: str) -> str:
    """Never runs: its result is played."""
    return idempotency_key


@app.agent
async def read(ctx: Context, sizes: list[int]) -> list[int]:
    """Fetches texts of these sizes, one after the other; a lost one counts as -1."""
    found = []
    for size in sizes:
        try:
            found.append(len(await ctx.call(fetch, size)))
        except CallFailed as error:
            ctx.note("lost", error.fields["code"])
            found.append(-1)
    return found


@app.agent
async def think(ctx: Context) -> None:
    """Makes a call that may take a hundred tokens."""
    await ctx.call(fetch, 1, reserve=Reserve(input_tokens=100))


@app.agent
async def write(ctx: Context, size: int) -> str:
    """Notes a large text and returns one."""
    ctx.note("large", "n" * size)
    await ctx.call(fetch, 1)
    return "r" * size


@app.agent
async def count(ctx: Context, text: str, out: int) -> str:
    """Says how long its input is, at some length."""
    return str(len(text)) + "." * out


@app.agent
async def dwell(ctx: Context, text: str) -> int:
    """Makes a call, and says how long its input is."""
    await ctx.call(fetch, 1)
    return len(text)


@app.agent
async def hand_on(ctx: Context, size: int) -> int:
    """Hands a large text to a child and gets one back."""
    said: str = await ctx.run(count, {"text": "t" * size, "out": size})
    return len(said)


class Store:
    """A blob store as a dictionary. `down`: it does not answer."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.down = False
        self.reads: list[str] = []

    def put(self, run: RunId, text: str) -> str:
        pointer = pointer_of(text.encode())
        self.texts[folder_of(run) + parse_pointer(pointer).digest] = text
        return pointer

    def get(self, run: RunId, pointer: str) -> str | Failure:
        self.reads.append(pointer)
        try:
            return checked(pointer, self.texts[folder_of(run) + parse_pointer(pointer).digest].encode())
        except (KeyError, MalformedError):
            return Failure("blob_missing", f"{pointer} is not there")
        except BlobError as error:
            return Failure(error.fields["code"], str(error))


class Desk:
    """What a host asks a store with, here when the test wants it."""

    def __init__(self) -> None:
        self.orders: list[LoadBlob | SaveBlob] = []
        self.open = 0

    def take(self, order: LoadBlob | SaveBlob) -> None:
        self.orders.append(order)


class Fetching(World):
    """Tools that answer with texts of the size that they are asked for."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.forged = ""

    def act(self, request: ToolRequest) -> str:
        if request.key not in self.results:
            size = json.loads(request.args)["n"]
            text = json.dumps("x" * size)
            put = self.store.put(request.run_id, text) if size > LARGE // 2 else text
            self.results[request.key] = self.forged or put
        return self.results[request.key]


class BlobRig(Rig):
    """A planner beside a blob store that answers at every turn, unless it is down."""

    def __init__(self, store: Store | None = None, *, blob_bytes: int = 1 << 20, live_bytes: int = 1 << 30) -> None:
        self.store = store or Store()
        self.blob_bytes, self.live_bytes = blob_bytes, live_bytes
        super().__init__(Fetching(self.store), code=app)

    def boot(self, turns: int = 400) -> None:
        limits = replace(self.settings.limits, blob_bytes=self.blob_bytes)
        budget = replace(self.settings.budget, live_bytes=self.live_bytes)
        self.settings = replace(self.settings, limits=limits, budget=budget)
        self.desk = Desk()
        super().boot(0)
        self.host._blobs = self.desk  # type: ignore[assignment]
        self.pump(turns)

    def pump(self, turns: int = 400) -> None:
        quiet = 0
        for _ in range(turns):
            before = self.ends()
            self.host.pump([*_items(self.log), *self.told()])  # type: ignore[list-item]
            if self.answers:
                self._answer()
            still = (
                self.ends() == before and not self.log.cursors.waiting() and (self.store.down or not self.desk.orders)
            )
            quiet = quiet + 1 if still else 0
            if quiet == 3:
                return

    def told(self) -> list[BlobLoaded | BlobSaved]:
        """What the store says by now."""
        if self.store.down:
            return []
        orders, self.desk.orders = self.desk.orders, []
        found: list[BlobLoaded | BlobSaved] = []
        for order in orders:
            if isinstance(order, LoadBlob):
                found.append(BlobLoaded(order.number, self.store.get(order.run, order.pointer)))
            else:
                self.store.put(order.run, order.text)
                found.append(BlobSaved(order.number))
        return found

    def ask(self, run: str, agent: str, given: Any, *, text: str = "") -> None:
        """Asks for a run."""
        request = RunRequest(RunId(run), agent, text or json.dumps(given), "ann")
        self.write(topics.RUN_REQUESTED, run, run, codec.encode(request))

    def events(self, run: str, kind: type) -> list[Any]:
        """The events of one kind that count."""
        return [event for entry in self.log_of(run) for event in entry.events if isinstance(event, kind)]

    def result(self, run: str) -> Any:
        """What a run has returned."""
        assert not (failed := self.events(run, RunFailed)), failed
        [end] = self.events(run, RunCompleted)
        return json.loads(end.result)

    @property
    def log_bytes(self) -> int:
        """What all topics hold."""
        return sum(len(record.value or b"") for name in topics_of(self) for record in self.reader.scan(name))


def topics_of(rig: Rig) -> list[str]:
    """The topics of a rig."""
    return [topics.RUN_LOG, topics.RUN_COMPLETED, topics.tool_completed("default"), topics.RUN_SNAPSHOT]
