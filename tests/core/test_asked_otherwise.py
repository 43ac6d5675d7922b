"""An id is taken by the whole of a request: the same again is a repeat, with anything else it is a conflict."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest

from refold.core.events import Spendable
from refold.core.planning.family import request_digest
from refold.core.planning.verdict import Ignore, Refuse
from tests.core.histories import Log, start


def again(log: Log, **changes: Any) -> Any:
    asked = start(**changes)
    return log.feed(replace(asked, digest=request_digest(asked.request)))


def begun() -> Log:
    log, asked = Log(), start()
    log.feed(replace(asked, digest=request_digest(asked.request)))
    return log


def test_the_same_request_again_changes_nothing() -> None:
    assert isinstance(again(begun()), Ignore)
    assert isinstance(again(begun(), token="whoever sends it again signs it again"), Ignore)


@pytest.mark.parametrize(
    "changes",
    [
        {"input": "1"},
        {"agent": "other"},
        {"requester": "eve"},
        {"deadline_ms": 1 << 60},
        {"not_before_ms": 1},
        {"labels": {"tenant": "acme"}},
        {"sessions": ["s"]},
        {"budget": Spendable(calls=1)},
    ],
)
def test_whatever_else_is_asked_for_is_a_conflict(changes: dict[str, Any]) -> None:
    refused = again(begun(), **changes)

    assert isinstance(refused, Refuse)
    assert refused.code == "conflict"


def test_a_run_of_an_earlier_version_knows_its_request() -> None:
    log, asked = Log(), start()
    earlier = blake2b(f"6:deploy{asked.request.input}".encode(), digest_size=16).hexdigest()
    log.feed(replace(asked, digest=earlier))

    assert isinstance(again(log), Ignore)
    assert isinstance(again(log, input="1"), Refuse)
