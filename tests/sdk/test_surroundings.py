"""Programs around agents: handlers of logs, tests that freeze time, warnings that are errors."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from refold import App, Context
from refold.sdk import patches
from refold.testing import run, start


def logs() -> App:
    app = App("logs")

    @app.tool(effect="pure")
    def echo(n: int) -> int:
        return n

    @app.agent
    async def agent(ctx: Context) -> str:
        for n in range(3):
            logging.getLogger("shop").warning("round %s", n)
            await ctx.call(echo, n)
        return "ok"

    return app


class Threaded(logging.Handler):
    """Emits in a thread, and asks for the loop, as handlers of network services do."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        thread = threading.Thread(target=lambda: self.lines.append(record.getMessage()))
        thread.start()
        thread.join()


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("no space left on device")


@pytest.mark.parametrize("kind", ["file", "thread", "broken"])
def test_handlers_of_logs_are_not_the_agents_and_see_each_line_once(kind: str, tmp_path: Path) -> None:
    name = tmp_path / "log"
    handler = {"thread": Threaded(), "broken": Broken()}.get(kind) or logging.FileHandler(name, delay=True)
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    try:
        begun = start(logs(), "agent")
        begun.take_over()
        ended = begun.finish()
    finally:
        logger.removeHandler(handler)

    assert ended.value == "ok"
    expected = ["round 0", "round 1", "round 2"]
    if kind != "broken":
        assert (handler.lines if isinstance(handler, Threaded) else name.read_text().splitlines()) == expected


@pytest.mark.parametrize(("seconds", "raises"), [(float("nan"), True), (1e13, False), (86_400.0, False)])
def test_a_sleep_that_nobody_means_is_an_error_or_a_line(
    seconds: float, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("sleeps")

    @app.agent
    async def agent(ctx: Context) -> None:
        await asyncio.sleep(seconds)

    ended = run(app, "agent")

    assert (ended.failure is not None and ended.failure.code == "ValueError") == raises
    assert len(caplog.records) == (seconds > 1e9)


FROZEN = """
import datetime

real = datetime.datetime

class Meta(type):
    def __instancecheck__(self, instance):
        return isinstance(instance, real)

class Fake(real, metaclass=Meta):
    pass

datetime.datetime = Fake  # as libraries do that freeze time
from refold import App, Context
from refold.testing import run
import refold.contrib.pydantic_ai

app = App("frozen")

@app.agent
async def agent(ctx: Context) -> str:
    return ctx.now().isoformat()

datetime.datetime = real
print(run(app, "agent").status)
"""


@pytest.mark.parametrize("options", [(), ("-W", "error")])
def test_refold_is_imported_in_a_frozen_test_and_where_warnings_are_errors(options: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, *options, "-c", FROZEN], capture_output=True, text=True, check=False, timeout=120
    )

    assert (done.stdout, done.stderr) == ("completed\n", "")


def test_all_that_draws_from_the_generator_of_the_process_draws_from_the_runs_own() -> None:
    patches.install()
    left = {name for name, function in vars(random).items() if getattr(function, "__self__", None) is random._inst}
    assert left == {"seed", "getstate", "setstate"}


BESIDE_AN_IMPORT = """
import importlib.abc, sys, threading, time
from refold.sdk import patches

NAME = "anyio._backends._asyncio"


class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if NAME in sys.modules:
            time.sleep(0.2)


sys.meta_path.insert(0, Slow())
importing = threading.Thread(target=__import__, args=(NAME,))
importing.start()
while NAME not in sys.modules:
    time.sleep(0.001)
patches.install()
importing.join()
print(sys.modules[NAME].CancelScope.__name__)
"""


def test_a_run_begins_while_another_thread_imports_anyio() -> None:
    """As the pages do in a process that plans too."""
    ran = subprocess.run([sys.executable, "-c", BESIDE_AN_IMPORT], capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.stderr) == ("OrdinalScope\n", "")
