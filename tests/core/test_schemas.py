"""Export and check: what may change in an event, and what is refused. Every refusal is planted here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.errors import ConflictError
from refold.core.wire import schemas
from refold.core.wire.schemas import Registered
from refold.dev.schemas.export import check_schemas, conflicts, export_schemas
from tests.core.histories import examples

Won = make_dataclass("Won", [("points", int)])
Lost = make_dataclass("Lost", [("why", str)])


def game(*fields: tuple[str, Any] | tuple[str, Any, Any]) -> type:
    """A message class of the name Game."""
    return make_dataclass("Game", fields)


def exported(folder: Path, *versions: type) -> list[Registered]:
    for version in versions:
        export_schemas(folder, {version: "game"})
    return schemas.lock((folder / "schemas.lock").read_text())


def test_the_schemas_of_the_repository_are_those_of_the_classes() -> None:
    assert check_schemas() == []


def test_an_export_is_repeatable_and_numbered(tmp_path: Path) -> None:
    two = {Won: "won", Lost: "lost"}

    first, again = export_schemas(tmp_path, two), export_schemas(tmp_path, two)

    assert [(line.id, line.subject, line.version) for line in first] == [(1, "won", 1), (2, "lost", 1)]
    assert again == []
    assert check_schemas(tmp_path, two) == []


def test_a_change_becomes_a_version_with_its_own_id_and_nothing_old_is_touched(tmp_path: Path) -> None:
    exported(tmp_path, game(("name", str)))
    old = {path: path.read_bytes() for path in tmp_path.iterdir()}

    lines = exported(tmp_path, game(("name", str), ("level", int, 1)))

    assert [(line.id, line.version) for line in lines] == [(1, 1), (2, 2)]
    assert all(path.read_bytes().startswith(before) for path, before in old.items())
    assert (tmp_path / "game.v1.avsc").read_bytes() == old[tmp_path / "game.v1.avsc"]


def test_better_words_are_no_new_version(tmp_path: Path) -> None:
    before, after = game(("name", str)), game(("name", str))
    before.__doc__, after.__doc__ = "A game.", "A game that somebody plays."
    exported(tmp_path, before)

    assert export_schemas(tmp_path, {after: "game"}) == []
    assert check_schemas(tmp_path, {after: "game"}) == []


BASE = (("name", str), ("events", list[Won | Lost]), ("note", str | None, None))  # type: ignore[valid-type]
BREAKING: dict[str, type] = {
    "an event is gone": game(("name", str), ("events", list[Won]), ("note", str | None, None)),  # type: ignore[valid-type]
    "a default is gone": game(*BASE[:2], ("level", int)),
    "a field was retyped": game(("name", int), *BASE[1:]),
    "a field was renamed": game(("title", str), *BASE[1:]),
    "a field was made optional to read only": game(("name", str | None), *BASE[1:]),
    "an optional field is required": game(*BASE[:2], ("note", str)),
    "a list became a map": game(("name", str), ("events", dict[str, Won]), ("note", str | None, None)),  # type: ignore[valid-type]
}
HARMLESS = {"a field was made optional to read only"}


@pytest.mark.parametrize("change", BREAKING)
def test_a_change_that_could_not_read_the_past_is_refused(change: str, tmp_path: Path) -> None:
    exported(tmp_path, game(*BASE))
    before = sorted(path.read_bytes() for path in tmp_path.iterdir())
    changed = {BREAKING[change]: "game"}

    problems = [problem for problem in check_schemas(tmp_path, changed) if "not compatible with version 1" in problem]

    assert bool(problems) is (change not in HARMLESS)
    if problems:
        with pytest.raises(ConflictError):
            export_schemas(tmp_path, changed)
        assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == before


def test_every_older_version_counts_and_not_only_the_last(tmp_path: Path) -> None:
    exported(tmp_path, game(("name", str)), game(("name", str), ("level", int, 1)))
    third = {game(("name", str), ("level", int)): "game"}

    (problem,) = [problem for problem in check_schemas(tmp_path, third) if "not compatible" in problem]

    assert problem == (
        "game: not compatible with version 1: Game at /fields/1: reader field missing default value (level)"
    )


def test_a_conflict_deep_inside_is_told_of_the_type_that_holds_it(tmp_path: Path) -> None:
    before, after = (make_dataclass("Won", [("points", kind)]) for kind in (int, str))
    exported(tmp_path, game(("events", list[before])))  # type: ignore[valid-type]

    problems = check_schemas(tmp_path, {game(("events", list[after])): "game"})  # type: ignore[valid-type]

    assert any("version 1: Won at /fields/0/type: type mismatch" in problem for problem in problems)


def edited(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "won.v1.avsc").unlink(), "the file is gone"),
        (lambda folder: edited(folder / "won.v1.avsc", lambda text: text + "\n"), "changed after its export"),
        (
            lambda folder: edited(folder / "schemas.lock", lambda t: t.replace("2 lost", "3 lost")),
            "ids are not 1, 2, 3",
        ),
        (lambda folder: edited(folder / "schemas.lock", lambda t: t.replace("lost 1", "lost 2")), "versions of lost"),
        (lambda folder: (folder / "schemas.lock").unlink(), "never exported"),
    ],
)
def test_a_past_that_was_edited_is_found(spoil: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    export_schemas(tmp_path, {Won: "won", Lost: "lost"})

    spoil(tmp_path)

    assert any(words in problem for problem in check_schemas(tmp_path, {Won: "won", Lost: "lost"}))


def test_a_class_that_changed_without_an_export_is_found(tmp_path: Path) -> None:
    exported(tmp_path, game(("name", str)))

    problems = check_schemas(tmp_path, {game(("name", str), ("level", int, 1)): "game"})

    assert problems == ["game: Game differs from version 1; run `make schemas`"]


def test_a_subject_without_a_class_is_found(tmp_path: Path) -> None:
    export_schemas(tmp_path, {Won: "won", Lost: "lost"})

    assert check_schemas(tmp_path, {Won: "won"}) == ["lost: no class has this subject any more"]


def record(name: str = "R", **fields: Any) -> dict[str, Any]:
    found = [
        {"name": field, **(spec if isinstance(spec, dict) and "default" in spec else {"type": spec})}
        for field, spec in fields.items()
    ]
    return {"type": "record", "name": name, "fields": found}


TREE = record("Tree", value="long", children={"type": "array", "items": "Tree"})
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("reader", "writer", "readable"),
    [
        ("long", "int", True),
        ("int", "long", False),
        ("double", "long", True),
        ("long", "boolean", False),
        ("string", "bytes", True),
        (["null", "string"], "string", True),
        ("string", ["null", "string"], False),
        (["string", "null"], ["null", "string"], True),
        (["null", "long"], ["null", "int"], True),
        (["null", "boolean"], ["null", "int"], False),
        ({"type": "string"}, "string", True),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, False),
        ({"type": "map", "values": "string"}, {"type": "map", "values": "boolean"}, False),
        ({"type": "map", "values": "string"}, {"type": "array", "items": "string"}, False),
        (TREE, TREE, True),
        (record("Tree", value="string", children={"type": "array", "items": "Tree"}), TREE, False),
        (record("Other"), record("R"), False),
        (record(a={"type": "long", "default": 1}), record(), True),
        (record(a="long"), record(), False),
        (record(), record(a="long"), True),
        ([record("A"), record("B", x="long")], [record("B", x="int")], True),
        ([record("A")], [record("A"), record("B")], False),
        (ENUM, {**ENUM, "symbols": ["A"]}, True),
        (ENUM, {**ENUM, "symbols": ["A", "C"]}, False),
        ({**ENUM, "default": "A"}, {**ENUM, "symbols": ["C"]}, True),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, False),
        (record(a=record("N", x="long"), b="N"), record(a=record("N", x="int"), b="N"), True),
        (record(a=record("N", x="long"), b="N"), record(a=record("N", x="long"), b="string"), False),
    ],
)
def test_the_resolution_rules_of_avro(reader: Any, writer: Any, readable: bool) -> None:
    found = conflicts(reader=reader, writer=writer)

    assert (not found) is readable, found


leaves = st.sampled_from(["int", "long", "double", "string", "boolean"])
kinds = leaves | st.just(["null", "long"]) | st.just(["null", "string"]) | st.just({"type": "array", "items": "int"})
VALUES: dict[str, Any] = {"int": 1, "long": 2, "double": 1.5, "string": "s", "boolean": True}


@examples
@given(st.dictionaries(st.sampled_from("abc"), kinds), st.dictionaries(st.sampled_from("abc"), kinds))
def test_what_is_called_readable_is_read_by_another_library(reader: dict[str, Any], writer: dict[str, Any]) -> None:
    old, new = record(**writer), record(**reader)
    if conflicts(reader=new, writer=old):
        return
    for pick in (0, -1):
        datum = {name: _value(kind, pick) for name, kind in writer.items()}
        data = _bytes(old, datum)

        read = fastavro.schemaless_reader(data, json.loads(json.dumps(old)), json.loads(json.dumps(new)))

        assert read == {name: datum[name] for name in reader}


def _value(kind: Any, pick: int) -> Any:
    if isinstance(kind, dict):
        return [1, 2]
    branch = kind[pick] if isinstance(kind, list) else kind
    return VALUES.get(branch)


def _bytes(schema: Any, datum: Any) -> Any:
    import io

    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, datum)
    out.seek(0)
    return out
