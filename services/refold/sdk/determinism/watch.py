"""Refuses effects of agent code while it runs, in libraries too: Python reports sockets, files, processes and (from
3.13 on) sleeping to audit hooks. Reading files is allowed, as imports do it too."""

import sys
import threading
from contextlib import AbstractContextManager
from typing import Any

from refold.core.errors import UsageError
from refold.sdk.determinism.banned import EVENTS, hint_for_event


class _Thread(threading.local):
    watched = False


_THREAD = _Thread()
_INSTALLED = threading.Event()


class _WatchSwitch(AbstractContextManager[None]):  # a generator would cost each step a microsecond more
    __slots__ = ("_before", "_value")

    def __init__(self, value: bool) -> None:
        self._before, self._value = False, value

    def __enter__(self) -> None:
        self._before, _THREAD.watched = _THREAD.watched, self._value

    def __exit__(self, *error: object) -> None:
        _THREAD.watched = self._before


def watching() -> AbstractContextManager[None]:
    """Refuse effects of the `with` block, in this thread, with UsageError."""
    if not _INSTALLED.is_set():
        _INSTALLED.set()
        # Python cannot remove a hook: it stays, at less than a microsecond per reported event of any thread.
        sys.addaudithook(_refuse_effect)
    return _WatchSwitch(True)


def unwatched() -> AbstractContextManager[None]:
    """Allow effects of the context itself, such as log lines, inside `watching`."""
    return _WatchSwitch(False)


def _refuse_effect(event: str, args: tuple[Any, ...], thread: _Thread = _THREAD) -> None:
    if event not in EVENTS or not thread.watched:  # each turn of code reports some that are nothing
        return
    hint = hint_for_event(event, args)
    if hint is not None:
        raise UsageError(f"an agent did something that a replay would do again ({event})", hint=hint, event=event)
