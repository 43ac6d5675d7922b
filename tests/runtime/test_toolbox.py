"""Whatever a tool does ends itself alone: it is heard of once, and the others run on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import count
from queue import SimpleQueue

import pytest

from refold import App, NotDone
from refold.core.errors import RefoldError
from refold.core.ids import CallId, run_id
from refold.core.messages import ToolRequest
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.ports.effects import StartTool, StopTool, ToolEnded
from refold.engine.ports.log import Membership
from refold.engine.runtime.host import Host

MOST = 100
app = App("hostile")


class Mute(Exception):  # noqa: N818
    """Cannot be told."""

    def __str__(self) -> str:
        raise SystemExit("no text")


@app.tool(effect="pure")
def exits() -> None:
    """An argparse somewhere below does this."""
    raise SystemExit(2)


@app.tool(effect="pure")
async def exits_async() -> None:
    """The same on the loop."""
    raise SystemExit(2)


@app.tool(effect="pure")
async def exits_in_a_task() -> str:
    """A task of its own raises through the loop."""

    async def away() -> None:
        raise SystemExit(3)

    task = asyncio.get_running_loop().create_task(away())
    await asyncio.wait([task])
    return "done"


@app.tool(effect="pure")
async def stops_the_loop() -> str:
    """Somebody's library thinks that the loop is its own."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return "done"


@app.tool(effect="pure")
def ends_iteration() -> None:
    """A future cannot hold this one."""
    raise StopIteration


@app.tool(effect="pure")
def mute() -> None:
    """Its error has no text."""
    raise Mute


@app.tool(effect="pure")
def says(letter: str, times: int) -> str:
    """A text of some size."""
    return letter * times


def _probe(letter: str, times: int) -> str:
    return letter * times


@app.tool(effect="probed", probe=_probe)
def asked(letter: str, times: int) -> str:
    """Its probe answers with a text of some size."""
    return letter * times


@app.tool(effect="pure")
def busy(seconds: str) -> None:
    """It has heard from somebody when to try again."""
    raise NotDone("busy", retry_after=float(seconds))


GATE = threading.Event()


@app.tool(effect="pure")
async def holds_the_loop() -> None:
    """Somebody's async tool that blocks."""
    GATE.wait()


@app.tool(effect="pure")
async def sleeps() -> None:
    """Waits for ever."""
    await asyncio.Event().wait()


class Bench:
    """A toolbox, and what has ended in it."""

    def __init__(self) -> None:
        self.ended: SimpleQueue[ToolEnded] = SimpleQueue()
        self.box = Toolbox(app, self.ended.put, threads=2, max_result=MOST)
        self._numbers = count(1)

    def run(self, tool: str, args: str = "{}", *, probe: bool = False) -> ToolEnded:
        number = next(self._numbers)
        request = ToolRequest(CallId("r-1/3"), run_id("r-1"), 1, 1, 0, tool, args, "k", "pure", 1_000)
        self.box.start([StartTool(number, request, probe)])
        ended = self.ended.get(timeout=60)
        assert ended.number == number
        return ended


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.box.close()


@pytest.mark.parametrize(
    "tool", ["exits", "exits_async", "exits_in_a_task", "stops_the_loop", "ends_iteration", "mute"]
)
def test_nothing_that_a_tool_raises_keeps_others_from_running(bench: Bench, tool: str) -> None:
    for _ in range(5):
        bench.run(tool)

    after = bench.run("says", '{"letter":"a","times":3}')

    assert (after.status, after.result) == ("completed", '"aaa"')
    assert bench.box.alive


@pytest.mark.parametrize(("tool", "code"), [("exits", "SystemExit"), ("exits_async", "SystemExit"), ("mute", "Mute")])
def test_what_a_tool_raises_leaves_its_outcome_unknown(bench: Bench, tool: str, code: str) -> None:
    ended = bench.run(tool)

    assert (ended.status, ended.code) == ("unknown", code)
    assert ended.message


@pytest.mark.parametrize(
    ("seconds", "told_ms"), [("2", 2_000), ("1e300", 10**12), ("inf", 10**12), ("-inf", 0), ("nan", 0)]
)
def test_a_wait_of_any_length_is_told_as_one_that_a_record_holds(bench: Bench, seconds: str, told_ms: int) -> None:
    ended = bench.run("busy", f'{{"seconds":"{seconds}"}}')

    assert (ended.status, ended.code, ended.retry_after_ms) == ("failed", "not_done", told_ms)


@pytest.mark.parametrize("letter", ["a", "Ω", "漢", "🙂"])
@pytest.mark.parametrize("probe", [False, True])
def test_the_limit_counts_bytes_of_results_and_of_probes_alike(bench: Bench, letter: str, probe: bool) -> None:
    tool, fits = ("asked" if probe else "says"), (MOST - 2) // len(letter.encode())

    good = bench.run(tool, f'{{"letter":"{letter}","times":{fits}}}', probe=probe)
    bad = bench.run(tool, f'{{"letter":"{letter}","times":{fits + 1}}}', probe=probe)

    assert good.status == ("happened" if probe else "completed")
    assert (bad.status, bad.code) == (("unknown", "probe_failed") if probe else ("broken", "too_large"))


def test_a_tool_that_is_stopped_before_it_has_begun_is_heard_of(bench: Bench) -> None:
    def order(number: int, tool: str) -> StartTool:
        return StartTool(
            number, ToolRequest(CallId("r-1/3"), run_id("r-1"), 1, 1, 0, tool, "{}", "k", "pure", 1), False
        )

    GATE.clear()
    bench.box.start([order(1, "holds_the_loop")])
    bench.box.start([order(2, "sleeps")])
    bench.box.stop(StopTool(2, "timeout"))
    GATE.set()

    ended = {each.number: each.status for each in (bench.ended.get(timeout=60), bench.ended.get(timeout=60))}
    assert ended == {1: "completed", 2: "unknown"}


def test_a_process_ends_when_its_tools_are_dead() -> None:
    box = Bench().box
    log = MemoryEventLog(MemoryBroker(["in"]), Membership("g", "m", ("in",)))
    host = Host([], log, tools=lambda done: box)
    box.close()

    with pytest.raises(RefoldError, match="thread is gone"):
        host.run(lambda: False)
