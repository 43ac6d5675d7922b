"""Updates and exposed values of runs on a real platform, while its planners are killed and gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from refold.client import Client
from refold.core.errors import ClosedError, ReusedIdError, TimedOutError, UpdateFailed
from tests.cli.terminal import Dev
from tests.cli.test_gateway_live import answers, started
from tests.waiting import eventually


@pytest.fixture
def http(dev: Dev) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=dev.state["gateway"], timeout=60) as client:
        eventually(lambda: answers(client))
        yield client


@pytest.fixture
def client(dev: Dev) -> Iterator[Client]:
    with Client(data=str(dev.data), actor="ann") as client:
        yield client


def update(http: httpx.Client, run: str, key: str, data: Any, **params: Any) -> httpx.Response:
    path, headers = f"/api/runs/{run}/updates/add", {"Idempotency-Key": key}
    return http.post(path, json={"data": data}, headers=headers, params={"wait": 30, **params})


def test_an_update_is_answered_once_from_each_side(dev: Dev, http: httpx.Client, client: Client) -> None:
    started(http, "basket-1", "basket")

    first = update(http, "basket-1", "u-1", {"item": "pen"})
    again = update(http, "basket-1", "u-1", {"item": "pen"})
    other = update(http, "basket-1", "u-1", {"item": "cap"})
    refused = update(http, "basket-1", "u-2", {"item": "cap", "count": 0})
    named = dev.read("run", "update", "basket-1", "add", "--payload", '{"item": "ink", "count": 2}', "--id", "u-3")

    assert (first.status_code, first.json()["result"], first.json()["outcome"]) == (200, 1, "accepted")
    assert (again.status_code, again.json()["result"], again.json()["outcome"]) == (200, 1, "known")
    assert other.status_code == 422
    assert refused.json()["failure"]["code"] == "ValueError"
    assert named["result"] == 3
    assert client.update("basket-1", "add", {"item": "ink", "count": 2}, id="u-3") == 3
    with pytest.raises(UpdateFailed, match="nothing to add"):
        client.update("basket-1", "add", {"item": "cap", "count": 0})
    with pytest.raises(ReusedIdError):
        client.update("basket-1", "add", {"item": "cap"}, id="u-3")
    read = http.get("/api/runs/basket-1/values", headers={"Refold-After": first.headers["refold-after"]}).json()
    assert read == {"items": ["pen", "ink", "ink"]}
    assert dev.read("run", "value", "basket-1", "items") == read["items"]
    dev.refold("run", "update", "basket-1", "add", "--payload", '{"item": 7}', code=1)
    client.signal("basket-1", "close")
    assert client.result("basket-1", timeout=timedelta(seconds=60)) == ["pen", "ink", "ink"]
    assert client.update("basket-1", "add", {"item": "ink", "count": 2}, id="u-3") == 3
    with pytest.raises(ClosedError):
        client.update("basket-1", "add", {"item": "cap"}, id="u-9")
    closed = update(http, "basket-1", "u-9", {"item": "cap"})
    assert (closed.status_code, closed.json()["code"]) == (409, "closed")
    dev.refold("run", "update", "basket-1", "add", "--payload", '{"item": "cap"}', code=4)


def test_an_answer_is_the_same_when_planner_and_executor_are_killed_under_it(
    dev: Dev, http: httpx.Client, client: Client
) -> None:
    started(http, "basket-2", "basket")
    for number in range(12):
        if number % 3 == 0:
            dev.kill("planner")
        if number % 4 == 1:
            dev.kill("executor")
        data = {"item": f"i{number}"}
        assert client.update("basket-2", "add", data, id=f"u-{number}", timeout=timedelta(seconds=90)) == number + 1

    for number in range(12):
        assert client.update("basket-2", "add", {"item": f"i{number}"}, id=f"u-{number}") == number + 1
    assert len(dev.effects("basket-2")) == 12
    items = [f"i{number}" for number in range(12)]
    eventually(lambda: http.get("/api/runs/basket-2/values").json() == {"items": items})


def test_values_are_read_while_no_planner_lives_and_a_late_answer_is_found(
    dev: Dev, http: httpx.Client, client: Client
) -> None:
    started(http, "basket-3", "basket")
    assert update(http, "basket-3", "u-1", {"item": "pen"}).status_code == 200
    hold = dev.data / "hold-basket-3"
    hold.touch()
    late = update(http, "basket-3", "u-2", {"item": "slow"}, wait=1)
    with pytest.raises(TimedOutError):
        client.update("basket-3", "add", {"item": "slow"}, id="u-2", timeout=timedelta(seconds=1))
    planner = dev.pid("planner")
    os.kill(planner, signal.SIGSTOP)
    try:
        shown = http.get("/api/runs/basket-3/values").json()
    finally:
        os.kill(planner, signal.SIGCONT)
    waits = threading.Timer(1, hold.unlink)
    waits.start()

    assert late.status_code == 202
    assert shown == {"items": ["pen"]}
    assert update(http, "basket-3", "u-2", {"item": "slow"}).json()["result"] == 2
    assert dev.effects("basket-3") == [line for line in dev.effects("basket-3") if "fired" in line or " 0 " in line]
    client.cancel("basket-3")
    assert update(http, "basket-3", "u-3", {"item": "cap"}).json()["code"] == "closed"
