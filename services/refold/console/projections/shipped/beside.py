"""Rows from records beside the run log: votes, dead letters, holds of runs, and sums under limits. A row follows from
the last record of a key and the run log, whatever the order of topics."""

from collections.abc import Callable, Mapping

from refold.client.letters import letters_in
from refold.console.projections.batch import Batch
from refold.console.projections.shipped.tables import DEAD_LETTER_ROWS, FAMILIES, HOLD_CHARS, HOLDS, LIMIT_ROWS, VOTES
from refold.console.projections.shipped.turn import cut
from refold.core import events
from refold.core.approval.ballot import Vote
from refold.core.approval.decision import Decision, signed_fields
from refold.core.approval.signature import content_of
from refold.core.errors import FoldError, MalformedError, UnauthorisedError
from refold.core.ids import root_of
from refold.core.messages import WindowSpent
from refold.core.run.erased import read_hold
from refold.core.tables import Scalar, ViewKey, ViewRow, ViewTable
from refold.core.topics import APPROVAL_VOTED, BUDGET_SPENT, DEAD_LETTERS, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.approval.inputs import read_vote
from refold.engine.ports.log import Record

KEY_CHARS = 4_096
REPORTER_CHARS = 500
"""Characters of a reporter, a part of a key: see `LARGEST_KEY`."""
_STALLED = tuple(FAMILIES.names).index("stalled") - FAMILIES.keys


def take_beside(batch: Batch, record: Record, partitions: int) -> None:
    """Apply a record of a topic beside the run log; an unreadable one changes no row."""
    if (take := _HANDLERS.get(record.topic)) is not None:
        take(batch, record, partitions)


def rows_beside(batch: Batch) -> list[tuple[ViewTable, list[Scalar]]]:
    """Return the run's rows that follow from other topics: they stay when its history is read again."""
    rows = [(of, row) for of in (HOLDS, DEAD_LETTER_ROWS, VOTES) for row in batch.rows_of(of)]
    votes = [(of, [*row[:_COUNTS], 0, *row[_COUNTS + 1 :]]) for of, row in rows if of is VOTES and row[_LOGGED]]
    return [*votes, *((of, row) for of, row in rows if of is not VOTES)]


def write_beside(batch: Batch, rows: list[tuple[ViewTable, list[Scalar]]], root: str) -> None:
    for table, row in rows:
        batch.write(table, tuple(row[: table.keys]), row)
        if table is HOLDS:
            batch.totals_of(FAMILIES, (root,))[_STALLED] += 1


def count_votes(batch: Batch, event: events.ApprovalDecided) -> None:
    """Mark the votes of a logged decision as counted, except for a grant that is used again."""
    try:
        ruling = Decision.parse(content_of(event.token))
    except (MalformedError, UnauthorisedError):
        return
    if ruling.grant is not None and ruling.grant.use:
        return
    keys = {(batch.run, ruling.approval, cut(cast.vote)): cast for cast in ruling.votes}
    batch.fetch(VOTES, keys)
    for key, cast in keys.items():
        row = batch.edit(VOTES, key)
        if row is None:
            batch.write(VOTES, key, row := [*key, cut(cast.actor), *_NO_VOTE])
        row[_COUNTS] = 1


_COUNTS, _LOGGED = VOTES.places["counts"], VOTES.places["logged_ms"]
_NO_VOTE: tuple[Scalar, ...] = ("", "", 0, 0, 0, 0, 0)


def _apply_vote(batch: Batch, record: Record, partitions: int) -> None:
    approval, _, vote = (record.key or b"").decode(errors="replace").rpartition("/")
    key: ViewKey = (batch.run, cut(approval), cut(vote))
    batch.fetch(VOTES, [key])
    row = batch.row(VOTES, key)
    counts = row[_COUNTS] if row else 0
    if record.value is None:
        batch.write(VOTES, key, [*key, row[3], *_NO_VOTE[:3], counts, 0, 0, 0] if row and counts else None)
        return
    try:
        fields = signed_fields(Vote, "vote", content_of(read_vote(record, partitions=partitions).token))
    except (MalformedError, FoldError, UnauthorisedError):
        return
    texts = [cut(fields[name]) for name in ("actor", "action", "message")]
    place = (record.partition, record.offset, record.at_ms)
    batch.write(VOTES, key, [*key, *texts, _within_64_bits(fields["issued"]), counts, *place])


