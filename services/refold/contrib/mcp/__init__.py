"""Tools of MCP servers as tools of Refold.

An `MCPServer` is the configuration of one server: how it is started or reached, and which of its tools may do what.
`app.include(server)` makes each of its tools, under its own name (`files.read_file`), one that policies, halts,
approvals, claims and effect classes know like any other: a call of it is proposed, judged, claimed and recorded.

- **Where**: servers are started and spoken to by executors of the pool alone, one connection per server and process,
  opened when it is first needed and again after it was lost. A planner loads nothing of this but names.
- **Which tools there are** an agent asks in its run, `tools = await files.tools(ctx)`: what the server said is the
  result of a call, and so in the log. A call carries the digest of what the server said of the tool; the executor asks
  again before it sends, and sends nothing when that is another by now.
- **What a server says of itself decides nothing that it could gain by**: a tool is `once` unless the configuration
  says more, and its annotations may make it stricter, never laxer.
- **Failure**: what was not sent is tried again by the tool's retries; what was sent and not answered has an unknown
  outcome, so a `once` call is in doubt. What the server answers, an error too, is a result, and is never repeated.
  Losing a server loses no run.
- **Questions** of a server (`input_required`) wait as approvals, without process or connection, and the answer goes
  back with the next call.
"""

from __future__ import annotations

from refold.contrib.mcp.calling import RemoteTool, RemoteTools, ToolFailure, ToolOutput
from refold.contrib.mcp.server import MCPServer

__all__ = ["MCPServer", "RemoteTool", "RemoteTools", "ToolFailure", "ToolOutput"]
