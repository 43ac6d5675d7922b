"""Bundles that an attacker has made to hold and to lie, and topics into which somebody has written what is not so."""

from __future__ import annotations

import dataclasses
import random
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from refold.client.reading.history import Run
from refold.client.reading.why import why
from refold.core import events
from refold.core.approval import signature
from refold.core.approval.decision import SKEW_MS, Decision
from refold.core.errors import NotFoundError, RefoldError
from refold.core.events import ApprovalDecided, ApprovalRequested, CallProposed, ChildStarted, Entry, Event, Requirement
from refold.core.ids import RunId, home, log_key
from refold.core.messages import CatalogEntry, ToolClaim
from refold.core.wire import codec
from refold.core.wire.blobs import is_pointer
from refold.engine.ports.log import Record
from refold.lab.evidence.bundle import FORKED_BY, MOST_MISSING, Bundle, BundledRun, read
from refold.lab.evidence.gathering import bundled_runs, claims_of, linked_runs, published_entries, run_of_key
from refold.lab.evidence.redaction import without_values
from refold.lab.evidence.verify import HOLE_CHARS, VerifiedBundle, verify_bundle
from refold.lab.forks import engine
from tests.approval.driving import PARTITIONS, SERVICE
from tests.cli.terminal import refold
from tests.evidence.story import CLAIMED, Story, file_of, renumbered, told, under_its_ids
from tests.evidence.test_verify import HEADS, LAST, LINES, _consistent, _rewritten, _sealed, fields, resealed
from tests.projections.histories import begun, entries, log_of
from tests.roots import PINNED, TRUST, entry

NOTHING = f"blob:{'0' * 64}:9"


def kinds(found: VerifiedBundle) -> set[tuple[str, str]]:
    """The kinds of holes, with their runs."""
    return {(hole.kind, hole.run_id) for hole in found.holes}


def changed(kind: Any, **fields: Any) -> Callable[[Any], Any]:
    """Changes events of a kind."""
    return lambda event: replace(event, **fields) if isinstance(event, kind) else event


def without_people(bundle: Bundle) -> Bundle:
    """The bundle as if nobody had been asked."""
    asked = ApprovalRequested, ApprovalDecided
    return _rewritten(bundle, lambda event: None if isinstance(event, asked) else event)


def test_a_token_is_redacted_in_a_redacted_entry_alone_and_never_that_of_an_approval() -> None:
    made_up = changed(ApprovalDecided, token=NOTHING, actors=["cfo"])
    whole = resealed(_consistent(told().bundle(), made_up))
    marked = resealed(under_its_ids(told().bundle(["args", "results"]), made_up))

    assert kinds(whole) == {("signature", "run-1"), ("signature", "run-1.3")}
    assert {kind for kind, _ in kinds(marked)} == {"changed"}
    assert {whole.verdict, marked.verdict} == {"broken"}


def test_exposed_values_are_redacted_as_results_are() -> None:
    shown = entries("r-1", begun(), [events.StatusSet("asks"), events.StatusSet('{"iban":"DE02"}', "account")])
    last = log_of(shown)[-1]

    hidden = without_values(last, ["results"])

    texts = [getattr(event, "text", "") for event in codec.decode(Entry, hidden.value or b"").events]
    assert [text.rpartition(":")[2] for text in texts] == ["4", "15"]
    assert all(map(is_pointer, texts))
    assert without_values(last, ["args"]) == last


def test_a_decision_that_was_redacted_proves_nothing() -> None:
    bundle = Story([{"action": "edit", "args": '{"text":"secret"}'}, {"action": "approve"}]).bundle(["args"])
    found = resealed(bundle)

    assert (found.holes, found.unchecked, found.verdict) == ([], 3, "unproven")  # and two are younger than the catalog


@pytest.mark.parametrize(
    "change",
    [
        lambda event: (
            replace(event, tool="wipe") if isinstance(event, CallProposed) and event.tool == "save" else event
        ),
        changed(ApprovalRequested, requirement=Requirement(["eve"])),
        changed(ApprovalRequested, version="2"),
        changed(events.RunRequested, requester="bob"),
    ],
)
def test_what_people_have_decided_is_this_call_though_its_arguments_are_redacted(change: Any) -> None:
    found = resealed(under_its_ids(told().bundle(["args"]), change))

    assert ("decision", "run-1") in kinds(found)
    assert not any(each.checked for each in found.decisions if each.run_id == "run-1")


