"""Spans of one run, folded from its entries: stretches of work, and attempts within them."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson
import structlog
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

import refold
from refold.client.reading.changes import step_change
from refold.console.telemetry import names
from refold.core import events
from refold.core.errors import FoldError, MalformedError
from refold.core.ids import CallId, EntryId, RunId, activation_span, attempt_trace, trace_id
from refold.core.redaction import HIDDEN
from refold.core.run import fold
from refold.core.run.account import usage_of
from refold.core.run.state import END_STATUSES, RunState
from refold.core.wire import canonical
from refold.sdk.agent import INSTRUMENTED
from refold.sdk.app import MODEL_POOL

PLAN_AGENT = "plan"
MOST_EVENTS = 128
"""Events of a span, as in the SDK's own limits."""
MOST_CONTENT = 8_192
"""Characters of arguments and results in a span."""

Attributes = dict[str, str | int | float]

_log = structlog.get_logger()
_SCOPE = InstrumentationScope("refold", refold.__version__, names.SCHEMA_URL)
_OK, _SAMPLED = Status(), TraceFlags(TraceFlags.SAMPLED)
_WORK = frozenset({*fold.WAKING, *END_STATUSES, events.CallDispatched})
"""Events that need a trace: they wake a run's code or dispatch a call."""
_REASONS: Mapping[type, str] = {
    **dict.fromkeys((events.ApprovalEscalated, events.CallDoubted, events.CallHeld, events.CheckpointReached), ""),
    **dict.fromkeys((events.SleepStarted, events.SleepEnded, events.WaitStarted, events.WaitEnded), ""),
    **dict.fromkeys((events.WaitExpired, events.CallbackCreated, events.CallbackCompleted), ""),
    **dict.fromkeys((events.CallbackFailed, events.RunRetried), ""),
    **dict.fromkeys((events.ApprovalDecided, events.DoubtResolved), "verdict"),
    **dict.fromkeys((events.RunPaused, events.RunUnpaused), "role"),
    events.ApprovalRequested: "rule",
    events.NoteRecorded: "kind",
    events.ChildStarted: "agent",
    events.ChildCompleted: "status",
    events.RunMigrated: "version",
    events.RunSuspended: "reason",
}
"""Events shown beside the work, with the field of their reason."""
_EVENT_NAMES = {kind: "refold" + re.sub("([A-Z])", r".\1", kind.__name__).lower() for kind in _REASONS}
_OUTCOMES = {"completed": "completed", "failed": "failed", "backoff": "failed", "doubt": "in doubt", "held": "failed"}
_OUTCOMES["given_up"] = "given up"
"""Outcomes of an attempt by the status that its step comes to."""


def resource_of(member: str) -> Resource:
    """Resource of a member's spans; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` take precedence."""
    own = Resource({"service.name": "refold", "service.instance.id": member}, names.SCHEMA_URL)
    return own.merge(OTELResourceDetector().detect())


class Style(NamedTuple):
    """Contents of spans. `gen_ai`: attributes in development too; `content`: redaction of values, None: no values."""

    gen_ai: bool = False
    content: Callable[[str], str] | None = None
    resource: Resource = Resource({"service.name": "refold"}, names.SCHEMA_URL)


class _Attempt(NamedTuple):
    """Attempt at a call from its dispatch to its outcome, for its span. `activation`: the run's at the dispatch."""

    call: CallId
    number: int
    begun_ms: int
    activation: int


