"""Rows from records beside the run log, whatever comes first, and whoever writes them."""

from __future__ import annotations

from itertools import permutations

import pytest

from refold.client.reading.budget import limits_in_use, limits_of
from refold.console.projections.batch import Batch
from refold.console.projections.shipped import tables
from refold.console.projections.shipped.beside import spent_of
from refold.core.approval.ballot import Vote
from refold.core.approval.decision import Cast, Decision
from refold.core.approval.signature import SigningKey, sign
from refold.core.events import ApprovalDecided, CallDispatched, Spendable, StatusSet
from refold.core.ids import RunId, approval_id, hold_key
from refold.core.messages import ApprovalVote, DeadLetter, Hold, WindowSpent
from refold.core.tables import Scalar, ViewTable
from refold.core.topics import APPROVAL_VOTED, BUDGET_SPENT, DEAD_LETTER, DEAD_LETTER_EXECUTOR, RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.ports.log import Record
from tests.projections.histories import NOW, asked, begun, call, entries, marker
from tests.projections.judges import differences
from tests.projections.test_disorder import bury
from tests.projections.viewed import Log, Viewed

RUN = RunId("r-1")
KEYS = {use: SigningKey("k", use, bytes(32)) for use in ("vote", "decision")}
QUESTION = approval_id(f"{RUN}/3", f"{1:032x}")


def at(topic: str, key: str, message: object, offset: int = 0, partition: int = 0) -> Record:
    value = None if message is None else codec.encode(message)
    return Record(topic, partition, offset, key.encode(), value, list, NOW + offset)


def vote(name: str, actor: str = "ada", offset: int = 0, key: str = "") -> Record:
    said = Vote(QUESTION, name, "q", "dev", actor, "approve", NOW, message="go on")
    message = ApprovalVote(QUESTION, name, RUN, sign(said.payload(), KEYS["vote"]))
    return at(APPROVAL_VOTED, key or f"{QUESTION}/{name}", message, offset)


def decision(*votes: str) -> str:
    casts = tuple(Cast("ada", "ada", "", each, NOW) for each in votes)
    made = Decision(
        approval=QUESTION, question="q", environment="dev", run=RUN, call=f"{RUN}/3", step=1, tool="pay", version="1",
        schema="s", effect="once", args="a", key="k", attempt=1, covers=1, policy="p", proposal="d", verdict="approve",
        edited="", result="", message="", votes=casts, grant=None, issued=NOW, expires=0, nonce="n",
    )  # fmt: skip
    return sign(made.payload(), KEYS["decision"])


def log_entries(more: int = 0) -> list[Record]:
    decided = ApprovalDecided(1, 1, "approve", decision("v-1"), ["ada"], question=f"{1:032x}")
    history = entries(
        RUN,
        [*begun(), call(1)[0], asked(1)],
        [decided, CallDispatched(1, 1, NOW)],
        *([StatusSet("on")] for _ in range(more)),
    )
    return [Record(RUN_LOG, 0, offset, key, value, list, NOW) for offset, (key, value) in enumerate(history)]


def letter(offset: int, topic: str = DEAD_LETTER, key: str = f"{RUN}/sig") -> Record:
    content = DeadLetter("run-signalled", 0, 7 + offset, "late", "it is over", b"x", b"y", "planner-1", NOW)
    return at(topic, key, content, offset)


def hold(*, held: bool = True, offset: int = 0) -> Record:
    said = Hold(RUN, "stalled", "no_agent", "nobody has it", needs="2", member="planner-1", at_ms=NOW)
    return at(RUN_SNAPSHOT, hold_key(RUN).decode(), said if held else None, offset)


def test_topics_in_any_order_and_batches_of_any_size_give_equal_rows() -> None:
    parts = [log_entries(), [vote("v-1"), vote("v-2", "bob", 1)], [letter(0), letter(1)], [hold()]]
    wanted = Viewed.of(Log(record for part in parts for record in part)).digests()

    for order in permutations(parts):
        for size in (1, 3):
            viewed = Viewed.of(Log(record for part in order for record in part), size)
            assert differences(viewed) == []
            assert viewed.digests() == wanted
    votes = {row["vote_id"]: (row["actor"], row["counts"]) for row in viewed.rows(tables.VOTES)}
    assert votes == {"v-1": ("ada", 1), "v-2": ("bob", 0)}
    assert viewed.row(tables.FAMILIES, RUN, 0)["stalled"] == 1


def test_rows_outlive_a_history_that_is_read_anew() -> None:
    beside = [vote("v-1"), vote("v-2", "bob", 1), letter(0), hold()]
    viewed = Viewed.of(Log([*log_entries(), *beside]))
    before = viewed.digests()

    viewed.add(log_entries(2)[3])  # the one before it is not there

    assert viewed.projector.counts["repaired"] == 1
    assert viewed.digests() == before


def test_a_vote_counts_no_more_where_the_log_has_no_such_decision() -> None:
    viewed = Viewed.of(Log([*log_entries(), vote("v-1")]))

    del viewed.log[1]
    viewed.add(log_entries(2)[3])

    assert [row["counts"] for row in viewed.rows(tables.VOTES)] == [0]
    assert differences(viewed) == []