def test_a_child_is_held_against_its_parent_wherever_it_stands() -> None:
    bundle = told().bundle()
    other = _rewritten(replace(bundle, runs=bundle.runs[1:]), changed(events.RunRequested, agent="boss"))

    assert ("changed", "run-1.3") in kinds(resealed(replace(bundle, runs=[bundle.runs[0], *other.runs])))
    assert "order of their names" in resealed(replace(bundle, runs=bundle.runs[::-1])).holes[0].what
    assert ("changed", "run-1.3") in kinds(resealed(_rewritten(bundle, changed(ChildStarted, agent="boss"))))


def test_a_catalog_that_nobody_has_checked_is_not_proven() -> None:
    found = resealed(without_people(told().bundle()), trust={})

    assert (found.holes, found.decisions, found.verdict) == ([], [], "unproven")
    assert "are not checked: name the root key" in found.notes[0]


def test_numbers_of_lines_that_somebody_has_made_up_fill_no_memory() -> None:
    gaps = (b'{"n":%d,"kind":"entry","seal":"%s"}\n' % (99_000 * number, b"0" * 32) for number in range(1, 40))
    found = verify_bundle(BytesIO(LINES[0] + b"".join(gaps)), TRUST)

    assert found.verdict == "broken"
    gaps = (b'{"n":%d,"kind":"entry","seal":"%s"}\n' % (99_000 * number, b"0" * 32) for number in range(1, 40))
    assert sum(1 for _ in read(BytesIO(LINES[0] + b"".join(gaps)))) < MOST_MISSING + 100


def contents() -> list[dict[str, Any]]:
    """The lines of the story without their seals."""
    return [{name: value for name, value in fields(n).items() if name != "seal"} for n in range(len(LINES))]


@pytest.mark.parametrize("version", [None, "1", 1.0, 0, -1, True])
def test_a_version_that_is_no_number_is_no_bundle(version: Any) -> None:
    lines = contents()
    lines[0]["version"] = version
    found = verify_bundle(BytesIO(b"".join(_sealed(lines))), TRUST)

    assert (found.holes[0].kind, found.holes[0].record) == ("unreadable", 0)


def test_words_of_whoever_has_written_it_do_not_fill_the_screen() -> None:
    lines = contents()
    lines[1]["id"] = "x" * 1_000_000
    found = verify_bundle(BytesIO(b"".join(_sealed(lines))), TRUST)

    assert max(len(hole.what) for hole in found.holes) <= HOLE_CHARS


def test_a_line_of_more_values_than_any_bundle_has_is_not_read() -> None:
    lines = contents()
    lines[1]["schema"] = [[]] * 200_000
    found = verify_bundle(BytesIO(b"".join(_sealed(lines))), TRUST)

    assert ("unreadable", 1) in {(hole.kind, hole.record) for hole in found.holes}


def test_what_a_fork_has_written_is_told_though_it_was_given_offsets_and_its_mark_was_taken() -> None:
    bundle, made, prev = told().bundle(), list[Record](), b""
    for record in bundle.runs[0].records:
        found = replace(codec.decode(Entry, record.value or b""), actor=engine.ACTOR, cause=None, prev=prev)
        prev, value = codec.encode_entry(found)
        made.append(record._replace(key=log_key(found.run_id, found.seq, prev), value=value))

    assert engine.ACTOR == FORKED_BY
    assert ("foreign", "run-1") in kinds(resealed(replace(bundle, runs=[BundledRun(RunId("run-1"), made)])))


def with_key(bundle: Bundle, at_ms: int) -> Bundle:
    """The bundle, and the key of the approval service is revoked."""
    gone, number = SERVICE.public(revoked=True).content(), len(bundle.catalog) + 1
    last = entry(f"key/{SERVICE.kid}", "key", gone, at_ms=at_ms, counter=number)
    return replace(
        bundle,
        catalog=[*bundle.catalog, bundle.catalog[0]._replace(key=last.name.encode(), value=codec.encode(last))],
    )


