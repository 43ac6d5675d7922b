"""A bundle of evidence: whatever is done to it, the hole is named."""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from io import BytesIO
from typing import Any

import orjson
import pytest

from refold.core.approval.signature import pinned, trusted
from refold.core.errors import MalformedError
from refold.core.events import ApprovalDecided, ApprovalRequested, CallProposed, Entry
from refold.core.ids import RunId, entry_id, log_key
from refold.core.wire import codec
from refold.core.wire.blobs import is_pointer
from refold.lab.evidence.bundle import LINE_BYTES, Bundle, BundledRun, Hole, Line, contents_of, read
from refold.lab.evidence.verify import VerifiedBundle, verify_bundle
from tests.evidence.story import OTHER_ROOT, Story, file_of, told, under_its_ids
from tests.roots import TRUST

LINES = file_of(told().bundle()).getvalue().splitlines(keepends=True)
OTHERS = file_of(Story(run=RunId("run-2")).bundle()).getvalue().splitlines(keepends=True)
[CONTENTS] = [contents_of(line) for line in read(BytesIO(LINES[0])) if isinstance(line, Line) and not line.n]
LAST = verify_bundle(BytesIO(b"".join(LINES)), TRUST).catalog
"""Number and time of the last entry of its catalog, as its reader has them from elsewhere."""
HEADS = [run.head for run in verify_bundle(BytesIO(b"".join(LINES)), TRUST).runs]
Place = tuple[str, int]


def verified(*lines: bytes, trust: Any = TRUST) -> VerifiedBundle:
    """The verdict on a file of these lines."""
    return verify_bundle(BytesIO(b"".join(lines)), trust)


def fields(number: int) -> dict[str, Any]:
    """A line as data."""
    found: dict[str, Any] = json.loads(LINES[number])
    return found


def place(number: int) -> Place:
    """The run and the event that a line of the bundle is of."""
    kind, run = CONTENTS.place(number)
    return run, int(fields(number)["key"].split("/")[1]) if kind == "entry" else 0


def named(found: VerifiedBundle, number: int) -> bool:
    """True if a hole is named at a line, with the run and the event if it is an entry."""
    return any(hole.record == number and (hole.run_id, hole.seq) == place(number) for hole in found.holes)


def resealed(bundle: Bundle, trust: Any = TRUST) -> VerifiedBundle:
    """The verdict on what a liar has sealed anew."""
    return verify_bundle(file_of(bundle), trust)


def with_entry(bundle: Bundle, run: int, number: int, change: Callable[[Entry], Entry], *, key: bool) -> Bundle:
    """The bundle with another entry in the place of one; with `key` under the key that its new bytes have."""
    runs = list(bundle.runs)
    records = list(runs[run].records)
    entry = change(codec.decode(Entry, records[number].value or b""))
    name, value = codec.encode_entry(entry)
    new = log_key(entry.run_id, entry.seq, name) if key else records[number].key
    records[number] = records[number]._replace(key=new, value=value)
    runs[run] = replace(runs[run], records=records)
    return replace(bundle, runs=runs)


def without(bundle: Bundle, run: int, number: int) -> Bundle:
    """The bundle without an entry, its first line made to fit."""
    runs = list(bundle.runs)
    records = [each for place, each in enumerate(runs[run].records) if place != number]
    runs[run] = replace(runs[run], records=records)
    return replace(bundle, runs=runs)


class TestWhole:
    def test_a_bundle_holds_with_all_that_people_have_decided(self) -> None:
        found = verify_bundle(BytesIO(b"".join(LINES)), TRUST, heads=HEADS, catalog=LAST[0])

        assert (found.verdict, found.holes, found.notes, found.records) == ("holds", [], [], len(LINES))
        assert [(each.call_id, each.actors, each.checked) for each in found.decisions] == [
            ("run-1/6", ["ada", "bob"], True),
            ("run-1.3/3", ["ada", "bob"], True),
        ]
        assert [(run.run_id, run.status) for run in found.runs] == [("run-1", "completed"), ("run-1.3", "completed")]

    def test_the_same_content_makes_the_same_bytes(self) -> None:
        assert file_of(told().bundle()).getvalue() == b"".join(LINES)

    @pytest.mark.parametrize(
        "action", [{"action": "edit", "args": '{"text":"less"}'}, {"action": "answer", "result": '"no need"'}]
    )
    def test_what_people_have_made_of_a_call_holds_too(self, action: dict[str, str]) -> None:
        found = resealed(Story([action, {"action": "approve"}]).bundle())

        assert found.holes == []
        assert all(each.checked for each in found.decisions)

    def test_a_rejection_holds(self) -> None:
        found = resealed(Story([{"action": "reject", "message": "never"}]).bundle())

        assert found.holes == []
        assert [each.verdict for each in found.decisions] == ["reject"]
        assert found.runs[0].status == "failed"


