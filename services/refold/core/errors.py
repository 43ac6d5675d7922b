"""Errors of Refold: a stable code, structured fields, and a message that is a fact plus the next action."""

from typing import Any, ClassVar


class RefoldError(Exception):
    """Error raised on purpose: a `code` stable across releases, facts as `fields`, and the next action as `hint`."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(f"{message}: {hint}" if hint else message)
        self.message, self.hint, self.fields = message, hint, fields


def text_of(error: BaseException, most: int = 2_000) -> str:
    """Text of any exception, cut to `most` characters: never raises, never empty, and encodable as UTF-8."""
    try:
        # str() returns a subclass of str unchanged: only str's own slice is a plain copy.
        text = str.__getitem__(str(error), slice(most))
        if isinstance(error, BaseExceptionGroup):  # its own text is their number
            inner = "; ".join(f"{type(part).__name__}: {text_of(part, most)}" for part in error.exceptions)
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


class NotFoundError(RefoldError):
    """The named object does not exist."""

    code = "not_found"


class GoneError(NotFoundError):
    """The run was erased. `fields["file"]` names its copy in the archive; empty if there is none."""

    code = "erased"


def may_be_archived(missing: NotFoundError) -> bool:
    """False for a run that was erased without a copy."""
    # An older copy in an archive does not bring an erased run back.
    return not isinstance(missing, GoneError) or bool(missing.fields["file"])


class ConflictError(RefoldError):
    """Two facts exclude each other, for example a second start of a run with another input."""

    code = "conflict"


class ReusedIdError(ConflictError):
    """The id of an input, or the key of an answer, was used for another one."""


class UnreachableError(RefoldError):
    """Kafka, Redis or a store does not answer."""

    code = "unreachable"


class BlobError(RefoldError):
    """A value in the blob store is missing or altered; the field `code` distinguishes the cases."""

    code = "blob"


class TimedOutError(RefoldError):
    """The awaited event did not occur in time; it may still occur."""

    code = "timed_out"


class MalformedError(RefoldError):
    """A record does not have the form that its topic requires; it becomes a dead letter."""

    code = "malformed"


class UnauthorisedError(RefoldError):
    """A signature, key or entitlement is invalid. The field `reason` is a stable code."""

    code = "unauthorised"


class FoldError(RefoldError):
    """This version of the code cannot fold the history; the run stops until a version that can takes over."""

    code = "fold"


class NonDeterminismError(RefoldError):
    """Agent code and recorded history disagree; names the step, the expected and the actual request."""

    code = "non_determinism"


class TransientError(RefoldError):
    """A tool failed before its effect; a retry is allowed. **Units**: `retry_after` in seconds; None: by the policy."""

    code = "transient"

    def __init__(self, message: str, *, retry_after: float | None = None, hint: str = "", **fields: Any) -> None:
        super().__init__(message, hint=hint, **fields)
        self.retry_after = retry_after


class NotDone(TransientError):  # noqa: N818 - what an author writes reads as a sentence: raise NotDone
    """The tool's author states that the effect did not happen: the call may be retried, whatever its class."""

    code = "not_done"


class TerminalError(RefoldError):
    """The tool's author states that the effect did not happen and that a retry is pointless."""

    code = "terminal"


class CallFailed(RefoldError):  # noqa: N818
    """A call ended without a result; an agent may catch it and react."""

    code = "call_failed"


class RunFailedError(RefoldError):
    """A client's run failed or was cancelled. Fields: `run_id`, `status`, `failure` (a code), `reason` (a text)."""

    code = "run_failed"


class CallbackError(RefoldError):
    """The holder of a callback's token reported a failure; an agent may catch it and react."""

    code = "callback_failed"


class ChildFailed(RefoldError):  # noqa: N818
    """A child run ended without a result; its parent may catch the error and react. **Shape**: fields `run_id`, `code`
    and `message` of the failure; `code` is `cancelled` for a cancelled child."""

    code = "child_failed"

    def __init__(self, text: str, *, run_id: str, code: str, message: str) -> None:
        super().__init__(text, run_id=run_id, code=code)
        self.fields["message"] = message