def test_a_key_that_was_stolen_signs_nothing_new_and_what_it_has_signed_is_told() -> None:
    bundle, now = told().bundle(), told().desk.world.now
    later = resealed(with_key(bundle, now + 10**7))

    def signed(event: ApprovalDecided, after_ms: int) -> ApprovalDecided:
        found = Decision.parse(signature.content_of(event.token))
        dated = replace(found, issued=found.issued + after_ms, expires=found.expires + after_ms)
        return replace(event, token=signature.sign(dated.payload(), SERVICE))

    near, far = (_consistent(bundle, partial(signed, after_ms=ms)) for ms in (1, 3 * SKEW_MS))

    assert (later.holes, SERVICE.kid in later.notes[0], later.verdict) == ([], True, "holds")
    assert resealed(near).holes == []
    assert {"signed after the entry" in hole.what for hole in resealed(with_key(far, now + 2 * SKEW_MS)).holes} == {
        True
    }


def signed_for(bundle: Bundle, *platforms: str) -> Bundle:
    """The bundle with a catalog whose entries were signed for these platforms, the last one for all further entries."""
    made = []
    for number, record in enumerate(bundle.catalog):
        found = codec.decode(CatalogEntry, record.value or b"")
        platform = platforms[min(number, len(platforms) - 1)]
        made.append(renumbered(record._replace(value=codec.encode(replace(found, platform=platform))), number + 1))
    return replace(bundle, catalog=made)


def test_what_was_signed_for_another_platform_is_no_evidence() -> None:
    bundle = told().bundle()
    own = resealed(signed_for(bundle, "test/refold."))

    assert (own.holes, own.platform) == ([], "test/refold.")
    assert ("signature", "") in kinds(resealed(signed_for(bundle, "test/refold.", "staging/refold.")))
    staged = resealed(signed_for(bundle, "production/refold."))
    assert {"is for test, and the catalog for production" in hole.what for hole in staged.holes} == {True}
    assert not any(each.checked for each in staged.decisions)


class Topics:
    """Reads topics of the story, and what an attacker has added to them."""

    def __init__(self, story: Story, **added: list[Record]) -> None:
        self.story, self.added = story, added

    def partitions(self, topic: str) -> int:
        """As a reader has it."""
        return PARTITIONS

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        """As a reader has it: the attacker came first."""
        place = home(self.story.run, PARTITIONS) if partition is None else partition
        yield from self.added.get(topic.partition(".")[0].replace("-", "_"), ())
        yield from self.story.desk.world.broker.log(topic, place).records


def folded(bundle: Bundle, path: Path) -> dict[str, Run]:
    """The runs of a bundle."""
    (path / "b").write_bytes(file_of(bundle).getvalue())
    return bundled_runs(path / "b", "run-1")


def test_claims_that_do_not_count_are_no_evidence(tmp_path: Path) -> None:
    runs, [first, second] = folded(told().bundle(), tmp_path), told().log(CLAIMED)
    claim = codec.decode(ToolClaim, first.value or b"")

    def forged(**other: Any) -> Record:
        made = replace(claim, **other)
        key = f"{made.chain}/{made.claim_id}".encode()
        return first._replace(key=key, value=codec.encode(made), offset=-2 - len(made.claim_id))

    spoilt = first._replace(key=f"{claim.chain}/x".encode(), value=b"junk", offset=-1)
    before = [spoilt, first._replace(value=None), forged(call_id="no call"), forged(call_id="run-9/1", claim_id="z")]
    after = [forged(claim_id="lost the race"), first, forged(claim_id="u", undone=True, prev="nothing")]

    assert claims_of(Topics(told(), tool_claimed=before), runs.values()) == [first, second]  # type: ignore[arg-type]
    late = Topics(told(), tool_claimed=[first, *after])
    assert claims_of(late, runs.values()) == [first, second]  # type: ignore[arg-type]


