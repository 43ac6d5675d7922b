"""Errors as exit codes and as texts for people: the failure, a possible cause, the next command."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import NoReturn

import typer

from refold.core import errors
from refold.core.errors import RefoldError
from refold.runtime.text import visible

_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
_OK, FAILED, _USAGE, _NOT_FOUND, _CONFLICT, _UNREACHABLE, _TIMED_OUT, ANOTHER, REDACTED = range(9)
STOPPED = _CONFLICT
"""Of a fork: nothing answers a call. `ANOTHER`: it is another run. `REDACTED`: of a bundle that has no hole."""

_CODES: dict[type[RefoldError], int] = {
    errors.UsageError: _USAGE,
    errors.MalformedError: _USAGE,
    errors.NotFoundError: _NOT_FOUND,
    errors.ConflictError: _CONFLICT,
    errors.UnreachableError: _UNREACHABLE,
    errors.TimedOutError: _TIMED_OUT,
}


def exit_code(error: RefoldError) -> int:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILED)


def expected() -> tuple[type[Exception], ...]:
    """Errors that a command may raise. Kafka's own error counts only where a command has loaded Kafka's client."""
    client = sys.modules.get("confluent_kafka")
    return (RefoldError, OSError, client.KafkaException) if client else (RefoldError, OSError)


def tell(error: Exception) -> int | None:
    """Prints an expected error to stderr; returns the exit code, or None for a fault of ours that is to be seen."""
    if isinstance(error, OSError):
        if error.errno not in (_FULL + _UNWRITABLE if error.filename else _FULL):
            return None
        hint, text = "choose another place, as by --data or REFOLD_DATA", f"cannot be used: {error.strerror}"
        place = error.filename or "the disk"
        if error.errno in _FULL:
            place, hint, text = f"no space left on {place}", "free some space, then run it again", ""
        error = RefoldError(f"{place} {text}".rstrip(), hint=hint)
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
    raise typer.Exit(code)


_NEXT = {
    _UNREACHABLE: "`refold dev` starts a broker and Redis here, --kafka names another; `refold doctor` checks both",
    _TIMED_OUT: "run it again with a longer --timeout; nothing is lost",
    _USAGE: "`refold --help`",
}
