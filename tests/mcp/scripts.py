"""What the scripted server is told, and what it has seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from refold import App
from refold.contrib.mcp import MCPServer
from refold.core.ids import CallId, RunId
from refold.core.messages import ToolRequest
from refold.core.wire import canonical
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.ports.effects import StartTool, StopTool, ToolEnded
from tests.mcp import scripted

Era = Literal["session", "stateless"]


def described(name: str, description: str = "", **annotations: Any) -> dict[str, Any]:
    """A tool as a server lists it."""
    return {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
        **({"annotations": annotations} if annotations else {}),
    }


class Scripted:
    """A scripted server's folder."""

    def __init__(self, place: Path, era: Era = "session") -> None:
        self.place, self.era = place, era
        place.mkdir(exist_ok=True)
        self.has(described("read_file"), described("write_file"))

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-S", scripted.__file__, str(self.place), self.era]

    def has(self, *tools: dict[str, Any]) -> None:
        """What it lists from now on."""
        (self.place / "tools.json").write_text(json.dumps(tools))

    def does(self, what: str) -> None:
        """What it does with calls from now on."""
        (self.place / "do").write_text(what)

    def is_(self, how: str) -> None:
        """From its next start on: `deaf`, `stubborn` or `wordy`; from now on: `flood`, `nag`, `endless`, `untyped`."""
        (self.place / how).touch()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The parameters of the calls that have reached it."""
        path = self.place / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def pids(self) -> list[int]:
        """The processes that it was."""
        path = self.place / "pids"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def server(self, name: str = "files", **options: Any) -> MCPServer:
        """Its configuration."""
        era: Any = options.pop("protocol", self.era)
        return MCPServer(name, command=self.command, protocol=era, **options)


class Workbench:
    """The tools of an app, run as executors run them, one after the other."""

    def __init__(self, app: App) -> None:
        self.app, self.ended = app, SimpleQueue[ToolEnded]()
        self.box = Toolbox(app, self.ended.put, threads=4, max_result=1 << 20)
        self._numbers = 0

    def begin(self, tool: str, **args: Any) -> int:
        """Begins a call."""
        self._numbers += 1
        found = self.app.find(tool)
        request = ToolRequest(
            CallId(f"r-1/{self._numbers}"),
            RunId("r-1"),
            step=self._numbers,
            attempt=1,
            issued=0,
            tool=tool,
            args=found.canonical_args(**args),
            key=f"key-{self._numbers}",
            effect=found.effect,
            timeout_ms=found.timeout_ms,
        )
        self.box.start([StartTool(self._numbers, request, probe=False)])
        return self._numbers

    def stop(self, number: int) -> None:
        """What an executor does when the time of a call is over."""
        self.box.stop(StopTool(number, "timeout"))

    def run(self, tool: str, **args: Any) -> ToolEnded:
        """A call, and how it ended."""
        self.begin(tool, **args)
        return self.ended.get(timeout=60)

    def listed(self, server: str = "files") -> dict[str, Any]:
        """What the executor hears of a server's tools."""
        ended = self.run(f"mcp.{server}.tools")
        assert ended.status == "completed", ended
        result: dict[str, Any] = canonical.parse(ended.result)
        return result

    def digest(self, tool: str, server: str = "files") -> str:
        """What a call of a tool is bound to."""
        [found] = [each["digest"] for each in self.listed(server)["tools"] if each["name"] == tool]
        return str(found)


Works = Callable[..., Workbench]
