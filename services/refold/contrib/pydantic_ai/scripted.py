"""A model that answers from a file, for examples and tests."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from refold.core.errors import TerminalError, UsageError


class ScriptedCall(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tool: str
    args: dict[str, Any] = {}


class ScriptedAnswer(BaseModel):
    """A line of a script: the model's answer in this `turn` of a conversation, 1 the first. Of several lines for one
    turn, the first counts whose text `when` is empty, or in the newest message."""

    model_config = ConfigDict(extra="forbid")

    turn: int = Field(ge=1)
    when: str = ""
    text: str = ""
    calls: list[ScriptedCall] = []


class ScriptedModel(FunctionModel):
    """A model whose answers are lines of JSON in the file `script`, by the turn of the conversation.

    Equal requests get equal answers in any process. `asked` counts the requests in this process. **Raises** UsageError
    if the script cannot be read; TerminalError in a call for which it has no line.

    **Example**

        {"turn": 1, "calls": [{"tool": "price", "args": {"item": "egg"}}]}
        {"turn": 2, "when": "sold out", "text": "There are no eggs."}
        {"turn": 2, "text": "An egg costs 3."}
    """

    def __init__(self, script: str | Path) -> None:
        self.script = Path(script)
        self.answers, self.asked = _parsed_answers(self.script), 0
        super().__init__(self._respond, stream_function=self._streamed, model_name=f"scripted:{self.script.stem}")

    def find(self, turn: int, newest: str) -> ScriptedAnswer:
        for answer in self.answers:
            if answer.turn == turn and answer.when in newest:
                return answer
        raise TerminalError(f"{self.script.name} has no answer in turn {turn} to: {newest[:200]}", code="no_answer")

    def _answer_to(self, messages: list[ModelMessage]) -> ScriptedAnswer:
        self.asked += 1
        turn = 1 + sum(isinstance(message, ModelResponse) for message in messages)
        return self.find(turn, " ".join(str(getattr(part, "content", "")) for part in messages[-1].parts))

    # async, or pydantic-ai would call it in a thread
    async def _respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answer = self._answer_to(messages)
        calls = [ToolCallPart(call.tool, call.args, tool_call_id=_id(answer, n)) for n, call in enumerate(answer.calls)]
        return ModelResponse(parts=[*([TextPart(answer.text)] if answer.text else []), *calls])

    async def _streamed(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        answer = self._answer_to(messages)
        for line in answer.text.splitlines(keepends=True):
            yield line
        for n, call in enumerate(answer.calls):
            yield {n: DeltaToolCall(call.tool, json.dumps(call.args), tool_call_id=_id(answer, n))}


def _id(answer: ScriptedAnswer, number: int) -> str:
    return f"call-{answer.turn}-{number + 1}"


def _parsed_answers(script: Path) -> list[ScriptedAnswer]:
    try:
        lines = [line for line in script.read_text().splitlines() if line.strip()]
        return [ScriptedAnswer.model_validate_json(line) for line in lines]
    except OSError as error:
        raise UsageError(f"the script {script} cannot be read: {error}", hint="name a file of answers") from None
    except ValidationError as error:
        raise UsageError(f"a line of {script} is no answer of a model: {error}") from None
