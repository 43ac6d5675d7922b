"""Limits of an input: counted alike by whoever sends it and by whoever takes it in.

**Units**: bytes of JSON text in UTF-8.
"""

from __future__ import annotations

from refold.core.errors import MalformedError
from refold.core.messages import RunOperation, RunRequest, RunSignal
from refold.core.wire import canonical

ENVELOPE_BYTES = 65_536
"""Bytes that a record may have around its payload: ids, names, the text of a failure, a trace."""


def check_size(name: str, size: int, limit: int) -> None:
    """**Raises** MalformedError for what is too large."""
    if size > limit:
        message = f"the {name} has {size} bytes, more than {limit}"
        raise MalformedError(message, hint="REFOLD_MAX_PAYLOAD_BYTES", limit=limit)


NAME_CHARACTERS = 256
"""The longest name that a sender chooses: every run that lives keeps its names, and every list shows them."""

FAILURE_BYTES = 4_096
"""Of what somebody says about why a callback has no result."""

SESSIONS = 16
"""Sessions of a run."""

LABELS = 32
LABEL_BYTES = 1_024
"""Of one label, its name and its value. They are in every policy's question about the run."""


def check_input(message: RunRequest | RunSignal | RunOperation, most: int) -> None:
    """**Raises** MalformedError when the payload has more than `most`, a name is too long or labels are too many."""
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
