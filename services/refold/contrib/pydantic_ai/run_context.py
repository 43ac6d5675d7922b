"""The part of pydantic-ai's run context that a call carries to its executor."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import filterfalse
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_ai._run_context import AnchoredEvidence
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.durable_exec import DurabilityEngineSpec, DurableRunContext
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_core import PydanticSerializationError, to_jsonable_python

from refold.core.errors import UsageError
from refold.core.wire import canonical
from refold.sdk.json_codec import JsonCodec

DepsT = TypeVar("DepsT", covariant=True)

_DEPS = "deps"
_OF_LISTS = (
    *("loaded_capability_ids", "discovered_tool_names", "available_tool_names"),
    *("active_capability_ids", "_deferred_capability_ids"),
)
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("metadata", "tool_call_id", "tool_name", "tool_call_metadata", "deadline", "capability_active")),
    **dict.fromkeys(("tool_call_approved", "partial_output", "trace_include_content"), False),
    **dict.fromkeys(("retry", "max_retries", "run_step"), 0),
    **{name: {} for name in ("retries", "usage", "usage_limits", "_anchored_evidence", "_tool_names_by_kind")},
    **{name: [] for name in _OF_LISTS},
}
"""Empty values, which are not sent: most fields of most runs."""

_PLAIN = frozenset({str, int, bool, type(None)})


class RefoldRunContext(DurableRunContext[DepsT]):
    """The `RunContext` of tools, model and handlers in an executor. A subclass may carry more fields."""

    def unavailable_field_message(self, name: str) -> str:
        return (
            f"{name!r} of the run context stays in the planner: have a subclass of RefoldRunContext carry it "
            "(serialize_run_context), and give it to RefoldDurability(run_context_type=...)"
        )


@dataclass(frozen=True, slots=True)
class ContextCodec:
    """Run contexts of one agent as JSON, with its `deps`: calls carry them to executors, which restore a `kind`."""

    name: str
    agent: AbstractAgent[Any, Any]
    kind: type[RefoldRunContext[Any]]
    deps: JsonCodec
    engine_spec: DurabilityEngineSpec

    def dump(self, ctx: RunContext[Any]) -> dict[str, Any]:
        """Return JSON data, equal for equal contexts in every process. **Raises** UsageError for other values."""
        fields = [pair for pair in self.kind.serialize_run_context(ctx).items() if pair[1] or pair[0] not in _EMPTY]
        carried = {name: as_json(value, f"{name} of the run context") for name, value in fields}
        wire = {name: value for name, value in carried.items() if name not in _EMPTY or value != _EMPTY[name]}
        return wire if ctx.deps is None else {**wire, _DEPS: dump_deps(self.deps, ctx.deps)}

    def load(self, carried: Mapping[str, Any]) -> RunContext[Any]:
        """Restore a context, with the empty values that `dump` leaves out."""
        deps = self.deps.load(canonical.dumps(carried[_DEPS])) if _DEPS in carried else None
        fields = {**_EMPTY, **{name: value for name, value in carried.items() if name != _DEPS}}
        return self.kind.restore(fields, deps=deps, agent=self.agent, engine_spec=self.engine_spec)


def dump_deps(codec: JsonCodec, deps: Any) -> Any:
    """Dependencies as JSON data. **Raises** UsageError if tools would get changed ones."""
    text = codec.dump(deps)
    if type(again := codec.load(text)) is not type(deps):
        problem = f"{codec.owner}: a {type(deps).__name__} would arrive as a {type(again).__name__}"
        raise UsageError(problem, hint=f"give the agent deps_type={type(deps).__name__}")
    return canonical.parse(text)


def as_json(value: Any, subject: str) -> Any:
    """Value as JSON data, sets as sorted lists. **Raises** UsageError without a JSON form."""
    if type(value) in _PLAIN:
        return value
    try:
        return to_jsonable_python(_ordered(value), inf_nan_mode="constants", by_alias=True)
    except (PydanticSerializationError, ValueError) as error:
        raise UsageError(f"{subject} is not JSON: {str(error).partition(chr(10))[0]}") from None


def _ordered(value: Any) -> Any:
    """Value without the order of a set, and without drawn ids: both differ between processes."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, set | frozenset):
        return sorted(map(_ordered, filterfalse(_is_drawn, value)), key=repr)
    if isinstance(value, BaseModel):
        return _ordered(value.model_dump(by_alias=True))
    if isinstance(value, RunUsage | UsageLimits | AnchoredEvidence):
        fields = filterfalse(partial(_is_default, value), dataclasses.fields(value))
        return {field.name: _ordered(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {key: _ordered(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_ordered, value)]
    return value


def _is_drawn(name: Any) -> bool:
    """True if pydantic-ai has drawn this id for a capability without one: `<Instrumentation:4ede3c>`."""
    return isinstance(name, str) and name.startswith("<") and ":" in name


def _is_default(owner: Any, field: dataclasses.Field[Any]) -> bool:
    value = getattr(owner, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return field.default is not dataclasses.MISSING and bool(value == field.default)
