"""What is halted, by the word of the authority alone."""

from __future__ import annotations

import pytest

from refold.core.approval.catalog import HALT, UNREADABLE, Catalog, Halts, halt_name
from refold.core.errors import UsageError
from refold.core.messages import CatalogEntry
from refold.core.wire import codec
from tests.roots import TRUST, publish

CALL = {"agent": "coder", "tool": "edit_file", "pool": "files", "requester": "ada"}


def halted(*names: str) -> Catalog:
    """A catalog in which this is halted."""
    found = Catalog(TRUST)
    for name in names:
        assert publish(found, name, HALT, "look first") == ""
    return found


@pytest.mark.parametrize(
    "name", ["halt/all", "halt/agent/coder", "halt/tool/edit_file", "halt/pool/files", "halt/requester/ada"]
)
def test_a_call_is_halted_by_whatever_it_belongs_to_and_goes_on(name: str) -> None:
    catalog = halted(name)

    assert catalog.halts.why(**CALL).endswith("is halted: look first")

    assert publish(catalog, name, HALT, None) == ""
    assert catalog.halts.why(**CALL) == ""


def test_a_halt_of_an_agent_reaches_what_its_runs_wait_for() -> None:
    halts = halted("halt/agent/boss").halts

    assert halts.why(**CALL, above=["chief", "boss"]) == "agent boss is halted: look first"
    assert halts.why(**CALL, above=["chief"]) == ""


def test_others_go_on() -> None:
    catalog = halted("halt/agent/deploy", "halt/tool/edit", "halt/pool/default", "halt/requester/bob")

    assert catalog.halts.why(**CALL) == ""


def test_another_spelling_of_a_name_is_no_way_around_it() -> None:
    catalog = halted("halt/requester/Ada", "halt/agent/\uff43oder")

    assert catalog.halts.why(**{**CALL, "agent": ""})
    assert catalog.halts.why(**{**CALL, "requester": ""})


def test_what_is_halted_twice_waits_for_both() -> None:
    catalog = halted("halt/tool/edit_file", "halt/all")

    publish(catalog, "halt/all", HALT, None)

    assert "edit_file" in catalog.halts.why(**CALL)


def test_nobody_else_lets_it_go_on() -> None:
    catalog = halted("halt/tool/edit_file")

    catalog.follow(9, b"halt/tool/edit_file", codec.encode(CatalogEntry("halt/tool/edit_file", HALT, "null")))
    catalog.follow(10, b"halt/tool/edit_file", None)

    assert catalog.halts.why(**CALL)
    assert catalog.void == 2


def test_what_nobody_can_read_halts() -> None:
    catalog = Catalog(TRUST)

    publish(catalog, "halt/tool/edit_file", HALT, {"until": "a field of tomorrow"})

    assert UNREADABLE in catalog.halts.why(**CALL)


def test_what_is_no_scope_halts_nothing() -> None:
    for scope, name in (("all", "x"), ("tool", ""), ("run", "r-1")):
        with pytest.raises(UsageError, match="nothing is called"):
            halt_name(scope, name)
    catalog = Catalog(TRUST)
    for wrong in ("halt/run/r-1", "halt/tool", "halt/all/x", "halt"):
        assert publish(catalog, wrong, HALT, "x")
    assert catalog.halts == Halts()
