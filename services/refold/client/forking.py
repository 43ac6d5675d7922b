"""Forks of many runs, each in a process that can do nothing else; reports come as they are ready."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pydantic import ValidationError

from refold.client.pure import BUDGET, budget_text
from refold.client.values import values_of
from refold.core.errors import UsageError
from refold.core.events import Spendable
from refold.core.ids import RunId
from refold.core.run.handed import Values
from refold.forks.agreement import CheckJob, ReplayCheck
from refold.forks.record import LogRow
from refold.forks.report import ForkReport
from refold.forks.worker import ForkJob, ForkSetup
from refold.planner.settings import Bounds
from refold.ports.blobs import Blobs
from refold.runtime.settings import Settings
from refold.views.history import Run

_Job = TypeVar("_Job", ForkJob, CheckJob)
TIMEOUT_S = 600.0
"""Time that a fork may take: code that never gives its thread back is ended then."""


MOST_ANSWERED = 256 << 20
"""Bytes of a report, at most."""


def family_rows(runs: Iterable[Run]) -> dict[RunId, list[LogRow]]:
    """The records of a run and of those below it, by run, as a fork takes them."""
    return {
        run.state.run_id: [
            LogRow(judged.record.offset, judged.record.key or b"", judged.record.value or b"") for judged in run.records
        ]
        for run in runs
    }


def family_values(runs: Iterable[Run], blobs: Blobs | None) -> Values:
    """The large values of a family. **Raises** UnreachableError."""
    return {place: value for run in runs for place, value in values_of(run.state, blobs).items()}


def bounds_of(settings: Settings) -> Bounds:
    """Bounds of one run in its planner, as the platform is set."""
    own = settings.planner
    return Bounds(
        steps=own.run_steps,
        history_bytes=own.run_bytes,
        live_bytes=own.live_bytes,
        children=own.run_children,
        depth=own.run_depth,
        payload_bytes=settings.max_payload_bytes,
        blob_bytes=settings.blobs.max_bytes if settings.blobs.url else 0,
    )


class _Worker:
    """A process of forks."""

    def __init__(self, setup: ForkSetup, budget: Spendable | None) -> None:
        # Of what the platform's clients are told nothing is told to a process that runs the app for nothing.
        env = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        room = "refold.client.pure" if budget else "refold.forks.worker"
        self._process = subprocess.Popen(
            [sys.executable, "-m", room],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**env, "PYTHONDONTWRITEBYTECODE": "1"} | ({BUDGET: budget_text(budget)} if budget else {}),
        )
        if error := self.ask(setup).get("error"):
            raise UsageError(f"{setup.target} cannot be loaded in a fork: {error['message']}", hint=error["hint"])

    @property
    def alive(self) -> bool:
        """False once it has given no answer."""
        return self._process.returncode is None

    def ask(self, order: object) -> dict[str, Any]:
        """The answer to an order, or why there is none: then it is ended."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None, "it was asked for"
        assert answers is not None, "it was asked for"
        timer = threading.Timer(TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            pickle.dump(order, orders)
            orders.flush()
            said = json.loads(answers.readline(MOST_ANSWERED))
            if isinstance(said, dict):
                return said
        except (BrokenPipeError, ValueError):
            pass
        finally:
            timer.cancel()
        self.close()
        return {"error": {"code": "raises", "message": "the process of the fork has ended without a word", "hint": ""}}

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.communicate()


def forks(
    jobs: Iterable[ForkJob], setup: ForkSetup, *, at_once: int = 1, budget: Spendable | None = None
) -> Iterator[ForkReport]:
    """Forks runs, in so many processes at once. A `budget` allows `pure` calls, in all of them together.

    **Shape**: the reports in the order of the jobs. **Raises** UsageError when the app cannot be loaded where nothing
    may be done, or for a change that cannot be.
    """
    return (_report(job, said) for job, said in _served(jobs, setup, at_once, budget))


def checks(jobs: Iterable[CheckJob], target: str, *, at_once: int = 1) -> Iterator[ReplayCheck]:
    """Replays runs on the code of an app, in processes that can do nothing. **Shape**, **Raises**: as `forks`."""
    return (_checked(job, said) for job, said in _served(jobs, ForkSetup(target, "", []), at_once, None))


def _served(
    jobs: Iterable[_Job], setup: ForkSetup, at_once: int, budget: Spendable | None
) -> Iterator[tuple[_Job, dict[str, Any]]]:
    """Jobs with what processes say of them, in order; of jobs that are not done yet few are in memory."""
    idle: SimpleQueue[_Worker] = SimpleQueue()
    shares = deque([_share(budget, at_once)] * at_once)

    def serve(job: _Job) -> tuple[_Job, dict[str, Any]]:
        try:
            worker = idle.get_nowait()
        except Empty:
            if budget is not None and not shares:
                raise UsageError("a process of forks has ended, and its share of the budget with it") from None
            worker = _Worker(setup, shares.popleft() if budget else None)
        said = worker.ask(job)
        if worker.alive:
            idle.put(worker)
        return job, said

    with ThreadPoolExecutor(at_once) as pool:
        ahead = deque[Future[tuple[_Job, dict[str, Any]]]]()
        try:
            for job in jobs:
                ahead.append(pool.submit(serve, job))
                if len(ahead) > 2 * at_once:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
            while not idle.empty():
                idle.get().close()


def _report(job: ForkJob, said: dict[str, Any]) -> ForkReport:
    message = _why(said)
    try:
        report = ForkReport.model_validate(said.get("report"))
        if (report.run_id, report.at) == (job.run_id, job.at):
            return report
    except ValidationError:
        pass  # the app has taken the word of its process
    return ForkReport(run_id=job.run_id, at=job.at, verdict="raises", message=message)


def _checked(job: CheckJob, said: dict[str, Any]) -> ReplayCheck:
    run, agent, steps = job.state.run_id, job.state.request.agent if job.state.request else "", len(job.state.steps)
    message = _why(said)
    try:
        found = ReplayCheck.model_validate(said.get("check"))
        if (found.run_id, found.steps) == (run, steps):
            return found
    except ValidationError:
        pass  # the app has taken the word of its process
    none = {"run_id": run, "agent": agent, "steps": steps, "version": job.state.version, "code": ""}
    return ReplayCheck(**none, verdict="raises", message=message)


def _why(said: dict[str, Any]) -> str:
    """Why there is no answer, if there is none. **Raises** UsageError where the order was wrong."""
    error = said.get("error")
    code, message, hint = (
        (error.get(name) for name in ("code", "message", "hint")) if isinstance(error, dict) else [""] * 3
    )
    if code == UsageError.code:
        raise UsageError(str(message), hint=str(hint))
    return str(message or "the process of the fork has given no report")


def _share(budget: Spendable | None, at_once: int) -> Spendable | None:
    """Share of each of so many processes in a budget. **Raises** UsageError where that is nothing."""
    parts = {name: getattr(budget, name) for name in ("calls", "tokens", "nano_usd")} if budget else {}
    if any(0 < amount < at_once for amount in parts.values()):
        raise UsageError("the budget is too small for so many processes", hint="--jobs 1")
    return replace(budget, **{name: amount // at_once for name, amount in parts.items()}) if budget else None
