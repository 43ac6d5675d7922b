"""Tools of the app for agents of pydantic-ai: probed ones, those on files, whatever an app has."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Tool
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.toolsets import FunctionToolset

from refold.contrib.pydantic_ai.options import WORD
from refold.core.errors import CallFailed, UsageError
from refold.sdk.app import App
from refold.sdk.context import current


def app_tools(app: App, *names: str, toolset: str = "app") -> FunctionToolset[Any]:
    """Gives an agent tools of the app by name: `Agent(..., toolsets=[app_tools(app, "read_file")])`.

    Each call is one of the tool itself, with its effect class, probe, approval and form for people. The model hears of
    a call that failed, or that people or a rule have refused, in their words, and goes on; arguments that do not fit it
    is asked for again.
    `toolset` is the id of the toolset. **Raises** UsageError for a name that the app has no tool of; when called
    outside a run, as there is nobody to call.
    """
    found: FunctionToolset[Any] = FunctionToolset(id=toolset)
    for name in names:
        tool = app.find(name)
        found.add_tool(Tool.from_schema(_caller(name), name, tool.description, tool.schema()))
        found.tools[name].metadata = {WORD: False}
    return found


def _caller(name: str) -> Any:
    async def call(**arguments: Any) -> Any:
        if (context := current()) is None:
            raise UsageError(f"tool {name} of the app is called outside a run", hint="start a run of the agent")
        try:
            asked = context.call_with(name, arguments)
        except UsageError as error:
            raise ModelRetry(error.message) from None
        try:
            return await asked
        except CallFailed as failed:
            raise ToolFailed(failed.message) from None

    return call