class TestDamage:
    """What happens to a file on its way, or by hand: each line, and no other, is named."""

    @pytest.mark.parametrize("number", range(len(LINES)))
    def test_a_removed_line_is_named(self, number: int) -> None:
        found = verified(*LINES[:number], *LINES[number + 1 :])

        assert named(found, number), found.holes
        assert len(found.holes) == 1

    @pytest.mark.parametrize("number", range(len(LINES)))
    def test_a_changed_line_is_named(self, number: int) -> None:
        middle = len(LINES[number]) // 2
        for at in (1, 3, middle, len(LINES[number]) - 4):
            line = bytearray(LINES[number])
            line[at] ^= 1
            found = verified(*LINES[:number], bytes(line), *LINES[number + 1 :])

            assert named(found, number), (at, found.holes)

    @pytest.mark.parametrize("number", range(len(LINES)))
    def test_a_line_that_is_swapped_with_another_is_named(self, number: int) -> None:
        for other in range(number + 1, len(LINES)):
            lines = [*LINES]
            lines[number], lines[other] = lines[other], lines[number]
            found = verified(*lines)

            assert named(found, number) or named(found, other), (other, found.holes)
            assert {hole.kind for hole in found.holes} >= {"moved"}

    @pytest.mark.parametrize("number", range(len(LINES)))
    def test_a_line_of_the_bundle_of_another_run_is_named(self, number: int) -> None:
        lines = [*LINES]
        lines[number] = OTHERS[number]
        found = verified(*lines)

        # Whoever swaps the first line makes it the bundle of the other run, with this one's lines in it.
        assert named(found, number) if number else {hole.record for hole in found.holes} >= {12, 13, 14}, found.holes

    @pytest.mark.parametrize("number", range(len(LINES)))
    def test_a_line_that_is_there_twice_is_named(self, number: int) -> None:
        found = verified(*LINES[: number + 1], *LINES[number:])

        assert any((hole.kind, hole.record) == ("repeated", number) for hole in found.holes)

    @pytest.mark.parametrize("number", range(1, len(LINES)))
    def test_a_bundle_that_is_cut_off_says_where(self, number: int) -> None:
        for line in (b"", LINES[number][:-60]):
            found = verified(*LINES[:number], line)

            assert found.holes
            assert all(hole.record == number or hole.kind == "cut" for hole in found.holes)
            assert named(found, number), found.holes


