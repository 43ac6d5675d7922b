"""The outside world of a campaign: a process that counts what is done to it, and writes it down before it answers.

One line of JSON in, one line of JSON out, per connection. `apply` is an effect: under a key that was served before it
changes nothing and gives the first answer again (only `keyed` tools send one to be judged so). `ask` says whether the
effect under a key has happened. Nothing of Refold is imported here.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Book:
    """What has happened, in memory and on file."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[str, Line] = {}
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self._count = 0
        for line in read(path):
            self._remember(line)

    def apply(self, ask: Line) -> Line:
        """Counts an effect, or tells a repetition under a known key from one."""
        arrived = time.monotonic_ns()
        with self._lock:
            known = self._by_key.get(ask["key"]) if ask["effect"] == "keyed" else None
            line = {
                **ask,
                "waited_ms": (arrived - ask.pop("begun")) // 1_000_000,
                "applied": known is None,
                "value": known["value"] if known else self._count + 1,
                "at": time.time(),
            }
            del line["begun"]
            os.write(self._file, (json.dumps(line) + "\n").encode())
            self._remember(line)
        return {"value": line["value"]}

    def ask(self, ask: Line) -> Line:
        """The first effect under a key, if it has happened."""
        with self._lock:
            found = self._by_key.get(ask["key"])
        return {"value": found["value"] if found else None}

    def _remember(self, line: Line) -> None:
        if line["applied"]:
            self._count += 1
            self._by_key.setdefault(line["key"], line)


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answers one line; a caller that was killed halfway has done nothing."""
        text = self.rfile.readline()
        if not text.endswith(b"\n"):
            return
        ask = json.loads(text)
        book = self.server.book
        answer = book.apply(ask) if ask.pop("do") == "apply" else book.ask(ask)
        try:
            self.wfile.write((json.dumps(answer) + "\n").encode())
        except OSError:
            return  # the caller died after its effect: that is what campaigns are for


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, book: Book) -> None:
        self.book = book
        super().__init__(("127.0.0.1", port), _Handler)


def read(path: Path) -> list[Line]:
    """Everything that was written down, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def call(port: int, ask: Line) -> Any:
    """The value that the recorder answers with, for synchronous callers."""
    with socket.create_connection(("127.0.0.1", port), 30) as link:
        link.sendall((json.dumps(ask) + "\n").encode())
        with link.makefile("rb") as answers:
            return json.loads(answers.readline())["value"]


if __name__ == "__main__":
    with _Server(int(sys.argv[1]), Book(Path(sys.argv[2]))) as server:
        server.serve_forever()
