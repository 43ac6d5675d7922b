"""Banned names of agent code, and their replacements: recovered code may see only recorded data."""

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

_OF_CONCURRENCY = """
_thread anyio.from_thread anyio.to_process anyio.to_thread concurrent.futures multiprocessing threading trio
"""
_OF_WORLD = """
aiohttp anyio._core._fileio anyio._core._sockets anyio._core._subprocesses boto3 confluent_kafka http.client httpx
psycopg redis requests shutil smtplib socket sqlalchemy sqlite3 ssl subprocess tempfile urllib.request urllib3
"""
_MODULES: Final = {
    "time": TIME,
    "random": CHANCE,
    "secrets": CHANCE,
    **dict.fromkeys(_OF_CONCURRENCY.split(), CONCURRENCY),
    **dict.fromkeys(_OF_WORLD.split(), WORLD),
}

FILES: Final = frozenset(
    ("read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "is_file", "is_dir", "rglob")
)
PATHS: Final = FILES | {"exists", "glob", "lstat", "open", "stat", "touch", "unlink"}
"""Banned methods of paths: those in `FILES` on any object, the others in functions that name a path class."""

_OBJECTS_BY_HINT: Final[dict[str, tuple[Any, ...]]] = {
    CHANCE: (uuid.uuid1, uuid.uuid4, os.urandom),
    SETTINGS: (os.environ, os.getenv, os.getpid, os.getppid, os.getcwd, platform.node, platform.uname),
    CONCURRENCY: (asyncio.run, asyncio.Runner, asyncio.new_event_loop, asyncio.run_coroutine_threadsafe),
    IN_ORDER: (asyncio.Future, asyncio.all_tasks, gc.collect),
    WORLD: (
        *(os.system, os.popen, os.listdir, os.scandir, os.stat, os.lstat, os.walk, os.access, os.uname),
        *(os.path.exists, os.path.isfile, os.path.isdir, os.path.getsize, builtins.open, io.open, builtins.input),
        *(asyncio.open_connection, asyncio.start_server),
        *(asyncio.create_subprocess_exec, asyncio.create_subprocess_shell),
        *(getattr(Path, name) for name in PATHS),
    ),
}
_OBJECTS: Final = {id(symbol): (symbol, hint) for hint, symbols in _OBJECTS_BY_HINT.items() for symbol in symbols}

ORIGINAL: Final = "__refold_original__"
"""Attribute of a patched function that holds the original: libraries may use it, agents must not."""

_CLOCKS: Final = frozenset({"now", "utcnow", "today"})


def hint_for_module(name: str) -> str | None:
    """Replacement for a module that is banned, or lies in a banned package; None if it is allowed."""
    while name:
        if name in _MODULES:
            return _MODULES[name]
        name = name.rpartition(".")[0]
    return None


def hint_for(symbol: Any, *, called: bool) -> str | None:
    """Replacement for a banned object; None if it is allowed, or is a class only named (`except`, `isinstance`)."""
    symbol = getattr(symbol, ORIGINAL, symbol)
    if isinstance(symbol, type) and (not called or issubclass(symbol, BaseException)):
        return None
    known, hint = _OBJECTS.get(id(symbol), (_OBJECTS, None))
    if known is symbol:
        return hint
    if isinstance(symbol, ModuleType):
        return hint_for_module(symbol.__name__)
    owner = getattr(symbol, "__self__", None)
    if isinstance(owner, type):
        return TIME if issubclass(owner, date) and symbol.__name__ in _CLOCKS else None
    return _hint_for_defining_module(symbol, owner) if callable(symbol) else None


def _hint_for_defining_module(symbol: Any, owner: Any) -> str | None:
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
    return hint if event != "open" or _opens_for_writing(args[1], args[2]) else None


def _opens_for_writing(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return not set(mode).isdisjoint("wax+")
    return bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


_EVENTS_OF_WORLD = """
glob.glob open os.exec os.fork os.mkdir os.posix_spawn os.remove os.rename os.system os.walk pathlib.Path.glob
pathlib.Path.rglob smtplib.connect socket.__new__ socket.connect socket.getaddrinfo socket.gethostname sqlite3.connect
subprocess.Popen urllib.Request
"""
EVENTS: Final = {
    "time.sleep": TIME,
    "_thread.start_new_thread": CONCURRENCY,
    "_thread.start_joinable_thread": CONCURRENCY,
    **dict.fromkeys(_EVENTS_OF_WORLD.split(), WORLD),
}
"""Audit events of the interpreter, with their replacements."""
