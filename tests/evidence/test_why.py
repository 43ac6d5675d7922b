"""The chain behind an event, out of the runs of a bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from refold.client.reading.history import Run, feed
from refold.client.reading.why import why
from refold.core.errors import MalformedError, NotFoundError, UsageError
from refold.core.events import ApprovalDecided, Cause, Event, SignalReceived, SignalSent
from refold.core.ids import RunId
from refold.core.messages import ToolClaim
from refold.core.run.log import LogFold
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.engine.ports.log import Record
from refold.lab.evidence.bundle import Bundle
from refold.lab.evidence.gathering import bundled_runs, linked_runs
from tests.evidence.story import CLAIMED, Story, file_of, told
from tests.evidence.test_verify import LINES
from tests.projections.histories import begun, call, entries

CHILD = RunId("run-1.3")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "b.jsonl").write_bytes(b"".join(LINES))
    return tmp_path / "b.jsonl"


def test_a_childs_effect_leads_through_its_people_and_its_parent_to_the_request(file: Path) -> None:
    runs = bundled_runs(file, "run-1")
    found = why(runs[CHILD], 3, runs.get, claims=told().log(CLAIMED))

    kinds = [link.kind for link in found.links]
    order = ["effect", "claim", "order", "decision", "vote", "vote", "decision", "proposal", "policy", "parent"]
    assert kinds[: len(order)] == order
    assert [link.by for link in found.links if link.kind == "vote"] == ["ada", "bob"]
    assert (kinds[-1], found.links[-1].by) == ("request", "eve")
    assert kinds.count("request") == 1
    parent = found.links[kinds.index("parent")]
    assert (parent.other, found.links[kinds.index("parent") + 1].run_id) == (("run-1", 14), "run-1")


def test_the_bundle_of_an_effect_ends_with_what_the_chain_needs(file: Path) -> None:
    runs = bundled_runs(file, "run-1")
    found = linked_runs(why(runs["run-1"], 6, runs.get), runs.get)

    assert {name: seq for name, (_, seq) in found.items()} == {"run-1": 12}


def test_an_event_that_is_not_there_is_refused(file: Path) -> None:
    runs = bundled_runs(file, "run-1")

    for seq in (0, 17, 10**9):
        with pytest.raises(NotFoundError, match="has no event"):
            why(runs["run-1"], seq, runs.get)


def test_a_token_that_nobody_has_signed_gives_no_votes(file: Path) -> None:
    run = bundled_runs(file, "run-1")[CHILD]
    for token in ("", "a.b.c", "x", "e30.e30." + "A" * 86, "blob:" + "0" * 64 + ":9"):
        judged = [
            replace(
                each,
                entry=each.entry
                and replace(
                    each.entry,
                    events=[
                        replace(event, token=token) if isinstance(event, ApprovalDecided) else event
                        for event in each.entry.events
                    ],
                ),
            )
            for each in run.records
        ]
        found = why(replace(run, records=judged), 3, lambda _: None)

        assert "vote" not in [link.kind for link in found.links]


def test_runs_that_name_each_other_as_their_cause_end_all_the_same() -> None:
    def made(run: str, other: str) -> Run:
        sent: list[Event] = [SignalSent(2, other, "go", "1"), SignalReceived(f"{other}/2", "go", "1")]
        fold, found = LogFold(), Run.empty(RunId(run))
        for offset, (key, value) in enumerate(entries(run, begun(), [*call(1)], sent)):
            found.take(feed(fold, Record(RUN_LOG, 0, offset, key, value, list)), fold)
        return found

    runs = {"ping": made("ping", "pong"), "pong": made("pong", "ping")}
    for cause in (None, Cause(RUN_LOG, 0, 2)):
        for run in runs.values():
            run.records = [replace(each, entry=each.entry and replace(each.entry, cause=cause)) for each in run.records]

        assert why(runs["ping"], 6, runs.get).links


def test_runs_are_read_from_whole_bundles_alone(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        bundled_runs(tmp_path / "none", "run-1")
    for number in range(len(LINES)):
        file.write_bytes(b"".join(LINES[:number] + LINES[number + 1 :]))
        with pytest.raises(MalformedError):
            bundled_runs(file, "run-1")
    made_up = told().bundle()
    other = Story(n=8).bundle()
    mixed = replace(made_up, runs=[replace(made_up.runs[0], records=other.runs[0].records[1:]), made_up.runs[1]])
    file.write_bytes(file_of(mixed).getvalue())
    with pytest.raises(MalformedError, match="not the next entry"):
        bundled_runs(file, "run-1")
    file.write_bytes(file_of(Bundle("nothing", [])).getvalue())
    with pytest.raises(NotFoundError, match="has no run"):
        bundled_runs(file, "run-1")


@pytest.mark.parametrize("name", ["doubt", "undone"])
def test_a_claim_that_does_not_act_is_told_from_one_that_does(file: Path, name: str) -> None:
    runs, [_, last] = bundled_runs(file, "run-1"), told().log(CLAIMED)
    claim = codec.decode(ToolClaim, last.value or b"")
    claim = replace(claim, doubt=name == "doubt", undone=name == "undone")
    found = why(runs[CHILD], 3, runs.get, claims=[last, last._replace(value=codec.encode(claim))])

    assert [link.said.get(name) for link in found.links if link.kind == "claim"] == [True, None]
