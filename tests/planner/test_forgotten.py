"""Beyond the horizon the runs of a family are forgotten together."""

from __future__ import annotations

import pytest

from refold import App, Context
from refold.core.ids import RunId
from refold.core.messages import RunErased
from refold.core.run.erased import HORIZON_KEY
from refold.core.topics import RUN_LOG, RUN_REQUESTED, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.ports.log import Outgoing
from tests.planner.kin import ask
from tests.planner.rig import TOPICS, Rig
from tests.planner.test_copies import run_of

NOW, MINUTE = 1_700_000_000_000, 60_000
app = App("forgotten")


@app.tool(effect="once")
async def act(run: str, n: int) -> int:
    """Never runs: its result is played."""
    return n


@app.agent
async def publisher(ctx: Context) -> int:
    """Tells a listener, and is over before that is."""
    ctx.publish("paid", {"n": 7})
    return 1


@app.on("paid")
async def listener(ctx: Context, n: int) -> int:
    """Acts, and is over when that is."""
    return await ctx.call(act, ctx.run_id, n)


class Clock:
    """Time of the broker, in ms."""

    now = NOW


def forgotten(rig: Rig, before_ms: int) -> Rig:
    """All of the log is erased, an archivist moves the horizon, and a planner takes over."""
    for topic in (RUN_REQUESTED, RUN_LOG):
        for record in [r for r in rig.broker.log(topic, 0).records if r.value is not None]:
            if run_of(record) != "anchor":
                rig.broker.write(Outgoing(topic, 0, record.key or b"", None, (), 0))
        rig.broker.compact(topic, 0)
    horizon = codec.encode(RunErased(RunId(""), at_ms=before_ms))
    rig.broker.write(Outgoing(RUN_SNAPSHOT, 0, HORIZON_KEY, horizon, (), 0))
    rig.broker.expire("refold-planner", "p")
    return Rig(rig.world, rig.broker, member="next", code=app)


@pytest.mark.parametrize("ended", [False, True], ids=["while-the-child-is-known", "when-both-are-gone"])
def test_a_request_that_is_repeated_begins_a_whole_family_or_none(ended: bool) -> None:
    clock = Clock()
    rig = Rig(broker=MemoryBroker(TOPICS, 1, clock_ms=lambda: clock.now), code=app)
    rig.answers = False
    ask(rig, "r", "publisher", {})
    rig.pump()
    clock.now += 10 * MINUTE
    ask(rig, "later", "publisher", {})
    rig.pump()  # by whose entries the lane learns the time
    rig.answers = True
    rig.pump()
    clock.now += MINUTE

    after = forgotten(rig, NOW + (20 if ended else 5) * MINUTE)
    before = after.broker.log(RUN_LOG, 0).end
    ask(after, "r", "publisher", {})
    after.pump()

    records = [r for r in after.broker.log(RUN_LOG, 0).records if r.offset >= before and r.value]
    begun = {run for record in records if (run := run_of(record))}
    assert begun - {"anchor"} == ({"r", "r.1_1"} if ended else set())