def _apply_dead_letter(batch: Batch, record: Record, partitions: int) -> None:
    key, name = (batch.run, record.topic, record.partition, record.offset), _key_text(record)
    index, of = batch.indexes.get(batch.run), (record.topic, record.partition, name)
    if record.value is None:
        # The rows of a run are read once a batch, not once a tombstone.
        if index is None:
            index = batch.indexes[batch.run] = {}
            for row in batch.rows_of(DEAD_LETTER_ROWS):
                index.setdefault((row[1], row[2], row[_KEY]), []).append(tuple(row[:4]))
        for old in index.pop(of, ()):
            batch.write(DEAD_LETTER_ROWS, old, None)
        return
    if index is not None:
        index.setdefault(of, []).append(key)
    ((letter, content),) = letters_in([record])
    lies: list[Scalar] = [cut(content.topic), content.partition, content.offset]
    values: list[Scalar] = [cut(content.code), cut(content.reason), name, cut(content.service)]
    batch.write(DEAD_LETTER_ROWS, key, [*key, letter, *lies, *values, content.at_ms, record.at_ms])


_KEY = DEAD_LETTER_ROWS.places["key"]


def _key_text(record: Record) -> str:
    return (record.key or b"").decode(errors="backslashreplace")[:KEY_CHARS]


def _apply_hold(batch: Batch, record: Record, partitions: int) -> None:
    key = (batch.run,)
    batch.fetch(HOLDS, [key])
    was, now = batch.row(HOLDS, key) is not None, record.value is not None
    if record.value is None:
        batch.write(HOLDS, key, None)
    else:
        stall = read_hold(batch.run, record.value)
        texts = [cut(getattr(stall, name), HOLD_CHARS) for name in HOLDS.names[1:8]]
        batch.write(HOLDS, key, [*key, *texts, stall.at_ms, stall.retry_ms, stall.tries])
    if was != now:
        batch.totals_of(FAMILIES, (root_of(batch.run),))[_STALLED] += now - was


def _apply_spending(batch: Batch, record: Record, partitions: int) -> None:
    key = ("", record.partition, _key_text(record)[:REPORTER_CHARS])
    if record.value is None:
        batch.write(LIMIT_ROWS, key, None)
        return
    spent = codec.decode_known(WindowSpent, record.value)
    if spent is None or spent.lane != record.partition:
        return  # a copy for the lane of that partition
    of = spent.limits
    batch.write(
        LIMIT_ROWS,
        key,
        [
            *(*key, cut(spent.window), cut(spent.agent), cut(spent.label), cut(spent.value), spent.log),
            *(spent.tokens, spent.nano_usd, spent.calls, of.tokens, of.nano_usd, of.calls, of.soft_percent),
            *(cut(of.then), record.at_ms),
        ],
    )


def spent_of(row: ViewRow) -> WindowSpent:
    of = LIMIT_ROWS.named(row)
    most = {name: of[f"limit_{name}"] for name in _AMOUNTS}
    limits = events.Spendable(**most, soft_percent=of["soft_percent"], then=of["beyond"])
    fields = {name: of[name] for name in ("agent", "label", "value", "lane", "log", *_AMOUNTS)}
    return WindowSpent(window=of["period"], **fields, limits=limits)


_AMOUNTS = ("tokens", "nano_usd", "calls")


def _within_64_bits(number: int) -> int:
    return number if -(1 << 63) <= number < 1 << 63 else 0


_HANDLERS: Mapping[str, Callable[[Batch, Record, int], None]] = {
    RUN_SNAPSHOT: _apply_hold,
    APPROVAL_VOTED: _apply_vote,
    BUDGET_SPENT: _apply_spending,
    **dict.fromkeys(DEAD_LETTERS, _apply_dead_letter),
}
