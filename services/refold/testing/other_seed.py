"""Histories of tests along the same code in a process with another hash seed, in which sets have another order.

One process for each seed, begun when the first run of a module's app has ended, answers for all tests of this one.
Agents that a test defines in its own function are nowhere else, and are not looked at.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from refold.core.errors import NonDeterminismError
from refold.sdk.app import App
from refold.testing.reruns import Records, fold_records, same_end

_INSIDE: Final = "_REFOLD_OTHER_SEED"
_SEEDS: Final = ("1", "2", "3")
"""Where the first differs, the others decide: a module that a test has patched differs in all of them alike."""


def check(app: App, runs: Iterable[tuple[str, Records]]) -> None:
    """Run the agents of an app along histories. **Raises** NonDeterminismError where that depends on the hash seed."""
    if _INSIDE in os.environ:  # a module that runs agents when it is imported
        return
    place = next((place for name, module in [*sys.modules.items()] if (place := _place(name, module, app))), None)
    for agent, records in runs if place else ():
        order = (place, agent, [*records])
        if (said := _ask(_SEEDS[0], order)) and any(_ask(seed, order) != said for seed in _SEEDS[1:]):
            hint = "sort what comes from a set, and use no hash() of a text"
            raise NonDeterminismError(f"in a process with another hash seed {said}", hint=hint)


def _place(name: str, module: Any, app: App) -> tuple[str, str] | None:
    if name in ("__main__", "builtins") or not isinstance(names := getattr(module, "__dict__", None), dict):
        return None
    return next(((name, known) for known, value in [*names.items()] if value is app), None)


def _ask(seed: str, order: Any) -> str:
    """Words for how a history differs there; nothing where it agrees, or nobody can tell."""
    with suppress(OSError, EOFError, ValueError, pickle.PickleError):
        process: Any = _process(seed)
        pickle.dump(order, process.stdin)
        process.stdin.flush()
        return str(pickle.load(process.stdout))
    return ""


@lru_cache
def _process(seed: str) -> subprocess.Popen[bytes]:
    own = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), _INSIDE: "yes"}
    command, pipe, env = [sys.executable, "-m", __name__], subprocess.PIPE, {**os.environ, **own}
    made = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env)
    atexit.register(made.communicate)  # it ends when its input does
    return made


def _answer(order: Any) -> str:
    (module, name), agent, records = order
    try:
        same_end(getattr(importlib.import_module(module), name), agent, fold_records(records))
    except NonDeterminismError as error:
        return error.message
    except BaseException:  # noqa: BLE001 - a module that cannot be imported there, and whatever else it does
        return ""
    return ""


if __name__ == "__main__":
    answers, sys.stdout = os.fdopen(os.dup(1), "wb"), sys.stderr
    os.dup2(2, 1)
    with suppress(EOFError):
        while True:
            pickle.dump(_answer(pickle.load(sys.stdin.buffer)), answers)
            answers.flush()