class RunSpans:
    """Spans of a run; `find` looks up its parent. A `broken` run has no further spans."""

    def __init__(self, run: RunId, style: Style, find: Callable[[RunId], "RunSpans | None"]) -> None:
        self.state = RunState(run)
        self.started: dict[int, int] = {}
        self._style, self._find = style, find
        self._under_way: dict[int, _Attempt] = {}
        self._begun_ms = self._last = 0
        self.broken = self._worked = self._instrumented = False
        self._beside: list[Event] = []

    def feed(self, name: EntryId, entry: events.Entry) -> list[ReadableSpan]:
        """Apply the next entry; return the spans that end with it. A contradictory entry breaks the run."""
        if self.broken:
            return []
        try:
            return self._feed(name, entry)
        # The entry contradicts its history, or the trace that it names is none.
        except (FoldError, LookupError, TypeError, ValueError):
            self.broken = True
            _log.warning("telemetry.run_left", run_id=entry.run_id, seq=entry.seq)
            return []

    def _feed(self, name: EntryId, entry: events.Entry) -> list[ReadableSpan]:
        state, ended = self.state, list[ReadableSpan]()
        activation = state.activation
        self._begun_ms = self._begun_ms or entry.at_ms
        fold.apply(state, entry, name)
        for seq, event in enumerate(entry.events, start=entry.seq):
            ended += self._take_event(event, seq, entry.at_ms, activation)
        if state.activation != activation:
            if self._worked:
                ended.append(self._stretch_span(activation, entry))
                self._last = activation
            self._begun_ms, self._worked, self._beside = 0, False, []
        return ended

    def _take_event(self, event: events.Event, seq: int, at_ms: int, activation: int) -> list[ReadableSpan]:
        kind, step = type(event), getattr(event, "step", 0)
        self._worked = self._worked or kind in _WORK
        if isinstance(event, events.CallDispatched):
            # Under the same number it goes out once more, and is the same span.
            self._under_way.setdefault(step, _Attempt(self.state.call_id(step), event.attempt, at_ms, activation))
        elif isinstance(event, events.RunStarted):
            self._instrumented = INSTRUMENTED in event.manifest
        elif isinstance(event, events.ChildStarted | events.EventPublished):
            self.started[step] = activation
        self._add_event(event, step, at_ms)
        if kind in END_STATUSES:
            return [self._attempt_span(begun, at_ms, "run over", event) for begun in list(self._under_way)]
        change = step_change(event, "running") if step in self._under_way else None
        outcome = _OUTCOMES.get(change.status) if change else None
        return [self._attempt_span(step, at_ms, outcome, event)] if outcome else []

    def _add_event(self, event: events.Event, step: int, at_ms: int) -> None:
        if (field := _REASONS.get(type(event))) is not None and len(self._beside) < MOST_EVENTS:
            tags: Attributes = {names.STEP: step} if step else {}
            if field:
                tags[names.REASON] = getattr(event, field)
            self._beside.append(Event(_EVENT_NAMES[type(event)], tags, _nanos(at_ms)))

    def _attempt_span(self, step: int, at_ms: int, outcome: str, event: Any) -> ReadableSpan:
        call, number, begun_ms, activation = self._under_way.pop(step)
        state, proposed = self.state, self.state.call(step)
        run, result = state.run_id, getattr(event, "result", "")
        tags: Attributes = {names.SPAN_RUN: run, names.STEP: step, names.ATTEMPT: number, names.EFFECT: proposed.effect}
        tags[names.OUTCOME] = getattr(event, "how", "") or outcome
        if took_ms := getattr(event, "took_ms", 0):
            tags[names.TOOK] = took_ms / 1_000
        # A run that fails ends its attempts, and has a span of its own for the failure.
        failure = getattr(event, "failure", None) if outcome != "run over" else None
        usage = usage_of(result) if isinstance(event, events.CallCompleted) else None
        if (model := _model(usage, proposed)) is None:
            title, kind = f"{names.EXECUTE_TOOL} {proposed.tool}", SpanKind.INTERNAL
            tags |= {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: proposed.tool, names.TOOL_TYPE: "function"}
            tags |= {names.TOOL_CALL: call, **self._content_tags(proposed.args, result)}
        # The framework's own span has the usage: with it here too, backends would count tokens twice.
        elif self._instrumented:
            title, kind = proposed.tool, SpanKind.INTERNAL
        else:
            title, kind = f"{names.CHAT} {model[1]}".strip(), SpanKind.CLIENT
            tags |= {names.OPERATION: names.CHAT, names.PROVIDER: model[0], **self._conversation_tag()}
            tags |= _usage_tags(usage, model[1]) if usage else {}
        context = _context(*attempt_trace(run, activation, call, number).split("-")[1:3])
        parent = _context(trace_id(run, activation), activation_span(run, activation))
        return self._span(title, context, tags, (begun_ms, at_ms), failure, parent=parent, kind=kind)

    def _stretch_span(self, activation: int, entry: events.Entry) -> ReadableSpan:
        state, run, end = self.state, self.state.run_id, entry.events[-1]
        request = state.request
        agent = request.agent if request else ""
        tags: Attributes = {names.SPAN_RUN: run, "refold.run.status": state.status, **self._conversation_tag()}
        if agent == PLAN_AGENT:
            tags |= {names.OPERATION: names.INVOKE_WORKFLOW, names.WORKFLOW_NAME: agent}
        else:
            tags |= {names.OPERATION: names.INVOKE_AGENT, names.AGENT_NAME: agent, names.AGENT_VERSION: state.version}
        links = [_context(trace_id(run, self._last), activation_span(run, self._last))] if self._last else []
        if not self._last and request:
            links += [_context(*request.traceparent.split("-")[1:3])] if request.traceparent else []
            links += self._link_to_starter()
        context, times = _context(trace_id(run, activation), activation_span(run, activation)), self._begun_ms
        failure, more = end.failure if isinstance(end, events.RunFailed) else None, [Link(link) for link in links]
        title = f"{tags[names.OPERATION]} {agent}"
        return self._span(title, context, tags, (times, entry.at_ms), failure, links=more, events=self._beside)

    def _link_to_starter(self) -> list[SpanContext]:
        parent, _, last = self.state.run_id.rpartition(".")
        above = self._find(RunId(parent)) if parent else None
        if above is None or (activation := above.started.get(int(last.partition("_")[0]))) is None:
            return []
        return [_context(trace_id(RunId(parent), activation), activation_span(RunId(parent), activation))]

    def _conversation_tag(self) -> Attributes:
        request = self.state.request
        return {names.CONVERSATION: request.session} if request and request.session else {}

    def _content_tags(self, args: str, result: str) -> Attributes:
        if (redact := self._style.content) is None:
            return {}
        content = {names.TOOL_ARGUMENTS: args, names.TOOL_RESULT: result}
        return {name: _hidden(text, redact)[:MOST_CONTENT] for name, text in content.items() if text}

    def _span(
        self,
        title: str,
        context: SpanContext,
        tags: Attributes,
        times_ms: tuple[int, int],
        failure: events.Failure | None,
        **more: Any,
    ) -> ReadableSpan:
        if failure is not None:
            tags[names.ERROR_TYPE] = failure.code
        if not self._style.gen_ai:
            tags = {name: value for name, value in tags.items() if not name.startswith("gen_ai.")}
        begun, ended = map(_nanos, times_ms)
        status = _OK if failure is None else Status(StatusCode.ERROR, failure.code)
        more |= {"resource": self._style.resource, "instrumentation_scope": _SCOPE, "attributes": tags}
        return ReadableSpan(title, context, start_time=begun, end_time=ended, status=status, **more)


