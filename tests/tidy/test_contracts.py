"""That events, schemas and samples belong together."""

from __future__ import annotations

from typing import get_args

import pytest

from refold.core.events import Event
from refold.core.run.fold import kinds
from refold.core.wire import codec, schemas
from refold.dev.schemas.export import check_schemas
from tests.golden.samples import recorded
from tests.tidy.repository import ROOT


@pytest.mark.parametrize("event", get_args(Event), ids=lambda cls: cls.__name__)
def test_an_event_has_a_transition_a_schema_and_a_golden_sample(event: type) -> None:
    [items] = [
        spec["type"]["items"] for spec in schemas.registered()[1]["run-log"][1]["fields"] if spec["name"] == "events"
    ]

    assert event in kinds()
    assert event.__name__ in {branch["name"] for branch in items}
    assert event.__name__ in recorded()


def test_the_exported_schemas_are_those_of_the_classes() -> None:
    assert check_schemas() == []


def test_every_schema_file_is_in_the_lock_and_of_a_message() -> None:
    files = {path.name for path in (ROOT / "schemas").glob("*.avsc")}

    assert files == {schemas.file_name(line) for line in schemas.locked()}
    assert {line.subject for line in schemas.locked()} == set(codec.SUBJECTS.values())
