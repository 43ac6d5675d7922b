"""A run over time: bars of work to scale, and long idle times folded to strips."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from refold.client.reading.api import RunSummary
from refold.client.reading.history import Run
from refold.client.reading.steps import RunStep

WIDTH = 1000.0
"""Units of the drawing."""
FOLD = 64.0
"""Units of a folded time."""
MOST_FOLDED = 400.0
"""Units of all folded times together."""
LEAST_FOLDED_MS = 2_000
LEAST_BAR = 3.0
MOST_STACKED = 4
"""Attempts of a call above each other."""
LEAST_COUNTED = 6
"""Consecutive unremarkable steps that become a count."""
ALL = "all"
UNFINISHED = ("proposed", "approval", "running", "backoff", "doubt", "held", "sleeping", "waiting")
BAD = ("failed", "unknown", "doubt", "expired", "given_up")


class Bar(NamedTuple):
    """A piece of a row. `kind`: model, tool, child, people, wait, bad, note."""

    kind: str
    x: float
    width: float
    y: float
    height: float


class Fold(NamedTuple):
    x: float
    width: float
    ms: int


class ChartRow(NamedTuple):
    """A row of the timeline: a step, several (`counted`), or a run (`child`). `seq`: its first event; `run`: its run if
    not the page's; `depth`: the distance from that; `shown`: its steps follow."""

    step: RunStep
    seq: int
    kind: str
    bars: list[Bar]
    ms: int
    crash: str = ""
    run: str = ""
    depth: int = 0
    counted: str = ""
    child: RunSummary | None = None
    shown: bool = False

    @property
    def key(self) -> str:
        """Name that opens a count."""
        return f"{self.run}/{self.seq}" if self.run else str(self.seq)


class Below(NamedTuple):
    """Descendants of a run, with the steps that were read. `opened`: runs and counts that are shown in full."""

    runs: Mapping[str, RunSummary]
    steps: Mapping[str, list[tuple[int, RunStep]]]
    opened: frozenset[str]


class Chart(NamedTuple):
    """The timeline of a run's page. **Units**: milliseconds in which steps worked, and in which people were asked."""

    rows: list[ChartRow]
    folds: list[Fold]
    worked_ms: int
    people_ms: int


