"""`ctx.log`: lines of an agent, written once although its code runs again on every recovery."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from refold.core.run.replay import Moment
from refold.sdk.determinism import watch


class AgentLog:
    """A bound structured logger: an event name, all else fields. Silent while history is replayed."""

    def __init__(self, moment: Moment, fields: dict[str, Any]) -> None:
        self._moment = moment
        self._fields = fields

    def bind(self, **fields: Any) -> AgentLog:
        """A logger that adds these fields to every line."""
        return AgentLog(self._moment, {**self._fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        """Writes a line for those who debug."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Writes a line."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Writes a line about something odd."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Writes a line about something wrong."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if self._moment.replaying:
            return
        # A line that cannot be written must not raise: replayed, where nothing is written, the code would go on.
        with watch.unwatched(), suppress(Exception):
            import structlog  # here: it takes a third of the time of `import refold`, and few agents write lines

            getattr(structlog.get_logger("refold.agent"), level)(event, **{**self._fields, **fields})
