"""An app whose agents use a scripted server, for a real platform: `PLACE` is the server's folder."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from refold import App, Context
from tests.mcp.scripts import Scripted

app = App("mcp")
files = Scripted(Path(os.environ["PLACE"]), "stateless").server(
    effects={"read_file": "pure"}, pool="default", timeout=timedelta(minutes=10)
)
app.include(files)


@app.agent
async def use(ctx: Context, tool: str, path: str) -> str:
    """Calls one tool."""
    tools = await files.tools(ctx)
    return (await tools[tool](path=path)).text