class Scale:
    """Maps times to places, with long idle times folded."""

    def __init__(self, busy: Sequence[tuple[int, int]], start: int, end: int) -> None:
        worked = sum(last - first for first, last in busy)
        bounds = [start, *(at for span in busy for at in span), end]
        gaps = [(bounds[n], bounds[n + 1]) for n in range(0, len(bounds), 2)]
        # Where nothing worked, as in a run that sleeps, a fold would leave an empty drawing.
        least = max(LEAST_FOLDED_MS, worked // 20)
        long = [(first, last) for first, last in gaps if busy and last - first > least]
        width = min(FOLD, MOST_FOLDED / len(long)) if long else 0.0
        drawn = (end - start) - sum(last - first for first, last in long)
        self._unit = (WIDTH - width * len(long)) / max(1, drawn)
        self.folds: list[Fold] = []
        self._from = start
        self._long = long
        for first, last in long:
            self.folds.append(Fold(self.place(first), width, last - first))

    def place(self, at_ms: int) -> float:
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
    if step.kind == "call":
        return "model" if "__model." in step.name else "tool"
    kinds = {"run": "child", "event": "child", "sleep": "wait", "wait": "wait", "callback": "people"}
    return kinds.get(step.kind, "note")


def chart_of(run: Run, now_ms: int, below: Below) -> Chart:
    timeline = run.timeline
    drawn = [*timeline.steps, *(step for steps in below.steps.values() for _, step in steps)]
    start = min((step.started_ms for step in drawn), default=run.state.at_ms)
    end = max(start, run.state.at_ms if run.state.over else now_ms)
    seqs, worked = dict(begun_at(run)), _busy_spans(timeline.steps, end)
    plan = _RowBuilder(Scale(list(_merged_spans(_busy_spans(drawn, end))), start, end), end, below)
    crashes = {successor.step: successor.actor for successor in timeline.successors}
    rows = plan.rows_of("", [(seqs.get(step.step, 1), step) for step in timeline.steps], crashes)
    waits = ((ask.asked_ms, ask.ended_ms or end) for step in timeline.steps for ask in step.approvals)
    return Chart(list(rows), plan.scale.folds, _covered_ms(worked), _covered_ms(sorted(waits)))


def _busy_spans(steps: Iterable[RunStep], end: int) -> list[tuple[int, int]]:
    return sorted(span for step in steps for span in _attempt_spans(step, end))


def _covered_ms(spans: Iterable[tuple[int, int]]) -> int:
    return sum(last - first for first, last in _merged_spans(spans))


class _RowBuilder(NamedTuple):
    scale: Scale
    end: int
    below: Below

    def rows_of(
        self, run: str, steps: Iterable[tuple[int, RunStep]], crashes: Mapping[int, str], depth: int = 0
    ) -> Iterator[ChartRow]:
        """Yield rows of steps; a series of unremarkable ones becomes one row."""
        noise: list[ChartRow] = []
        for seq, step in steps:
            kind, crash = step_kind(step), crashes.get(step.step, "")
            ms = max(0, (step.ended_ms or self.end) - step.started_ms)
            row = ChartRow(step, seq, kind, [], ms, crash, run, depth)
            if _is_noise(row):
                noise.append(row)
                continue
            yield from self._counted_rows(noise)
            yield self._with_bars(row)
            for name in step.runs if step.kind in ("run", "event") else ():
                yield from self._child_rows(row, name)
        yield from self._counted_rows(noise)

    def _with_bars(self, row: ChartRow) -> ChartRow:
        return row._replace(bars=[*_bars_of_step(row.step, self.scale, self.end)])

    def _counted_rows(self, rows: list[ChartRow]) -> Iterator[ChartRow]:
        """Empty a list of unremarkable rows; yield them as one with counts, or each if they are few or opened."""
        noise = rows.copy()
        rows.clear()
        if len(noise) < LEAST_COUNTED or self.below.opened & {ALL, *(row.key for row in noise)}:
            yield from map(self._with_bars, noise)
            return
        models = sum(row.kind == "model" for row in noise)
        counts = ((models, "request", " to a model"), (len(noise) - models, "read", ""))
        counted = ", ".join(f"{many} {noun}{'s' * (many > 1)}{rest}" for many, noun, rest in counts if many)
        kind = "model" if models == len(noise) else "tool"
        bars = self._merged_bars(kind, [row.step for row in noise])
        ms = max(0, (noise[-1].step.ended_ms or self.end) - noise[0].step.started_ms)
        yield noise[0]._replace(kind=kind, bars=bars, ms=ms, counted=counted)

    def _merged_bars(self, kind: str, steps: Sequence[RunStep]) -> list[Bar]:
        spans = _merged_spans(_busy_spans(steps, self.end))
        places = [(self.scale.place(first), self.scale.place(last)) for first, last in spans]
        drawn = [(max(1, round(x)), round(max(x + LEAST_BAR, to))) for x, to in places]
        # Once more: bars of different times may meet after rounding.
        return [Bar(kind, x, to - x, 7, 6) for x, to in _merged_spans(drawn)]

    def _child_rows(self, row: ChartRow, name: str) -> Iterator[ChartRow]:
        """Yield the row of a child run, below the step that started it, and the rows of its steps if it is opened."""
        child = self.below.runs.get(name)
        if child is None:  # it has not begun, or is erased
            return
        steps = self.below.steps.get(name)
        shown, depth = bool(steps) and bool(self.below.opened & {ALL, name}), row.depth + 1
        ms = max(0, (child.ended_ms or self.end) - child.requested_ms)
        yield row._replace(child=child, shown=shown, depth=depth, kind="child", ms=ms, run=name, crash="")
        if shown and steps:
            yield from self.rows_of(name, steps, {}, depth + 1)


def _is_noise(row: ChartRow) -> bool:
    """True for reads and model requests that succeeded at once."""
    step = row.step
    well = step.kind == "call" and step.effect == "pure" and step.status == "completed" and not row.crash
    return well and len(step.attempts) == 1 and not (step.approvals or step.late or step.resolved)


def begun_at(run: Run) -> Iterator[tuple[int, int]]:
    """Yield the number of each step with that of the event that began it."""
    begun = 0
    for judged in run.records:
        for seq, event in enumerate(judged.entry.events, judged.entry.seq) if judged.entry else ():
            if getattr(event, "step", 0) == begun + 1:
                begun += 1
                yield begun, seq


def _attempt_spans(step: RunStep, end: int) -> Iterator[tuple[int, int]]:
    for attempt in step.attempts:
        until = attempt.ended_ms or (end if attempt.status == "running" else attempt.started_ms)
        yield attempt.started_ms, max(attempt.started_ms, until)


def _merged_spans(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
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


def _bars_of_step(step: RunStep, scale: Scale, end: int) -> Iterator[Bar]:
    def bar(kind: str, first: int, last: int, y: float = 5, height: float = 10) -> Bar:
        x = scale.place(first)
        width = max(LEAST_BAR, scale.place(last) - x)
        return Bar(kind, round(min(x, WIDTH - LEAST_BAR), 1), round(width, 1), round(y, 1), round(height, 1))

    for ask in step.approvals:
        yield bar("wait", ask.asked_ms, ask.ended_ms or end, 7, 6)
    lanes = min(MOST_STACKED, len(step.attempts))
    for number, (attempt, (first, last)) in enumerate(zip(step.attempts, _attempt_spans(step, end), strict=True)):
        kind = "bad" if attempt.status in BAD else step_kind(step)
        lane = (5.0, 10.0) if lanes == 1 else (1 + number % lanes * 18 / lanes, 16 / lanes)
        yield bar(kind, first, last, *lane)
    if not step.attempts and not step.approvals:
        over = step.ended_ms or (end if step.status in UNFINISHED else step.started_ms)
        yield bar(step_kind(step), step.started_ms, over, *((7, 6) if step_kind(step) == "wait" else ()))
