"""Order in which a run's records are erased, and which records belong to it. Pure.

The marker is written first, and removed once no topic has records of the run. A crash may stop the writing after any
record, and each topic is cleaned on its own, at any time and in part. The remains must be neither a run nor the
beginning of one:

- Inputs of a run go first, the run log last: while the log is whole, a repeated pass finds all of the run.
- Of the run log the first entry goes first: the rest has no beginning, and extends nothing.
"""

import re
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from refold.core import topics
from refold.core.errors import FoldError, MalformedError
from refold.core.ids import RunId, parse_callback_token, parse_log_key
from refold.core.messages import DeadLetter, RunOperation, RunRequest, RunSignal, ToolClaim
from refold.core.topics import DEAD_LETTERS, RUN_LOG, RUN_SNAPSHOT, TOOL_CLAIMED, kind_of
from refold.core.wire import codec
from refold.engine.ports.log import Record

_AGAIN, _CALLBACK = re.compile(rb"again/[^/]*/"), re.compile(rb"cb_[^/]*")
ORDER = (
    *(topics.RUN_REQUESTED, topics.RUN_SIGNALLED, topics.RUN_OPERATED, topics.TOOL_COMPLETED, topics.APPROVAL_VOTED),
    *(topics.APPROVAL_DECIDED, topics.TOOL_REQUESTED, topics.APPROVAL_REQUESTED, TOOL_CLAIMED),
    *(topics.RUN_COMPLETED, topics.RUN_VIEW, *DEAD_LETTERS, RUN_SNAPSHOT, RUN_LOG),
)
"""Topics with records of a run, in the order of their erasure."""


class RunKey(NamedTuple):
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
        return (parse_log_key(key) or ("", 0))[0]
    if kind_of(record.topic) == TOOL_CLAIMED:
        return _run_of_claim(record)
    parts = key.split(b"/")
    if record.topic == RUN_SNAPSHOT:
        return _run_of_marker(parts)
    # A repeated question has the key `again/RUN/SEQ`. (A run may be called `again`, so the parts count.)
    if record.topic in (topics.APPROVAL_DECIDED, *DEAD_LETTERS) and _AGAIN.match(key):
        return _text(parts[1])
    # A token has no slash, and the key of a signal has one: a run id may begin as tokens do.
    if record.topic in (topics.RUN_SIGNALLED, *DEAD_LETTERS) and _CALLBACK.fullmatch(key):
        return _run_of_callback(key)
    return _text(parts[0])


def _run_of_marker(parts: list[bytes]) -> str:
    return _text(parts[1]) if parts[0] in (b"run", b"hold") and len(parts) > 1 else ""


def _run_of_callback(token: bytes) -> str:
    try:
        return parse_callback_token(token.decode())
    except (MalformedError, UnicodeDecodeError):
        return ""


def stages(keys: Iterable[RunKey]) -> list[list[RunKey]]:
    """Tombstones to write, in stages: each follows the acknowledgement of the one before."""
    ranks: dict[int, list[RunKey]] = {}
    for record in keys:
        if record.valued:
            ranks.setdefault(_stage_number(record), []).append(record)
    # The keys of a run's entries sort as its history does. (A copy may lie behind its successors.)
    in_order = attrgetter("topic", "partition", "key")
    return [sorted(ranks[rank], key=in_order) for rank in sorted(ranks)]


def run_keys(records: Iterable[Record], runs: frozenset[RunId]) -> list[RunKey]:
    """Keys of some runs in the records of one topic, also those whose value is already erased."""
    # Until tombstones are gone, a reader may be behind them.
    by_place: dict[tuple[int, bytes], RunKey] = {}
    for record in records:
        if record.key is None:
            continue
        place = (record.partition, record.key)
        earlier = by_place.get(place)
        run = earlier.run_id if earlier else RunId(run_of(record))
        if run not in runs and record.topic in DEAD_LETTERS:
            run = RunId(_run_of_letter(record))
        if run in runs:
            by_place[place] = RunKey(run, record.topic, *place, record.value is not None)
    return list(by_place.values())


def _run_of_letter(letter: Record) -> str:
    """Run named in the content of a refused input, whose key may name something else."""
    try:
        message = codec.decode(DeadLetter, letter.value or b"")
        if message.topic == topics.RUN_REQUESTED:
            return codec.decode_input(RunRequest, message.value, json_fields=("input",)).run_id
        if message.topic == topics.RUN_OPERATED:
            return codec.decode_input(RunOperation, message.value, json_fields=("data",)).run_id
        return codec.decode_input(RunSignal, message.value, json_fields=("data",)).run_id
    except (FoldError, MalformedError):
        return ""


def _run_of_claim(record: Record) -> str:
    """Run of a claim, by its value: the key is the call's idempotency key."""
    if record.value is None:
        return _text((record.key or b"").split(b"/")[0])
    claim = codec.decode_known(ToolClaim, record.value)
    return claim.call_id.partition("/")[0] if claim else ""


def _stage_number(record: RunKey) -> int:
    # A cleaner never keeps a tombstone without those before it: from last to first, the beginning of a live run stays.
    topic = kind_of(record.topic)
    parts = parse_log_key(record.key) if topic == RUN_LOG else None
    return ORDER.index(topic) + (parts is not None and parts[1] > 1)


def _text(part: bytes) -> str:
    """Decode a part of a record's key, which may be any bytes."""
    return part.decode(errors="replace")
