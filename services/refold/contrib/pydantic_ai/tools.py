"""Tools of the app and of its MCP servers for agents of pydantic-ai."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_ai import Tool
from pydantic_ai.exceptions import ModelRetry, ToolFailed
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool
from pydantic_ai.toolsets.external import TOOL_SCHEMA_VALIDATOR

from refold.contrib.mcp.server import MCPServer, RemoteTool, ServerTool, ToolFailure
from refold.contrib.pydantic_ai.options import WORD
from refold.core.errors import CallFailed, UsageError
from refold.sdk.app import App
from refold.sdk.context import Context, current

_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def app_tools(app: App, *names: str, toolset: str = "app") -> FunctionToolset[Any]:
    """Give an agent tools of the app by name: `Agent(..., toolsets=[app_tools(app, "read_file")])`.

    Each call is one of the tool itself, with its effect class, probe, approval and form for people. The model gets the
    text of a failure or refusal, and goes on; arguments that do not fit are requested again. `toolset` is the id of the
    toolset. **Raises** UsageError for an unknown name, for tools of an MCP server (`mcp_tools`), and when called
    outside a run.
    """
    app_toolset: FunctionToolset[Any] = FunctionToolset(id=toolset)
    for name in names:
        tool = app.find(name)
        if isinstance(tool, ServerTool):
            hint = "give the agent toolsets=[mcp_tools(server)] of refold.contrib.pydantic_ai"
            raise UsageError(f"{name} is a tool of the MCP server {tool.server.name}", hint=hint)
        offered = _name_for_models(name)
        app_toolset.add_tool(Tool.from_schema(_body_calling(name), offered, tool.description, tool.schema()))
        app_toolset.tools[offered].metadata = {WORD: False}
    return app_toolset


def mcp_tools(server: MCPServer, *, toolset: str = "") -> AbstractToolset[Any]:
    """Give an agent the tools of an MCP server that the app includes: `Agent(..., toolsets=[mcp_tools(files)])`.

    The model is offered the server's list as of the agent's beginning, and again after the server has changed; each
    call is one of the tool itself (`files.read_file`). The model gets the text of a failure, a refusal or the server's
    error, and goes on. `toolset` is the id of the toolset, by default the server's name. **Raises** UsageError when
    listed outside a run.
    """
    return ServerTools(server, toolset or server.name)


class ServerTools(AbstractToolset[Any]):
    """Toolset of `mcp_tools`; lists the server's tools in each run."""

    def __init__(self, server: MCPServer, toolset: str) -> None:
        self._server, self._toolset = server, toolset
        self._listed: Mapping[str, RemoteTool] | None = None

    @property
    def id(self) -> str:
        return self._toolset

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        # Listed tools hold the context of one run: shared, another run would make its calls in that one's history.
        return ServerTools(self._server, self._toolset)

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        if self._listed is None:
            listed = await self._server.tools(_current_run(f"the MCP server {self._server.name} is asked"))
            self._listed = {_name_for_models(name): tool for name, tool in listed.items()}
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=name, description=tool.description, parameters_json_schema=tool.schema, metadata={WORD: False}
                ),
                max_retries=ctx.max_retries,
                args_validator=TOOL_SCHEMA_VALIDATOR,
            )
            for name, tool in self._listed.items()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        assert self._listed is not None, "a tool is listed before it is called"
        try:
            output = await self._listed[name](tool_args)
        except CallFailed as failed:
            if failed.fields["code"] in ("manifest_changed", "tool_gone"):
                self._listed = None  # the next request to the model offers the server's present tools
            raise ToolFailed(failed.message) from None
        if isinstance(output, ToolFailure):
            raise ToolFailed(output.text)
        if output.structured is not None:
            return output.structured
        return output.text if all(part.get("type") == "text" for part in output.content) else output.content


def _name_for_models(name: str) -> str:
    return _UNFIT.sub("_", name)


def _current_run(action: str) -> Context:
    if (context := current()) is None:
        raise UsageError(f"{action} outside a run", hint="start a run of the agent")
    return context


def _body_calling(name: str) -> Any:
    async def call(**arguments: Any) -> Any:
        context = _current_run(f"tool {name} of the app is called")
        try:
            pending = context.call_with(name, arguments)
        except UsageError as error:
            raise ModelRetry(error.message) from None
        try:
            return await pending
        except CallFailed as failed:
            raise ToolFailed(failed.message) from None

    return call
