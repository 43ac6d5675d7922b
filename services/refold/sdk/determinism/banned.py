"""Banned names of agent code, and their replacements: recovered code may see only recorded data."""

from __future__ import annotations

import asyncio
import builtins
import gc
import io
import os
import platform
import uuid
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any, Final

TIME: Final = "write `await asyncio.sleep(seconds)` to wait, which is durable here, and `ctx.now()` for the time"
CONCURRENCY: Final = "write `asyncio.gather`, `asyncio.TaskGroup`, `asyncio.sleep`: an agent has tasks and no threads"
IN_ORDER: Final = (
    "write `asyncio.get_running_loop().create_future()`, and keep tasks in a list: their order has to come again"
)
CHANCE: Final = "write `ctx.random` for random numbers and `ctx.uuid()` for ids: a replay draws the same again"
WORLD: Final = "put it into a tool (`@app.tool`) and write `await ctx.call(that_tool, ...)`: it is recorded once"
SETTINGS: Final = "pass it in with the run's input, or read it in a tool: it may differ when the run is recovered"

_MODULES: Final = {
    "time": TIME,
    "trio": CONCURRENCY,
    "anyio.to_thread": CONCURRENCY,
    "anyio.from_thread": CONCURRENCY,
    "anyio.to_process": CONCURRENCY,
    "anyio._core._fileio": WORLD,
    "anyio._core._sockets": WORLD,
    "anyio._core._subprocesses": WORLD,
    "threading": CONCURRENCY,
    "_thread": CONCURRENCY,
    "multiprocessing": CONCURRENCY,
    "concurrent.futures": CONCURRENCY,
    "random": CHANCE,
    "secrets": CHANCE,
    "socket": WORLD,
    "ssl": WORLD,
    "http.client": WORLD,
    "urllib.request": WORLD,
    "urllib3": WORLD,
    "requests": WORLD,
    "httpx": WORLD,
    "aiohttp": WORLD,
    "smtplib": WORLD,
    "subprocess": WORLD,
    "shutil": WORLD,
    "tempfile": WORLD,
    "sqlite3": WORLD,
    "redis": WORLD,
    "confluent_kafka": WORLD,
    "boto3": WORLD,
    "psycopg": WORLD,
    "sqlalchemy": WORLD,
}

FILES: Final = frozenset(
    ("read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "is_file", "is_dir", "rglob")
)
PATHS: Final = FILES | {"exists", "glob", "lstat", "open", "stat", "touch", "unlink"}
"""Methods of paths. A receiver of one of `FILES` is a path; of another, if the code makes paths."""

_OBJECTS: Final = {
    id(symbol): (symbol, hint)
    for symbol, hint in (
        (uuid.uuid1, CHANCE),
        (uuid.uuid4, CHANCE),
        (os.urandom, CHANCE),
        (os.environ, SETTINGS),
        (os.getenv, SETTINGS),
        (os.system, WORLD),
        (os.popen, WORLD),
        *((symbol, WORLD) for symbol in (os.listdir, os.scandir, os.stat, os.lstat, os.walk, os.access, os.uname)),
        *((symbol, WORLD) for symbol in (os.path.exists, os.path.isfile, os.path.isdir, os.path.getsize)),
        *((symbol, SETTINGS) for symbol in (os.getpid, os.getppid, os.getcwd, platform.node, platform.uname)),
        *((getattr(Path, name), WORLD) for name in PATHS),
        (builtins.open, WORLD),
        (io.open, WORLD),
        (builtins.input, WORLD),
        (asyncio.run, CONCURRENCY),
        (asyncio.Runner, CONCURRENCY),
        (asyncio.new_event_loop, CONCURRENCY),
        (asyncio.run_coroutine_threadsafe, CONCURRENCY),
        (asyncio.open_connection, WORLD),
        (asyncio.start_server, WORLD),
        (asyncio.create_subprocess_exec, WORLD),
        (asyncio.create_subprocess_shell, WORLD),
        (asyncio.Future, IN_ORDER),
        (asyncio.all_tasks, IN_ORDER),
        (gc.collect, IN_ORDER),
    )
}

ORIGINAL: Final = "__refold_original__"
"""Attribute of a patched function that holds the original: libraries may use it, agents must not."""

_CLOCKS: Final = frozenset({"now", "utcnow", "today"})


def hint_for_module(name: str) -> str | None:
    """Replacement for a dotted module name; None if it is allowed."""
    while name:
        if name in _MODULES:
            return _MODULES[name]
        name = name.rpartition(".")[0]
    return None


def hint_for(symbol: Any, *, called: bool) -> str | None:
    """Replacement for an object; None if it is allowed. A banned class may be named (`except`, `isinstance`), not
    called."""
    symbol = getattr(symbol, ORIGINAL, symbol)
    if isinstance(symbol, type) and (not called or issubclass(symbol, BaseException)):
        return None
    if id(symbol) in _OBJECTS and _OBJECTS[id(symbol)][0] is symbol:
        return _OBJECTS[id(symbol)][1]
    if isinstance(symbol, ModuleType):
        return hint_for_module(symbol.__name__)
    owner = getattr(symbol, "__self__", None)
    if isinstance(owner, type):
        return TIME if issubclass(owner, date) and symbol.__name__ in _CLOCKS else None
    return _hint_for_home(symbol, owner) if callable(symbol) else None


def _hint_for_home(symbol: Any, owner: Any) -> str | None:
    home = getattr(symbol, "__module__", None) or type(owner).__module__
    return hint_for_module(home) if isinstance(home, str) else None


def hint_for_event(event: str, args: tuple[Any, ...]) -> str | None:
    """Replacement for an audit event of the interpreter; None if it is allowed."""
    hint = EVENTS.get(event)
    if hint is None or event not in ("open", "os.mkdir", "os.rename", "os.remove"):
        return hint
    # An import under way writes its bytecode; and a number is a file that was opened, and judged, before.
    if "__pycache__" in str(args[0]) or isinstance(args[0], int):
        return None
    return hint if event != "open" or _writes(args[1], args[2]) else None


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return not set(mode).isdisjoint("wax+")
    return bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


EVENTS: Final = {
    "time.sleep": TIME,
    "_thread.start_new_thread": CONCURRENCY,
    "_thread.start_joinable_thread": CONCURRENCY,
    **dict.fromkeys(
        (
            "open",
            "glob.glob",
            "os.exec",
            "os.fork",
            "os.mkdir",
            "os.posix_spawn",
            "os.remove",
            "os.rename",
            "os.system",
            "os.walk",
            "pathlib.Path.glob",
            "pathlib.Path.rglob",
            "smtplib.connect",
            "socket.__new__",
            "socket.connect",
            "socket.getaddrinfo",
            "socket.gethostname",
            "sqlite3.connect",
            "subprocess.Popen",
            "urllib.Request",
        ),
        WORLD,
    ),
}
