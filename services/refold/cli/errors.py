"""Errors as exit codes and as words for people: what failed, why that may be, what to run next."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from refold.cli.output import visible
from refold.core import errors
from refold.core.errors import RefoldError

OK, FAILED, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE, TIMED_OUT = range(7)

_CODES: dict[type[RefoldError], int] = {
    errors.UsageError: USAGE,
    errors.MalformedError: USAGE,
    errors.NotFoundError: NOT_FOUND,
    errors.ConflictError: CONFLICT,
    errors.UnreachableError: UNREACHABLE,
    errors.TimedOutError: TIMED_OUT,
}


def exit_code(error: RefoldError) -> int:
    """The exit code that an error stands for."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILED)


def expected() -> tuple[type[Exception], ...]:
    """What a command may raise. Kafka's own error counts only where a command has loaded Kafka's client."""
    client = sys.modules.get("confluent_kafka")
    return (RefoldError, client.KafkaException) if client else (RefoldError,)


def tell(error: Exception) -> int:
    """Prints an expected error to stderr; returns the exit code."""
    if not isinstance(error, RefoldError):
        fault = error.args[0] if error.args else error
        error = errors.UnreachableError(f"Kafka does not answer ({fault.str() if hasattr(fault, 'str') else fault})")
    hint = error.hint or _NEXT.get(exit_code(error), "")
    print(f"error: {visible(error.message)}", file=sys.stderr)  # noqa: T201
    if hint:
        print(f"  next: {visible(hint)}", file=sys.stderr)  # noqa: T201
    if os.environ.get("REFOLD_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    return exit_code(error)


def fail(code: int = FAILED) -> NoReturn:
    """Ends a command that has said already what is wrong."""
    import typer

    raise typer.Exit(code)


_NEXT = {
    UNREACHABLE: "`refold dev` starts a broker and Redis here; --kafka names another; `refold doctor` looks at both",
    TIMED_OUT: "ask again with a longer --timeout; nothing is lost meanwhile",
    USAGE: "`refold --help`",
}
