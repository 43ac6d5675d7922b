"""The incident's models behind HTTP: they answer from its scripts, as a provider would, and count who asks."""

from __future__ import annotations

from refold.contrib.pydantic_ai.scripted import ScriptedModel
from tests.incident.scene import EXAMPLE
from tests.model.server import Answer, Asked

_TOLD = {"Find out": "analyst", "Read settings": "coder", "Tell in one": "writer"}
"""Whose instructions begin so."""


class Scripts:
    """What the server says: by who asks, how far the conversation is, and what was said last."""

    def __init__(self) -> None:
        self._models = {name: ScriptedModel(EXAMPLE / "script" / f"{name}.jsonl") for name in _TOLD.values()}

    def __call__(self, asked: Asked, count: int) -> Answer:
        """The answer to a request."""
        told = str(asked["messages"][0]["content"])
        model = next(self._models[name] for words, name in _TOLD.items() if told.startswith(words))
        spoken = [n for n, message in enumerate(asked["messages"]) if message["role"] == "assistant"]
        newest = " ".join(str(message["content"]) for message in asked["messages"][max(spoken, default=0) + 1 :])
        found = model.find(len(spoken) + 1, newest)
        return Answer(found.text, tuple((call.tool, call.args) for call in found.calls))
