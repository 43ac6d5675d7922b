"""Runs as of a time, with their open steps."""

from refold.client.reading.history import Run
from refold.client.reading.model import ReadModel, json_text
from refold.client.reading.run import RunRow, row_of
from refold.client.reading.steps import RunStep
from refold.client.reading.words import with_ellipsis
from refold.core.wire import canonical

MOST_SEEN = 200


class StepThen(ReadModel):
    """A step without an outcome. `given` is the newest message to a model, else the arguments, cut."""

    step: int
    kind: str
    name: str
    status: str
    label: str
    given: str


class RunThen(RunRow):
    open_steps: list[StepThen]


def run_then(run: Run) -> RunThen:
    steps = run.timeline.steps
    opened = [step for step in steps if step.step in run.state.open and not run.state.over]
    copied = set(StepThen.model_fields)
    then = [StepThen(**step.model_dump(include=copied), given=_tool_output(step, steps)) for step in opened]
    return RunThen(**dict(row_of(run)), open_steps=then)


def _tool_output(step: RunStep, steps: list[RunStep]) -> str:
    args = json_text(step.args)
    try:
        named = [(part, part.get("$result", 0)) for part in args["messages"][-1]["parts"]]
        # A message may name the result of an earlier step in place of its text.
        texts = [json_text(steps[number - 1].result) if number else part["content"] for part, number in named]
    except (KeyError, IndexError, TypeError, AttributeError):
        return with_ellipsis(step.args, MOST_SEEN)
    joined = " ".join(part if isinstance(part, str) else canonical.dumps(part) for part in texts)
    return with_ellipsis(joined, MOST_SEEN)
