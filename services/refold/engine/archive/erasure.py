"""Order in which a run's records are erased, and which records belong to it. Pure.

The marker is written first, and removed once no topic has records of the run. A crash may stop the writing after any
record, and each topic is cleaned on its own, at any time and in part. The remains must be neither a run nor the
beginning of one:

- Inputs of a run go first, the run log last: while the log is whole, a repeated pass finds all of the run. - Of the run
log the first entry goes first: the rest has no beginning, and extends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from refold.core.errors import FoldError, MalformedError
from refold.core.ids import RunId, parse_callback_token, parse_log_key
from refold.core.messages import DeadLetter, RunOperation, RunRequest, RunSignal, ToolClaim
from refold.core.topics import (
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    APPROVAL_VOTED,
    DEAD_LETTERS,
    RUN_COMPLETED,
    RUN_LOG,
    RUN_OPERATED,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_SNAPSHOT,
    RUN_VIEW,
    TOOL_CLAIMED,
    TOOL_COMPLETED,
    TOOL_REQUESTED,
    kind_of,
)
from refold.core.wire import codec
from refold.engine.ports.log import Record

_AGAIN, _CALLBACK = b"again/", b"cb_"
ORDER = (
    *(RUN_REQUESTED, RUN_SIGNALLED, RUN_OPERATED, TOOL_COMPLETED, APPROVAL_VOTED),
    *(APPROVAL_DECIDED, TOOL_REQUESTED, APPROVAL_REQUESTED, TOOL_CLAIMED),
    *(RUN_COMPLETED, RUN_VIEW, *DEAD_LETTERS, RUN_SNAPSHOT, RUN_LOG),
)
"""Topics with records of a run, in the order of their erasure."""


class Lying(NamedTuple):
    """A key of a run in a partition of a topic; `valued`: its last record is no tombstone."""

    run_id: RunId
    topic: str
    partition: int
    key: bytes
    valued: bool


def run_of(record: Record) -> str:
    """Run of a record by its topic's key, or ""."""
    key = record.key or b""
    if record.topic == RUN_LOG:
        parts = parse_log_key(key)
        return parts[0] if parts else ""
    if kind_of(record.topic) == TOOL_CLAIMED:
        return _claimant(record)
    parts_of_key = key.split(b"/")
    if record.topic == RUN_SNAPSHOT:
        return _text(parts_of_key[1]) if parts_of_key[0] in (b"run", b"hold") and len(parts_of_key) > 1 else ""
    # A repeated question has the key `again/RUN/SEQ`. (A run may be called `again`, so the parts count.)
    if key.startswith(_AGAIN) and len(parts_of_key) > 2 and record.topic in (APPROVAL_DECIDED, *DEAD_LETTERS):
        return _text(parts_of_key[1])
    # A token has no slash, and the key of a signal has one: a run id may begin as tokens do.
    if record.topic in (RUN_SIGNALLED, *DEAD_LETTERS) and key.startswith(_CALLBACK) and b"/" not in key:
        return _called_back(key)
    return _text(parts_of_key[0])


def _called_back(token: bytes) -> str:
    try:
        return parse_callback_token(token.decode())
    except (MalformedError, UnicodeDecodeError):
        return ""


def stages(lying: Iterable[Lying]) -> list[list[Lying]]:
    """Tombstones to write, in stages: each follows the acknowledgement of the one before."""
    ranks: dict[int, list[Lying]] = {}
    for record in lying:
        if record.valued:
            ranks.setdefault(_rank(record), []).append(record)
    return [sorted(ranks[rank], key=_in_order) for rank in sorted(ranks)]


def lying_of(records: Iterable[Record], runs: frozenset[RunId]) -> list[Lying]:
    """Keys of some runs in the records of one topic, also those whose value is already erased."""
    # Until tombstones are gone, a reader may be behind them.
    by_place: dict[tuple[int, bytes], Lying] = {}
    for record in records:
        if record.key is None:
            continue
        place = (record.partition, record.key)
        earlier = by_place.get(place)
        run = earlier.run_id if earlier else RunId(run_of(record))
        if run not in runs and record.topic in DEAD_LETTERS:
            run = RunId(_run_of(record))
        if run in runs:
            by_place[place] = Lying(run, record.topic, *place, record.value is not None)
    return list(by_place.values())


def _run_of(letter: Record) -> str:
    """Run named in the content of a refused input, whose key may name something else."""
    try:
        message = codec.decode(DeadLetter, letter.value or b"")
        if message.topic == RUN_REQUESTED:
            return codec.decode_input(RunRequest, message.value, json_fields=("input",)).run_id
        if message.topic == RUN_OPERATED:
            return codec.decode_input(RunOperation, message.value, json_fields=("data",)).run_id
        return codec.decode_input(RunSignal, message.value, json_fields=("data",)).run_id
    except (FoldError, MalformedError):
        return ""


def _claimant(record: Record) -> str:
    """Run of a claim, by its value: the key is the call's idempotency key."""
    if record.value is None:
        return _text((record.key or b"").split(b"/")[0])
    try:
        return codec.decode(ToolClaim, record.value).call_id.partition("/")[0]
    except (MalformedError, FoldError):
        return ""


def _rank(record: Lying) -> int:
    # A cleaner never keeps a tombstone without those before it: from last to first, the beginning of a live run stays.
    topic = kind_of(record.topic)
    parts = parse_log_key(record.key) if topic == RUN_LOG else None
    return ORDER.index(topic) + (parts is not None and parts[1] > 1)


def _in_order(record: Lying) -> tuple[str, int, bytes]:
    # The keys of a run's entries sort as its history does. (A copy may lie behind its successors.)
    return record.topic, record.partition, record.key


def _text(part: bytes) -> str:
    return part.decode(errors="replace")
