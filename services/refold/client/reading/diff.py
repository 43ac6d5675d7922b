"""Past points of runs: their open steps, and the differences of two points or of two runs."""

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Literal

from refold.client.reading.history import Run
from refold.client.reading.model import Data, ReadModel, json_text, plain
from refold.client.reading.run import RunRow, exposed_values, info_of, row_of
from refold.client.reading.steps import RunStep
from refold.client.reading.words import with_ellipsis
from refold.core.wire import canonical

COMPARED = ("status", "says", "result", "failure", "reason", "input", "version", "approvals", "in_doubt", "waiting")
MOST_SEEN = 200
"""Characters of `StepThen.given`."""
STEP_FIELDS = ("status", "result", "failure", "args", "how", "rule", "actor")


class RunPoint(ReadModel):
    """A point in the history of a run: the number and the time of its last event.

    `forked` is the first event that is in no topic, as in forks; 0: all events are in the log.
    """

    run_id: str
    seq: int
    at_ms: int
    status: str
    forked: int


class FieldChange(ReadModel):
    """A value before and after."""

    name: str
    left: Any
    right: Any


class StepDifference(ReadModel):
    """A step that is on one side alone, or that differs. A number of 0: that side has no such step."""

    change: Literal["added", "removed", "changed"]
    name: str
    kind: str
    left: int
    right: int
    fields: list[FieldChange]


class RunDiff(ReadModel):
    """Differences of two points. `same` steps are equal on both sides and not listed."""

    left: RunPoint
    right: RunPoint
    same: int
    fields: list[FieldChange]
    steps: list[StepDifference]


def run_diff(left: Run, right: Run) -> RunDiff:
    """Compare two points: steps of one history by number, otherwise by their requests in order."""
    pairs = list(_step_pairs(left, right))
    steps = [change for pair in pairs if (change := _step_difference(*pair)) is not None]
    return RunDiff(
        left=_run_point(left),
        right=_run_point(right),
        same=len(pairs) - len(steps),
        fields=list(_field_changes(_summary(left), _summary(right))),
        steps=steps,
    )


def _run_point(run: Run) -> RunPoint:
    state = run.state
    return RunPoint(run_id=state.run_id, seq=state.head.seq, at_ms=state.at_ms, status=run.status, forked=run.forked)


def _summary(run: Run) -> Data:
    info = info_of(run)
    shown = {name: plain(getattr(info, name)) for name in COMPARED}
    shown["budget"] = plain(info.budget)
    shown["signals"] = [signal.signal_id for signal in info.signals]
    shown["values"] = exposed_values(pair for pair in run.state.values.items() if pair[0])
    shown["paused"] = [plain(pause) for pause in info.pauses]
    return shown


def _field_changes(left: Data, right: Data) -> Iterator[FieldChange]:
    for name in left:
        if left[name] != right[name]:
            yield FieldChange(name=name, left=left[name], right=right[name])


def _step_pairs(left: Run, right: Run) -> Iterator[tuple[RunStep | None, RunStep | None]]:
    """Pairs of steps to compare, in order; None in place of a step that one side lacks."""
    before, after = left.timeline.steps, right.timeline.steps
    if left.state.run_id == right.state.run_id and not (left.forked or right.forked):
        yield from zip_longest(before, after)
        return
    old, new = list(map(_request_key, before)), list(map(_request_key, after))
    for _, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        # Calls of the same tools with other arguments are changes, not other steps.
        if [request[:2] for request in old[a:b]] == [request[:2] for request in new[c:d]]:
            yield from zip(before[a:b], after[c:d], strict=True)
        else:
            yield from (*((step, None) for step in before[a:b]), *((None, step) for step in after[c:d]))


def _request_key(step: RunStep) -> tuple[str, str, str]:
    return step.kind, step.name, canonical.dumps(plain(step)["args"])


def _step_difference(left: RunStep | None, right: RunStep | None) -> StepDifference | None:
    # Two points of a fold share the steps that nothing has changed in between.
    if left is right:
        return None
    some = right or left
    assert some is not None, "one side has it"
    numbers = {"left": left.step if left else 0, "right": right.step if right else 0}
    fields = _step_changes(left, right) if left and right else []
    change: Literal["added", "removed", "changed"] = "removed" if right is None else "changed" if left else "added"
    if change == "changed" and not fields:
        return None
    return StepDifference(change=change, name=some.name, kind=some.kind, fields=fields, **numbers)


def _step_changes(left: RunStep, right: RunStep) -> list[FieldChange]:
    names = [name for name in STEP_FIELDS if getattr(left, name) != getattr(right, name)]
    before, after = (plain(step.model_dump(include=set(names))) for step in (left, right))
    attempts = _field_changes({"attempts": len(left.attempts)}, {"attempts": len(right.attempts)})
    return [*_field_changes({name: before[name] for name in names}, after), *attempts]


class StepThen(ReadModel):
    """A step without an outcome. `given` is the newest message to a model, else the arguments, cut."""

    step: int
    kind: str
    name: str
    status: str
    label: str
    given: str


class RunThen(RunRow):
    """A run as of a past time, with its open steps."""

    open_steps: list[StepThen]


def run_then(run: Run) -> RunThen:
    steps = run.timeline.steps
    opened = [step for step in steps if step.step in run.state.open and not run.state.over]
    copied = set(StepThen.model_fields)
    then = [StepThen(**step.model_dump(include=copied), given=_newest_message(step, steps)) for step in opened]
    return RunThen(**dict(row_of(run)), open_steps=then)


def _newest_message(step: RunStep, steps: list[RunStep]) -> str:
    """Display text of a step's request: the last message of a request to a model, else the arguments, cut."""
    args = json_text(step.args)
    try:
        named = [(part, part.get("$result", 0)) for part in args["messages"][-1]["parts"]]
        # A message may name the result of an earlier step in place of its text.
        texts = [json_text(steps[number - 1].result) if number else part["content"] for part, number in named]
    except (KeyError, IndexError, TypeError, AttributeError):
        texts = [step.args]
    joined = " ".join(part if isinstance(part, str) else canonical.dumps(part) for part in texts)
    return with_ellipsis(joined, MOST_SEEN)
