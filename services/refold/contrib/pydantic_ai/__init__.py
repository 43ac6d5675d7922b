"""Agents of pydantic-ai on the run log: `durable(app, agent)` and nothing else changes (extra `refold[pydantic-ai]`).

The agent's own loop runs in the planner; each model request and each tool call of it is a call of a Refold tool, run by
an executor. So a model's answer is in the log before it is acted on and is paid once, and a tool call is proposed,
judged and claimed. Outside a run the agent is an ordinary one.
"""

from refold.contrib.pydantic_ai.approvals import RefoldApprovals
from refold.contrib.pydantic_ai.durability import RefoldDurability
from refold.contrib.pydantic_ai.entry import durable
from refold.contrib.pydantic_ai.operations import idempotency_key
from refold.contrib.pydantic_ai.run_context import RefoldRunContext
from refold.contrib.pydantic_ai.scripted import ScriptedModel
from refold.contrib.pydantic_ai.tools import app_tools, mcp_tools
from refold.sdk.tool import CallOptions

__all__ = [
    "CallOptions",
    "RefoldApprovals",
    "RefoldDurability",
    "RefoldRunContext",
    "ScriptedModel",
    "app_tools",
    "durable",
    "idempotency_key",
    "mcp_tools",
]
