"""Logs of a service process: JSON lines, or coloured text on a terminal."""

import sys

import structlog

from refold.engine.runtime.text import visible


def configure(service: str) -> None:
    render: list[structlog.typing.Processor] = (
        [_escaped, structlog.dev.ConsoleRenderer()] if sys.stderr.isatty() else [structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *render,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(service=service)


def _escaped(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape text of models or the network that would change the look of other lines."""
    shown = {name: value if isinstance(value, str) else repr(value) for name, value in event.items()}
    return {name: "\n".join(map(visible, value.split("\n"))) for name, value in shown.items()}
