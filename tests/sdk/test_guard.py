"""The guard: an agent that reaches for the clock, chance or the world is told what to write instead."""

from __future__ import annotations

import asyncio
import datetime as dt
import glob
import importlib
import os
import platform
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import timeit
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import choice
from time import sleep as nap
from typing import Any

import pytest

from refold import App, Context, UsageError
from refold.sdk.determinism import watch
from refold.testing import run, start

app = App("guarded")


@app.tool
def fetch(url: str) -> str:
    """A tool may do what it likes."""
    return urllib.request.urlopen(url).read().decode()  # type: ignore[no-any-return]


def helper() -> float:
    return deeper()


def deeper() -> float:
    return time.time()


def recursive(n: int) -> int:
    return recursive(n - 1) if n else 0


async def sleeps(ctx: Context) -> None:
    time.sleep(1)  # noqa: ASYNC251


async def sleeps_by_name(ctx: Context) -> None:
    nap(1)  # noqa: ASYNC251


async def asks_the_clock(ctx: Context) -> datetime:
    return datetime.now(UTC)


async def asks_the_clock_by_module(ctx: Context) -> date:
    return dt.date.today()  # noqa: DTZ011


async def draws(ctx: Context) -> float:
    return random.random()


async def draws_by_name(ctx: Context) -> int:
    return choice([1, 2])


async def makes_ids(ctx: Context) -> str:
    return str(uuid.uuid4())


async def makes_secrets(ctx: Context) -> str:
    return secrets.token_hex()


async def reads_environment(ctx: Context) -> str:
    return os.environ["HOME"]


async def opens(ctx: Context) -> str:
    with open("x") as file:  # noqa: ASYNC230, PTH123
        return file.read()


async def reads_a_path(ctx: Context) -> str:
    return Path("x").read_text()  # noqa: ASYNC240


async def reads_an_input(ctx: Context, path: Path) -> bytes:
    return path.read_bytes()  # noqa: ASYNC240


async def looks_at_a_path(ctx: Context) -> bool:
    return (Path("a") / "b").exists()


async def lists(ctx: Context) -> list[str]:
    return os.listdir(".")  # noqa: PTH208


async def looks_at_a_file(ctx: Context) -> bool:
    return os.path.exists("x")  # noqa: ASYNC240, PTH110


async def asks_for_its_process(ctx: Context) -> int:
    return os.getpid()


async def asks_for_its_machine(ctx: Context) -> str:
    return platform.node()


async def connects(ctx: Context) -> None:
    socket.create_connection(("localhost", 1))


async def makes_a_socket(ctx: Context) -> None:
    socket.socket()


async def asks_the_web(ctx: Context) -> None:
    urllib.request.urlopen("http://localhost")  # noqa: ASYNC210


async def runs_a_process(ctx: Context) -> None:
    subprocess.run(["true"])  # noqa: ASYNC221


async def starts_a_thread(ctx: Context) -> None:
    threading.Thread(target=print).start()


async def hides_it_in_a_helper(ctx: Context) -> float:
    return helper()


async def hides_it_in_a_comprehension(ctx: Context) -> list[float]:
    return [time.monotonic() for _ in range(3)]


async def hides_it_in_an_inner_function(ctx: Context) -> float:
    def inner() -> float:
        return random.uniform(0, 1)

    return inner()


async def hides_it_in_a_default_key(ctx: Context) -> list[int]:
    return sorted([1, 2], key=lambda _: random.random())


async def imports_it(ctx: Context) -> float:
    import time as clock

    return clock.time()


async def imports_a_name(ctx: Context) -> float:
    from time import time as clock

    return clock()


async def imports_datetime(ctx: Context) -> Any:
    import datetime as local

    return local.datetime.now(UTC)


async def passes_it_on(ctx: Context) -> list[float]:
    return list(map(random.gauss, [1.0], [1.0]))


async def keeps_the_module(ctx: Context) -> Any:
    return time


async def calls_the_tool_itself(ctx: Context) -> str:
    return fetch("http://localhost")