def test_rows_go_with_what_made_them() -> None:
    viewed = Viewed.of(Log([*log_entries(), vote("v-1"), letter(0), letter(1), letter(2, key="r-1/other"), hold()]))

    for gone in (at(APPROVAL_VOTED, f"{QUESTION}/v-1", None, 5), hold(held=False, offset=5)):
        viewed.add(gone)
    viewed.add(at(DEAD_LETTER, f"{RUN}/sig", None, 5))

    (kept,) = viewed.rows(tables.VOTES)
    assert (kept["actor"], kept["counts"], kept["logged_ms"]) == ("ada", 1, 0), "the decision still names it"
    assert [row["offset"] for row in viewed.rows(tables.DEAD_LETTER_ROWS)] == [2]
    assert viewed.rows(tables.HOLDS) == []
    assert differences(viewed) == []


def test_nothing_of_an_erased_run_stays_or_comes_back() -> None:
    viewed = Viewed.of(Log([*log_entries(), vote("v-1"), letter(0), hold()]))

    viewed.add(marker(RUN, 9))
    bury(viewed, RUN)
    for late in (vote("v-2", offset=3), letter(3), hold(offset=12)):
        viewed.add(late)

    for table in (tables.RUNS, tables.VOTES, tables.DEAD_LETTER_ROWS, tables.HOLDS, tables.FAMILIES):
        assert viewed.rows(table) == []


def test_hostile_records_make_no_row_and_stop_nothing() -> None:
    forged = at(APPROVAL_VOTED, f"{QUESTION}/v-1", ApprovalVote(QUESTION, "v-1", RUN, "no.token.at-all"))
    other = vote("v-1", offset=1, key=f"r-2/3~{1:032x}/v-1")
    odd = at(APPROVAL_VOTED, "\x00/" * 400, None, 2)
    elsewhere = at(RUN_SNAPSHOT, hold_key(RUN).decode(), None, partition=1)
    garbage = Record(APPROVAL_VOTED, 0, 3, b"\xff/\xfe", b"\x00", list, NOW)
    away = vote("v-9", offset=0)._replace(partition=1)
    viewed = Viewed.of(Log([*log_entries(), hold(), forged, other, odd, garbage, away, elsewhere]), size=1)
    viewed.add(at(DEAD_LETTER_EXECUTOR, "r-1/" + "k" * 9_000, None, 0))
    viewed.add(Record(DEAD_LETTER_EXECUTOR, 0, 1, b"r-1/\xff", b"garbage", list, NOW))
    viewed.add(Record(DEAD_LETTER_EXECUTOR, 0, 2, None, b"garbage", list, NOW))

    assert [(row["vote_id"], row["logged_ms"]) for row in viewed.rows(tables.VOTES)] == [("v-1", 0)]
    assert len(viewed.rows(tables.HOLDS)) == 1
    rows = viewed.rows(tables.DEAD_LETTER_ROWS)
    assert [(row["run_id"], row["offset"]) for row in rows] == [("", 2), ("r-1", 1)]


def test_limits_add_up_as_the_fold_of_their_topic() -> None:
    def spent(lane: int, log: int, name: str, tokens: int) -> WindowSpent:
        return WindowSpent("2026-11", "shop", "", "", lane, log, tokens, 5, 1, Spendable(1_000, soft_percent=80), name)

    told = [(0, 10, "a", 100), (0, 20, "b", 300), (0, 20, "b", 350), (1, 5, "a", 450)]
    records = [
        at(BUDGET_SPENT, f"m/shop/{lane}/{teller}", spent(lane, log, teller, tokens), offset, partition)
        for offset, (lane, log, teller, tokens) in enumerate(told)
        for partition in (0, 1)
    ]
    viewed = Viewed.of(Log(records, 2), size=1)

    (limit,) = limits_of(map(spent_of, viewed.store.scan(tables.LIMIT_ROWS)))
    assert [limit] == limits_in_use(records)
    assert (limit.spent.tokens, limit.reached) == (800, "")
    assert len(viewed.rows(tables.LIMIT_ROWS)) == 3


def test_many_tombstones_of_a_run_look_through_its_letters_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    many, looked = 400, list[str]()
    letters = [letter(number, DEAD_LETTER_EXECUTOR, f"{RUN}/{number}") for number in range(many)]
    gone = [at(DEAD_LETTER_EXECUTOR, f"{RUN}/{number}", None, many + number) for number in range(many)]
    again = letter(3 * many, DEAD_LETTER_EXECUTOR, f"{RUN}/1")
    viewed = Viewed.of(Log([*log_entries(), *letters]))
    rows_of = Batch.rows_of

    def counted(batch: Batch, table: ViewTable) -> list[list[Scalar]]:
        looked.append(table.name)
        return rows_of(batch, table)

    monkeypatch.setattr(Batch, "rows_of", counted)
    viewed.apply([*gone[:2], again, *gone[2:]])
    took = looked.count(tables.DEAD_LETTER_ROWS.name)

    assert [row["offset"] for row in viewed.rows(tables.DEAD_LETTER_ROWS)] == [3 * many]
    assert took == 1
