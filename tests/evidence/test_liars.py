"""Bundles by whoever has some of the keys: a planner, an approval service, or a catalog that was taken over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest

from refold.core.approval import ballot, decision, signature
from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Decision
from refold.core.approval.question import question_digest
from refold.core.events import ApprovalDecided, ApprovalRequested, CallDispatched, CallProposed, Entry, Requirement
from refold.core.ids import EntryId, log_key
from refold.core.messages import CatalogEntry, ToolClaim
from refold.core.planning.asking import question_of
from refold.core.run.fold import evolve
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.ports.log import Record
from refold.lab.evidence.bundle import Bundle
from refold.lab.evidence.verify import verify_bundle
from tests.approval import questions
from tests.approval.driving import GATEWAY, SERVICE
from tests.evidence.story import file_of, told
from tests.evidence.test_verify import LINES, _consistent, _rewritten, _sealed, fields, resealed
from tests.roots import TRUST, entry


def kinds(bundle: Bundle) -> set[tuple[str, str]]:
    """The kinds of holes of a bundle, with their runs."""
    return {(hole.kind, hole.run_id) for hole in resealed(bundle).holes}


def test_a_catalog_that_was_changed_is_named() -> None:
    bundle = told().bundle()
    records = []
    for record in bundle.catalog:
        each = codec.decode(CatalogEntry, record.value or b"")
        if each.name == "roles":
            each = replace(each, content=each.content.replace('"bob"', '"eve"'))
        records.append(record._replace(value=codec.encode(each)))

    assert ("signature", "") in kinds(replace(bundle, catalog=records))


@pytest.mark.parametrize(("ahead_ms", "holds"), [(-1, False), (decision.SKEW_MS + 10**6, True)])
def test_a_key_that_was_revoked_later_still_signed_what_it_had_signed(ahead_ms: int, *, holds: bool) -> None:
    bundle, at_ms = told().bundle(), told().desk.world.now
    revoked = GATEWAY.public(revoked=True).content()
    last = entry(f"key/{GATEWAY.kid}", "key", revoked, at_ms=at_ms + ahead_ms, counter=len(bundle.catalog) + 1)
    record = bundle.catalog[0]._replace(key=last.name.encode(), value=codec.encode(last))

    assert (kinds(replace(bundle, catalog=[*bundle.catalog, record])) == set()) is holds


@pytest.mark.parametrize("change", ["fewer votes", "nobody", "twice the same"])
def test_a_service_that_decides_without_the_people_is_named(change: str) -> None:
    def alone(event: ApprovalDecided) -> ApprovalDecided:
        found = Decision.parse(signature.content_of(event.token))
        tokens = {"fewer votes": found.tokens[:1], "nobody": (), "twice the same": found.tokens[:1] * 2}[change]
        return replace(event, token=signature.sign(replace(found, tokens=tokens).payload(), SERVICE))

    assert ("decision", "run-1") in kinds(_consistent(told().bundle(), alone))


def test_a_question_that_its_policy_does_not_ask_is_named() -> None:
    """The planner lets eve decide alone, and the approval service, or eve with its key, signs it."""
    bundle, state, made = told().bundle(), RunState(told().run), list[Record]()
    asked = Requirement(["eve"], not_requester=False)
    prev, request = b"", None
    for record in bundle.runs[0].records:
        found = codec.decode(Entry, record.value or b"")
        events: list[Any] = [*found.events]
        for place, event in enumerate(events):
            if isinstance(event, ApprovalRequested):
                events[place] = replace(event, requirement=asked)
                then = evolve(state, replace(found, prev=prev, events=events), EntryId(b"x" * 16))
                question = question_digest(question_of(then, then.call(event.step), then.open[event.step]))
                events[place] = replace(events[place], question=question)
                then = evolve(state, replace(found, prev=prev, events=events), EntryId(b"x" * 16))
                request = question_of(then, then.call(event.step), then.open[event.step])
            elif isinstance(event, ApprovalDecided) and request is not None:
                vote = replace(questions.vote(request, "eve"), issued=found.at_ms)
                token = signature.sign(vote.payload(), GATEWAY)
                catalog = Catalog(TRUST)
                for each in bundle.catalog:
                    catalog.follow(catalog.position, each.key, each.value)
                count = ballot.count(request, [ballot.open_vote(token, catalog.keys)], catalog.roles, found.at_ms)
                assert count.settled is not None
                made_up = decision.build(
                    request, "approve", issued_ms=found.at_ms, nonce="n", votes=count.settled.votes, tokens=(token,)
                )
                events[place] = replace(
                    event,
                    token=signature.sign(made_up.payload(), SERVICE),
                    actors=["eve"],
                    question=request.question,
                    expires_ms=made_up.expires,
                )
        now = replace(found, prev=prev, events=events)
        name, value = codec.encode_entry(now)
        made.append(record._replace(key=log_key(now.run_id, now.seq, name), value=value))
        state, prev = evolve(state, now, name), name
    found_holes = resealed(replace(bundle, runs=[replace(bundle.runs[0], records=made), bundle.runs[1]])).holes

    assert any("asks for other people" in hole.what for hole in found_holes), found_holes


def test_an_attempt_beyond_its_decision_is_named() -> None:
    def again(event: Any) -> Any:
        return replace(event, attempt=2) if isinstance(event, CallDispatched) and event.step == 2 else event

    found = resealed(_rewritten(told().bundle(), again)).holes

    assert any("decision is for attempts 1 to 1, not 2" in hole.what for hole in found), found


def test_the_key_of_a_redacted_call_is_that_which_people_have_signed() -> None:
    bundle = told().bundle(["args"])

    def other(event: Any) -> Any:
        return replace(event, key="0" * 64) if isinstance(event, CallProposed) and event.step == 2 else event

    # Whoever redacts may write anything under the ids of entries: their bytes do not prove them.
    records = []
    for record in bundle.runs[0].records:
        found = codec.decode(Entry, record.value or b"")
        records.append(record._replace(value=codec.encode(replace(found, events=[*map(other, found.events)]))))

    assert kinds(replace(bundle, runs=[replace(bundle.runs[0], records=records), bundle.runs[1]])) == {
        ("decision", "run-1"),
        ("claim", "run-1"),
    }


def test_a_fork_is_told_from_what_has_happened() -> None:
    bundle = told().bundle()
    last = bundle.runs[1].records[-1]._replace(partition=-1, offset=-1)
    runs = [bundle.runs[0], replace(bundle.runs[1], records=[*bundle.runs[1].records[:-1], last])]

    assert kinds(replace(bundle, runs=runs)) == {("foreign", "run-1.3")}
    fork = resealed(replace(bundle, runs=runs, fork={"run": "run-1.3", "at": 6}))
    assert fork.holes == []
    assert "this is a fork: entries of it are in no topic" in fork.notes


def with_claim(change: Callable[[ToolClaim], ToolClaim]) -> Bundle:
    """The story with another claim of the first call."""
    bundle = told().bundle()
    [record] = bundle.runs[0].claims
    claim = change(codec.decode(ToolClaim, record.value or b""))
    new = record._replace(key=f"{claim.chain}/{claim.claim_id}".encode(), value=codec.encode(claim))
    return replace(bundle, runs=[replace(bundle.runs[0], claims=[new]), bundle.runs[1]])


def test_a_claim_for_another_effect_or_behind_one_that_is_not_there_is_named() -> None:
    assert kinds(with_claim(lambda claim: claim)) == set()
    assert kinds(with_claim(lambda claim: replace(claim, key="0" * 64))) == {("claim", "run-1")}
    assert kinds(with_claim(lambda claim: replace(claim, prev="claim-0"))) == {("claim", "run-1")}


def test_a_schema_that_is_another_or_missing_is_named() -> None:
    contents = [
        {name: value for name, value in fields(number).items() if name != "seal"} for number in range(len(LINES))
    ]
    contents[1]["schema"] = {**contents[1]["schema"], "doc": "another"}
    changed = verify_bundle(BytesIO(b"".join(_sealed(contents))), TRUST)
    assert [(hole.kind, hole.record) for hole in changed.holes] == [("changed", 1)]

    del contents[1]
    contents[0]["schemas"] -= 1
    fewer = verify_bundle(BytesIO(b"".join(_sealed([{**each, "n": n} for n, each in enumerate(contents)]))), TRUST)
    assert {hole.kind for hole in fewer.holes} == {"removed"}
    assert file_of(told().bundle()).getvalue() == b"".join(LINES)
