"""Records that no service writes, in every topic that a planner reads: void, and it goes on."""

from __future__ import annotations

import pytest

from refold import App, Limit
from refold.core.events import Spendable
from refold.core.messages import WindowSpent
from refold.core.wire import codec
from refold.engine.ports.log import Outgoing
from tests.fuzz.poison import poison
from tests.recovery.rig import INPUTS, SPENT, Rig
from tests.recovery.test_versions import app, finish, one, step

READ = (*INPUTS, "run-log", "run-snapshot", "catalog", SPENT)


def limited() -> App:
    """An app with a limit, so that its planners read what others have spent."""
    code = App("shop", limits=[Limit("day", calls=1_000)])
    code.tool(effect="pure")(step)
    code.agent(name="ship", version="one")(one)
    return code


@pytest.mark.parametrize("topic", READ)
@pytest.mark.parametrize("seed", range(3))
def test_what_no_service_writes_ends_no_planner_and_no_take_over(topic: str, seed: int) -> None:
    rig = Rig(limited())
    rig.start("r", "ship")
    rig.run()

    for record in poison(topic, seed):
        rig.broker.write(record)
    rig.run()
    rig.deploy(limited())
    rig.now += 60_000
    rig.deploy(limited())

    assert finish(rig) == "[1,1,1]"


@pytest.mark.parametrize("key", [b"run/\xff", b"run/\xff/0", b"over/\xff", b"held/\xff"])
def test_a_key_that_is_no_text_in_the_snapshot_is_void(key: bytes) -> None:
    rig = Rig(app(one))
    rig.start("r", "ship")
    rig.run()

    for value in (b"x", None):
        rig.broker.write(Outgoing("run-snapshot", 0, key, value, (), 0))
        rig.deploy(app(one))

    assert finish(rig) == "[1,1,1]"


@pytest.mark.parametrize("window", ["9999-12", "9999-12-31", "0000-00", "2026-13", "", "\ud7ff"])
def test_a_period_that_no_calendar_has_is_void(window: str) -> None:
    code = limited()
    rig = Rig(code)
    spent = WindowSpent(
        window=window,
        agent="",
        label="",
        value="",
        lane=0,
        log=0,
        tokens=0,
        nano_usd=0,
        calls=0,
        limits=Spendable(),
        member="x",
    )
    rig.broker.write(Outgoing(SPENT, 0, b"x", codec.encode(spent), (), 0))
    rig.run()
    rig.deploy(code)
    rig.start("r", "ship")
    rig.run()

    assert finish(rig) == "[1,1,1]"
