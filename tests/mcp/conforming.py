"""The client that `make conformance` judges: an agent of a run, whose executor speaks to the server at a URL."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from refold import App, Context
from refold.contrib.mcp import MCPServer
from refold.testing import answer, run

SAMPLES = {"string": "text", "number": 1.5, "integer": 3, "boolean": True, "array": [], "object": {}}

app = App("conforming")
server = MCPServer("judge", url=sys.argv[-1])
app.include(server)


def sample(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments that a tool of this schema takes, as far as one may guess."""
    properties: dict[str, Any] = schema.get("properties", {})
    return {name: SAMPLES.get(str(each.get("type")), "text") for name, each in properties.items()}


@app.agent
async def use(ctx: Context, given: dict[str, Any]) -> dict[str, str]:
    """Calls what the scenario asks for, else each tool once."""
    tools = await server.tools(ctx)
    if "json_schema_echo" in tools:  # it wants to see what came of another one's schema
        seen = {name: tools[name].schema for name in tools}
        given = {"toolCalls": [{"name": "json_schema_echo", "arguments": {"schema": seen["json_schema_2020_12_tool"]}}]}
    calls = given.get("toolCalls") or [{"name": name, "arguments": sample(tools[name].schema)} for name in tools]
    return {
        call["name"]: (await tools[call["name"]](call["arguments"])).text for call in calls if call["name"] in tools
    }


if __name__ == "__main__":
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    policy = {
        "fallback": {"approvers": ["ada"]},
        "rules": [{"name": "all", "when": "true", "allow": True}],
    }
    decisions = {server.questions: answer({"name": "Ada", "confirmed": True})}
    done = run(app, "use", policy=policy, decisions=decisions, given=context)
    sys.stdout.write(f"{done.value}\n")