def test_a_catalog_is_not_spoilt_by_who_copies_the_signature_of_an_entry() -> None:
    first = told().log("catalog")[0]
    found = codec.decode(CatalogEntry, first.value or b"")
    copies = [
        first._replace(value=codec.encode(replace(found, content="{}"))),
        first._replace(key=b"key/other"),
        first._replace(value=b"junk"),
    ]
    reader = Topics(told(), catalog=copies)

    assert published_entries(reader, TRUST) == told().log("catalog")  # type: ignore[arg-type]


def test_a_key_leads_to_the_call_that_has_it_and_to_none_that_somebody_has_made_up(tmp_path: Path) -> None:
    runs = folded(told().bundle(), tmp_path)
    key = runs["run-1"].state.call(2).key
    made_up = Entry(RunId("run-1.3"), 1, b"", 0, None, "", b"", [replace(runs["run-1"].state.call(2), step=1)])
    name, value = codec.encode_entry(made_up)
    record = told().log("run-log")[0]._replace(key=log_key(made_up.run_id, 1, name), value=value)

    assert run_of_key(Topics(told(), run_log=[record]), key, runs.get) == ("run-1", 6)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        run_of_key(Topics(told(), run_log=[record]), "0" * 64, runs.get)  # type: ignore[arg-type]


TEXTS = (
    "a" * 3_000,
    "approve",
    "completed",
    "reject",
    "",
    "x",
    NOTHING,
    "blob:",
    "null",
    "{}",
    '{"text":1}',
    "[",
    "\u202e\x1b",
    "run-1.3",
    "run-1/6",
    "doubt",
)
NUMBERS = (0, 1, 2, 3, 4, 99, -1, 2**53, 2**62, -(2**62))
KINDS = typing.get_args(Event)