@pytest.mark.parametrize(
    ("agent", "named", "instead"),
    [
        (sleeps, "time.sleep", r"await asyncio.sleep\("),
        (sleeps_by_name, "nap", r"await asyncio.sleep\("),
        (asks_the_clock, "datetime.now", r"ctx.now\(\)"),
        (asks_the_clock_by_module, "dt.date.today", r"ctx.now\(\)"),
        (draws, "random.random", "ctx.random"),
        (draws_by_name, "choice", "ctx.random"),
        (makes_ids, "uuid.uuid4", r"ctx.uuid\(\)"),
        (makes_secrets, "secrets.token_hex", "ctx.random"),
        (reads_environment, "os.environ", "run's input"),
        (opens, "open", "ctx.call"),
        (reads_a_path, "read_text", "ctx.call"),
        (reads_an_input, "read_bytes", "ctx.call"),
        (looks_at_a_path, "exists", "ctx.call"),
        (lists, "os.listdir", "ctx.call"),
        (looks_at_a_file, "os.path.exists", "ctx.call"),
        (asks_for_its_process, "os.getpid", "run's input"),
        (asks_for_its_machine, "platform.node", "run's input"),
        (connects, "socket.create_connection", "ctx.call"),
        (makes_a_socket, "socket.socket", "ctx.call"),
        (asks_the_web, "urllib.request.urlopen", "ctx.call"),
        (runs_a_process, "subprocess.run", "ctx.call"),
        (starts_a_thread, "threading.Thread", "asyncio.gather"),
        (hides_it_in_a_helper, r"time.time \(deeper, line", r"ctx.now\(\)"),
        (hides_it_in_a_comprehension, "time.monotonic", r"ctx.now\(\)"),
        (hides_it_in_an_inner_function, "random.uniform", "ctx.random"),
        (hides_it_in_a_default_key, "random.random", "ctx.random"),
        (imports_it, "clock.time", r"ctx.now\(\)"),
        (imports_a_name, "clock", r"ctx.now\(\)"),
        (imports_datetime, "local.datetime.now", r"ctx.now\(\)"),
        (passes_it_on, "random.gauss", "ctx.random"),
        (keeps_the_module, "time", r"ctx.now\(\)"),
    ],
)
def test_an_agent_that_a_replay_could_not_repeat_is_refused_with_what_to_write(
    agent: Callable[..., Any], named: str, instead: str
) -> None:
    with pytest.raises(UsageError, match=f"agent {agent.__name__} uses {named}.*{instead}"):
        App("tests").agent(agent)


def test_an_agent_that_calls_a_tool_itself_is_told_to_call_it_through_the_context() -> None:
    with pytest.raises(UsageError, match=r"calls the tool fetch itself .*await ctx.call\(fetch, ...\)"):
        App("tests").agent(calls_the_tool_itself)


async def behaves(ctx: Context, since: datetime) -> dict[str, Any]:
    """Uses much of what looks like the forbidden: types, constants, errors, arithmetic, tools by name."""

    def typed(at: datetime, lock: threading.Event | None = None) -> timedelta:
        return ctx.now() - at

    try:
        pages = await asyncio.gather(*(ctx.call(fetch, urllib.parse.quote(name)) for name in "ab"))
    except (TimeoutError, asyncio.TimeoutError, urllib.error.HTTPError, subprocess.CalledProcessError):  # noqa: UP041
        pages = []
    later = max(since, datetime(2024, 1, 1, tzinfo=UTC)) + timedelta(days=1)
    await asyncio.sleep(socket.AF_INET)
    tools: list[Callable[..., Any]] = [fetch]
    return {
        "pages": [isinstance(page, threading.Thread) for page in pages],
        "later": datetime.fromisoformat(later.isoformat()).isoformat(),
        "ids": [str(uuid.uuid5(uuid.NAMESPACE_URL, "x")), os.path.join("a", "b")],  # noqa: PTH118
        "age": typed(since).total_seconds(),
        "tools": len(tools) + recursive(3),
        "draw": ctx.random.choice([1, 2]),
        "path": Path("a").name,
    }


