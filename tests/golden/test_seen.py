"""What users see of runs, approvals, budgets and letters is what it was, byte for byte."""

from __future__ import annotations

from typing import get_args

import pytest

from refold.core.events import Event
from refold.core.run import chain
from tests.golden import everything, seen
from tests.golden.seen import Case, cases, headline, kept, recorded, run


def of(case: tuple[str, Case, bool]) -> str:
    return " ".join(case[1])[:80]


@pytest.mark.parametrize(("name", "case", "writes"), cases(), ids=map(of, cases()))
def test_a_command_prints_what_it_printed(name: str, case: Case, writes: bool) -> None:
    assert run(case, writes=writes) == kept(name)[headline(case)], "meant? `python -m tests.golden.seen` writes it anew"


def test_every_kind_of_event_is_recorded() -> None:
    there = {
        type(event)
        for record in recorded().reader.scan("run-log")
        if isinstance(read := chain.read(record.key, record.value), chain.LogRecord)
        for event in read.entry.events
    }

    assert there == set(get_args(Event))


def test_every_golden_has_its_command() -> None:
    there = {(path.stem, head) for path in seen.GOLDENS.glob("*.txt") for head in kept(path.stem)}

    assert there == {(name, headline(case)) for name, case, _ in cases()}


def test_the_platform_is_recorded_the_same_each_time() -> None:
    again = everything.build()

    for topic in recorded().broker.topics:
        lies, made = (
            [(r.partition, r.offset, r.key, r.value) for r in platform.reader.scan(topic)]
            for platform in (recorded(), again)
        )
        assert lies == made
