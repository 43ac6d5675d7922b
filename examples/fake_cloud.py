"""A small fake cloud for `deploy.py`: it does as it is told, and counts what was done to it.

    python examples/fake_cloud.py [--host 127.0.0.1] [--port 8901] [--file fake-cloud.jsonl]

Every line of its file is one effect, or one repetition that it recognised by its Idempotency-Key and did not carry out
again. Nothing of Refold is in here: this is the world outside.

- `POST /do/ACTION` with JSON: the effect. With a header `Idempotency-Key`, a repetition gets the first answer and
  changes nothing. With a header `Operation-Id` the effect is remembered under it, and a repetition is not recognised.
- `GET /did/KEY`: the answer to the effect of this key or operation id, or 404.
- `GET /health/SERVICE`: the version that the service runs, if any.
- `GET /counts`: effects and recognised repetitions, by action.
- `POST /hold/ACTION`: from now on effects of this action take place at once, and their answers are held back until
  `POST /release/ACTION`. `GET /held/ACTION` waits (10 s at most) until an answer is held back.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Cloud:
    """What was done, in memory and in the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changed = threading.Condition()
        self._lines: list[dict[str, Any]] = []
        self._answers: dict[str, dict[str, Any]] = {}
        self._holds: set[str] = set()
        self._held: Counter[str] = Counter()
        if file.exists():
            for line in file.read_text().splitlines():
                self._remember(json.loads(line))

    def do(self, action: str, body: dict[str, Any], *, key: str, operation: str) -> dict[str, Any]:
        """Carries an action out, unless its key says that it has been. The answer may be held back."""
        with self._changed:
            if key and key in self._answers:
                self._write({"kind": "repeat", "action": action, "key": key})
                return self._answers[key]
            number = sum(line["kind"] == "effect" for line in self._lines) + 1
            answer = {"id": f"{action}-{number}", **body}
            line = {"kind": "effect", "action": action, "key": key or operation, "answer": answer}
            self._write(line)
            if action in self._holds:
                self._held[action] += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: action not in self._holds)
                self._held[action] -= 1
            return answer

    def did(self, key: str) -> dict[str, Any] | None:
        """The answer to what was done under a key."""
        with self._changed:
            return self._answers.get(key)

    def health(self, service: str) -> dict[str, Any]:
        """What traffic for a service reaches."""
        with self._changed:
            switched = [
                line["answer"]["version"]
                for line in self._lines
                if line["kind"] == "effect"
                and line["action"] == "switch_mesh"
                and line["answer"].get("service") == service
            ]
            return {"service": service, "version": switched[-1] if switched else None}

    def counts(self) -> dict[str, dict[str, int]]:
        """How often what was done, and how often a repetition was recognised."""
        with self._changed:
            kinds = {"effects": "effect", "avoided": "repeat"}
            return {
                name: dict(Counter(line["action"] for line in self._lines if line["kind"] == kind))
                for name, kind in kinds.items()
            }

    def hold(self, action: str) -> None:
        """Holds the answers to effects of an action back."""
        with self._changed:
            self._holds.add(action)

    def release(self, action: str) -> None:
        """Lets held answers go."""
        with self._changed:
            self._holds.discard(action)
            self._changed.notify_all()

    def wait_held(self, action: str) -> bool:
        """Waits until an answer is held back."""
        with self._changed:
            return self._changed.wait_for(lambda: self._held[action] > 0, timeout=10)

    def _write(self, line: dict[str, Any]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._remember(line)

    def _remember(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        if line["kind"] == "effect" and line["key"]:
            self._answers[line["key"]] = line["answer"]


class Server(ThreadingHTTPServer):
    """Serves one cloud."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, cloud: Cloud, port: int, host: str = "127.0.0.1") -> None:
        super().__init__((host, port), Handler)
        self.cloud = cloud


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Questions."""
        verb, _, name = self.path.strip("/").partition("/")
        cloud = self.server.cloud
        if verb == "did":
            answer = cloud.did(name)
            self._answer(404 if answer is None else 200, answer)
        elif verb == "health":
            self._answer(200, cloud.health(name))
        elif verb == "counts":
            self._answer(200, cloud.counts())
        elif verb == "held":
            self._answer(200, {"held": cloud.wait_held(name)})
        else:
            self._answer(404, {"error": f"no such question: {self.path}"})

    def do_POST(self) -> None:
        """Deeds."""
        verb, _, name = self.path.strip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        cloud = self.server.cloud
        if verb == "hold":
            cloud.hold(name)
            self._answer(200, {"holding": True})
        elif verb == "release":
            cloud.release(name)
            self._answer(200, {"holding": False})
        elif verb == "do":
            key, operation = self.headers.get("Idempotency-Key", ""), self.headers.get("Operation-Id", "")
            try:
                args = json.loads(body)
            except ValueError:
                self._answer(400, {"error": "the body is not JSON"})
                return
            self._answer(200, cloud.do(name, args, key=key, operation=operation))
        else:
            self._answer(404, {"error": f"no such deed: {self.path}"})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stays quiet: the file tells what happened."""

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # who asked is dead; the effect stays


def main() -> None:
    """Serves until interrupted, after a line with the address."""
    parser = argparse.ArgumentParser(description="A fake cloud that counts what is done to it.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at: 0.0.0.0 in a container")
    parser.add_argument("--port", type=int, default=8901, help="0 picks a free one")
    parser.add_argument("--file", type=Path, default=Path("fake-cloud.jsonl"))
    options = parser.parse_args()
    server = Server(Cloud(options.file), options.port, options.host)
    print(f"FAKE_CLOUD=http://{options.host}:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