def anything(hint: Any, chance: random.Random) -> Any:
    """A value of a type, and seldom a sensible one."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        given = {spec.name: anything(spec.type, chance) for spec in dataclasses.fields(hint)}
        return hint(**given)
    simple = {str: TEXTS, RunId: TEXTS, int: NUMBERS, bool: (True, False), bytes: (b"", b"x" * 16), type(None): (None,)}
    if hint in simple:
        return chance.choice(simple[hint])
    args = typing.get_args(hint)
    if typing.get_origin(hint) is list:
        return [anything(args[0], chance) for _ in range(chance.randrange(3))]
    return {} if typing.get_origin(hint) is dict else anything(chance.choice(args), chance)


def made_up(entries: list[Entry], chance: random.Random) -> None:
    """Change some of a history that its author makes up."""
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(entries))
        told_there = list(entries[place].events)
        at = chance.randrange(len(told_there))
        if (way := chance.random()) < 0.4:
            spec = chance.choice(dataclasses.fields(told_there[at]))
            told_there[at] = replace(told_there[at], **{spec.name: anything(spec.type, chance)})
        elif way < 0.7:
            told_there.insert(at, anything(chance.choice(KINDS), chance))
        elif len(told_there) > 1:
            del told_there[at]
        entries[place] = replace(entries[place], events=told_there)


@pytest.mark.parametrize("seed", range(20))
def test_a_history_that_cannot_be_is_told_and_never_stops_who_reads_it(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    edited = Story([{"action": "edit", "args": '{"text":"less"}'}, {"action": "answer", "result": '"no"'}])
    for bundle in [told().bundle(), edited.bundle(), told().bundle(["args", "results"])] * 10:
        runs = []
        for run in bundle.runs:
            entries = [codec.decode(Entry, record.value or b"") for record in run.records]
            made_up(entries, chance)
            records, prev, seq = [], b"", 1
            for record, each in zip(run.records, entries, strict=True):
                prev, value = codec.encode_entry(replace(each, prev=prev, seq=seq))
                records.append(record._replace(key=log_key(run.run_id, seq, prev), value=value))
                seq += len(each.events)
            runs.append(replace(run, records=records))
        odd = replace(bundle, runs=runs)

        assert resealed(odd).records
        with suppress(RefoldError):
            found = folded(odd, tmp_path)
            for one in found.values():
                for number in range(1, one.state.head.seq + 1):
                    assert linked_runs(why(one, number, found.get), found.get)


def test_a_redacted_bundle_has_a_verdict_of_its_own_and_names_its_redacted_entries() -> None:
    """Without the values of an entry its bytes do not prove its id: its tool can be another."""
    rewritten = under_its_ids(told().bundle(["results"]), changed(events.CallCompleted, result=f"blob:{'1' * 64}:9"))
    found = verify_bundle(file_of(rewritten), TRUST, heads=HEADS, catalog=LAST[0])

    assert (found.verdict, found.holes) == ("redacted", [])
    assert [bool(run.redacted) for run in found.runs] == [True, True]
    for run, note in zip(found.runs, found.notes, strict=True):
        assert f"{run.run_id}: the entries of events {', '.join(map(str, run.redacted))} are redacted" in note


def test_a_history_that_its_author_has_rewritten_has_another_head_than_the_reader_names() -> None:
    def other(event: Any) -> Any:
        boss = isinstance(event, events.RunCompleted) and " and " in event.result
        return replace(event, result='"made up"') if boss else event

    labelled = _rewritten(told().bundle(), other)

    assert resealed(labelled).holes == []
    assert any("heads are not compared" in note for note in resealed(labelled).notes)
    found = verify_bundle(file_of(labelled), TRUST, heads=HEADS, catalog=LAST[0])
    assert ([hole.kind for hole in found.holes], found.verdict) == (["head"], "broken")


KEY = next(
    event.key
    for record in told().bundle().runs[0].records
    for event in codec.decode(Entry, record.value or b"").events
    if isinstance(event, CallProposed) and event.effect == "once"
)
QUESTION = next(
    event.question[:32]
    for record in told().bundle().runs[0].records
    for event in codec.decode(Entry, record.value or b"").events
    if isinstance(event, ApprovalRequested)
)


@pytest.mark.parametrize(
    "about",
    ["", "run-9", "run", "run-1/", "run-1/17", "run-1/0", "run-1.3/9999", "0" * 64, "run-1/6~0", f"run-1/7~{QUESTION}"],
)
def test_a_bundle_that_is_about_what_it_does_not_have_is_refused(about: str) -> None:
    found = resealed(replace(told().bundle(), about=about))

    assert ([hole.kind for hole in found.holes], found.verdict) == (["about"], "broken")


def test_a_bundle_of_no_run_is_refused() -> None:
    assert [hole.kind for hole in resealed(Bundle("run-1", [], told().catalog())).holes] == ["about"]


@pytest.mark.parametrize(
    "about", ["run-1", "run-1/6", "run-1.3/1", KEY, f"run-1/6~{QUESTION}", "run-1/6~" + QUESTION[:4]]
)
def test_a_bundle_may_be_about_a_run_an_event_a_key_or_a_question(about: str) -> None:
    assert resealed(replace(told().bundle(), about=about)).holes == []


def test_a_catalog_that_was_cut_before_a_revocation_proves_no_later_decision() -> None:
    bundle = told().bundle()
    revoked = with_key(bundle, LAST[1] + 1)
    number = len(revoked.catalog)

    assert {hole.kind for hole in resealed(revoked).holes} == {"signature"}
    cut = resealed(bundle)
    assert (cut.verdict, cut.holes, cut.catalog) == ("unproven", [], LAST)
    assert "younger than the catalog, which ends with number" in cut.notes[0]
    expected = verify_bundle(file_of(bundle), TRUST, catalog=number)
    assert [hole.kind for hole in expected.holes] == ["cut"]
    assert verify_bundle(file_of(bundle), TRUST, catalog=number - 1).verdict == "holds"


def test_each_verdict_of_a_file_has_its_exit_code(tmp_path: Path) -> None:
    def code(bundle: Bundle, *options: str) -> int:
        (tmp_path / "b.jsonl").write_bytes(file_of(bundle).getvalue())
        return refold("verify", str(tmp_path / "b.jsonl"), "--root", PINNED, *options).exit_code

    whole, number = told().bundle(), ("--catalog", str(LAST[0]))

    assert code(whole, *number, "--head", ",".join(HEADS).upper()) == 0
    assert code(whole, *number, "--head", "0" * 32) == 1
    assert code(whole) == 1
    assert code(replace(whole, about="run-9"), *number) == 1
    assert code(told().bundle(["args"]), *number) == 8
