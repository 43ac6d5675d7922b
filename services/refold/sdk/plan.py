"""The agent `plan` of an app with `App("shop", plan=True)`: steps run in order.

Its input is `{"steps": [{"name": "build", "tool": "build_image", "args": {...}}, ...]}`. Anywhere in `args`, `{"$ref":
"build.image"}` stands for the result of an earlier step, or for a part of it.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from refold.core.errors import CallFailed, UsageError
from refold.sdk.context import Context

_REF = "$ref"

MOST_CALLS = 1_000
"""Steps of a plan: a mebibyte of input would hold tens of thousands."""


class PlanStep(BaseModel):
    """One call. `name` is how later steps refer to its result."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=128)]
    tool: str
    args: dict[str, Any] = {}


class PlanResults(BaseModel):
    """Results of a plan: the result of every step, by name."""

    results: dict[str, Any]


async def plan(ctx: Context, steps: Annotated[list[PlanStep], Field(max_length=MOST_CALLS)]) -> PlanResults:
    """Runs a list of tool calls in order, feeding results of earlier steps into later ones."""
    ctx.note("plan", {"steps": [step.model_dump(mode="json") for step in steps]})
    _validate(ctx, steps)
    results: dict[str, Any] = {}
    for step in steps:
        args = _with_results(step.args, step.name, results)
        try:
            results[step.name] = await ctx.call_with(step.tool, args)
        except CallFailed as error:
            failed = CallFailed(f"step {step.name!r}: {error.message}", step=step.name)
            failed.fields.update(error.fields)
            raise failed from error
        except UsageError as error:
            raise UsageError(f"step {step.name!r}: {error.message}", hint=error.hint, step=step.name) from error
        ctx.checkpoint(step.name)
    return PlanResults(results=results)


def _validate(ctx: Context, steps: list[PlanStep]) -> None:
    names: list[str] = []
    for step in steps:
        where = f"step {step.name!r}"
        if step.name in names:
            raise UsageError(f"{where} is there twice", hint="give every step a name of its own", step=step.name)
        try:
            tool = ctx.find(step.tool)
            references = _references(step.args)
            if not references:
                tool.canonical_args(**step.args)
        except UsageError as error:
            raise UsageError(f"{where}: {error.message}", hint=error.hint, step=step.name) from None
        if unknown := sorted(step.args.keys() - set(tool.arguments.names)):
            raise UsageError(f"{where}: tool {tool.name} takes no {', '.join(unknown)}", step=step.name)
        for reference in references:
            if reference.partition(".")[0] not in names:
                problem = f"{where} refers to {reference!r}, which is no earlier step"
                raise UsageError(problem, hint=f"earlier: {', '.join(names) or 'there is none'}", step=step.name)
        names.append(step.name)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        if value.keys() == {_REF}:
            if not isinstance(value[_REF], str):
                raise UsageError(f"{_REF} is {value[_REF]!r}", hint='write {"$ref": "step.field"}')
            return [value[_REF]]
        value = list(value.values())
    return [reference for item in value for reference in _references(item)] if isinstance(value, list) else []


def _with_results(value: Any, step: str, results: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_REF}:
            return _resolve(value[_REF], step, results)
        return {key: _with_results(item, step, results) for key, item in value.items()}
    return [_with_results(item, step, results) for item in value] if isinstance(value, list) else value


def _resolve(reference: str, step: str, results: dict[str, Any]) -> Any:
    name, *path = reference.split(".")
    result = results[name]
    for part in path:
        if isinstance(result, dict) and part in result:
            result = result[part]
        # `isdigit` alone takes superscripts, which `int` refuses.
        elif isinstance(result, list) and part.isascii() and part.isdigit() and int(part) < len(result):
            result = result[int(part)]
        else:
            choices = ", ".join(result) if isinstance(result, dict) else f"a {type(result).__name__}"
            hint = f"at {part!r} there is only {choices}"
            raise UsageError(f"step {step!r} refers to {reference!r}", hint=hint, step=step)
    return result
