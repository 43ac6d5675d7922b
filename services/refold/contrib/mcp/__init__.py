"""Tools of MCP servers as tools of Refold: `app.include(MCPServer(...))` makes each tool of a server a tool of the app
(`files.read_file`), with policies, halts, approvals, claims and effect classes.

- Executors of the pool alone connect to servers, with one connection per server and process.
- A call carries the digest of its tool's description; nothing is sent if the server describes the tool otherwise now.
- A tool is `once` unless the configuration declares more; its annotations may make it stricter, never laxer.
- An answer of the server, an error too, is a result and never repeated. A call without one has an unknown outcome.
- Questions of a server wait as approvals, without process or connection.
"""

from refold.contrib.mcp.server import MCPServer, RemoteTool, RemoteTools, ToolFailure, ToolOutput

__all__ = ["MCPServer", "RemoteTool", "RemoteTools", "ToolFailure", "ToolOutput"]
