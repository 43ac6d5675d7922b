"""A slice of the random programs that `make sim` runs, and proof that plain asyncio sees what they may not do."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.sim.bugs.bugs import planted
from tests.simulator.campaign import NEEDED_PROGRAMS, Named, programs
from tests.simulator.case import run_programs
from tests.simulator.programs.grammar import LEAVES, TREES, every_part, words
from tests.simulator.programs.judge import differences
from tests.simulator.shrinking import shrink
from tests.simulator.workload.programs import program_schedule, trees_in

PROGRAMS = 50
"""About 5 s of one core. `make sim` runs 20,000 of them."""

MOST = 400
"""Programs that the hunt for a bug may cost."""


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What happened in the cases of this file."""
    return Counter()


def test_programs_do_under_faults_what_plain_asyncio_does(seen: Counter[str]) -> None:
    struck = 0
    for case in programs(PROGRAMS, seed=5_000_000):
        outcome = case.run()
        assert not outcome.wrong, f"run it again: {case.command}\n{outcome.report}"
        seen.update(outcome.counts)
        struck += len(outcome.struck)

    assert struck > PROGRAMS
    assert seen["programs"] > PROGRAMS


@pytest.mark.parametrize("what", [what for what in NEEDED_PROGRAMS if what.startswith("program: ")])
def test_programs_have_met(what: str, seen: Counter[str]) -> None:
    assert seen[what] > 0, "programs in which this never happened prove nothing"


def test_a_program_is_made_of_its_seed_and_has_every_construct() -> None:
    drawn = [tree for seed in range(200) for tree in trees_in(program_schedule(seed)[0]).values()]

    assert drawn == [tree for seed in range(200) for tree in trees_in(program_schedule(seed)[0]).values()]
    assert {part["do"] for tree in drawn for part in every_part(tree)} == {*LEAVES, *TREES}


def test_the_same_seed_has_the_same_trace() -> None:
    assert run_programs(4).trace == run_programs(4).trace != run_programs(5).trace


