"""Schedules: an agent that starts another one at each tick of a cron expression or an interval.

A schedule is a run of the agent `refold.schedule` with the schedule's name as its id. Each tick starts a child of it,
so a tick starts one run whatever crashes. Every decision follows a recorded time (`ctx.sleep_until`): a planner with
other rules of time zones repeats the history.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import islice, takewhile
from typing import Annotated, Any, Literal, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from refold.core.errors import UsageError
from refold.core.ids import child_id, generation_id
from refold.core.run.intents import SCHEDULE_VALUE
from refold.sdk.context import Context, OnParentEnd

CATCH_UP = 1_000
"""Most ticks that one catch-up or backfill starts."""

GENERATION_TICKS = 500
"""Ticks after which a schedule goes on in a new generation."""

_ON_TIME = timedelta(minutes=1)
_SHOWN = 10
_SECOND = timedelta(seconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Overlap = Literal["skip", "queue", "cancel"] | Annotated[int, Field(ge=1, le=1_000)]


class ScheduleOptions(TypedDict, total=False):
    """Options of `App.every`; see `Schedule`."""

    cron: str
    every: timedelta
    zone: str
    input: Any
    overlap: Overlap
    catch_up: Literal["last", "none", "all"]
    catch_up_window: timedelta
    jitter: timedelta


class Schedule(BaseModel):
    """Declaration of a schedule.

    `cron` has five fields, or six with seconds, in local time of `zone`; `every` is an interval in UTC of at least a
    second. `overlap` decides about a tick while an earlier run goes on: `skip` it, `queue` one, `cancel` the earlier
    run, or allow a number of runs. `catch_up` selects from ticks that were missed: the `last`, `none` or `all`, as far
    as they are within `catch_up_window`. `jitter`: each schedule has its own delay below it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str
    cron: str = ""
    every: timedelta = timedelta()
    zone: str = "UTC"
    input: Any = None
    overlap: Overlap = "skip"
    catch_up: Literal["last", "none", "all"] = "last"
    catch_up_window: timedelta = timedelta(days=1)
    jitter: timedelta = timedelta()

    @model_validator(mode="after")
    def _check(self) -> "Schedule":
        if bool(self.cron) == bool(self.every):
            raise ValueError("give either cron= or every=")
        if self.every and self.every < _SECOND:
            raise ValueError("every= is at least one second")
        if not timedelta() <= self.jitter <= self.grain:
            raise ValueError("jitter= is at most the shortest time between two ticks")
        if next(self.after(_EPOCH + timedelta(days=20_000)), None) is None:
            raise ValueError(f"cron={self.cron!r} has no tick")
        return self

    @property
    def grain(self) -> timedelta:
        """The shortest time between two ticks."""
        return self.every or timedelta(seconds=60 if len(self.cron.split()) == 5 else 1)

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the ticks after a time, in UTC. **Raises** ValueError for an unknown zone or a malformed expression."""
        number = (moment - _EPOCH) // self.every if self.every else 0
        while self.every:
            number += 1
            yield _EPOCH + number * self.every
        yield from _cron_ticks(self.cron, self.zone, moment)

    def last(self, first: datetime, moment: datetime) -> datetime:
        """The last tick at or before a time; at least `first`, which is a tick."""
        if self.every:
            return max(first, _EPOCH + (moment - _EPOCH) // self.every * self.every)
        earlier = _cron_ticks(self.cron, self.zone, moment + _SECOND, reverse=True)
        return max(first, next((tick for tick in earlier if tick <= moment), first))


def _cron_ticks(expression: str, zone: str, moment: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    try:
        cronsim: Any = import_module("cronsim")  # an extra
    except ImportError:
        raise UsageError("cron= needs the package cronsim", hint="pip install 'refold[cron]'") from None
    try:
        ticks = cronsim.CronSim(expression, moment.astimezone(ZoneInfo(zone)), reverse=reverse)
    except (ZoneInfoNotFoundError, cronsim.CronSimError) as error:
        raise ValueError(f"cron={expression!r} in zone {zone!r}: {error}") from None
    return (tick.astimezone(UTC) for tick in ticks)


class Position(BaseModel):
    """State that the next generation of a schedule continues with. `after`: the last tick that was handled."""

    after: AwareDatetime
    started: int = 0
    skipped: int = 0
    failed: int = 0
    outcomes: list[dict[str, str]] = []


async def schedule(ctx: Context, spec: Schedule, position: Position | None = None) -> Any:
    """Start an agent at each tick, until the run is cancelled."""
    return await _Ticker(ctx, spec, position or Position(after=ctx.now())).run()


class _Ticker:
    """One generation of a schedule: the fields of `Position`, and `filling` tasks, which start ticks of the past."""

    def __init__(self, ctx: Context, spec: Schedule, position: Position) -> None:
        self.ctx, self.spec = ctx, spec
        self.after, self.outcomes = position.after, position.outcomes
        self.started, self.skipped, self.failed = position.started, position.skipped, position.failed
        self.running: dict[Any, datetime] = {}
        self.queued: datetime | None = None
        self.changed, self.room, self.begun = asyncio.Event(), asyncio.Event(), 0
        self.filling: set[asyncio.Task[None]] = set()
        for answered in (self.set, self.trigger, self.backfill):
            ctx.on(answered.__name__)(answered)

    @property
    def delay(self) -> timedelta:
        """Delay of all ticks of this schedule: schedules of one time differ in it."""
        number = int.from_bytes(blake2b(self.ctx.run_id.encode(), digest_size=8).digest())
        return self.spec.jitter * (number / 2**64)

    @property
    def most(self) -> int:
        """Most runs at a time."""
        return self.spec.overlap if isinstance(self.spec.overlap, int) else 1

    async def run(self) -> Any:
        # The next generation does not have the runs of this one: it begins when none goes on, or late.
        while self.filling or self.begun < GENERATION_TICKS or (self.running and self.begun < 2 * GENERATION_TICKS):
            self.expose()
            await self.next_tick()
        return self.ctx.continue_as({"spec": self.spec, "position": {"after": self.after, **self.figures}})

    @property
    def figures(self) -> dict[str, Any]:
        counts = {"started": self.started, "skipped": self.skipped, "failed": self.failed}
        return {**counts, "outcomes": self.outcomes}

    async def next_tick(self) -> None:
        """Wait for the next tick and handle it, or for a change of the declaration."""
        self.changed.clear()
        sleeping = asyncio.ensure_future(self.recorded(next(self.spec.after(self.after))))
        changed = asyncio.ensure_future(self.changed.wait())
        await asyncio.wait({sleeping, changed}, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        if sleeping.done() and not self.changed.is_set():
            await self.take(sleeping.result())
        sleeping.cancel()

    async def recorded(self, tick: datetime) -> datetime:
        """Sleep until a tick, and return it as the log has it."""
        return await self.ctx.sleep_until(tick + self.delay) - self.delay

    async def take(self, tick: datetime) -> None:
        """Handle a tick; after a pause or an outage, select from the missed ticks."""
        now = self.ctx.now()
        if now - tick - self.delay < self.spec.grain:
            self.after = tick
            self.begin(tick)
            return
        last = await self.recorded(self.spec.last(tick, now - self.delay))
        window = _ON_TIME if self.spec.catch_up == "none" else self.spec.catch_up_window
        if tick < last:
            missed = {"from": tick.isoformat(), "to": last.isoformat(), "catch_up": self.spec.catch_up}
            self.ctx.note("missed ticks", missed)
        self.after = last
        if now - last > window:
            self.skipped += 1
        elif self.spec.catch_up == "all":
            self.fill(max(tick - _SECOND, now - window), last)
        else:
            self.begin(last)

    def fill(self, after: datetime, last: datetime) -> int:
        """Start the ticks after a time and until `last`, as earlier ones end. Returns their number."""
        ticks = list(takewhile(lambda tick: tick <= last, islice(self.spec.after(after), CATCH_UP)))

        async def start_all() -> None:
            for tick in ticks:
                recorded = await self.recorded(tick)
                while len(self.running) >= self.most:
                    self.room.clear()
                    await self.room.wait()
                self.start(recorded)

        self.filling.add(task := asyncio.create_task(start_all()))
        task.add_done_callback(self.filling.discard)
        return len(ticks)

    def begin(self, tick: datetime) -> None:
        """Start the run of a tick, if the overlap with earlier ones allows it."""
        if len(self.running) < self.most:
            self.start(tick)
        elif self.spec.overlap == "cancel":
            for child in list(self.running):
                child.cancel()
            self.start(tick)
        elif self.spec.overlap == "queue" and self.queued is None:
            self.queued = tick
        else:
            self.skipped += 1

    def start(self, tick: datetime) -> None:
        local = tick.astimezone(ZoneInfo(self.spec.zone)).isoformat()
        end: OnParentEnd = "cancel" if self.spec.overlap == "cancel" else "abandon"
        child: Any = self.ctx.start(self.spec.agent, self.spec.input, on_parent_end=end, labels={"tick": local})
        self.started, self.begun = self.started + 1, self.begun + 1
        self.running[child] = tick
        child.add_done_callback(partial(self.over, local))

    def over(self, tick: str, child: Any) -> None:
        """Record the outcome of a tick's run, and start a queued tick."""
        self.running.pop(child, None)
        status = "cancelled" if child.cancelled() else "failed" if child.exception() else "completed"
        self.failed += status == "failed"
        run = child_id(generation_id(self.ctx.run_id, self.ctx.generation), child.step)
        self.outcomes = [*self.outcomes, {"tick": tick, "run": run, "status": status}][-_SHOWN:]
        queued, self.queued = self.queued, None
        if queued is not None:
            self.start(queued)
        self.room.set()
        if not self.running and self.begun >= GENERATION_TICKS:
            self.changed.set()  # a moment to go on in a new generation
        self.expose()

    def expose(self) -> None:
        zone = ZoneInfo(self.spec.zone)
        ticks = [(tick + self.delay).astimezone(zone).isoformat() for tick in self.upcoming()]
        self.ctx.expose(SCHEDULE_VALUE, {"spec": self.spec.model_dump(mode="json"), "next": ticks, **self.figures})

    def upcoming(self) -> Iterator[datetime]:
        return islice(self.spec.after(self.after), _SHOWN)

    # Updates

    async def set(self, spec: Schedule) -> list[str]:
        """Replace the declaration from now on. The answer has the next ticks."""
        self.spec, self.after = spec, max(self.after, self.ctx.now())
        self.changed.set()
        return [tick.isoformat() for tick in self.upcoming()]

    async def trigger(self) -> str:
        """Start the agent now, beside its ticks. The answer has the time."""
        now = self.ctx.now()
        self.start(now)
        self.expose()
        return now.isoformat()

    async def backfill(self, start: AwareDatetime, end: AwareDatetime) -> int:
        """Start the ticks after `start` and until `end`, in the past. The answer has their number."""
        return self.fill(start, min(end, self.ctx.now()))