class TestLies:
    """What somebody does who seals the bundle anew."""

    @pytest.mark.parametrize(("run", "number"), [(0, n) for n in range(4)] + [(1, n) for n in range(2)])
    def test_a_run_without_an_entry_is_named(self, run: int, number: int) -> None:
        bundle = told().bundle()
        [gone] = [codec.decode(Entry, bundle.runs[run].records[number].value or b"")]
        found = resealed(without(bundle, run, number))

        assert ("removed", bundle.runs[run].run_id, gone.seq) in {(h.kind, h.run_id, h.seq) for h in found.holes}

    @pytest.mark.parametrize("number", range(5))
    def test_another_content_under_the_key_of_an_entry_is_named(self, number: int) -> None:
        bundle = with_entry(told().bundle(), 0, number, lambda entry: replace(entry, actor="me"), key=False)
        found = resealed(bundle)

        assert [hole.kind for hole in found.holes] == ["changed"]

    @pytest.mark.parametrize("number", range(4))
    def test_another_content_under_its_own_key_breaks_the_chain(self, number: int) -> None:
        bundle = with_entry(told().bundle(), 0, number, lambda entry: replace(entry, actor="me"), key=True)

        assert [hole.kind for hole in resealed(bundle).holes] == ["changed"]

    def test_a_run_in_the_place_of_another_is_named(self) -> None:
        bundle = told().bundle()
        runs = [BundledRun(RunId("run-1"), bundle.runs[1].records), bundle.runs[1]]

        assert {hole.kind for hole in resealed(replace(bundle, runs=runs)).holes} >= {"foreign"}

    def test_an_entry_of_another_history_of_the_run_is_named(self) -> None:
        other, bundle = Story(n=8).bundle(), told().bundle()
        records = [*bundle.runs[0].records[:2], *other.runs[0].records[2:]]
        runs = [BundledRun(RunId("run-1"), records), bundle.runs[1]]
        found = resealed(replace(bundle, runs=runs))

        seq = codec.decode(Entry, records[2].value or b"").seq
        assert ("changed", "run-1", seq) in {(hole.kind, hole.run_id, hole.seq) for hole in found.holes}

    @pytest.mark.parametrize("number", range(len(told().catalog())))
    def test_a_catalog_without_an_entry_is_named(self, number: int) -> None:
        bundle = told().bundle()
        kept = [record for place, record in enumerate(bundle.catalog) if place != number]
        found = resealed(replace(bundle, catalog=kept))

        if number < len(kept):
            assert any(hole.kind == "removed" and "catalog" in hole.what for hole in found.holes)
        else:  # the end of the catalog is the time of the bundle: what was published after it is not in it
            assert found.holes == []

    def test_whoever_makes_keys_of_their_own_is_no_authority(self) -> None:
        bundle = told().bundle()
        forged = replace(bundle, root=[OTHER_ROOT.kid])
        found = resealed(forged, trust=trusted(pinned(OTHER_ROOT.public())))

        assert {hole.kind for hole in found.holes} == {"signature"}

    def test_a_bundle_names_the_root_that_it_was_signed_by_and_is_not_believed(self) -> None:
        mine = told().bundle()
        assert resealed(replace(mine, root=["whatever"])).holes == []
        found = resealed(mine, trust={})

        assert found.holes == []
        assert "not checked" in found.notes[0]
        assert found.verdict == "unproven"
        assert not found.decisions[0].checked

    def test_a_decision_without_its_signature_is_named(self) -> None:
        found = resealed(_consistent(told().bundle(), lambda event: replace(event, token="")))

        assert ("signature", "run-1") in {(hole.kind, hole.run_id) for hole in found.holes}

    @pytest.mark.parametrize(
        "change",
        [
            lambda event: replace(event, actors=["eve"]),
            lambda event: replace(event, message="as agreed"),
            lambda event: replace(event, question="0" * 64),
            lambda event: replace(event, verdict="reject"),
        ],
    )
    def test_an_event_that_says_otherwise_than_its_decision_is_named(self, change: Any) -> None:
        found = resealed(_consistent(told().bundle(), change))

        assert ("decision", "run-1") in {(hole.kind, hole.run_id) for hole in found.holes}

    def test_a_decision_on_other_arguments_is_named(self) -> None:
        def other(event: Any) -> Any:
            return (
                replace(event, args='{"text":"all of it"}')
                if isinstance(event, CallProposed) and event.step == 2
                else event
            )

        found = resealed(_rewritten(told().bundle(), other))

        assert ("decision", "run-1", 9) in {(hole.kind, hole.run_id, hole.seq) for hole in found.holes}

    def test_a_decision_that_is_left_out_is_named(self) -> None:
        found = resealed(
            _rewritten(told().bundle(), lambda event: None if isinstance(event, ApprovalDecided) else event)
        )

        assert ("decision", "run-1") in {(hole.kind, hole.run_id) for hole in found.holes}
        assert any("have not decided" in hole.what for hole in found.holes)

    def test_a_question_and_its_decision_can_be_left_out_of_a_history_that_is_made_up_whole(self) -> None:
        """The limit: a history has no signature. Its head has to be compared with one that is known from elsewhere."""
        asked = ApprovalRequested, ApprovalDecided
        bundle = _rewritten(told().bundle(), lambda event: None if isinstance(event, asked) else event)
        found = resealed(bundle)

        assert found.holes == []
        assert found.decisions == []
        assert found.runs[0].head != verified(*LINES).runs[0].head

    def test_another_result_of_a_child_than_its_parent_has_is_named(self) -> None:
        bundle = told().bundle()
        records = [*bundle.runs[1].records]
        last = codec.decode(Entry, records[-1].value or b"")
        end = replace(last.events[-1], result='"made up"')  # type: ignore[arg-type]
        made = with_entry(bundle, 1, -1, lambda entry: replace(entry, events=[*entry.events[:-1], end]), key=True)

        assert [(hole.kind, hole.run_id) for hole in resealed(made).holes] == [("changed", "run-1.3")]

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_claim_of_another_effect_is_named(self, number: int) -> None:
        bundle = told().bundle()
        [claim], runs = bundle.runs[number].claims, [*bundle.runs]
        key, _, name = (claim.key or b"").partition(b"/")
        runs[number] = replace(runs[number], claims=[claim._replace(key=b"0" * len(key) + b"/" + name)])

        assert [hole.kind for hole in resealed(replace(bundle, runs=runs)).holes] == ["claim"]

    def test_an_effect_of_which_no_claim_is_there_is_told(self) -> None:
        bundle = told().bundle()
        found = resealed(replace(bundle, runs=[replace(run, claims=()) for run in bundle.runs]))

        assert found.holes == []
        assert "2 chained calls have no claim in the bundle" in found.notes


