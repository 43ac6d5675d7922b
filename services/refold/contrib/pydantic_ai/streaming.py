"""Live output of a model: for display, and no part of the call."""

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from pydantic_ai import messages
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.tools import RunContext

from refold.sdk.current_attempt import current_attempt


def live_handler(handler: EventStreamHandler[Any] | None) -> EventStreamHandler[Any]:
    """Handler that streams each event to readers, then calls the agent's own, if it has one."""

    async def tell(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
        if handler is not None:
            await handler(ctx, _streamed(events))
            return
        async for _ in _streamed(events):
            pass

    return tell


async def _streamed(events: AsyncIterable[Any]) -> AsyncIterator[Any]:
    attempt = current_attempt()
    async for event in events:
        if attempt is not None and (part := _stream_part(event)) is not None:
            attempt.tell(*part)
        yield event


def _stream_part(event: Any) -> tuple[str, dict[str, Any]] | None:
    if isinstance(event, messages.PartStartEvent):
        part: Any = event.part
    elif isinstance(event, messages.PartDeltaEvent):
        part = event.delta
    else:
        return None
    if isinstance(part, messages.ToolCallPart):
        return "tool_call", {"part": event.index, "tool": part.tool_name, "args": part.args}
    if isinstance(part, messages.ToolCallPartDelta):
        return "tool_call", {"part": event.index, "args": part.args_delta}
    text = getattr(part, "content_delta" if isinstance(event, messages.PartDeltaEvent) else "content", None)
    if not text:
        return None
    if isinstance(part, messages.TextPart | messages.TextPartDelta):
        return "text", {"part": event.index, "text": text}
    if isinstance(part, messages.ThinkingPart | messages.ThinkingPartDelta):
        return "thinking", {"part": event.index, "text": text}
    return None
