"""The watchdog tells code that hangs from a process that stands still; in processes that may really be stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from threading import Event

import pytest

from tests.waiting import under_load

MOST_S = 1.0

DRIVES = """
import os, sys, time
from threading import Event
from refold.engine.runtime.watchdog import Driven, Mark, Watchdog

mark = Mark()

def quarantine(driven, stack):
    print("quarantined", driven.run_id, flush=True)

watchdog = Watchdog(mark, hint="", give_up=quarantine, die=os._exit, warn_s=0.2, most_s=MOST_S)
watchdog.start()
began_s = time.thread_time()
with mark.on(Driven("r", "1", "1")):
    while time.thread_time() < began_s + 0.3: pass  # by now the watchdog has seen it
    print("drives", flush=True)
    CODE
print("done", flush=True)
watchdog.stop()
"""

WORKS = "began = time.thread_time()\n    while time.thread_time() - began < MOST_S / 2: pass"


def driving(code: str) -> subprocess.Popen[bytes]:
    """A process that drives a run with this code; read without a buffer, so that `said` loses nothing after it."""
    text = DRIVES.replace("CODE", code).replace("MOST_S", str(MOST_S))
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith(b"drives\n"):  # behind a log line of the watchdog's thread, now and then
            break
    return process


def said(process: subprocess.Popen[bytes]) -> tuple[str, int]:
    out, _ = process.communicate(timeout=under_load(60))
    return " ".join(re.findall(r"(?:done|quarantined r)$", out.decode(), re.MULTILINE)), process.returncode


def test_a_process_that_was_stopped_has_done_nothing_wrong() -> None:
    process = driving(WORKS)

    os.kill(process.pid, signal.SIGSTOP)
    Event().wait(2 * MOST_S)
    os.kill(process.pid, signal.SIGCONT)

    assert said(process) == ("done", 0)


@pytest.mark.long
def test_a_process_that_hardly_gets_a_processor_has_done_nothing_wrong() -> None:
    process = driving(WORKS)

    began = time.monotonic()
    while time.monotonic() - began < 3 * MOST_S and process.poll() is None:  # a twentieth of a processor, or less
        os.kill(process.pid, signal.SIGSTOP)
        Event().wait(0.09)
        os.kill(process.pid, signal.SIGCONT)
        Event().wait(0.005)

    assert said(process) == ("done", 0)


@pytest.mark.parametrize("code", ["while True: pass", "Event().wait()", "time.sleep(600)"])
def test_code_that_works_or_waits_for_too_long_is_quarantined(code: str) -> None:
    assert said(driving(code)) == ("quarantined r", 75)


PLANS = """
import os, re
from contextlib import suppress
from threading import Event
from refold import App, Context
from refold.core.ids import RunId
from refold.engine.runtime.watchdog import Mark, Watchdog
from tests.recovery.rig import Rig

app, mark = App("hanging"), Mark()
gate = Event()

@app.tool(effect="pure")
def echo(n: int) -> int:
    return n

@app.agent
async def hangs(ctx: Context, first: bool) -> None:
    if not first:
        await ctx.call(echo, 1)
    CODE

@app.agent
async def nice(ctx: Context) -> str:
    return "fine"

def die(code):
    print("died", flush=True)
    os._exit(code)

watchdog = Watchdog(mark, hint="", give_up=lambda *_: None, die=die, warn_s=0.2, most_s=MOST_S)
watchdog.start()
rig = Rig(app, mark=mark)
rig.start("bad", "hangs", first=FIRST)
rig.run()
if not FIRST:
    rig.finish("bad")
rig.start("good", "nice")
rig.run()
hold = rig.hold("bad")
print("goes on", hold.kind, hold.reason, "in hangs" in hold.detail, rig.state("good").status)
rig.deploy(app)
print("for good", rig.hold("bad").kind, rig.state("bad").status)
watchdog.stop()
"""


def planning(code: str, *, first: bool) -> list[str]:
    """What a planner tells whose agent hangs, before or after its first step."""
    text = PLANS.replace("CODE", code).replace("MOST_S", str(MOST_S)).replace("FIRST", str(first))
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=under_load(60), check=False
    )
    return [line for line in done.stdout.splitlines() if line.startswith(("goes on", "for good", "died"))] or [
        done.stderr
    ]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("code", ["while True: pass", "gate.wait()", "re.match('(a*)*b', 'a' * 40)"])
def test_code_that_hangs_costs_no_process_and_is_not_run_again(code: str, first: bool) -> None:
    told = planning(code, first=first)

    assert told == ["goes on quarantined hang True completed", "for good quarantined running"]


def test_code_that_goes_on_all_the_same_ends_its_process() -> None:
    stubborn = "\n".join(["while True:", "        with suppress(BaseException): gate.wait()"])

    assert planning(stubborn, first=True) == ["died"]


DROPS = (
    PLANS[: PLANS.index("if not FIRST")]
    + """
rig.operate("bad", "cancel")
rig.run()
gc.collect()
rig.start("good", "nice")
rig.run()
print("goes on", rig.state("bad").status, rig.state("good").status)
watchdog.stop()
"""
)

UNWOUND = {
    "finally": "try: await ctx.call(echo, 2)\n    finally:\n        while True: pass",
    "waits": "try: await ctx.call(echo, 2)\n    finally: gate.wait()",
    "catches": "while True:\n        try: await ctx.call(echo, 2)\n        except: pass",
    "sleeps": "while True:\n        try: await asyncio.wait_for(ctx.wait_for('s'), 9)\n        except: pass",
}


@pytest.mark.parametrize("code", UNWOUND.values(), ids=UNWOUND)
def test_a_run_that_is_cancelled_and_does_not_end_costs_its_planner_nothing(code: str) -> None:
    text = DROPS.replace("import os, re\n", "import asyncio, gc, os\n").replace("CODE", code)
    text = text.replace("MOST_S", str(MOST_S)).replace("FIRST", "True")
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=under_load(60), check=False
    )

    assert done.stdout.splitlines()[-1:] == ["goes on cancelled completed"], done.stderr
    assert "run_id=bad" in done.stdout  # the log names it


def test_a_finalizer_that_hangs_in_a_collector_ends_its_process() -> None:
    text = DRIVES.replace("CODE", "pass").replace("MOST_S", str(MOST_S))
    text = text.replace('print("done"', COLLECTS + 'print("done"')

    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=under_load(60), check=False
    )

    assert done.returncode == 75
    assert "quarantined" not in done.stdout.splitlines()  # it belongs to no run
    assert "in __del__" in done.stdout


COLLECTS = """
import gc
class Hangs:
    def __init__(self): self.me = self
    def __del__(self):
        while True: pass
Hangs()
gc.collect()
"""


HOGS = """
import re, threading
def hold(length):
    re.match("(a+)+$", "a" * length + "b")  # which keeps the interpreter all the time
length, spent_s = 18, 0.0
while spent_s < 0.3:
    length, began_s = length + 1, time.thread_time()
    hold(length)
    spent_s = time.thread_time() - began_s
mark = Mark()
"""


@pytest.mark.long
def test_code_is_not_blamed_for_a_tool_that_keeps_the_interpreter() -> None:
    tool = "tool = threading.Thread(target=hold, args=(length + 3,)); tool.start(); tool.join()"
    text = DRIVES.replace("CODE", tool).replace("MOST_S", str(MOST_S)).replace('"1")', '"1", ends=True)')
    text = text.replace("mark = Mark()", HOGS)

    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=under_load(60), check=False
    )

    assert (done.stdout.splitlines()[-1:], done.returncode) == (["done"], 0), done.stdout + done.stderr
