"""The app of the tests on a real platform: an agent that has every kind of trouble, and a tool that tells its span."""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings

from refold import App, Context, NotDone, Retry
from refold.contrib.pydantic_ai import durable

app = App("telemetry-tests")


@app.tool(effect="pure")
async def where() -> list[str]:
    """Trace and span that what a tool emits hangs below."""
    above = trace.get_current_span().get_span_context()
    return [f"{above.trace_id:032x}", f"{above.span_id:016x}"]


@app.tool(effect="pure")
def where_in_a_thread() -> list[str]:
    """The same, of a tool that is not async."""
    above = trace.get_current_span().get_span_context()
    return [f"{above.trace_id:032x}", f"{above.span_id:016x}"]


@app.tool(effect="once")
def lose() -> str:
    """Acts, perhaps."""
    raise RuntimeError("nobody knows")


@app.tool(effect="pure", retry=Retry(attempts=1, then="hold"))
def refuse() -> str:
    """Never works."""
    raise NotDone("not today")


@app.tool(effect="once", approval="required")
def pay(amount: int) -> int:
    """Waits for people."""
    return amount


@app.agent
async def places(ctx: Context) -> list[list[str]]:
    """Where its tools have run."""
    return [await ctx.call(where), await ctx.call(where_in_a_thread)]


@app.agent
async def loses(ctx: Context) -> str:
    """Ends in doubt."""
    return await ctx.call(lose)


@app.agent
async def holds(ctx: Context) -> str:
    """Waits for an operator."""
    return await ctx.call(refuse)


@app.agent
async def asks(ctx: Context) -> int:
    """Waits for people."""
    return await ctx.call(pay, 5)


@app.agent
async def raises(ctx: Context) -> None:
    """Fails."""
    await ctx.call(where)
    raise ValueError("it raised")


@app.agent
async def naps(ctx: Context, count: int = 20) -> int:
    """Works for a while."""
    for _ in range(count):
        await ctx.call(where)
        await ctx.call(where_in_a_thread)
    return count


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """What the model says."""
    return ModelResponse(parts=[TextPart("hello")], model_name="echo")


durable(app, Agent(FunctionModel(answer, model_name="echo"), name="talker"))

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(os.environ.get("SPANS")), schedule_delay_millis=200))
counted = Agent(FunctionModel(answer, model_name="echo"), name="counted")
counted.instrument = InstrumentationSettings(tracer_provider=provider)
durable(app, counted)