def _rewritten(bundle: Bundle, change: Callable[[Any], Any]) -> Bundle:
    """The bundle with all histories made anew, each entry with its own id and the one before it."""
    runs = []
    for run in bundle.runs:
        records, prev, seq = [], b"", 1
        for record in run.records:
            entry = codec.decode(Entry, record.value or b"")
            events = [new for event in entry.events if (new := change(event)) is not None]
            if not events:
                continue
            made = replace(entry, prev=prev, seq=seq, events=events)
            name, value = codec.encode_entry(made)
            records.append(record._replace(key=log_key(run.run_id, seq, name), value=value))
            prev, seq = name, seq + len(events)
        runs.append(replace(run, records=records))
    return replace(bundle, runs=runs)


def _consistent(bundle: Bundle, change: Callable[[Any], Any]) -> Bundle:
    return _rewritten(bundle, lambda event: change(event) if isinstance(event, ApprovalDecided) else event)


class TestOdd:
    """Files that are no bundle, or more than one."""

    @pytest.mark.parametrize(
        "content", [b"", b"\n", b"hello\n", b"\x1f\x8b\x08\x00junk", b"PK\x03\x04", b"[" * 100_000]
    )
    def test_what_is_no_bundle_is_refused(self, content: bytes) -> None:
        with pytest.raises(MalformedError):
            verify_bundle(BytesIO(content), TRUST)

    def test_two_bundles_in_one_file_are_named(self) -> None:
        found = verified(*LINES, *LINES)

        assert {hole.kind for hole in found.holes} == {"repeated"}

    def test_lines_behind_the_end_are_named(self) -> None:
        bundle = told().bundle()
        last = replace(bundle.runs[1], claims=[*bundle.runs[1].claims] * 2)
        longer = file_of(replace(bundle, runs=[bundle.runs[0], last])).getvalue().splitlines(keepends=True)
        found = verified(*LINES, longer[-1])

        assert [hole.record for hole in found.holes] == [len(LINES)]

    def test_bytes_that_are_not_utf8_are_named(self) -> None:
        line = LINES[12].replace(b"run-log", b"run-\xff\xfe")
        found = verified(*LINES[:12], line, *LINES[13:])

        assert named(found, 12)

    def test_a_line_without_an_end_takes_no_memory(self) -> None:
        class Endless(BytesIO):
            """Gives more than a line may have, and then the rest of a bundle."""

            most = 0

            def readline(self, size: int | None = -1) -> bytes:
                self.most = max(self.most, size or -1)
                assert size is not None
                assert 0 < size <= LINE_BYTES
                return super().readline(size)

        file = Endless(b"".join(LINES[:3]) + b"x" * (LINE_BYTES + 10) + b"\n" + b"".join(LINES[3:]))
        found = verify_bundle(file, TRUST)

        assert Hole("unreadable", 3, found.holes[0].what) in found.holes

    def test_a_newer_version_asks_for_an_upgrade(self) -> None:
        from refold.lab.evidence import bundle as format_

        before = format_.BUNDLE_VERSION
        format_.BUNDLE_VERSION = before + 1
        try:
            newer = file_of(told().bundle())
        finally:
            format_.BUNDLE_VERSION = before
        found = verify_bundle(newer, TRUST)

        assert [(hole.kind, hole.record) for hole in found.holes] == [("version", 0)]
        assert "upgrade" in found.holes[0].what

    def test_an_entry_of_a_newer_schema_is_named_with_its_run(self) -> None:
        bundle = told().bundle()
        records = [*bundle.runs[0].records]
        value = records[1].value or b""
        seq = codec.decode(Entry, value).seq
        records[1] = records[1]._replace(value=value[:1] + (9_999).to_bytes(4) + value[5:])
        newer = _numbered(bundle, [records, bundle.runs[1].records])
        found = verify_bundle(newer, TRUST)

        assert ("version", "run-1", seq) in {(hole.kind, hole.run_id, hole.seq) for hole in found.holes}


