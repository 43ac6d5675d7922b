"""Servers that tests share. One runs from the first test that asks for it until no test that comes next does.

A broker that nobody uses still costs a fortieth of a core, a cluster or a `refold dev` several times that, and they
would outlast their tests by minutes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

Server = TypeVar("Server")


class Lent(Generic[Server]):
    """A server that is started when it is first asked for, and may end at any time that nobody uses it."""

    def __init__(self, start: Callable[[], AbstractContextManager[Server]]) -> None:
        self._start, self._stack = start, ExitStack()
        self._running: Server | None = None

    def get(self) -> Server:
        """Give the running server, a new one if need be."""
        if self._running is None:
            self._running = self._stack.enter_context(self._start())
        return self._running

    def end(self) -> None:
        """End it, if it runs."""
        self._running = None
        self._stack.close()


_LENT = pytest.StashKey[dict[str, Lent[Any]]]()
_USERS = pytest.StashKey[dict[str, set[Path]]]()


def lend(request: pytest.FixtureRequest, start: Callable[[], AbstractContextManager[Server]]) -> Server:
    """Give the server of a fixture of a module; it ends when the next test is of a file that does not use it.

    A file that asks for the fixture by its name, as it runs, is one of its users from then on.
    """
    name = str(request.fixturename)
    request.config.stash[_USERS].setdefault(name, set()).add(request.path)
    lent = request.config.stash.setdefault(_LENT, {})
    return lent.setdefault(name, Lent(start)).get()  # type: ignore[no-any-return]


def note_users(config: pytest.Config, items: Iterable[pytest.Item]) -> dict[str, set[Path]]:
    """Note which files use which fixtures."""
    users = config.stash[_USERS] = {}
    for item in items:
        for name in getattr(item, "fixturenames", ()):
            users.setdefault(name, set()).add(item.path)
    return users


def end_unused(config: pytest.Config, following: pytest.Item | None) -> None:
    """End the servers that the file of the following test has no use for."""
    for name, lent in config.stash.get(_LENT, {}).items():
        if following is None or following.path not in config.stash[_USERS].get(name, ()):
            lent.end()


def release_clients() -> None:
    """Collect garbage if Kafka clients are alive: only a collection ends those in a cycle of references.

    Each has four threads or more, and a consumer fetches ten times a second. When their broker is gone they look for it
    two times a second: 370 of these threads took a fifth of a core, for minutes, until a full collection happened by
    itself.
    """
    names = (_name_of(path) for path in Path("/proc/self/task").glob("*/comm"))
    if any(name.startswith("rdk:") for name in names):
        gc.collect()


def _name_of(path: Path) -> str:
    """Name of a thread, empty when it has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
