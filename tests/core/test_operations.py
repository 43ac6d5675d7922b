"""Who may say what of a run: a user of their own, an operator of anybody's."""

from __future__ import annotations

import dataclasses

import pytest

from refold.core.events import RunCancelled, RunStarted
from refold.core.planning.decide import OPERATIONS, decide
from refold.core.planning.verdict import Ignore, Park, Refuse
from tests.core.histories import NOW, RULES, Log, operation, signal, start, started

SAYS = '{"reason":"enough"}'


def asked_by(requester: str) -> Log:
    log = Log()
    log.feed(start(requester=requester))
    return log


@pytest.mark.parametrize("spelt", ["ann", "Ann", " ANN "])
def test_who_asked_for_a_run_cancels_it(spelt: str) -> None:
    assert asked_by(spelt).feed(signal("cancel", SAYS)) == [RunCancelled("enough", "ann")]


@pytest.mark.parametrize("requester", ["bob", "ann@corp.example", "\u0430nn", "ann\u200b", "role:ann", "", " "])
def test_nobody_else_does(requester: str) -> None:
    found = asked_by(requester).feed(signal("cancel", SAYS))

    assert isinstance(found, Refuse)
    assert found.code == "operators_only"


def test_a_run_of_nobody_is_not_cancelled_by_nobody() -> None:
    assert isinstance(asked_by("").feed(dataclasses.replace(signal("cancel"), actor="")), Refuse)


@pytest.mark.parametrize("kind", sorted({*OPERATIONS} - {"cancel", "pause", "resume", "annotate"}))
def test_a_user_does_not_say_what_operators_say(kind: str) -> None:
    found = started().feed(signal(kind))

    assert isinstance(found, Refuse)
    assert found.code == "operators_only"


def test_an_operator_cancels_anybodys_run() -> None:
    for requester in ("bob", "ann", ""):
        assert asked_by(requester).feed(operation("cancel", SAYS)) == [RunCancelled("enough", "op")]


def test_an_operator_cancels_a_run_before_it_begins() -> None:
    log = Log()
    log.feed(dataclasses.replace(start(), waits=True))

    assert log.feed(operation("cancel")) == [RunCancelled("", "op")]
    assert not any(isinstance(event, RunStarted) for _, entry in log.entries for event in entry.events)


@pytest.mark.parametrize("kind", ["dance", "sing", ""])
def test_an_operator_says_nothing_else(kind: str) -> None:
    found = started().feed(operation(kind))

    assert isinstance(found, Refuse)
    assert found.code == "malformed"


def test_what_no_json_is_says_nothing() -> None:
    assert isinstance(started().feed(operation("cancel", "{")), Refuse)


def test_a_run_that_is_not_known_or_over_takes_nothing() -> None:
    log = started()
    log.feed(operation("cancel"))

    assert isinstance(decide(None, operation("cancel"), NOW, RULES), Park)
    assert isinstance(log.feed(operation("cancel")), Ignore)
