"""One request of a megabyte, of the kinds that cost most to read: how long it holds a planner, in CPU time."""

from __future__ import annotations

import gc
import json
import time

import pytest

from refold import App, Context
from refold.engine.ports.log import Outgoing
from refold.engine.runtime.memory import COLLECT_AFTER
from tests.recovery.rig import Rig
from tests.waiting import under_load

MOST_S = 0.5
MB = 1_000_000

app = App("worst")


@app.tool(effect="pure")
def echo(given: object) -> int:
    """Take anything."""
    return 1


@app.agent
async def calls(ctx: Context, given: object = None) -> object:
    """Hand all of it on."""
    return await ctx.call(echo, given)


@app.agent
async def waits(ctx: Context, match: str) -> object:
    """Wait for what the request says."""
    return await ctx.wait_for("go", match=match)


@app.agent
async def asks(ctx: Context, schema: dict[str, object]) -> object:
    """Ask outside for what the request says."""
    return await ctx.callback("answer", schema=schema)


def many(item: str) -> str:
    return f"[{','.join([item] * (MB // (len(item) + 1)))}]"


INPUTS = {
    "a string": json.dumps("a" * MB),
    "escapes": json.dumps('\\"\n' * (MB // 6)),
    "characters by number": f'"{chr(92)}u00e9{(chr(92) + "ud83d" + chr(92) + "ude00") * (MB // 12)}"',
    "control characters": json.dumps("\x01" * (MB // 6)),
    "depth": "[" * (MB // 2) + "]" * (MB // 2),
    "some depth, often": many("[" * 60 + "]" * 60),
    "numbers": many("0"),
    "fractions": many("0.12345678901234567"),
    "large numbers": many("9" * 300),
    "one large number": "9" * MB,
    "exponents": many("1e308"),
    "keys": json.dumps({f"k{number}": number for number in range(MB // 16)}),
    "equal keys": "{" + ",".join(['"a":1'] * (MB // 6)) + "}",
    "some depth, as often as may be": f"[{','.join(['[' * 60 + ']' * 60] * 2_480)}]",
    "objects": many('{"a":{}}'),
    "as many objects as may be": f"[{','.join(['{}'] * 149_990)}]",
    "empty objects": many("{}"),
    "pairs": many("[10,20]"),
}
REQUESTS = {
    **{name: f'{{"run_id":"r","agent":"calls","input":{{"given":{given}}}}}' for name, given in INPUTS.items()},
    "labels": json.dumps({"run_id": "r", "agent": "calls", "labels": {f"l{n}" * 30: "v" * 30 for n in range(5_000)}}),
    "sessions": json.dumps({"run_id": "r", "agent": "calls", "sessions": [f"s{n}" for n in range(MB // 12)]}),
    "a long id": json.dumps({"run_id": "r" * MB, "agent": "calls"}),
    "a long match": json.dumps(
        {"run_id": "r", "agent": "waits", "input": {"match": "||".join(["data == 1"] * 75_000)}}
    ),
    "a deep match": json.dumps({"run_id": "r", "agent": "waits", "input": {"match": f"{'(' * 300}true{')' * 300}"}}),
    "a schema": json.dumps(
        {
            "run_id": "r",
            "agent": "asks",
            "input": {"schema": {"properties": {f"k{n}": {"pattern": "^(a+)+$"} for n in range(MB // 40)}}},
        }
    ),
    "choices": json.dumps(
        {"run_id": "r", "agent": "asks", "input": {"schema": {"anyOf": [{"const": n} for n in range(MB // 18)]}}}
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_no_turn_of_a_planner_takes_long_for_one_request(name: str) -> None:
    rig = Rig(app)
    rig.broker.write(Outgoing("run-requested", 0, b"r", REQUESTS[name].encode(), (), 0))
    before, longest, quiet = gc.get_threshold(), 0.0, 0
    gc.collect()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        while quiet < 3:
            began = time.process_time()
            quiet = 0 if rig._turn() else quiet + 1
            longest = max(longest, time.process_time() - began)
    finally:
        gc.set_threshold(*before)

    print(f"{name}: {longest:.3f} s, {len(REQUESTS[name]):,} bytes")  # noqa: T201 - with -s, for docs/limits.md
    assert rig.letters() or rig.events("r")
    assert longest < under_load(MOST_S)


@pytest.mark.parametrize("name", ["pairs", "as many objects as may be", "some depth, as often as may be"])
def test_what_may_be_sent_is_taken(name: str) -> None:
    rig = Rig(app)
    rig.broker.write(Outgoing("run-requested", 0, b"r", REQUESTS[name].encode(), (), 0))
    rig.run()

    assert rig.events("r")[-1] == "CallDispatched"


def test_no_match_of_a_large_signal_takes_long() -> None:
    rig = Rig(app)
    rig.start("r", "waits", match='data.matches("(a*)*b") || data.all(x, data.all(y, x == y))')
    rig.run()

    began = time.process_time()
    rig.tell("r", "go-1", "a" * 900_000)
    rig.tell("r", "go-2", list(range(9_000)))
    rig.run()

    assert time.process_time() - began < under_load(MOST_S)
