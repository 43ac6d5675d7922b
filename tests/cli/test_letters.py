"""Which dead letters an operator sends again: only those of inputs, and only what still lies where they say."""

from __future__ import annotations

import pytest

from refold.client.letters import original
from refold.core.errors import ConflictError, NotFoundError, RefoldError, UsageError
from refold.core.messages import DeadLetter
from refold.engine.ports.log import Record

_LYING = [
    Record("run-signalled", 0, 3, b"r-1/a", b"one", tuple),
    Record("run-signalled", 0, 5, b"r-1/b", b"two", tuple),
]


def _letter(
    topic: str = "run-signalled", offset: int = 3, *, key: bytes = b"r-1/a", value: bytes = b"one"
) -> DeadLetter:
    return DeadLetter(topic, 0, offset, "malformed", "no reason", key, value, "planner-1", 0)


def test_what_lies_where_the_letter_says_is_sent_again() -> None:
    assert original(_letter(), lambda: _LYING, letter="0/1") is _LYING[0]


@pytest.mark.parametrize(
    ("letter", "error"),
    [
        *((_letter(topic), UsageError) for topic in ("catalog", "approval-decided", "approval-voted", "dead-letter")),
        *(
            (_letter(topic), UsageError)
            for topic in ("tool-requested.default", "tool-completed.default", "run-log", "")
        ),
        (_letter(offset=4), NotFoundError),
        (_letter(offset=9), NotFoundError),
        (_letter(value=b"another"), ConflictError),
        (_letter(key=b"r-2/a"), ConflictError),
        (_letter(offset=5), ConflictError),
    ],
)
def test_what_only_the_letter_says_is_not(letter: DeadLetter, error: type[RefoldError]) -> None:
    with pytest.raises(error):
        original(letter, lambda: _LYING, letter="0/1")
