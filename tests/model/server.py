"""A model behind HTTP, as those are that speak the chat completions of OpenAI: it counts, and misbehaves as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Asked = dict[str, Any]
"""What a request says: `model`, `messages`, `tools`, `stream`."""


@dataclass(frozen=True)
class Answer:
    """What becomes of a request.

    A `text`, or `calls` of tools with their arguments (an object, or a text, which may be no JSON); or a `status` with
    `headers`. `cut`: the connection ends in the middle of the body. `stalls`: it waits until the server is told to go
    on, or ends.
    """

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any] | str], ...] = ()
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    stalls: bool = False


def says(text: str) -> Answer:
    """A last word."""
    return Answer(text)


def wants(tool: str, arguments: dict[str, Any] | str) -> Answer:
    """A call of a tool."""
    return Answer(calls=((tool, arguments),))


def busy(after: str = "", status: int = 429) -> Answer:
    """No answer for now; `after` is how many seconds it asks to wait."""
    return Answer(status=status, headers=(("Retry-After", after),) if after else ())


@dataclass
class ModelServer:
    """The server: `asked` is what it was asked, in order, `script` what it answers, by what is asked and how often.

    `url` is what a provider gets as its base URL.
    """

    script: Callable[[Asked, int], Answer]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    go_on: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, asked: Asked) -> Answer:
        """Takes a request."""
        with self._lock:
            self.asked.append(asked)
            return self.script(asked, len(self.asked))


def turn(asked: Asked) -> int:
    """How many answers of the model a conversation has so far."""
    return sum(message["role"] == "assistant" for message in asked["messages"])


def in_turn(*answers: Answer) -> Callable[[Asked, int], Answer]:
    """Answers by how far a conversation is: asked the same again, it says the same again."""
    return lambda asked, count: answers[turn(asked)]


def one_by_one(*answers: Answer) -> Callable[[Asked, int], Answer]:
    """Answers by how often the server was asked."""
    return lambda asked, count: answers[count - 1]


@contextmanager
def serving(script: Callable[[Asked, int], Answer]) -> Iterator[ModelServer]:
    """A server on a free port of this machine, while it lasts."""
    model = ModelServer(script)
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(model))
    http.daemon_threads = True
    model.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.go_on.set()
        http.shutdown()
        http.server_close()
        thread.join()


def _handler(model: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = model.answer(asked)
            if answer.stalls:
                model.go_on.wait()
            body = _stream(asked, answer) if asked.get("stream") and answer.status == 200 else _body(asked, answer)
            kind = "text/event-stream" if asked.get("stream") and answer.status == 200 else "application/json"
            self.send_response(answer.status)
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *answer.headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if answer.cut else body)
            self.close_connection = answer.cut

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def _body(asked: Asked, answer: Answer) -> bytes:
    if answer.status != 200:
        said = answer.text or f"status {answer.status}"
        return json.dumps({"error": {"message": said, "type": "made_up", "code": None}}).encode()
    choice = {"index": 0, "message": {"role": "assistant", **_message(answer)}, "finish_reason": _reason(answer)}
    return json.dumps({**_about(asked, "chat.completion"), "choices": [choice], "usage": _usage(asked)}).encode()


def _stream(asked: Asked, answer: Answer) -> bytes:
    """The same in pieces: a word each, or a call."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in answer.text.split(" ") if word]
    deltas += [{"tool_calls": [{"index": n, **call}]} for n, call in enumerate(_calls(answer))]
    about = _about(asked, "chat.completion.chunk")
    chunks = [{**about, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**about, "choices": [{"index": 0, "delta": {}, "finish_reason": _reason(answer)}]})
    chunks.append({**about, "choices": [], "usage": _usage(asked)})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"


def _about(asked: Asked, kind: str) -> dict[str, Any]:
    return {"id": f"chat-{turn(asked)}", "object": kind, "created": 1_700_000_000, "model": asked["model"]}


def _message(answer: Answer) -> dict[str, Any]:
    return {"content": answer.text or None, **({"tool_calls": _calls(answer)} if answer.calls else {})}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    texts = [(tool, args if isinstance(args, str) else json.dumps(args)) for tool, args in answer.calls]
    return [
        {"id": f"call-{tool}-{n}", "type": "function", "function": {"name": tool, "arguments": text}}
        for n, (tool, text) in enumerate(texts)
    ]


def _reason(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _usage(asked: Asked) -> dict[str, int]:
    prompt = len(json.dumps(asked["messages"])) // 4
    return {"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7}
