"""The gateway's key vouches for labels of which the login says that they are the caller's, and for no others."""

from __future__ import annotations

import pytest

from refold.client.reading.api import RunBody
from refold.console.gateway.logins import Login
from refold.console.gateway.routes.inputs import run_request
from refold.core.approval.requester import check_token, why_refused
from refold.core.approval.signature import SigningKey
from refold.engine.runtime.clock import clock_ms
from tests.gateway.test_reading import Bench

KEY = SigningKey("gateway", "request", bytes(range(32)))
LABELS = {"tenant": "acme", "user": "ada", "colour": "red"}


@pytest.fixture(scope="module")
def bench() -> Bench:
    """A gateway."""
    return Bench()


@pytest.mark.parametrize(
    ("login", "good"),
    [
        (Login("ada", ("operator",)), ["user"]),
        (Login("ada", ("operator", "tenant=acme")), ["tenant", "user"]),
        (Login("ada", ("operator", "tenant=other", "tenant")), ["user"]),
        (Login("eve", ("admin",)), []),
        (Login("eve", local=True), ["colour", "tenant", "user"]),
    ],
    ids=str,
)
def test_limits_count_by_labels_that_the_login_has(bench: Bench, login: Login, good: list[str]) -> None:
    shared = bench.gateway.by(login)
    shared.request_key = KEY

    request = run_request(shared, RunBody(agent="ten", labels=LABELS))

    check_token(request)
    assert request.labels == LABELS
    keys = {KEY.kid: KEY.public()}
    assert [name for name in sorted(LABELS) if not why_refused(request, keys, clock_ms(), {name})] == good
    assert not why_refused(request, keys, clock_ms(), set())
