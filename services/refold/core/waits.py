"""What happens to a run that waits for others: signals, the waits that take them, and callbacks."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass

from refold.core.parts import Failure


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """Somebody has told the run something. It is kept until a wait takes it, which may be in the same entry.

    `sent_ms`: it came at this time while the code of the run was held, and no wait was asked so far; else 0.
    """

    signal_id: str
    name: str
    data: str
    actor: str = ""
    sent_ms: int = 0


@dataclass(frozen=True, slots=True)
class SignalDropped:
    """A signal of so many `bytes` came, no wait took it, and the run keeps too many already.

    Until a wait takes one of those, others that find no room are dead letters, and no events.
    """

    signal_id: str
    name: str
    bytes: int
    actor: str = ""


@dataclass(frozen=True, slots=True)
class WaitStarted:
    """The agent waits for a signal of this name of which `match` (CEL) is true, until a time (0: for ever)."""

    step: int
    name: str
    match: str = ""
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class MatchFailed:
    """The `match` of a wait has no value for a signal, so that it does not match. Told once of a wait."""

    step: int
    signal_id: str
    error: str


@dataclass(frozen=True, slots=True)
class WaitsPostponed:
    """The open waits from step `first` on are asked later about the signals that are kept; 0: all were asked."""

    first: int


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The wait took a signal that was received before; no other wait gets it."""

    step: int
    signal_id: str


@dataclass(frozen=True, slots=True)
class WaitExpired:
    """Nothing has come in time for a wait or a callback; the agent sees a TimeoutError."""

    step: int


@dataclass(frozen=True, slots=True)
class CallbackCreated:
    """The agent has made a token with which somebody outside resolves this step, until a time (0: for ever).

    `digest` is that of the token, which the log does not have, and `schema` the JSON Schema of the result, if any.
    """

    step: int
    name: str
    digest: str
    schema: str = ""
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class CallbackCompleted:
    """Whoever has the token gave the result. `key` is their own name for what they said."""

    step: int
    result: str
    key: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class CallbackFailed:
    """Whoever has the token said that there will be no result; the agent sees the failure."""

    step: int
    failure: Failure
    key: str = ""
    actor: str = ""