def test_types_errors_constants_arithmetic_and_tools_are_no_findings() -> None:
    App("tests").agent(behaves)


LATE = """
import time
from refold import App
app = App("late")

@app.agent
async def early(ctx) -> float:
    return late()

def late() -> float:
    return time.time()
"""


def test_what_is_defined_after_an_agent_is_looked_at_before_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "late_app.py"
    file.write_text(LATE)
    late = App.load(str(file))

    with pytest.raises(UsageError, match=r"agent early uses time.time \(late, line 11\)"):
        _ = start(late, "early").value


FROM_3_13 = pytest.mark.skipif(sys.version_info < (3, 13), reason="Python reports time.sleep from 3.13 on")


def elsewhere(action: Callable[[], Any]) -> App:
    """An app whose agent does something in a way that its code does not show."""
    local = App("elsewhere")
    hidden = [action]

    @local.tool(effect="pure")
    def double(n: int) -> int:
        return 2 * n

    @local.agent
    async def act(ctx: Context) -> int:
        found: int = await ctx.call("double", n=4)
        hidden[0]()
        return found

    return local


def write_file(path: Path) -> Callable[[], Any]:
    return lambda: path.write_text("x")


@pytest.mark.parametrize(
    ("action", "instead"),
    [
        pytest.param(lambda: time.sleep(0), r"await asyncio.sleep\(", marks=FROM_3_13),
        (lambda: socket.socket(), r"ctx.call\("),
        (lambda: socket.getaddrinfo("localhost", 1), r"ctx.call\("),
        (socket.gethostname, r"ctx.call\("),
        (lambda: glob.glob("*"), r"ctx.call\("),  # noqa: PTH207
        (lambda: subprocess.run(["true"], check=False), r"ctx.call\("),
        (lambda: os.system("true"), r"ctx.call\("),
        (lambda: os.open("/tmp/refold-guard", os.O_CREAT | os.O_WRONLY), r"ctx.call\("),
    ],
)
def test_what_the_code_does_not_show_is_stopped_when_it_happens(action: Callable[[], Any], instead: str) -> None:
    with pytest.raises(UsageError, match=f"a replay would do again.*{instead}"):
        _ = run(elsewhere(action), "act").value


def test_a_file_is_not_written_by_an_agent_but_may_be_read(tmp_path: Path) -> None:
    file = tmp_path / "file"

    with pytest.raises(UsageError, match=r"\(open\)"):
        _ = run(elsewhere(write_file(file)), "act").value

    assert not file.exists()
    assert run(elsewhere(lambda: Path(__file__).read_text()), "act").value == 8


def test_only_the_thread_that_drives_an_agent_is_watched_and_only_while_it_does() -> None:
    done: list[str] = []

    def other() -> None:
        socket.socket().close()
        done.append("other")

    thread = threading.Thread(target=other)
    release = threading.Event()

    def later() -> None:
        release.wait()
        other()

    waiting = threading.Thread(target=later)
    waiting.start()
    with watch.watching():
        with pytest.raises(UsageError):
            socket.socket()
        with watch.unwatched():
            socket.socket().close()
        with watch.watching(), pytest.raises(UsageError):
            socket.socket()
        release.set()
        waiting.join()
        with pytest.raises(UsageError):
            socket.socket()
    thread.start()
    thread.join()

    assert done == ["other", "other"]


def test_an_import_while_an_agent_runs_may_write_its_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_late.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", False)

    with watch.watching():
        found: int = importlib.import_module("imported_late").value

    assert found == 3
    assert list((tmp_path / "__pycache__").iterdir())


def test_the_guard_costs_next_to_nothing() -> None:
    def watched() -> None:
        with watch.watching():
            pass

    best = min(timeit.repeat(watched, number=1000, repeat=5)) / 1000

    assert best < 20e-6  # below 1 us on a quiet machine
