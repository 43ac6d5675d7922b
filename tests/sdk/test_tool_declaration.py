"""What `@app.tool` does not accept, and says so at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from refold import Retry, UsageError
from refold.core.events import RetryPolicy
from tests.sdk.attempts import tool


def _plain(n: int) -> None: ...


async def _probe(*, idempotency_key: str) -> None: ...


def _probe_of_others(other: int) -> None: ...


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"effect": "idempotent"}, "use pure, keyed, probed or once"),
        ({"effect": "probed"}, "has no probe"),
        ({"effect": "keyed", "probe": _probe}, "has a probe, and effect='keyed'"),
        ({"effect": "probed", "probe": _probe_of_others}, "probe of tool _plain asks for other"),
        ({"effect": "once", "key_window": timedelta(hours=1)}, "key_window= is for keyed tools"),
        ({"effect": "keyed"}, "takes no idempotency_key: .*keyed_by='arguments'"),
        ({"effect": "keyed", "keyed_by": "nature"}, "use key or arguments"),
        ({"effect": "once", "keyed_by": "arguments"}, "keyed_by= is for keyed tools"),
        ({"effect": "keyed", "key_window": timedelta(seconds=60)}, "key_window= is not longer than timeout="),
        ({"timeout": 30}, "not a timedelta"),
        ({"timeout": timedelta(0)}, "timeout is zero"),
        ({"timeout": timedelta(seconds=-1)}, "timeout is negative"),
        ({"lease": 5}, "not a timedelta"),
        ({"retry": 3}, "write retry=Retry"),
        ({"pool": "GPU pool"}, "lower-case"),
        ({"name": "a b"}, "not a tool name"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused_at_once(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        tool(**options)(_plain)


def _star(*names: str) -> None: ...


def _stars(**names: str) -> None: ...


def _nameless(n: int, /) -> None: ...


def _word(retry: int) -> None: ...


def _positional_key(idempotency_key: str) -> None: ...


def _no_json(call: Callable[[], None]) -> None: ...


def _untyped(name, n: int = 1, *, idempotency_key) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001


def _no_result(name: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    ...


def _unknown(what: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (_star, "no name of its own"),
        (_stars, "no name of its own"),
        (_nameless, "no name of its own"),
        (_word, "ctx.call uses the word retry itself"),
        (_positional_key, "idempotency_key must be keyword-only"),
        (_no_json, "no JSON form"),
        (_unknown, "'Nowhere' is not defined"),
        (_untyped, "tool _untyped: parameter name has no type: write `name: str`, or `name: Any`"),
        (_no_result, "tool _no_result: its result has no type: write `-> str`, or `-> None`"),
        (print, "is not a function"),
    ],
)
def test_a_signature_that_cannot_be_recorded_is_refused_at_once(function: Any, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        tool()(function)


def test_retries_are_checked_where_they_are_written() -> None:
    assert Retry(3, timedelta(seconds=1), timedelta(minutes=1)).policy == RetryPolicy(3, 1000, 60_000)
    with pytest.raises(UsageError, match="never tries"):
        Retry(attempts=0)
    with pytest.raises(UsageError, match="negative"):
        Retry(base=timedelta(seconds=-1))
    with pytest.raises(UsageError, match="not a timedelta"):
        Retry(cap=5)  # type: ignore[arg-type]
