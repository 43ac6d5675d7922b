"""Limits on the input of a run: its requester may have made up all of it. Input from other agents' code is trusted."""

import warnings
from dataclasses import replace
from typing import Any

from pydantic_ai.agent import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    UserContent,
    UserPromptPart,
    sanitize_messages,
)

from refold.core.errors import UsageError
from refold.core.wire import canonical

Prompt = str | list[UserContent] | None
History = list[ModelMessage] | None

SHORT = 4_096
"""Characters of an input that needs no check."""

MOST_MESSAGES, MOST_PARTS = 500, 2_000
"""Limits of an earlier conversation: reading it takes half a second, in which no other run of the planner goes on."""

_OF_PROVIDER = ("conversation_id", "container_id")
"""Data stored by a provider, accessible with the executor's key."""


def check_length(input_json: str) -> None:
    """Refuse an input (JSON) whose conversation would take pydantic-ai too long. **Raises** UsageError."""
    arguments = canonical.parse(input_json) if len(input_json) > SHORT else None
    if not isinstance(arguments, dict):
        return
    messages = arguments.get("message_history")
    if not isinstance(messages, list):
        messages = []
    parts = sum(map(_count_parts, (arguments.get("prompt"), *messages)))
    if len(messages) > MOST_MESSAGES or parts > MOST_PARTS:
        text = f"the conversation is too long: it has {len(messages):,} messages of {parts:,} parts"
        most = f"{MOST_MESSAGES:,} of {MOST_PARTS:,} are the most"
        raise UsageError(f"{text}, and {most}", hint="sum up what came before", code="too_long")


def _count_parts(message: Any) -> int:
    if isinstance(message, dict):
        message = message.get("parts")
    if not isinstance(message, list):
        return 1
    contents = (part.get("content") for part in message if isinstance(part, dict))
    return len(message) + sum(len(content) for content in contents if isinstance(content, list))


def prompt_of(prompt: Prompt) -> Prompt:
    """Prompt without references that an executor would resolve with its own rights: downloads, a provider's files."""
    if prompt is None or isinstance(prompt, str):
        return prompt
    cleaned = _cleaned([ModelRequest(parts=[UserPromptPart(prompt)])])
    return [content for message in cleaned for part in message.parts for content in getattr(part, "content", ())]


async def history_of(agent: Agent[Any, Any], history: History, deps: Any) -> History:
    """Conversation without references to resolve and unanswered calls, with the agent's own system prompt."""
    if not history:
        return history
    messages = [_without_provider_state(message) for message in _cleaned(history)]
    own = await agent.system_prompt_parts(deps=deps, message_history=messages)
    if not own:
        return messages
    if messages and isinstance(messages[0], ModelRequest):
        return [replace(messages[0], parts=[*own, *messages[0].parts]), *messages[1:]]
    return [ModelRequest(parts=list(own)), *messages]


def _cleaned(messages: list[ModelMessage]) -> list[ModelMessage]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they would report a user's attempts to the planner's operator
        return sanitize_messages(messages)


def _without_provider_state(message: ModelMessage) -> ModelMessage:
    if not isinstance(message, ModelResponse):
        return message
    details = {name: value for name, value in (message.provider_details or {}).items() if name not in _OF_PROVIDER}
    state = "complete" if message.state == "suspended" else message.state
    return replace(message, provider_response_id=None, provider_details=details or None, state=state)
