"""A run over time: bars of work to scale, and time in which nothing worked folded to a strip of one width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from refold.views.history import Run
from refold.views.steps import RunStep

WIDTH = 1000.0
"""Units of the drawing, from the first event to the last."""
FOLD = 64.0
"""Of time that is folded."""
MOST_FOLDED = 400.0
"""Of all such time together."""
LEAST_FOLDED_MS = 2_000
"""Shorter times are drawn to scale."""
LEAST_BAR = 3.0
UNFINISHED = ("proposed", "approval", "running", "backoff", "doubt", "held", "sleeping", "waiting")
BAD = ("failed", "unknown", "doubt", "expired", "given_up")


class Bar(NamedTuple):
    """A piece of a row. `kind` names what it stands for: model, tool, child, ask, wait, bad, note, fold."""

    kind: str
    x: float
    width: float
    height: int


class Fold(NamedTuple):
    """Time that is folded."""

    x: float
    width: float
    ms: int


class ChartRow(NamedTuple):
    """A step in the timeline. `seq` is the number of the event that has begun it."""

    step: RunStep
    seq: int
    kind: str
    bars: list[Bar]
    ms: int
    crash: str


class Chart(NamedTuple):
    """The timeline of a run."""

    rows: list[ChartRow]
    folds: list[Fold]
    start_ms: int
    worked_ms: int
    people_ms: int


class Scale:
    """Maps times to places, with what is longer than it may be folded."""

    def __init__(self, busy: Sequence[tuple[int, int]], start: int, end: int) -> None:
        worked = sum(last - first for first, last in busy)
        self.worked_ms = worked
        bounds = [start, *(at for span in busy for at in span), end]
        gaps = [(bounds[n], bounds[n + 1]) for n in range(0, len(bounds), 2)]
        long = [(first, last) for first, last in gaps if last - first > max(LEAST_FOLDED_MS, worked // 20)]
        width = min(FOLD, MOST_FOLDED / len(long)) if long else 0.0
        drawn = (end - start) - sum(last - first for first, last in long)
        self._unit = (WIDTH - width * len(long)) / max(1, drawn)
        self.folds: list[Fold] = []
        self._from = start
        self._long = long
        for first, last in long:
            self.folds.append(Fold(self.place(first), width, last - first))

    def place(self, at_ms: int) -> float:
        """Return the place of a time, from 0 to WIDTH."""
        x, at = 0.0, self._from
        for (first, last), fold in zip(self._long, self.folds, strict=False):
            if at_ms < first:
                break
            x += (first - at) * self._unit
            at = last
            if at_ms < last:
                return x + fold.width * (at_ms - first) / (last - first)
            x += fold.width
        return min(WIDTH, max(0.0, x + (at_ms - at) * self._unit))


def step_kind(step: RunStep) -> str:
    """Return what a step is, as its picture says: model, tool, child, people, wait or note."""
    if step.kind == "call":
        return "model" if "__model." in step.name else "tool"
    return {"run": "child", "event": "child", "sleep": "wait", "wait": "wait", "callback": "people"}.get(
        step.kind, "note"
    )


def chart_of(run: Run, now_ms: int) -> Chart:
    """Return the timeline of a run, as it is at a time."""
    timeline, start = run.timeline, run.state.requested_ms or run.state.at_ms
    end = max(start, run.state.at_ms if run.state.over else now_ms)
    spans = sorted(span for step in timeline.steps for span in _busy(step, end))
    scale = Scale(list(_union(spans)), start, end)
    seqs = dict(_begun(run))
    crashes = {each.step: each.actor for each in timeline.successors}
    rows = [
        ChartRow(
            step,
            seqs.get(step.step, 1),
            step_kind(step),
            [*_bars(step, scale, end)],
            (step.ended_ms or end) - step.started_ms,
            crashes.get(step.step, ""),
        )
        for step in timeline.steps
    ]
    asks = _union(sorted((ask.asked_ms, ask.ended_ms or end) for step in timeline.steps for ask in step.approvals))
    return Chart(rows, scale.folds, start, scale.worked_ms, sum(last - first for first, last in asks))


def _begun(run: Run) -> Iterator[tuple[int, int]]:
    """The number of the event that has begun each step."""
    known = 0
    for judged in run.records:
        for seq, event in enumerate(judged.entry.events, judged.entry.seq) if judged.entry else ():
            if getattr(event, "step", 0) == known + 1:
                known += 1
                yield known, seq


def _busy(step: RunStep, end: int) -> Iterator[tuple[int, int]]:
    """The times in which somebody worked on a step."""
    for attempt in step.attempts:
        until = attempt.ended_ms or (end if attempt.status == "running" else attempt.started_ms)
        yield attempt.started_ms, max(attempt.started_ms, until)


def _union(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Spans in order, those that overlap as one."""
    begun, last = 0, 0
    for first, until in spans:
        if last and first <= last:
            last = max(last, until)
            continue
        if last:
            yield begun, last
        begun, last = first, until
    if last:
        yield begun, last


def _bars(step: RunStep, scale: Scale, end: int) -> Iterator[Bar]:
    def bar(kind: str, first: int, last: int, *, thin: bool = False) -> Bar:
        x = scale.place(first)
        return Bar(
            kind,
            round(min(x, WIDTH - LEAST_BAR), 1),
            round(max(LEAST_BAR, scale.place(last) - x), 1),
            6 if thin else 10,
        )

    for ask in step.approvals:
        yield bar("wait", ask.asked_ms, ask.ended_ms or end, thin=True)
    for attempt, (first, last) in zip(step.attempts, _busy(step, end), strict=True):
        kind = "bad" if attempt.status in BAD else step_kind(step)
        yield bar(kind, first, last)
    if not step.attempts and not step.approvals:
        over = step.ended_ms or (end if step.status in UNFINISHED else step.started_ms)
        yield bar(step_kind(step), step.started_ms, over, thin=step_kind(step) == "wait")
