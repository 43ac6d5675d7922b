"""Spans follow from histories alone: which there are, what they say, how they hang together, what they leave out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version
from queue import SimpleQueue
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from refold import App, Context, Retry
from refold.console.projections.service import KeptProjection, shipped
from refold.console.telemetry.names import SCHEMA_URL
from refold.console.telemetry.service import Telemetry, exporting
from refold.console.telemetry.spans import Style, resource_of
from refold.contrib.pydantic_ai import durable
from refold.core import events
from refold.core.errors import UnreachableError
from refold.core.events import Event, Failure
from refold.core.ids import RunId, activation_span, attempt_trace, call_id, trace_id
from refold.core.messages import ToolRequest
from refold.core.redaction import HIDDEN, redacted
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.ports.effects import StartTool, ToolEnded
from refold.sdk.agent import INSTRUMENTED
from refold.testing import AgentRun
from tests.projections.histories import NOW, USAGE, begun, call, entries
from tests.projections.memory_views import MemoryViewDatabase
from tests.projections.source import ListedLog
from tests.projections.test_service import settle
from tests.telemetry.receiver import Receiver, Told

GEN_AI = Style(gen_ai=True)
app = App("spans", plan=True)


@app.tool(effect="pure", retry=Retry(attempts=2, base=timedelta(milliseconds=10)))
def look(what: str) -> str:
    return f"saw {what}"


@app.tool(effect="once", approval="required")
def pay(amount: int) -> int:
    return amount


@app.agent
async def shopper(ctx: Context, what: str) -> str:
    seen = await ctx.call(look, what)
    await asyncio.sleep(3_600)
    await ctx.call(pay, 5)
    return seen


@app.agent
async def boss(ctx: Context) -> str:
    return str(await ctx.run("shopper", {"what": "shoes"}))


class World:
    """A log, its views, and what a collector has been told of it."""

    def __init__(self, *, from_start: bool = True, style: Style = GEN_AI, receiver: Receiver) -> None:
        self.log, self.database, self.receiver = ListedLog(), MemoryViewDatabase(), receiver
        self.keeps = KeptProjection(shipped()[0], self.database, self.log)
        settle(self.keeps)
        self.export = exporting(OTLPSpanExporter(receiver.url, timeout=1))
        self.style, self.from_start = style, from_start
        self.begin()

    def begin(self) -> None:
        """A process that starts."""
        self.telemetry = Telemetry(self.database, self.export, self.style, from_start=self.from_start)

    def write(self, *pairs: tuple[bytes, bytes | None]) -> None:
        for pair in pairs:
            self.log.write(*pair)
        settle(self.keeps)

    def told(self, *pairs: tuple[bytes, bytes | None]) -> list[Told]:
        """The spans of these records, which come at once."""
        self.write(*pairs)
        while self.telemetry.turn():
            pass
        return self.receiver.spans


@pytest.fixture
def receiver() -> Any:
    with Receiver() as made:
        yield made


@pytest.fixture
def world(receiver: Receiver) -> World:
    return World(receiver=receiver)


def ran(agent: str, inputs: dict[str, Any], name: str = "r-1") -> AgentRun:
    """A run that was taken to its end."""
    return AgentRun(app, agent, inputs, name=name).finish()


def of(history: AgentRun) -> list[tuple[bytes, bytes]]:
    return [pair for each in history.family for pair in each.records]


def roots(spans: Sequence[Told]) -> list[Told]:
    return [span for span in spans if not span.parent]


def test_each_stretch_of_work_is_a_trace_that_is_linked_to_the_one_before(world: World) -> None:
    told = world.told(*of(ran("shopper", {"what": "hats"})))

    first, second, third = roots(told)
    looks, pays = [span for span in told if span.parent]
    assert [span.name for span in roots(told)] == ["invoke_agent shopper"] * 3
    assert first.trace == trace_id(RunId("r-1"), 1)
    assert first.links == []
    assert [second.links, third.links] == [[(first.trace, first.id)], [(second.trace, second.id)]]
    assert (looks.name, looks.trace, looks.parent) == ("execute_tool look", first.trace, first.id)
    assert (pays.name, pays.trace, pays.parent) == ("execute_tool pay", third.trace, third.id)
    assert first.said["gen_ai.operation.name"] == "invoke_agent"
    assert looks.said["gen_ai.tool.call.id"].startswith("r-1/")
    assert third.said["refold.run.status"] == "completed"
    assert all(first.start <= span.start <= span.end for span in told)


def test_people_and_sleep_are_events_beside_the_work_and_no_spans(world: World) -> None:
    told = world.told(*of(ran("shopper", {"what": "hats"})))

    beside = [name for span in roots(told) for name, _ in span.beside]
    assert len(told) == 5
    assert {"refold.sleep.started", "refold.sleep.ended", "refold.approval.requested"} <= set(beside)
    assert ("refold.approval.decided", {"refold.step": 3, "refold.reason": "approve"}) in roots(told)[2].beside
    assert max(span.end - span.start for span in told) < 3_600e9, "no span lasts as long as the sleep"


def test_the_span_of_an_attempt_is_the_one_that_its_order_names(world: World) -> None:
    retried: list[list[Event]] = [
        [*begun(), *call(1)],
        [events.AttemptFailed(1, 1, Failure("busy", "later"), unknown=False, retry_ms=NOW)],
        [events.CallDispatched(1, 2, NOW)],
        [events.CallCompleted(1, 2, "1", took_ms=250), events.RunCompleted("1")],
    ]
    told = world.told(*entries("r-1", *retried))

    first, second = [span for span in told if span.parent]
    called = call_id(RunId("r-1"), 3)
    assert attempt_trace(RunId("r-1"), 1, called, 1) == f"00-{first.trace}-{first.id}-01"
    assert attempt_trace(RunId("r-1"), 6, called, 2) == f"00-{second.trace}-{second.id}-01"
    assert (first.failed, first.said["error.type"]) == (True, "busy")
    assert (second.failed, second.said["refold.took_seconds"]) == (False, 0.25)


def test_only_what_went_out_is_a_span(world: World) -> None:
    proposed = call(1)[0]
    rejected: list[list[Event]] = [
        [*begun(), proposed],
        [events.CallFailed(1, 0, Failure("rejected", "no")), events.RunFailed(Failure("rejected", "no"))],
    ]
    told = world.told(*entries("r-1", *rejected))

    assert [span.name for span in told] == ["invoke_agent shop"]
    assert told[0].said["error.type"] == "rejected"


def test_what_is_under_way_ends_with_a_run_that_is_cancelled_and_late_results_tell_nothing(world: World) -> None:
    ended: list[list[Event]] = [[*begun(), *call(1), *call(2)], [events.RunCancelled("enough", "ann")]]
    told = world.told(*entries("r-1", *ended))

    assert sorted(span.name for span in told) == ["execute_tool pay", "execute_tool pay", "invoke_agent shop"]
    assert {span.end for span in told} == {max(span.end for span in told)}
    assert [span.said["refold.outcome"] for span in told if span.parent] == ["run over", "run over"]
    assert not any(span.failed for span in told)


def test_a_call_that_nobody_waits_for_any_more_ends_and_its_late_result_makes_no_second_span(world: World) -> None:
    late: list[list[Event]] = [
        [*begun(), *call(1), *call(2)],
        [events.StepGivenUp(1)],
        [events.LateResultRecorded(1, 1, "completed", "7", contradicts=False)],
        [events.CallCompleted(2, 1, "1"), events.RunCompleted("1")],
    ]
    told = world.told(*entries("r-1", *late))

    assert [span.said.get("refold.outcome") for span in told] == ["given up", "completed", None]


def test_a_child_is_linked_to_the_work_in_which_it_was_started(world: World) -> None:
    told = world.told(*of(ran("boss", {})))

    parents = [span for span in told if span.name == "invoke_agent boss"]
    child = next(span for span in told if span.name == "invoke_agent shopper")
    assert child.links == [(parents[0].trace, parents[0].id)]
    assert ("refold.child.started", {"refold.step": 1, "refold.reason": "shopper"}) in parents[0].beside


def test_the_first_trace_is_linked_to_that_of_the_request(world: World) -> None:
    asked = events.RunRequested("shop", "{}", "d", "s", "ann", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    told = world.told(*entries("r-1", [asked, events.RunStarted(), events.RunCompleted("1")]))

    assert told[0].links == [("a" * 32, "b" * 16)]
    assert told[0].id == activation_span(RunId("r-1"), 1)


def test_a_plan_is_a_workflow(world: World) -> None:
    told = world.told(*of(ran("plan", {"steps": [{"name": "a", "tool": "look", "args": {"what": "x"}}]})))

    root = roots(told)[0]
    assert (root.name, root.said["gen_ai.workflow.name"]) == ("invoke_workflow plan", "plan")
    assert ("refold.note.recorded", {"refold.step": 1, "refold.reason": "plan"}) in root.beside


def chats(manifest: dict[str, str]) -> list[tuple[bytes, bytes | None]]:
    asks: list[Event] = [
        events.CallProposed(1, "bot__model.request", "{}", "k", "model", "pure", 9, events.RetryPolicy())
    ]
    begins: list[Event] = [begun()[0], events.RunStarted("1", "app", manifest)]
    outcome: list[Event] = [events.CallCompleted(1, 1, USAGE), events.RunCompleted("1")]
    return entries("r-1", [*begins, *asks, events.CallDispatched(1, 1, NOW)], outcome)


def test_a_model_call_is_a_chat_with_its_tokens(world: World) -> None:
    chat = world.told(*chats({}))[0]

    assert (chat.name, chat.kind) == ("chat small", 3)
    assert chat.said["gen_ai.usage.input_tokens"] == 70
    assert chat.said["gen_ai.usage.output_tokens"] == 30
    assert (chat.said["gen_ai.provider.name"], chat.said["gen_ai.conversation.id"]) == ("acme", "s-1")


def test_a_model_call_that_its_framework_tells_of_is_counted_once(world: World) -> None:
    told = world.told(*chats({"instrumented": "yes"}))

    assert [name for span in told if span.parent for name in span.said if name.startswith("gen_ai.")] == []
    assert told[0].parent == told[1].id, "what the framework emits still has something to hang below"


def test_names_in_development_are_told_on_request_alone(receiver: Receiver) -> None:
    told = World(receiver=receiver, style=Style()).told(*of(ran("shopper", {"what": "hats"})))

    assert len(told) == 5
    assert [name for span in told for name in span.said if name.startswith("gen_ai.")] == []
    assert told[0].said["refold.run.id"] == "r-1"


def test_the_variables_of_opentelemetry_name_the_service_that_exports(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "billing")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,service.name=other")

    World(receiver=receiver, style=Style(resource=resource_of("telemetry-1"))).told(*of(ran("shopper", {"what": "a"})))

    sent = receiver.request.resource_spans[0]
    said = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert said["service.name"] == "billing"
    assert said["deployment.environment.name"] == "prod"
    assert said["service.instance.id"] == "telemetry-1"
    assert sent.schema_url == SCHEMA_URL
    scope = sent.scope_spans[0]
    assert (scope.scope.name, scope.scope.version, scope.schema_url) == ("refold", version("refold"), SCHEMA_URL)


SECRETS = 'sk-abcdefghijklmnop1234 {"password": "hunter2"}'


def test_payloads_are_in_no_span_unless_it_is_asked_for_and_then_redacted(receiver: Receiver) -> None:
    history = ran("shopper", {"what": SECRETS})
    without = World(receiver=receiver).told(*of(history))
    assert not [span for span in without if b"hunter2" in span.bytes or b"saw" in span.bytes]
    receiver.spans = []

    told = World(receiver=receiver, style=Style(gen_ai=True, content=redacted)).told(*of(history))

    said = next(span.said for span in told if span.name == "execute_tool look")
    assert "saw" in said["gen_ai.tool.call.result"]
    assert HIDDEN in said["gen_ai.tool.call.arguments"]
    assert not [span for span in told if b"hunter2" in span.bytes or b"sk-abc" in span.bytes]


def test_a_process_that_begins_anywhere_tells_the_same_spans(world: World) -> None:
    history = [*of(ran("shopper", {"what": "hats"})), *of(ran("boss", {}, "b-1"))]
    world.told(*history)
    whole = {key: span.bytes for key, span in world.receiver.distinct.items()}
    assert len(whole) == len(world.receiver.spans)

    for cut in range(1, len(history)):
        world.receiver.spans = []
        other = World(receiver=world.receiver)
        other.told(*history[:cut])
        other.begin()
        other.told(*history[cut:])

        assert {key: span.bytes for key, span in other.receiver.distinct.items()} == whole
        assert len(other.receiver.spans) == len(whole), "and none of them twice"


def test_what_was_sent_and_not_noted_is_sent_again_as_the_same_spans(world: World) -> None:
    history = of(ran("shopper", {"what": "hats"}))
    world.write(*history)
    commit = world.database.store("refold", 1)  # there is one
    assert commit.positions()

    def dies(spans: Sequence[ReadableSpan]) -> None:
        world.export(spans)
        raise UnreachableError("killed behind")

    with pytest.raises(UnreachableError):
        Telemetry(world.database, dies, GEN_AI, from_start=True).turn()
    first = {key: span.bytes for key, span in world.receiver.distinct.items()}
    told = world.told()

    assert len(told) == 2 * len(first)
    assert {key: span.bytes for key, span in world.receiver.distinct.items()} == first


def test_a_collector_that_is_away_holds_up_nothing_else_and_gets_all_of_it_later(world: World) -> None:
    world.receiver.refuses = True
    history = of(ran("shopper", {"what": "hats"}))
    world.write(*history[:2])
    with pytest.raises(UnreachableError):
        world.telemetry.turn()
    world.receiver.refuses = False

    assert [span.name for span in world.told()] == ["execute_tool look", "invoke_agent shopper"], "it goes on living"
    assert len(world.told(*history[2:])) == 5


def test_an_order_that_goes_out_once_more_is_the_same_span(world: World) -> None:
    again: list[list[Event]] = [
        [*begun(), *call(1)],
        [events.CallDispatched(1, 1, NOW)],
        [events.CallCompleted(1, 1, "1"), events.RunCompleted("1")],
    ]
    attempt, root = world.told(*entries("r-1", *again))

    assert attempt.start == root.start < attempt.end


def test_the_first_start_tells_of_what_ends_from_then_on(receiver: Receiver) -> None:
    world = World(receiver=receiver, from_start=False)
    history = of(ran("shopper", {"what": "hats"}))
    world.write(*history[:2])
    assert world.told() == []
    told = world.told(*history[2:])

    assert 0 < len(told) < 5
    assert told[-1].said["refold.run.status"] == "completed"


def test_a_run_that_is_read_anew_and_an_erased_one_stop_nothing(world: World) -> None:
    history = of(ran("shopper", {"what": "hats"}))
    world.told(*history[:2])
    world.log.mark("r-1")
    world.log.bury("r-1")
    settle(world.keeps)

    world.told(*of(ran("shopper", {"what": "hats"}, "r-2")))

    assert {span.said["refold.run.id"] for span in world.receiver.spans} == {"r-1", "r-2"}


def talker() -> tuple[App, Agent[None, str]]:
    made, agent = App("talking"), Agent(TestModel(), name="talker")
    durable(made, agent)
    return made, agent


def test_a_manifest_says_that_pydantic_ai_makes_spans_by_all_of_its_switches() -> None:
    made, agent = talker()
    version = made.agents["talker"].version
    assert INSTRUMENTED not in made.manifest("talker")
    agent.instrument = True
    one = made.manifest("talker")
    agent.instrument = None
    Agent.instrument_all()
    try:
        every = made.manifest("talker")
    finally:
        Agent.instrument_all(False)

    assert (one[INSTRUMENTED], every[INSTRUMENTED]) == ("yes", "yes")
    assert made.agents["talker"].version == version, "whoever looks on changes no code"


def test_a_tool_runs_in_the_context_of_its_attempt_and_no_other_does() -> None:
    seen = dict[str, tuple[int, int]]()
    tools = App("context")

    @tools.tool(effect="pure")
    async def looks(name: str) -> None:
        await asyncio.sleep(0.01)
        context = trace.get_current_span().get_span_context()
        seen[name] = context.trace_id, context.span_id

    ended: SimpleQueue[ToolEnded] = SimpleQueue()
    toolbox = Toolbox(tools, ended.put, threads=1, max_result=1_000)
    try:
        for number, name in enumerate(("a", "b", "c"), start=1):
            above = attempt_trace(RunId("r-1"), 1, call_id(RunId("r-1"), number), 1) if name != "c" else ""
            order = ToolRequest(
                call_id(RunId("r-1"), number), RunId("r-1"), number, 1, 0, "looks", f'{{"name":"{name}"}}', "k", "pure",
                1_000, traceparent=above,
            )  # fmt: skip
            toolbox.start([StartTool(number, order, probe=False)])
        assert {ended.get(timeout=10).status for _ in range(3)} == {"completed"}
    finally:
        toolbox.close()

    wanted = [attempt_trace(RunId("r-1"), 1, call_id(RunId("r-1"), number), 1).split("-")[1:3] for number in (1, 2)]
    assert [[f"{each:0{n}x}" for each, n in zip(seen[name], (32, 16), strict=True)] for name in "ab"] == wanted
    assert seen["c"] == (0, 0)
