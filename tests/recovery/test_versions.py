"""Code that changes under runs that live: versions side by side, migration, and a change in place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from refold import App, Context
from refold.core.errors import UsageError
from refold.core.events import Event, PatchTaken, RunMigrated, RunStarted
from refold.core.ids import RunId
from refold.core.messages import DeadLetter
from refold.core.wire import codec
from refold.sdk.agent import AgentDef
from refold.sdk.source import spoken
from tests.recovery.rig import Rig


def step(n: int) -> int:
    """A call that anybody may make."""
    return n


async def one(ctx: Context) -> list[int]:
    """Three calls."""
    return [await ctx.call(step, 1), await ctx.call(step, 2), await ctx.call(step, 3)]


async def two(ctx: Context) -> list[int]:
    """The third is another."""
    return [await ctx.call(step, 1), await ctx.call(step, 2), await ctx.call(step, 33)]


async def three(ctx: Context) -> list[int]:
    """The second is another."""
    return [await ctx.call(step, 1), await ctx.call(step, 22), await ctx.call(step, 3)]


async def patched(ctx: Context) -> list[Any]:
    """The second call is another for who comes to it new, and at the end something belongs to that."""
    done = [await ctx.call(step, 1)]
    done.append(await ctx.call(step, 22 if ctx.patched("twenty") else 2))
    done.append(await ctx.call(step, 3))
    return [*done, ctx.patched("twenty")]


def app(*agents: Callable[..., Any], named: bool = True) -> App:
    """An app that has these functions as versions of one agent."""
    made = App("shop")
    made.tool(effect="pure")(step)
    for agent in agents:
        made.agent(name="ship", version=agent.__name__ if named else "")(agent)
    return made


def begun(code: App, settled: int) -> Rig:
    """A run of which so many calls are settled."""
    rig = Rig(code)
    rig.start("r", "ship")
    rig.run()
    for _ in range(settled):
        rig.finish("r")
        rig.run()
    return rig


def finish(rig: Rig) -> Any:
    while rig.finish("r"):
        rig.run()
    return getattr(rig.state("r").end, "result", None)


def events_of(rig: Rig, kind: type) -> list[Event]:
    return [event for event in rig.history("r") if isinstance(event, kind)]


def letters(rig: Rig) -> list[DeadLetter]:
    return [codec.decode(DeadLetter, record.value or b"") for record in rig.broker.log("dead-letter", 0).records]


def asked(rig: Rig) -> list[str]:
    return [getattr(step, "args", "") for step in rig.state("r").steps]


def test_a_run_says_in_its_log_what_it_began_with() -> None:
    code = app(one)

    [started] = events_of(begun(code, 0), RunStarted)

    assert isinstance(started, RunStarted)
    assert spoken(started.version)[0] == "one"
    assert set(started.manifest) == {"code", "py", "tools"}
    assert started.manifest["code"] == code.agents["ship"].code
    assert started.manifest["py"] == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_another_schema_of_a_tool_is_another_manifest() -> None:
    other = App("shop")
    other.tool(effect="pure", name="step")(lambda_free)
    other.agent(name="ship")(one)

    assert other.manifest("ship")["tools"] != app(one, named=False).manifest("ship")["tools"]
    assert other.manifest("ship")["code"] == app(one, named=False).manifest("ship")["code"]


def lambda_free(n: str) -> str:
    """The same by name, with another argument."""
    return n


def test_a_run_goes_on_with_exactly_its_version_and_a_new_one_takes_the_newest() -> None:
    rig = begun(app(one), 1)
    rig.deploy(app(one, two, three))
    rig.start("n", "ship")
    rig.run()

    assert finish(rig) == "[1,1,1]"
    assert asked(rig)[1:] == ['{"n":2}', '{"n":3}']
    assert spoken(rig.state("n").version)[0] == "three"


def test_code_that_declares_no_version_takes_a_run_of_code_that_declared_none_where_that_agrees() -> None:
    rig = begun(app(one, named=False), 0)
    rig.deploy(app(three, named=False))

    assert finish(rig) == "[1,1,1]"
    assert asked(rig)[1] == '{"n":22}'


@pytest.mark.parametrize("settled", [0, 1])
def test_without_its_version_a_run_stalls_until_it_is_there_though_other_code_would_agree(settled: int) -> None:
    rig = begun(app(one), settled)
    rig.deploy(app(three))
    rig.finish("r")
    rig.run()

    hold = rig.hold("r")
    assert hold is not None
    assert (hold.reason, spoken(hold.needs)[0]) == ("unknown_version", "one")
    assert "which has three" in hold.message
    rig.deploy(app(two))
    assert rig.hold("r") is not None, "that is not its code either"
    rig.deploy(app(one, three))
    assert finish(rig) == "[1,1,1]"
    assert asked(rig) == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_an_older_planner_leaves_a_run_of_newer_code_alone_until_a_newer_one_has_its_lane() -> None:
    rig = begun(app(one, three), 0)  # the newer version begins it
    rig.deploy(app(one))
    rig.finish("r")
    rig.run()

    assert asked(rig) == ['{"n":1}'], "code of the older version asks for nothing"
    rig.deploy(app(one, three))
    assert finish(rig) == "[1,1,1]"
    assert asked(rig)[1] == '{"n":22}'


def test_a_run_is_migrated_where_the_new_code_goes_with_its_history_and_stays_so() -> None:
    rig = begun(app(one), 1)
    rig.deploy(app(one, two))

    rig.operate("r", "migrate", **{"from": "one", "to": "two"})
    rig.run()
    rig.deploy(app(one, two))

    [moved] = events_of(rig, RunMigrated)
    assert isinstance(moved, RunMigrated)
    assert (spoken(moved.version)[0], moved.actor) == ("two", "op")
    assert set(moved.manifest) == {"code", "py", "tools"}
    assert spoken(rig.state("r").version)[0] == "two"
    assert finish(rig) == "[1,1,1]"
    assert asked(rig) == ['{"n":1}', '{"n":2}', '{"n":33}']


@pytest.mark.parametrize(
    ("since", "to", "words"),
    [
        ("one", "three", "step 2 is call step"),
        ("one", "four", "has no version four of agent ship; there is one, two, three"),
        ("two", "three", "and not of two"),
        ("one", "", "migrate needs from and to"),
    ],
)
def test_what_does_not_agree_is_refused_and_says_why(since: str, to: str, words: str) -> None:
    rig = begun(app(one), 1)
    rig.deploy(app(one, two, three))

    rig.operate("r", "migrate", **{"from": since, "to": to})
    rig.run()

    [letter] = letters(rig)
    assert words in letter.reason
    assert events_of(rig, RunMigrated) == []
    assert spoken(rig.state("r").version)[0] == "one"
    assert rig.hold("r") is None
    assert finish(rig) == "[1,1,1]"


def test_a_stalled_run_goes_on_with_the_version_that_it_is_handed_to() -> None:
    rig = begun(app(one), 1)
    rig.deploy(app(two, three))
    rig.finish("r")
    rig.run()
    stalled = rig.hold("r")

    rig.operate("r", "migrate", **{"from": "one", "to": "two"})
    rig.run()

    assert stalled is not None
    assert rig.hold("r") is None
    assert finish(rig) == "[1,1,1]"


def test_a_run_that_comes_new_to_a_change_takes_the_new_way() -> None:
    rig = begun(app(patched, named=False), 0)

    assert finish(rig) == "[1,1,1,true]"
    assert asked(rig)[1] == '{"n":22}'
    assert events_of(rig, PatchTaken) == [PatchTaken("twenty")]


@pytest.mark.parametrize("settled", [1, 2])
def test_a_history_that_has_passed_a_change_keeps_the_old_way_to_its_end(settled: int) -> None:
    rig = begun(app(one, named=False), settled)
    rig.deploy(app(patched, named=False))
    rig.finish("r")
    rig.run()
    rig.deploy(app(patched, named=False))

    assert finish(rig) == "[1,1,1,false]"
    assert asked(rig)[1] == '{"n":2}'
    assert events_of(rig, PatchTaken) == []


def test_a_run_that_waits_before_a_change_takes_the_new_way_and_keeps_it() -> None:
    rig = begun(app(one, named=False), 0)
    rig.deploy(app(patched, named=False))
    rig.finish("r")
    rig.run()
    rig.deploy(app(patched, named=False))  # along a history that has the change

    assert finish(rig) == "[1,1,1,true]"
    assert asked(rig)[1] == '{"n":22}'
    assert events_of(rig, PatchTaken) == [PatchTaken("twenty")]


def test_what_came_while_a_run_was_held_is_new_to_it() -> None:
    rig = begun(app(one, named=False), 0)
    rig.deploy(App("nothing"))
    rig.finish("r")  # recorded, and no code has seen it
    rig.run()
    rig.deploy(app(patched, named=False))

    assert finish(rig) == "[1,1,1,true]"
    assert RunId("r") == rig.state("r").run_id


def test_a_run_goes_on_with_the_version_that_it_began_with_and_new_ones_get_the_newest() -> None:
    rig = begun(app(one), 0)

    rig.deploy(app(one, three))
    rig.start("r-2", "ship")
    rig.run()
    while rig.finish():
        rig.run()
    rig.start("r-3", "ship")
    rig.run()
    rig.finish("r-3")
    rig.run()
    rig.deploy(app(one))
    rig.finish("r-3")
    rig.run()
    hold = rig.hold("r-3")

    assert [spoken(rig.state(run).version)[0] for run in ("r", "r-2", "r-3")] == ["one", "three", "three"]
    assert [[getattr(step, "args", "") for step in rig.state(run).steps][1] for run in ("r", "r-2")] == [
        '{"n":2}',
        '{"n":22}',
    ]
    assert rig.statuses() == {"completed": 2, "running": 1}
    assert hold is not None
    assert spoken(hold.needs)[0] == "three"


def test_an_order_that_a_later_one_has_overruled_is_not_taken_again_when_it_is_read_again() -> None:
    rig = begun(app(one, two), 1)
    first = {"from": "two", "to": "one", "seq": rig.state("r").versions[-1][0]}

    rig.operate("r", "migrate", **first)
    rig.run()
    rig.operate("r", "migrate", **{"from": "one", "to": "two", "seq": rig.state("r").versions[-1][0]})
    rig.run()
    rig.operate("r", "migrate", **first)
    rig.run()

    assert [spoken(version)[0] for _, version in rig.state("r").versions] == ["two", "one", "two"]
    assert letters(rig) == []


async def waiting(ctx: Context) -> str:
    """Waits for a signal: for years, perhaps."""
    return (await ctx.wait_for("go")).id


@pytest.mark.parametrize(("portable", "ends"), [(True, "completed"), (False, "running")])
def test_a_portable_agent_goes_on_under_another_python(
    portable: bool, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("refold.sdk.agent.foundation", lambda functions: ("py3.99",))
        rig = Rig(with_waiting(portable=portable))
        rig.start("r", "refold.waiting")
        rig.run()

    rig.deploy(with_waiting(portable=portable))
    rig.tell("r", "s-1")
    rig.run()

    assert rig.state("r").status == ends
    hold = rig.hold("r")
    assert (hold.reason if hold else "") == ("" if portable else "other_foundation")
    assert rig.state("r").version == ("1" if portable else "1+py3.99")


def with_waiting(*, portable: bool) -> App:
    """An app, whose own code is another one each time, with an agent of the package."""
    made = App("shop")
    made.add_agent(AgentDef(waiting, name="refold.waiting", version="1", portable=portable))  # type: ignore[arg-type]
    return made


def test_an_agent_without_a_version_or_of_a_framework_is_not_portable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="not portable"):
        AgentDef(waiting, portable=True)  # type: ignore[arg-type]
    monkeypatch.setattr("refold.sdk.agent.foundation", lambda functions: ("py3.11", "anyio4.12"))
    with pytest.raises(UsageError, match="not portable"):
        AgentDef(waiting, version="1", portable=True)  # type: ignore[arg-type]
