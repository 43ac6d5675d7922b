"""A server with two tools, plain JSON-RPC by lines: a call is a line in the file that the outside world counts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}}}


def answered(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a request. **Raises** LookupError for a method that it has not."""
    if method == "initialize":
        about = {"name": "far", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": SCHEMA} for name in ("look", "burn")]}
    if method == "tools/call":
        with (Path(os.environ["EFFECTS"]) / "effects").open("a") as effects:
            effects.write(f"{params['name']} {params['arguments']['label']}\n")
        return {"content": [{"type": "text", "text": "done"}]}
    raise LookupError(method)


def main() -> None:
    """Answers until nobody asks any more."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        try:
            body = {"result": answered(request["method"], request.get("params", {}))}
        except LookupError as error:
            body = {"error": {"code": -32601, "message": str(error)}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
