"""What the loop would be without one of its rules: programs have to differ then, or they prove nothing."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Any

from refold.sdk import execution, loop, patches

Plant = Callable[[], Any]


def _hash_by_address() -> None:
    loop.Task.__hash__ = loop.Future.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]


def _scopes_by_address() -> None:
    patches.install()
    importlib.import_module(patches._ANYIO).CancelScope.__hash__ = object.__hash__


def _as_completed_by_address() -> None:
    original = asyncio.as_completed
    patches.install()
    asyncio.as_completed = original


def _chance_of_the_process() -> None:
    patches._drawn = lambda original, name: original


def _generators_not_held() -> None:
    enter = execution.Execution._enter

    def plain(self: execution.Execution) -> Any:
        outside, own = enter(self), self._loop
        sys.set_asyncgen_hooks(None, lambda generator: own.create_task(generator.aclose()))
        return outside

    execution.Execution._enter = plain  # type: ignore[method-assign]


PLANTS: dict[str, Plant] = {
    "addresses": _hash_by_address,
    "scopes": _scopes_by_address,
    "as_completed": _as_completed_by_address,
    "chance": _chance_of_the_process,
    "generators": _generators_not_held,
}
