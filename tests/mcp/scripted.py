"""A server of the tests that does as it is told: `python scripted.py FILE [ERA]`, plain JSON-RPC by lines.

FILE is a folder: `tools.json` is what it has, `calls` gets a line for each call that reaches it, and `do` says what it
does with the next one. ERA is `session` or `stateless`.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VERSION = "2026-07-28"


def say(message: dict[str, Any]) -> None:
    """Writes a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words: str, *, error: bool = False, **more: Any) -> dict[str, Any]:
    """The result of a call."""
    return {"content": [{"type": "text", "text": words}], "isError": error, **more}


def called(place: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """What a call gets; None: nothing."""
    params = request["params"]
    with (place / "calls").open("a") as calls:
        calls.write(json.dumps(params) + "\n")
    do = (place / "do").read_text().strip() if (place / "do").exists() else ""
    if do == "die" or (do == "die-once" and len((place / "calls").read_text().splitlines()) == 1):
        os._exit(1)
    if do == "hang":
        return None
    if do == "busy":
        time.sleep(0.5)
    if do == "fail":
        return text("no such file", error=True)
    if do == "huge":
        return text("x" * 3_000_000)
    if do == "trap":
        return text("", structuredContent={"a": "a" * 60 + "!"})
    if do == "numbers":
        return text("", structuredContent={"id": 2**63 - 1, "part": 0.5})
    if do == "token":
        return text(f"my token is {os.environ.get('TOKEN')}")
    if do == "environment":
        return text(" ".join(sorted(os.environ)))
    if do.startswith("ask"):
        return asked(do, params)
    return text("done")


def asked(do: str, params: dict[str, Any]) -> dict[str, Any]:
    """A question, until there is an answer; `ask-always`: for ever."""
    if "inputResponses" in params and do != "ask-always":
        return text(json.dumps([params["inputResponses"], params.get("requestState")]))
    if do == "ask-again":
        again = {"resultType": "input_required", "requestState": "seen"}
        return text("at last") if params.get("requestState") == "seen" else again
    form = {"type": "object", "properties": {"branch": {"type": "string"}}}
    asks: dict[str, Any] = {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": "which?", "requestedSchema": form},
    }
    if do == "ask-model":
        asks = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 10}}
    if do == "ask-url":
        params = {"mode": "url", "message": "open", "url": "http://127.0.0.1:1/", "elicitationId": "e"}
        asks = {"method": "elicitation/create", "params": params}
    number = 11 if do == "ask-much" else 1
    state = "x" * 70_000 if do == "ask-long" else "opaque"
    questions = {f"q{n}": asks for n in range(1, number + 1)}
    return {"resultType": "input_required", "inputRequests": questions, "requestState": state}


def answered(place: Path, request: dict[str, Any], era: str) -> dict[str, Any] | None:
    """The result of a request; None: none comes. **Raises** LookupError for a method that it does not know."""
    method = request["method"]
    info = {"name": "scripted", "version": "1"}
    if method == "initialize" and era == "session":
        words = "x" * 30_000 if (place / "wordy").exists() else "be kind"
        greeting = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        return {**greeting, "instructions": words}
    if method == "server/discover" and era == "stateless":
        found = {"supportedVersions": [VERSION], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "public"}
        return {"resultType": "complete", **found}
    if method == "tools/list" and (place / "do").exists() and (place / "do").read_text() == "hang-list":
        return None
    if method == "tools/list":
        listed = json.loads((place / "tools.json").read_text())
        more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"} if era == "stateless" else {}
        cursor = {"nextCursor": "more"} if (place / "endless").exists() else {}
        return {"tools": listed, **more, **cursor}
    if method == "tools/call":
        result = called(place, request)
        typed = result is not None and era == "stateless" and not (place / "untyped").exists()
        return {"resultType": "complete", **(result or {})} if typed else result
    raise LookupError(method)


def main() -> None:
    """Answers until nobody asks any more."""
    place, era = Path(sys.argv[1]), sys.argv[2]
    (place / "pids").open("a").write(f"{os.getpid()}\n")
    if (place / "stubborn").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "3600"], start_new_session=False)
        (place / "pids").open("a").write(f"{child.pid}\n")
    if (place / "deaf").exists():
        time.sleep(3600)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        if (place / "flood").exists():
            ask(itertools.count())
        if (place / "nag").exists():
            ask(range(4_500))
            time.sleep(3600)
        try:
            result = answered(place, request, era)
        except LookupError as error:
            say({"id": request["id"], "error": {"code": -32601, "message": str(error)}})
            continue
        if result is not None:
            say({"id": request["id"], "result": result})
    if (place / "stubborn").exists():
        time.sleep(3600)


def ask(numbers: Iterable[int]) -> None:
    """Asks, and does not read what it is told."""
    for number in numbers:
        say({"id": f"s{number}", "method": "ping"})


if __name__ == "__main__":
    main()
