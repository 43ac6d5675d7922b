"""Forks of many runs, each in a restricted process."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

import orjson
from pydantic import ValidationError

from refold.client.policies import load_text
from refold.client.reading.history import Run
from refold.client.values import values_of
from refold.core.errors import MalformedError, UsageError
from refold.core.events import Entry, Spendable
from refold.core.ids import RunId, parse_call_id
from refold.core.run.handed import Values, pointers
from refold.core.topics import RUN_LOG
from refold.core.wire import canonical, codec
from refold.core.wire.blobs import size_of
from refold.engine.ports.blobs import Blobs
from refold.engine.ports.log import Record
from refold.engine.runtime.memory import COLLECT_AFTER
from refold.engine.runtime.settings import PREFIX
from refold.lab.evidence.bundle import Bundle, BundledRun, as_record
from refold.lab.forks.engine import PeopleSaid
from refold.lab.forks.record import LogRow
from refold.lab.forks.report import CheckJob, ForkReport, ReplayCheck
from refold.lab.forks.worker import ForkJob, ForkSetup
from refold.lab.pure import BUDGET, budget_text

_Job = TypeVar("_Job", ForkJob, CheckJob)
TIMEOUT_S = 600.0
"""Seconds of a fork until it is killed: its code may never yield."""
# Foreign code could answer with a line that never ends.
MOST_ANSWERED = 256 << 20
OF_STORES = ("AWS_ACCESS", "AWS_SECRET", "AWS_SESSION", "AZURE_", "GOOGLE_APPLICATION", "GOOGLE_SERVICE", "PG")
"""Prefixes of variables with credentials, hidden from processes without a network."""


def verdict_of(approval: str, text: str) -> tuple[str, PeopleSaid]:
    """Parse a verdict on an approval, `approve`, `reject`, `reject:WHY`, `edit:JSON` or `answer:JSON`, with its call.
    **Raises** UsageError, MalformedError."""
    call = approval.partition("~")[0]
    parse_call_id(call)
    verdict, _, content = text.partition(":")
    if verdict in ("approve", "reject"):
        return call, PeopleSaid(verdict, content)  # type: ignore[arg-type]
    if verdict in ("edit", "answer") and content:
        return call, PeopleSaid(verdict, content=canonical.dumps(canonical.parse(content)))  # type: ignore[arg-type]
    raise UsageError(f"{text[:80]!r} is no verdict", hint="write approve, reject, reject:WHY, edit:JSON or answer:JSON")


def stubs_of(text: str, name: str) -> dict[str, str]:
    """Parse results by tool, in YAML or JSON. **Raises** MalformedError."""
    stubs = load_text(text, name, aliases=False) if text.strip() else {}
    if not isinstance(stubs, dict):
        raise MalformedError(f"{name} has no results by tool", hint="write `tool: result`, a line for each")
    return {str(tool): canonical.dumps(result) for tool, result in stubs.items()}


def family_rows(runs: Iterable[Run]) -> dict[RunId, list[LogRow]]:
    records = {run.state.run_id: (judged.record for judged in run.records) for run in runs}
    return {run: [LogRow(row.offset, row.key or b"", row.value or b"") for row in own] for run, own in records.items()}


def family_values(runs: Sequence[Run], blobs: Blobs | None, most: int = sys.maxsize) -> Values:
    """Return the large values of a family. **Raises** UnreachableError; UsageError if it exceeds `most` bytes."""
    size = sum(len(judged.record.value or b"") for run in runs for judged in run.records)
    size += sum(size_of(pointer) for run in runs for _, pointer in pointers(run.state)) if blobs else 0
    if size > most:
        hint = "`refold fork`, where the code is, forks runs of any size"
        raise UsageError(f"the run and those below it have {size:,} bytes, and a fork here {most:,} at most", hint=hint)
    return {place: value for run in runs for place, value in values_of(run.state, blobs).items()}


_AS_M = (
    f"import gc, runpy, sys; gc.set_threshold({COLLECT_AFTER}); runpy.run_module(sys.argv[1], None, '__main__', True)"
)


class ForkProcess:
    """A process of forks. `limit_s` bounds the loading of the app, and each fork."""

    def __init__(self, setup: ForkSetup, budget: Spendable | None = None, limit_s: float = TIMEOUT_S) -> None:
        # The process of a fork without calls gets none of the settings of the platform's clients.
        hidden = (PREFIX,) if budget else (PREFIX, *OF_STORES)
        env = {name: value for name, value in os.environ.items() if not name.upper().startswith(hidden)}
        room = "refold.lab.pure" if budget else "refold.lab.forks.worker"
        self._setup, self._limit_s = setup, limit_s
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _AS_M, room],  # -P: a file of the app's folder is no module of the walls
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # with its group all that it has started is ended, too
            env={**env, "PYTHONDONTWRITEBYTECODE": "1"} | ({BUDGET: budget_text(budget)} if budget else {}),
        )

    def load(self) -> Self:
        if error := self.ask(self._setup).get("error"):
            raise UsageError(f"{self._setup.target} cannot be loaded in a fork: {error['message']}", hint=error["hint"])
        return self

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def ask(self, order: object) -> dict[str, Any]:
        """Return the answer to an order, or an error; then the process is killed."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None, "it was asked for"
        assert answers is not None, "it was asked for"
        timer = threading.Timer(self._limit_s, self.kill)
        timer.start()
        try:
            pickle.dump(order, orders)
            orders.flush()
            answer = orjson.loads(answers.readline(MOST_ANSWERED))
            error = answer.get("error") if isinstance(answer, dict) else ""
            if error is None or (isinstance(error, dict) and error.keys() >= {"code", "message", "hint"}):
                return {**answer, "error": {name: str(text) for name, text in (error or {}).items()}}
        except (BrokenPipeError, ValueError):
            pass
        finally:
            timer.cancel()
        self.close()
        message = f"the process of the fork has ended without a word, or it took longer than {self._limit_s:g} s"
        return {"error": {"code": "raises", "message": message, "hint": ""}}

    def fork(self, job: ForkJob) -> ForkReport:
        return _report_of(job, self.ask(job))

    def kill(self) -> None:
        """Kill the process group. Thread-safe: a waiting reader then gets no answer."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._process.communicate()


def forks(
    jobs: Iterable[ForkJob], setup: ForkSetup, *, at_once: int = 1, budget: Spendable | None = None
) -> Iterator[ForkReport]:
    """Forks runs in up to `at_once` processes, which share `budget`. **Shape**: reports in the order of the jobs.
    **Raises** UsageError for an invalid change or app."""
    return (_report_of(job, answer) for job, answer in _answers(jobs, setup, at_once, budget))


def checks(jobs: Iterable[CheckJob], target: str, *, at_once: int = 1) -> Iterator[ReplayCheck]:
    """Replays runs on the code of an app, in restricted processes. **Shape**, **Raises**: as `forks`."""
    return (_check_of(job, answer) for job, answer in _answers(jobs, ForkSetup(target, "", []), at_once, None))


def _answers(
    jobs: Iterable[_Job], setup: ForkSetup, at_once: int, budget: Spendable | None
) -> Iterator[tuple[_Job, dict[str, Any]]]:
    idle: SimpleQueue[ForkProcess] = SimpleQueue()
    begun = list[ForkProcess]()
    shares = deque([_budget_share(budget, at_once)] * at_once)

    def serve(job: _Job) -> tuple[_Job, dict[str, Any]]:
        try:
            worker = idle.get_nowait()
        except Empty:
            if budget is not None and not shares:
                raise UsageError("a process of forks has ended, and its share of the budget with it") from None
            worker = ForkProcess(setup, shares.popleft() if budget else None)
            begun.append(worker)
            worker.load()
        answer = worker.ask(job)
        if worker.alive:
            idle.put(worker)
        return job, answer

    with ThreadPoolExecutor(at_once) as pool:
        ahead = deque[Future[tuple[_Job, dict[str, Any]]]]()
        try:
            for job in jobs:
                ahead.append(pool.submit(serve, job))
                # A few jobs ahead: all of them would fill the memory.
                if len(ahead) > 2 * at_once:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for worker in begun:
                worker.kill()
            pool.shutdown(cancel_futures=True)
            while not idle.empty():
                idle.get().close()


def _report_of(job: ForkJob, answer: dict[str, Any]) -> ForkReport:
    message = _failure_reason(answer)
    with suppress(ValidationError):  # else the app has taken the word of its process
        report = ForkReport.model_validate(answer.get("report"))
        if (report.run_id, report.at) == (job.run_id, job.at):
            return report
    return ForkReport(run_id=job.run_id, at=job.at, verdict="raises", message=message)


def _check_of(job: CheckJob, answer: dict[str, Any]) -> ReplayCheck:
    run, agent, steps = job.state.run_id, job.state.request.agent if job.state.request else "", len(job.state.steps)
    message = _failure_reason(answer)
    with suppress(ValidationError):  # else the app has taken the word of its process
        check = ReplayCheck.model_validate(answer.get("check"))
        if (check.run_id, check.steps) == (run, steps):
            return check
    none = {"run_id": run, "agent": agent, "steps": steps, "version": job.state.version, "code": ""}
    return ReplayCheck(**none, verdict="raises", message=message)


def _failure_reason(answer: dict[str, Any]) -> str:
    """Return the reason for the lack of an answer. **Raises** UsageError for an invalid order."""
    error = answer.get("error")
    fields = error if isinstance(error, dict) else {}
    if fields.get("code") == UsageError.code:
        raise UsageError(str(fields.get("message")), hint=str(fields.get("hint")))
    return str(fields.get("message") or "the process of the fork has given no report")


def _budget_share(budget: Spendable | None, at_once: int) -> Spendable | None:
    parts = {name: getattr(budget, name) for name in ("calls", "tokens", "nano_usd")} if budget else {}
    if any(0 < amount < at_once for amount in parts.values()):
        raise UsageError("the budget is too small for so many processes", hint="--jobs 1")
    return replace(budget, **{name: amount // at_once for name, amount in parts.items()}) if budget else None


def fork_bundle(family: Sequence[Run], report: ForkReport) -> Bundle:
    """Return a fork as a bundle. **Raises** MalformedError for invalid entries."""
    runs = []
    for name in sorted({*report.kept, *report.rows}):
        source = next((run for run in family if run.state.run_id == name), None)
        prefix = source.records[: report.kept.get(name, 0)] if source else []
        records = [as_record(judged.record) for judged in prefix]
        for key, value in report.rows.get(name, ()):
            try:
                # The report comes from a process that ran foreign code.
                row = bytes.fromhex(key), bytes.fromhex(value)
            except ValueError:
                raise MalformedError("an entry of the fork is not in hex") from None
            partition, at_ms = family[0].records[0].record.partition, codec.decode(Entry, row[1]).at_ms
            records.append(Record(RUN_LOG, partition, -1, *row, list, at_ms))
        runs.append(BundledRun(RunId(name), records))
    return Bundle(report.run_id, runs, fork={"source": report.run_id, "at": report.at, "verdict": report.verdict})