def _history(*kinds: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    entry = {"run_id": "p-1", "seq": 1, "at_ms": 1_000, "held": False}
    asked = {"agent": "program", "input": json.dumps({"tree": _RACE})}
    first = {**entry, "events": [("RunRequested", asked), ("RunStarted", {}), *map(_proposed, (1, 2))]}
    return [first, *({**entry, "events": [kind]} for kind in kinds)]


def _proposed(step: int) -> tuple[str, dict[str, Any]]:
    return "CallProposed", {"step": step, "tool": "push", "args": f'{{"n":{step}}}', "retry": {"attempts": 3}}


_RACE = {"do": "race", "n": 3, "of": [{"do": "call", "n": n, "tool": "push", "tries": 0} for n in (1, 2)]}
_WON = "CallCompleted", {"step": 2, "result": "7"}
_GIVEN_UP = "StepGivenUp", {"step": 1}
_OVER = "RunCompleted", {"result": "[[1,7]]"}


def _differences(*events: tuple[str, dict[str, Any]]) -> list[str]:
    history = _history()
    return differences("p-1", _RACE, [*history, {**history[0], "events": list(events)}])


def test_a_race_as_it_has_to_be_is_not_objected_to() -> None:
    assert _differences(_WON, _GIVEN_UP, _OVER) == []


@pytest.mark.parametrize(
    ("what", "events"),
    [
        ("end", [_WON, _GIVEN_UP, ("RunCompleted", {"result": "[[0,7]]"})]),
        ("end", [_WON, _GIVEN_UP, ("RunFailed", {"failure": {"code": "ValueError"}})]),
        ("end", [_OVER]),
        ("given up", [_GIVEN_UP]),
        ("open", [_WON]),
        ("invented", [_proposed(3)]),
        ("late", [_WON, _WON]),
        ("tries", [("CallDispatched", {"step": 1, "attempt": 4})]),
    ],
)
def test_plain_asyncio_objects(what: str, events: list[tuple[str, dict[str, Any]]]) -> None:
    (found, *_) = _differences(*events)

    assert found.startswith(f"program: {what}: run p-1")


def test_a_step_that_the_log_lacks_is_missed() -> None:
    (first,) = _history()
    less = {**first, "events": first["events"][:-1]}

    assert differences("p-1", _RACE, [less])[0].startswith("program: missing: run p-1")


def _round(first: int, until_ms: int) -> list[tuple[str, dict[str, Any]]]:
    """What a group does once whose call is denied at once."""
    call, wait = (
        {**_proposed(1)[1], "step": first},
        {"step": first + 1, "name": "go", "match": "", "until_ms": until_ms},
    )
    notes = [("NoteRecorded", {"step": first + 2 + n, "kind": "left", "data": str(n)}) for n in (1, 2)]
    denied = "CallFailed", {"step": first, "failure": {"code": "denied"}}
    return [("CallProposed", call), denied, ("WaitStarted", wait), ("StepGivenUp", {"step": first + 1}), *notes]


def test_of_two_equal_waits_after_a_retry_the_one_that_began_first_is_the_first() -> None:
    wait = {"do": "wait", "n": 2, "name": "go", "match": "", "ms": 300}
    group = {"do": "group", "n": 3, "of": [{"do": "call", "n": 1, "tool": "push", "tries": 0}, wait]}
    tree = {"do": "again", "n": 4, "times": 2, "of": [group]}
    asked = "RunRequested", {"agent": "program", "input": json.dumps({"tree": tree})}
    again, failed = (
        ("NoteRecorded", {"kind": "again", "data": "4"}),
        ("RunFailed", {"failure": {"code": "ExceptionGroup"}}),
    )

    def life(first: int, at_ms: int) -> list[tuple[str, dict[str, Any]]]:
        over = again[0], {**again[1], "step": first + 5}
        return [*_round(first, at_ms + 300), over, *_round(first + 6, at_ms + 300), failed]

    entry = {"run_id": "p-1", "seq": 1, "held": False}
    retried = "RunRetried", {"from_step": 0, "again": []}
    log = [
        {**entry, "at_ms": 1_000, "events": [asked, ("RunStarted", {}), *life(1, 1_000)]},
        {**entry, "at_ms": 2_000, "events": [retried, *life(12, 2_000)]},
    ]

    assert differences("p-1", tree, log) == []


def test_a_program_is_spared_the_parts_that_it_fails_without() -> None:
    with planted("give-up-lost"):
        case = next(case for case in programs(200, seed=35) if case.run().wrong)
        least = shrink(case, tries=20)

        assert least.run().wrong
        assert any(part.startswith("part-") for part in least.less)
        assert f"--mode programs --seed {case.seed} --one --less {least.less[0]}" in least.command
    assert words(_RACE) == "race 3(call 1 push, call 2 push)"


SHOWN_AT = {
    **dict.fromkeys(("signal-taken-twice", "equal-waits-share-an-answer", "late-child-heard"), 7),
    "kept-signal-passed-over": 6,
    "given-up-child-goes-on": 61,
    "orphans-go-on": 61,
    "code-while-paused": 128,
    "kept-back-for-ever": 221,
}
"""The seed of the first program that shows a bug, where that is not the second."""


@pytest.mark.parametrize(
    "name",
    [
        *("give-up-lost", "loser-left-open", "signal-taken-twice", "equal-waits-share-an-answer"),
        *("kept-signal-passed-over", "late-child-heard", "given-up-child-goes-on", "orphans-go-on"),
        *("skip-the-claim", "timers-early", "drain-charges-an-attempt", "code-while-paused", "kept-back-for-ever"),
    ],
)
def test_programs_show_what_is_planted(name: str) -> None:
    with planted(name):
        found = next((case for case in programs(MOST, seed=SHOWN_AT.get(name, 0)) if _objects(case)), None)

    assert found is not None, "programs are blind to this bug"
    assert not found.run().wrong, "it was the bug that was found"


def _objects(case: Named) -> bool:
    wrong = case.run().wrong
    return bool(wrong) and not any(what.startswith("crash:") for what in wrong)
