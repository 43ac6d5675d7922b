"""Callbacks: a token for an outside system, and the wait for its answer."""

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from refold.core.run.intents import Answer
from refold.core.wire import canonical
from refold.sdk import loop
from refold.sdk.json_codec import JsonCodec

R = TypeVar("R")


class Callback(Generic[R]):
    """`token` is for the system that answers; `await callback` returns its answer."""

    def __init__(self, intent: Answer, token: str) -> None:
        self.name, self.token = intent.name, token
        self._future = loop.running("ctx.callback").ask(intent)

    def __await__(self) -> Generator[Any, Any, R]:
        return self._future.__await__()

    def cancel(self) -> None:
        """Give up: the wait ends, and the token becomes invalid."""
        self._future.cancel()

    def __repr__(self) -> str:
        return f"<Callback {self.name}>"  # without its token, which would get into logs


def result_reader(schema: Any, name: str) -> tuple[str, Any]:
    """JSON Schema of a type as text, and the reader of its results; None: plain JSON data."""
    if schema is None:
        return "", canonical.parse
    shape = JsonCodec(schema, f"result of callback {name}")
    return canonical.dumps(shape.schema), shape.load