def _numbered(bundle: Bundle, runs: list[Any]) -> BytesIO:
    """The bundle with other records, written by who knows schemas that we do not."""
    from refold.core.wire import schemas

    known = schemas.registered()[0]
    known[9_999] = ("run-log", {"type": "record", "name": "x", "fields": []})
    try:
        return file_of(
            replace(bundle, runs=[BundledRun(run.run_id, new) for run, new in zip(bundle.runs, runs, strict=True)])
        )
    finally:
        del known[9_999]


ODD: tuple[Any, ...] = (
    *(None, True, -1, 2**53 - 1, 0.5, "", "x", "\u202e", "run-1/1", "A" * 5_000, "9" * 5_000),
    *([], {}, [[]], {"a": 1}),
)


class TestMadeUp:
    """Lines with any content at all: a verdict comes, whatever somebody has written and sealed."""

    @pytest.mark.parametrize("seed", range(40))
    def test_a_verdict_always_comes(self, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            contents = [{k: v for k, v in fields(n).items() if k != "seal"} for n in range(len(LINES))]
            for _ in range(chance.randint(1, 3)):
                _spoil(chance.choice(contents), chance)

            assert verify_bundle(BytesIO(b"".join(_sealed(contents))), TRUST).records


def _spoil(line: dict[str, Any], chance: random.Random) -> None:
    """Put something odd into a line; another value of an entry under the key that fits it."""
    name = chance.choice([name for name in line if name not in ("n", "kind")])
    if name == "runs" and line[name]:
        chance.choice(line[name])[chance.choice(["run", "records", "claims"])] = chance.choice(ODD)
    elif name != "value" or chance.random() < 0.3:
        line[name] = chance.choice(ODD)
    elif isinstance(line[name], str) and len(line[name]) > 40:
        raw = bytearray(b64decode(line[name]))
        raw[chance.randrange(5, len(raw))] = chance.randrange(256)
        line[name], parts = b64encode(raw).decode(), str(line["key"]).split("/")
        if line["kind"] == "entry" and len(parts) == 3:
            line["key"] = log_key(RunId(parts[0]), int(parts[1]), entry_id(bytes(raw[5:]))).decode()


def _sealed(contents: list[dict[str, Any]]) -> Iterator[bytes]:
    """Lines with these contents, sealed by whoever knows the format."""
    seal = b""
    for content in contents:
        body = orjson.dumps(content)
        seal = blake2b(body, digest_size=16, key=seal).hexdigest().encode()
        yield body[:-1] + b',"seal":"' + seal + b'"}\n'


class TestRedacted:
    @pytest.mark.parametrize("rules", [["args"], ["results"], ["args", "results"]])
    def test_values_are_gone_and_the_rest_holds(self, rules: list[str]) -> None:
        bundle = told().bundle(rules)
        found = resealed(bundle)
        text = b"".join((record.value or b"") for run in bundle.runs for record in run.records)

        assert found.holes == []
        assert "redacted" in found.notes[0]
        assert (b'"shelf"' in text) == ("args" not in rules or "results" not in rules)
        assert all(each.checked for each in found.decisions)  # an approval has digests alone

    def test_an_edit_loses_its_token_and_says_so(self) -> None:
        bundle = Story([{"action": "edit", "args": '{"text":"secret"}'}, {"action": "approve"}]).bundle(["args"])
        found = resealed(bundle)

        assert found.holes == []
        assert any("signatures and votes are not checked" in note for note in found.notes)
        assert b"secret" not in b"".join(bundle.lines())

    def test_the_digest_of_redacted_arguments_is_that_which_people_have_signed(self) -> None:
        bundle = told().bundle(["args"])

        def other(event: Any) -> Any:
            if isinstance(event, CallProposed) and is_pointer(event.args):
                return replace(event, args=f"blob:{'0' * 64}:9")
            return event

        found = resealed(under_its_ids(bundle, other))

        assert {(hole.kind, hole.run_id) for hole in found.holes} == {("decision", "run-1"), ("decision", "run-1.3")}

    def test_a_mark_alone_redacts_nothing(self) -> None:
        bundle = told().bundle()
        keys = frozenset(record.key or b"" for record in bundle.runs[0].records)

        assert {hole.kind for hole in resealed(replace(bundle, redacted=keys)).holes} == {"changed"}
