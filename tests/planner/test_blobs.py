"""Large values: the log has what stands for them, code is handed them whole, and what is lost is said so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from refold.core.events import (
    CallBilled,
    CallCompleted,
    ChildCompleted,
    ChildStarted,
    NoteRecorded,
    RunCompleted,
    RunFailed,
)
from refold.core.ids import RunId
from refold.core.planning import budgets
from refold.core.wire.blobs import folder_of, is_pointer, pointer_of
from refold.engine.planner.deciding import decide_loop
from refold.engine.planner.deciding.decide_loop import BlobOrders
from refold.engine.ports.effects import BlobLoaded, LoadBlob
from tests.planner.large import LARGE, BlobRig, Fetching


def test_code_gets_a_large_result_whole_and_the_topics_have_what_stands_for_it() -> None:
    rig = BlobRig()

    rig.ask("r", "read", {"sizes": [10, LARGE, 20, 5 * LARGE]})
    rig.pump()

    assert rig.result("r") == [10, LARGE, 20, 5 * LARGE]
    assert [is_pointer(event.result) for event in rig.events("r", CallCompleted)] == [False, True, False, True]
    assert rig.log_bytes < 20_000


def test_a_value_is_read_once_while_the_code_is_running() -> None:
    rig = BlobRig()

    rig.ask("r", "read", {"sizes": [LARGE + n for n in range(5)]})
    rig.pump()

    assert len(rig.store.reads) == 5
    assert len(rig.log_of("r")) == 6, "an entry for each result, and one for the start"


@pytest.mark.parametrize("live_bytes", [0, 1 << 30])
@pytest.mark.parametrize("turns", range(1, 26, 3))
def test_a_planner_that_dies_anywhere_loses_no_large_value(turns: int, live_bytes: int) -> None:
    rig = BlobRig(live_bytes=live_bytes)
    rig.ask("r", "read", {"sizes": [LARGE, 5, 2 * LARGE]})
    rig.ask("s", "write", {"size": LARGE})
    rig.ask("f", "hand_on", {"size": LARGE})

    rig.pump(turns)
    rig.boot(turns)
    rig.boot()

    assert rig.result("r") == [LARGE, 5, 2 * LARGE]
    assert [len(rig.store.get(RunId("s"), e.result)) for e in rig.events("s", RunCompleted)] == [LARGE + 2]  # type: ignore[arg-type]
    assert rig.result("f") == len(str(LARGE)) + LARGE


def test_an_outage_of_the_store_holds_up_only_who_needs_it() -> None:
    rig = BlobRig()
    rig.store.down = True

    rig.ask("r", "read", {"sizes": [LARGE]})
    rig.ask("w", "write", {"size": LARGE})
    rig.ask("s", "read", {"sizes": [10]})
    rig.pump()

    assert rig.result("s") == [10]
    assert not rig.events("r", CallCompleted)
    assert not rig.events("w", NoteRecorded)
    rig.store.down = False
    rig.pump()
    assert rig.result("r") == [LARGE]
    assert rig.events("w", RunCompleted)


def test_a_result_that_is_missing_fails_its_call_and_nothing_else() -> None:
    rig = BlobRig()
    rig.store.down = True
    rig.ask("r", "read", {"sizes": [LARGE, 10]})
    rig.pump()
    rig.store.texts.clear()

    rig.store.down = False
    rig.pump()

    assert rig.result("r") == [-1, 10]
    assert [event.data for event in rig.events("r", NoteRecorded)] == ['"blob_missing"']


@pytest.mark.parametrize(
    ("forged", "code"),
    [
        (pointer_of(json.dumps("of another run").encode()), "blob_missing"),
        ("blob:../../etc/passwd:5", "blob_missing"),
        (f"blob:{'0' * 64}:{1 << 50}", "blob_missing"),
        ("blob:", "blob_missing"),
    ],
)
def test_whoever_makes_a_pointer_up_reads_nothing(forged: str, code: str) -> None:
    rig = BlobRig()
    rig.store.put(RunId("other"), json.dumps("of another run"))
    assert isinstance(rig.world, Fetching)
    rig.world.forged = forged

    rig.ask("r", "read", {"sizes": [3]})
    rig.pump()

    assert rig.result("r") == [-1]
    assert [event.data for event in rig.events("r", NoteRecorded)] == [json.dumps(code)]


def test_a_value_that_is_altered_fails_its_call() -> None:
    rig = BlobRig()
    rig.store.down = True
    rig.ask("r", "read", {"sizes": [LARGE]})
    rig.pump()
    rig.store.texts = {name: text.replace("x", "y", 1) for name, text in rig.store.texts.items()}

    rig.store.down = False
    rig.pump()

    assert rig.result("r") == [-1]
    assert [event.data for event in rig.events("r", NoteRecorded)] == ['"blob_altered"']


def test_a_run_whose_history_has_lost_a_value_stands_still_until_it_is_back() -> None:
    rig = BlobRig()
    rig.hold = lambda request: json.loads(request.args)["n"] == 7
    rig.ask("r", "read", {"sizes": [LARGE, 7]})
    rig.pump()
    texts, rig.store.texts = rig.store.texts, {}
    rig.hold = lambda request: False
    rig._read = dict.fromkeys(rig._read, 0)

    rig.boot()
    [lane] = rig.planner.lanes
    hold = lane.stalls.get(RunId("r"))

    assert hold is not None
    assert hold.reason == "blob_missing"
    assert not rig.events("r", RunCompleted)
    rig.store.texts = texts
    rig.operate("r", "retry")
    rig.pump()
    assert rig.result("r") == [LARGE, 7]


def test_a_retry_that_waits_for_the_store_outlives_its_planner() -> None:
    rig = BlobRig()
    rig.hold = lambda request: json.loads(request.args)["n"] == 7
    rig.ask("r", "read", {"sizes": [LARGE, 7]})
    rig.pump()
    texts, rig.store.texts = rig.store.texts, {}
    rig.hold = lambda request: False
    rig._read = dict.fromkeys(rig._read, 0)
    rig.settings = replace(rig.settings, commit_ms=0)
    rig.boot()
    rig.store.texts, rig.store.down = texts, True

    rig.operate("r", "retry")
    rig.pump()
    rig.store.down = False
    rig.boot()

    assert rig.result("r") == [LARGE, 7]


def test_an_entry_is_written_when_its_values_are_kept_and_what_comes_for_its_run_waits() -> None:
    rig = BlobRig()
    rig.ask("w", "write", {"size": LARGE})
    rig.store.down = True
    rig.pump()
    rig.signal("w", "cancel")
    rig.pump()

    before = list(rig.log_of("w"))
    rig.store.down = False
    rig.pump()

    assert before == []
    assert [entry.seq for entry in rig.log_of("w")] == sorted({entry.seq for entry in rig.log_of("w")})
    assert rig.state("w") is not None
    assert rig.state("w").status == "cancelled"  # type: ignore[union-attr]


def test_a_result_and_a_note_go_to_the_store_before_the_entry_that_points_there() -> None:
    rig = BlobRig()

    rig.ask("w", "write", {"size": LARGE})
    rig.pump()

    [note], [end] = rig.events("w", NoteRecorded), rig.events("w", RunCompleted)
    assert rig.store.get(RunId("w"), note.data) == json.dumps("n" * LARGE)
    assert rig.store.get(RunId("w"), end.result) == json.dumps("r" * LARGE)
    assert [told for _, _, told in rig.outcomes()["w"]] == [end.result]
    rig.boot()
    assert not rig.stalled


def test_a_large_input_is_read_from_below_its_run() -> None:
    rig = BlobRig()
    text = json.dumps({"text": "i" * LARGE, "out": 1})

    rig.ask("r", "count", None, text=rig.store.put(RunId("r"), text))
    rig.ask("s", "count", None, text=pointer_of(text.encode()))
    rig.pump()

    assert rig.result("r") == f"{LARGE}."
    [failed] = rig.events("s", RunFailed)
    assert failed.failure.code == "blob_missing"


def test_what_a_child_is_given_and_returns_lies_with_the_child() -> None:
    rig = BlobRig()

    rig.ask("f", "hand_on", {"size": LARGE})
    rig.pump()

    assert rig.result("f") == len(str(LARGE)) + LARGE
    [started], [ended] = rig.events("f", ChildStarted), rig.events("f", ChildCompleted)
    assert is_pointer(started.input)
    assert is_pointer(ended.result)
    assert {name.rpartition("/")[0] + "/" for name in rig.store.texts} == {folder_of(RunId("f.1"))}
    rig.boot()
    assert not rig.stalled


def test_without_a_store_a_large_value_is_too_large_and_a_pointer_is_missing() -> None:
    rig = BlobRig(blob_bytes=0)
    rig.store.down = True

    rig.ask("w", "write", {"size": 3 * (1 << 20)})
    rig.pump()

    [failed] = rig.events("w", RunFailed)
    assert failed.failure.code == "too_large"


@pytest.mark.parametrize(("text", "kept"), [("", True), (pointer_of(b"x" * LARGE), False)])
def test_what_a_user_says_of_the_store_is_told_apart_from_what_an_executor_says(text: str, kept: bool) -> None:
    rig = BlobRig()
    rig.store.down = True

    rig.ask("r", "read", {"sizes": [LARGE]}, text=text)
    rig.pump()

    [wanted] = rig.desk.orders
    assert isinstance(wanted, LoadBlob)
    assert wanted.kept is kept


@pytest.mark.parametrize(("most", "tokens"), [(4 << 20, 8), (LARGE, 100)])
def test_a_large_result_says_what_it_took_if_that_is_found_at_once(
    monkeypatch: pytest.MonkeyPatch, most: int, tokens: int
) -> None:
    monkeypatch.setattr(budgets, "LOOKED_INTO", most)
    rig = BlobRig()
    assert isinstance(rig.world, Fetching)
    said = {"text": "x" * LARGE, "usage": {"model": "test:big", "input_tokens": 7, "output_tokens": 1}}
    rig.world.forged = rig.store.put(RunId("r"), json.dumps(said))

    rig.ask("r", "think", {})
    rig.pump()

    [billed] = rig.events("r", CallBilled)
    assert billed.tokens == tokens


def test_a_large_input_is_read_when_there_is_room_for_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide_loop, "LOADING_BYTES", 250_000)
    rig = BlobRig()
    rig.settings = replace(rig.settings, limits=replace(rig.settings.limits, active=3))
    rig.boot()
    text = json.dumps({"text": "i" * LARGE})
    rig.store.down = True
    for number in range(20):
        rig.ask(f"r{number}", "dwell", None, text=rig.store.put(RunId(f"r{number}"), text))
    rig.pump()
    asked = len(rig.desk.orders)
    rig.store.down = False
    rig.pump()

    assert asked == 2
    assert all(rig.result(f"r{number}") == LARGE for number in range(20))


def test_so_many_bytes_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide_loop, "LOADING_BYTES", 250_000)
    told, orders = list[str](), BlobOrders()
    for number in range(5):
        place = (RunId(f"r{number}"), pointer_of(b"x" * 100_000 + str(number).encode()))
        orders.load(place, lambda value: told.append(str(value)), stored=False)

    waves = []
    while orders.orders:
        waves.append(len(orders.orders))
        asked, orders.orders = orders.orders, []
        for order in asked:
            orders.answered(BlobLoaded(order.number, "text"))

    assert waves == [2, 2, 1]
    assert len(told) == 5
