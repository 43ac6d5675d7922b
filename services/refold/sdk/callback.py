"""Token for somebody outside, so that they can answer: a token, and what waits for the answer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from refold.core.run.intents import Answer
from refold.core.wire import canonical
from refold.sdk import loop
from refold.sdk.json_codec import JsonCodec

R = TypeVar("R")


class Callback(Generic[R]):
    """A callback that was made: `token` is for whoever shall answer, `await callback` gives what they say."""

    def __init__(self, intent: Answer, token: str) -> None:
        self.name, self.token = intent.name, token
        self._future = loop.running("ctx.callback").ask(intent)

    def __await__(self) -> Generator[Any, Any, R]:
        return self._future.__await__()

    def cancel(self) -> None:
        """Gives it up: nobody waits for the answer any more, and the token is of no use."""
        self._future.cancel()

    def __repr__(self) -> str:
        return f"<Callback {self.name}>"  # and not its token: what is printed lands in logs


def result_reader(schema: Any, name: str) -> tuple[str, Any]:
    """The JSON Schema of a type as text, and what reads a result of it; of no type, anything is read as plain data."""
    if schema is None:
        return "", canonical.parse
    shape = JsonCodec(schema, f"result of callback {name}")
    return canonical.dumps(shape.schema), shape.load
