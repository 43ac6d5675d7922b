"""Notes of people on a run: they stay in its history, once each, and nothing follows from them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from refold.client.operations.run import By, annotate
from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.approval.requester import signed
from refold.core.approval.signature import SigningKey
from refold.core.errors import ConflictError, MalformedError
from refold.core.events import RunAnnotated, RunCompleted, SleepStarted
from refold.core.ids import RunId
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.decide import ENDED_MS, decide
from refold.core.planning.pausing import MOST_NOTES, REASON_CHARS, RequestedAt
from refold.core.planning.verdict import Ignore, Park, Refuse, Rules, Ruling
from refold.core.run.fold import wakes
from tests.core.histories import NOW, RUN, Log, calling, operation, start, started
from tests.roots import TRUST, publish

ANN = SigningKey("ann-key", "request", bytes([1]) * 32)


def noted(data: Any, note_id: str = "n-1", actor: str = "op") -> RunOperation:
    return RunOperation(RunId(RUN), note_id, "annotate", json.dumps(data), actor)


def user_note(note: str, note_id: str = "n-1", actor: str = "ann") -> RunSignal:
    return RunSignal(RunId(RUN), note_id, "annotate", json.dumps({"note": note, "id": note_id}), actor)


def refused(ruling: Ruling) -> str:
    assert isinstance(ruling, Refuse)
    return ruling.code


def test_a_note_stays_in_the_history_and_nothing_follows_from_it() -> None:
    log = calling()
    before = log.live

    found = log.feed(noted({"note": "he called"}))

    assert found == [RunAnnotated("n-1", "he called", "op", "operator")]
    assert wakes(found) == 0
    after = log.live
    assert (after.status, after.steps[:], after.open) == (before.status, before.steps[:], before.open)
    assert log.feed(user_note("mine", "n-2")) == [RunAnnotated("n-2", "mine", "ann", "requester")]


@pytest.mark.parametrize("state", ["pending", "waiting", "paused"])
def test_it_is_taken_whatever_the_run_waits_for(state: str) -> None:
    log = Log() if state == "pending" else started()
    if state == "pending":
        log.feed(start(not_before_ms=NOW + 1_000))
    else:
        log.append([SleepStarted(1, NOW + 1_000)])
    if state == "paused":
        log.feed(operation("pause"))
    status = log.live.status

    assert log.feed(noted({"note": "x"})) == [RunAnnotated("n-1", "x", "op")]
    assert log.live.status == status


def test_twice_with_one_id_is_one_note_and_another_text_under_it_is_refused() -> None:
    log = calling()
    log.feed(noted({"note": "he called"}))

    assert isinstance(log.feed(noted({"note": "he called"})), Ignore)
    assert refused(log.feed(noted({"note": "she called"}))) == "conflict"
    assert isinstance(log.feed(noted({"note": "he called"}, "n-2")), list)


@pytest.mark.parametrize("note", ["", " \n", None, 7, ["x"], {"a": 1}, "x" * (REASON_CHARS + 1)])
def test_what_is_no_note_is_refused(note: Any) -> None:
    log = calling()

    assert refused(log.feed(noted({"note": note}))) == "malformed"
    assert refused(log.feed(noted({"note": "x"}, ""))) == "malformed"
    assert refused(log.feed(noted("x"))) == "malformed"
    if isinstance(note, str):
        with pytest.raises(MalformedError):
            annotate(log.live, note, By("op"))
    assert isinstance(log.feed(noted({"note": "x" * REASON_CHARS})), list)


def test_a_run_has_so_many_notes_and_no_more() -> None:
    log = calling()
    for number in range(MOST_NOTES):
        log.feed(noted({"note": "x"}, f"n-{number}"))

    assert refused(log.feed(noted({"note": "x"}, "more"))) == "conflict"
    assert isinstance(log.feed(noted({"note": "x"}, "n-7")), Ignore)


def test_users_annotate_their_own_runs_alone() -> None:
    log = calling()

    assert refused(log.feed(user_note("mine", actor="bob"))) == "operators_only"
    assert isinstance(annotate(log.live, "x", By("ann")).message, RunSignal)
    assert isinstance(annotate(log.live, "x", By("bob")).message, RunOperation)


def test_a_signed_note_is_not_taken_under_another_id() -> None:
    catalog, key = Catalog(TRUST), ANN.public(actors=("ann",))
    assert publish(catalog, f"key/{key.kid}", "key", key.content()) == ""
    log = Log(rules=Rules(authority=Authority({}, "test", catalog)))
    asked = start()
    log.feed(replace(asked, request=signed(asked.request, ANN, NOW)))
    note = signed(user_note("mine"), ANN, NOW)

    assert refused(log.feed(user_note("mine"))) == "operators_only"
    assert refused(log.feed(replace(note, signal_id="n-2"))) == "operators_only"
    assert log.feed(note) == [RunAnnotated("n-1", "mine", "ann", "requester")]
    assert isinstance(log.feed(note), Ignore)


def test_a_run_that_is_over_takes_no_note_and_says_so() -> None:
    log = calling()
    log.feed(noted({"note": "in time"}))
    log.append([RunCompleted("1")])
    state = log.live

    late = decide(state, noted({"note": "late"}, "n-2"), NOW, log.rules, sent=RequestedAt(state.at_ms + ENDED_MS))
    again = decide(state, noted({"note": "in time"}), NOW, log.rules, sent=RequestedAt(state.at_ms - 1))

    assert refused(late) == "closed"
    assert isinstance(again, Ignore)
    assert isinstance(decide(None, noted({"note": "x"}), NOW, log.rules), Park)
    with pytest.raises(ConflictError, match="is completed already"):
        annotate(state, "late", By("op"), "n-2")
    annotate(state, "in time", By("op"), "n-1")  # the same again is known, whatever came since
