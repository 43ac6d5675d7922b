"""`examples/order.py`: a payment in time ships, none releases, and each happens once whatever is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold import App
from refold.testing import AgentRun, crash_matrix, start

app = App.load(str(Path(__file__).parents[2] / "examples/order.py"))


@pytest.fixture(autouse=True)
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that stands for the world."""
    monkeypatch.setenv("ORDERS", str(tmp_path))
    return tmp_path


def pays(run: AgentRun, amount: int = 20) -> AgentRun:
    """The provider answers with the token that it was given."""
    run.settle(1)
    run.settle(run.calls[1].step)
    return run.answer(run.calls[1].args["token"], {"amount": amount}).finish()


def test_a_payment_ships_the_parcel() -> None:
    paid = pays(start(app, "order", item="lamp"))

    assert paid.value.startswith("20 paid, parcel ")
    assert [call.tool for call in paid.calls] == ["reserve", "ask_for_payment", "ship"]


def test_without_a_payment_it_is_released_after_a_day() -> None:
    unpaid = start(app, "order", item="lamp").finish()

    assert unpaid.value == "released: TimeoutError"
    assert [call.tool for call in unpaid.calls] == ["reserve", "ask_for_payment", "release"]
    assert unpaid.now_ms - unpaid.state.started_ms >= 86_400_000


def test_a_payment_that_fails_releases_at_once() -> None:
    run = start(app, "order", item="lamp")
    run.settle(1)
    run.settle(run.calls[1].step)

    refused = run.answer(run.calls[1].args["token"], failure="no money").finish()

    assert refused.value == "released: CallbackError"


def test_each_effect_happens_once_whatever_is_killed(orders: Path) -> None:
    def happened() -> int:
        return len(list(orders.iterdir()))

    paid = crash_matrix(app, "order", {"item": "lamp"}, effects=happened, drive=pays)
    unpaid = crash_matrix(app, "order", {"item": "lamp"}, effects=happened)

    assert paid.effects == {"reserve": 1, "ask_for_payment": 1, "ship": 1}
    assert unpaid.effects == {"reserve": 1, "ask_for_payment": 1, "release": 1}
    assert (paid.doubts, unpaid.doubts) == ({}, {})
