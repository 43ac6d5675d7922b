"""Limits of an input, equal for its sender and its reader. **Units**: bytes of JSON text in UTF-8."""

from refold.core.errors import MalformedError
from refold.core.messages import RunOperation, RunRequest, RunSignal
from refold.core.wire import canonical

ENVELOPE_BYTES = 65_536
"""Bytes of a record besides its payload: ids, names, the text of a failure, a trace."""

NAME_CHARACTERS = 256
"""Longest name from a sender: every living run keeps its names in memory."""

FAILURE_BYTES = 4_096
"""Longest text of a callback's failure."""

SESSIONS, LABELS = 16, 32
LABEL_BYTES = 1_024
"""Name and value of one label together. Every policy's question about the run contains the labels."""


def check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        message = f"the {name} has {size} bytes, more than {limit}"
        raise MalformedError(message, hint="REFOLD_MAX_PAYLOAD_BYTES", limit=limit)


def check_input(message: RunRequest | RunSignal | RunOperation, most: int) -> None:
    """Check names, labels and the payload, with at most `most` bytes. **Raises** MalformedError."""
    if isinstance(message, RunSignal | RunOperation):
        check_size("data", canonical.utf8_bytes(message.data), most)
        names = {"run_id": message.run_id, "signal_id": message.signal_id, "kind": message.kind, "actor": message.actor}
        if isinstance(message, RunSignal):
            names |= {"name": message.name, "key": message.key}
            check_size("failure", canonical.utf8_bytes(message.failure), FAILURE_BYTES)
    else:
        check_size("input", canonical.utf8_bytes(message.input), most)
        names = {"run_id": message.run_id, "agent": message.agent, "requester": message.requester}
        _check_labels(message.labels)
        _check_sessions(message.sessions)
    for name, text in names.items():
        if len(text) > NAME_CHARACTERS:
            reason = f"the {name} has {len(text):,} characters, more than {NAME_CHARACTERS}"
            raise MalformedError(reason, hint="put long text into the input")


def _check_sessions(sessions: list[str]) -> None:
    if len(sessions) > SESSIONS:
        raise MalformedError(f"there are {len(sessions):,} sessions, more than {SESSIONS}", hint="use labels")
    for name in sessions:
        if not 0 < len(name) <= NAME_CHARACTERS:
            reason = f"the session {name[:40]!r} has no or more than {NAME_CHARACTERS} characters"
            raise MalformedError(reason, hint="a session is named by an id")


def _check_labels(labels: dict[str, str]) -> None:
    if len(labels) > LABELS:
        reason = f"there are {len(labels):,} labels, more than {LABELS}"
        raise MalformedError(reason, hint="put data you do not search for into the input")
    for name, value in labels.items():
        if canonical.utf8_bytes(name) + canonical.utf8_bytes(value) > LABEL_BYTES:
            reason = f"the label {name[:40]!r} has more than {LABEL_BYTES:,} bytes"
            raise MalformedError(reason, hint="put long text into the input")
