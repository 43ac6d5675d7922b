"""Tools of MCP servers as tools of Refold.

An `MCPServer` is the configuration of one server. `app.include(server)` makes each of its tools a tool of the app
(`files.read_file`), with policies, halts, approvals, claims and effect classes.

- **Where**: only executors of the pool start servers and connect to them, one connection per server and process, opened
  when it is first needed and again after a loss.
- **Tools**: an agent lists them in its run, `tools = await files.tools(ctx)`; the list is the result of a call, and so
  in the log. A call carries the digest of a tool's description; the executor lists again before it sends, and sends
  nothing when the digest has changed.
- **Trust**: a tool is `once` unless the configuration declares more; its annotations may make it stricter, never laxer.
- **Failure**: an unsent call is tried again by the tool's retries; one that was sent and not answered has an unknown
  outcome. Any answer of the server, an error too, is a result, and is never repeated.
- **Questions** of a server (`input_required`) wait as approvals, without process or connection, and the answer goes
  back with the next call.
"""

from refold.contrib.mcp.server import MCPServer, RemoteTool, RemoteTools, ToolFailure, ToolOutput

__all__ = ["MCPServer", "RemoteTool", "RemoteTools", "ToolFailure", "ToolOutput"]