def _usage_tags(usage: Mapping[str, Any], model: str) -> Attributes:
    tokens = {name: usage[key] for key, name in names.TOKENS.items() if type(usage.get(key)) is int}
    return {names.REQUEST_MODEL: model, names.RESPONSE_MODEL: model, **tokens}


def _model(usage: Mapping[str, Any] | None, proposed: events.CallProposed) -> tuple[str, str] | None:
    """Provider and model of a call, empty if unknown; None for a call without a model."""
    text = usage.get("model") if usage else None
    if not text and proposed.pool == MODEL_POOL and not usage:
        try:  # without an answer, the request names the model
            text = orjson.loads(proposed.args).get("asked", "")
        except (ValueError, AttributeError):
            text = ""
    if not isinstance(text, str):
        return None
    provider, _, model = text.partition("+")[0].rpartition(":")
    return names.PROVIDERS.get(provider, provider), model


def _hidden(text: str, redact: Callable[[str], str]) -> str:
    """JSON with secrets removed: by field names, and in each text without escapes."""

    def hide(value: Any) -> Any:
        if isinstance(value, dict):
            return {redact(name): hide(item) for name, item in value.items()}
        if isinstance(value, list):
            return [hide(item) for item in value]
        return redact(value) if isinstance(value, str) else value

    try:
        return redact(canonical.dumps(hide(canonical.parse(text))))
    # Half of a surrogate pair, or nested too deep: better no content than a secret.
    except (MalformedError, RecursionError):
        return HIDDEN


def _nanos(at_ms: int) -> int:
    return min(at_ms * 1_000_000, (1 << 64) - 1)  # the format has no time after the year 2554


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=_SAMPLED)
