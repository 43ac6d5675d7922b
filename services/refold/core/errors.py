"""Errors of Refold: a stable code, structured fields, and a message that is a fact plus the next action."""

from typing import Any, ClassVar


class RefoldError(Exception):
    """Error raised on purpose: a `code` stable across releases, facts as `fields`, and the next action as `hint`."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls, code: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.code = code or cls.code

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


class UsageError(RefoldError, code="usage"):
    """The caller's code or command is wrong; raised early and never retried."""


class NotFoundError(RefoldError, code="not_found"):
    """The named object does not exist."""


class GoneError(NotFoundError, code="erased"):
    """The run was erased. `fields["file"]` names its copy in the archive; empty if there is none."""


def may_be_archived(missing: NotFoundError) -> bool:
    """False for a run that was erased without a copy."""
    # An older copy in an archive does not bring an erased run back.
    return not isinstance(missing, GoneError) or bool(missing.fields["file"])


class ConflictError(RefoldError, code="conflict"):
    """Two facts exclude each other, for example a second start of a run with another input."""


class ReusedIdError(ConflictError):
    """The id of an input, or the key of an answer, was used for another one."""


class ClosedError(ConflictError, code="closed"):
    """The run or callback takes the input no more: it is over. An update has no answer, and gets none."""


class UpdateFailed(RefoldError, code="update_failed"):  # noqa: N818
    """The agent answered an update with a failure. Fields: `run_id`, `failure` (a code), `reason` (a text)."""


class UnreachableError(RefoldError, code="unreachable"):
    """Kafka, Redis or a store does not answer."""


class BlobError(RefoldError, code="blob"):
    """A value in the blob store is missing or altered; the field `code` distinguishes the cases."""


class TimedOutError(RefoldError, code="timed_out"):
    """The awaited event did not occur in time; it may still occur."""


class MalformedError(RefoldError, code="malformed"):
    """A record does not have the form that its topic requires; it becomes a dead letter."""


class UnauthorisedError(RefoldError, code="unauthorised"):
    """A signature, key or entitlement is invalid. The field `reason` is a stable code."""


class FoldError(RefoldError, code="fold"):
    """This version of the code cannot fold the history; the run stops until a version that can takes over."""


class NonDeterminismError(RefoldError, code="non_determinism"):
    """Agent code and recorded history disagree; names the step, the expected and the actual request."""


class TransientError(RefoldError, code="transient"):
    """A tool failed before its effect; a retry is allowed. **Units**: `retry_after` in seconds; None: by the policy."""

    def __init__(self, message: str, *, retry_after: float | None = None, hint: str = "", **fields: Any) -> None:
        super().__init__(message, hint=hint, **fields)
        self.retry_after = retry_after


class NotDone(TransientError, code="not_done"):  # noqa: N818 - what an author writes reads as a sentence: raise NotDone
    """The tool's author states that the effect did not happen: the call may be retried, whatever its class."""


class TerminalError(RefoldError, code="terminal"):
    """The tool's author states that the effect did not happen and that a retry is pointless."""


class CallFailed(RefoldError, code="call_failed"):  # noqa: N818
    """A call ended without a result; an agent may catch it and react."""


class RunFailedError(RefoldError, code="run_failed"):
    """A client's run failed or was cancelled. Fields: `run_id`, `status`, `failure` (a code), `reason` (a text)."""


class CallbackError(RefoldError, code="callback_failed"):
    """The holder of a callback's token reported a failure; an agent may catch it and react."""


class ChildFailed(RefoldError, code="child_failed"):  # noqa: N818
    """A child run ended without a result; its parent may catch the error and react. **Shape**: fields `run_id`, `code`
    and `message` of the failure; `code` is `cancelled` for a cancelled child."""

    def __init__(self, text: str, *, run_id: str, code: str, message: str) -> None:
        super().__init__(text, run_id=run_id, code=code)
        self.fields["message"] = message
