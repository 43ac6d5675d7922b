"""Messages of each model, made from the log alone: by a reader that has no framework, for people and over HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from refold.client.reading.messages import messages_of, turns_of
from refold.core.errors import NotFoundError
from refold.core.events import CallProposed, Entry
from refold.core.ids import log_key
from refold.core.wire import canonical, codec
from refold.testing import AgentRun, run
from tests.contrib.test_conversation import plain, readers
from tests.gateway.test_reading import Bench, served

TURNS = 4


def requests(ended: AgentRun) -> list[int]:
    """The steps that asked a model."""
    calls = enumerate(ended.state.steps, 1)
    return [n for n, call in calls if isinstance(call, CallProposed) and call.tool.endswith("model.request")]


def test_the_messages_of_every_request_are_those_that_the_model_got() -> None:
    app, model = readers(TURNS, 500)
    ended = run(app, "reader", prompt="read")

    seen = [messages_of(ended.state, step) for step in requests(ended)]

    assert [each.messages for each in seen] == [plain(asked) for asked in model.asked]
    assert len(seen) == TURNS + 1
    assert all(each.verified and not each.why and each.digest for each in seen)
    with pytest.raises(NotFoundError, match="step 2 of run r-1 is no request to a model"):
        messages_of(ended.state, 2)
    for none in (0, -1, 99):
        with pytest.raises(NotFoundError, match="has no step"):
            messages_of(ended.state, none)


def altered(ended: AgentRun, step: int, args: str) -> AgentRun:
    call = ended.state.steps[step - 1]
    assert isinstance(call, CallProposed)
    steps = list(ended.state.steps)
    steps[step - 1] = replace(call, args=args)
    ended.state.steps = ended.state.steps.__class__(steps)
    return ended


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 32},
        {"model": "another"},
        {"on": 99},
        {"on": "x"},
        {"on": []},
        {"$run": "x"},
        {"messages": []},
        {"messages": [{}]},
        {"messages": [{"$said": 1, "with": 7}]},
        {"messages": [{"$instructions": True, "parts": []}], "on": None},
        {"messages": [{"parts": [{"$result": 99}]}]},
        {"messages": [{"parts": 1}]},
        {"messages": [{"parts": ["x"]}]},
        {"settings": [1]},
    ],
    ids=str,
)
def test_what_is_not_what_was_recorded_is_shown_as_such_and_without_messages(change: dict[str, Any]) -> None:
    app, _ = readers(TURNS, 500)
    ended = run(app, "reader", prompt="read")
    step = requests(ended)[2]
    asked = canonical.parse(ended.state.call(step).args) | change

    seen = messages_of(altered(ended, step, canonical.dumps(asked)).state, step)

    assert (seen.verified, seen.messages) == (False, [])
    assert seen.why.startswith("the request is not what its arguments say")


def test_a_large_request_is_read_where_it_lies_or_named() -> None:
    app, model = readers(TURNS, 500)
    ended = run(app, "reader", prompt="read")
    step = requests(ended)[1]
    args, pointer = ended.state.call(step).args, f"blob:{'a' * 64}:70000"
    altered(ended, step, pointer)

    nowhere = messages_of(ended.state, step)
    found = messages_of(ended.state, step, lambda text: args if text == pointer else text)

    assert (nowhere.verified, nowhere.messages) == (False, [])
    assert nowhere.why == f"{pointer} lies in the blob store, and none is set"
    assert (found.verified, found.messages) == (True, plain(model.asked[1]))


def test_no_framework_is_loaded_for_it() -> None:
    code = "import sys, refold.client.reading.messages; sys.exit(any('pydantic_ai' in name for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.fixture
def site() -> Iterator[Bench]:
    with served() as site:
        yield site


def test_they_are_read_over_http_and_a_run_at_a_point_shows_what_its_model_is_about_to_see(site: Bench) -> None:
    app, model = readers(TURNS, 500)
    ended = run(app, "reader", prompt="read")
    for key, value in ended.records:
        site.log.write(key, value)
    site.catch_up()
    step = requests(ended)[2]
    entries = [codec.decode(Entry, value) for _, value in ended.records]
    asked_at = next(
        each.seq + place
        for each in entries
        for place, event in enumerate(each.events)
        if isinstance(event, CallProposed) and event.step == step
    )
    assert log_key(entries[0].run_id, 1, ended.state.heads[0].id) == ended.records[0][0]

    seen = site.get(f"/api/runs/r-1/steps/{step}/messages")
    then = site.get(f"/api/runs/r-1?at_seq={asked_at}")["models"]

    assert (seen["verified"], seen["messages"]) == (True, plain(model.asked[2]))
    assert [(each["step"], each["messages"], each["verified"]) for each in then] == [(step, 5, True)]
    assert then[0]["last"].startswith('"page 1 xxx')
    assert len(then[0]["last"]) == 200
    assert [each.step for each in turns_of(ended.state)] == []
    assert site.get("/api/runs/r-1")["models"] == []
    assert site.get("/api/runs/r-1/steps/2/messages", 404)["code"] == "not_found"
    assert site.get("/api/runs/r-1/steps/0/messages", 422)["code"] == "malformed"
    assert site.get("/api/runs/nobody/steps/1/messages", 404)["code"] == "not_found"
