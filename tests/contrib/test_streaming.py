"""What a model says is told while it says it: numbered, lossy, and never a part of the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent
from pydantic_ai.models.function import FunctionModel

from refold import App
from refold.client import AsyncClient, Client, LivePart
from refold.client.streams import Tries
from refold.contrib.pydantic_ai import RefoldDurability, durable
from refold.core.ids import CallId, RunId
from refold.core.messages import StreamPart, ToolRequest
from refold.engine.adapters.kafka.writer import MOST_KBYTES, KafkaLive
from refold.engine.runtime.settings import KafkaSettings
from refold.sdk.current_attempt import MOST_A_SECOND, MOST_PART, CurrentAttempt
from refold.testing import run, start
from tests.cli.terminal import Dev, served
from tests.contrib import streaming
from tests.contrib.thinking import says, scripted
from tests.tidy.repository import ROOT
from tests.waiting import eventually


def text_of(parts: list[Any]) -> str:
    return "".join(json.loads(part.data)["text"] for part in parts if part.kind == "text")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACE", str(tmp_path))
    return tmp_path


def test_what_a_model_says_is_told_in_numbered_parts_and_paid_once(here: Path) -> None:
    begun = start(streaming.app, "talker", prompt="speak")
    ended = begun.finish()

    heard = begun.executors.live.parts
    assert ended.value == "one two three"
    assert text_of(heard) == "one two three"
    assert [part.n for part in heard] == list(range(1, len(heard) + 1))
    assert {(part.run_id, part.call_id, part.attempt) for part in heard} == {("r-1", "r-1/3", 1)}
    assert (here / "asked").read_text() == "asked\n"


def test_a_request_is_streamed_only_where_somebody_wants_it() -> None:
    app = App("shop")
    durable(app, Agent(scripted(says("hello")).model, name="shop"))

    begun = start(app, "shop", prompt="hello")

    assert begun.finish().value == "hello"
    assert [call.tool for call in begun.calls] == ["shop__model.request"]
    assert begun.executors.live.parts == []


def test_a_handler_of_events_gets_each_of_them_and_who_looks_on_as_well(here: Path) -> None:
    seen = list[str]()

    async def handler(ctx: RunContext[None], events: AsyncIterable[Any]) -> None:
        async for event in events:
            if isinstance(event, PartStartEvent | PartDeltaEvent):
                seen.append(event.event_kind)

    model = FunctionModel(stream_function=streaming.speak, model_name="speaker")
    app = App("talk")
    durable(app, Agent(model, name="talker"), RefoldDurability(event_stream_handler=handler))
    begun = start(app, "talker", prompt="speak")

    assert begun.finish().value == "one two three"
    assert seen[:1] == ["part_start"]
    assert text_of(begun.executors.live.parts) == "one two three"


def test_a_call_is_what_it_is_when_nobody_takes_what_it_says(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CurrentAttempt, "tell", lambda *_: None)

    assert run(streaming.app, "talker", prompt="speak").value == "one two three"


def order(attempt: int = 1) -> ToolRequest:
    fields: dict[str, Any] = dict.fromkeys(ToolRequest.__annotations__, "")
    return ToolRequest(**{**fields, "run_id": RunId("r-1"), "call_id": CallId("r-1/3"), "attempt": attempt})


def test_what_is_too_much_is_dropped_and_has_a_number() -> None:
    heard = list[StreamPart]()
    attempt = CurrentAttempt(order(), heard.append)
    attempt.tell("text", {"text": "x" * MOST_PART})
    for _ in range(3 * MOST_A_SECOND // 10_000):
        attempt.tell("text", {"text": "x" * 10_000})

    assert heard[0].n == 2
    assert sum(len(part.data) for part in heard) < 2 * MOST_A_SECOND


def test_what_has_no_form_in_json_is_dropped_and_fails_no_call() -> None:
    heard = list[StreamPart]()
    attempt = CurrentAttempt(order(), heard.append)

    for text in ("\ud83d", "\ude42", "yes"):
        attempt.tell("text", {"text": text})

    assert [(part.n, part.data) for part in heard] == [(3, '{"text":"yes"}')]


def test_a_broker_that_does_not_answer_holds_nobody_up_and_takes_no_memory() -> None:
    live = KafkaLive(KafkaSettings(bootstrap="127.0.0.1:1"), "test", pool="model", partitions=4)
    full = StreamPart(RunId("r-1"), CallId("r-1/3"), 1, 1, 1, "text", "x" * MOST_PART)

    for _ in range(2 * MOST_KBYTES * 1024 // MOST_PART):
        live.tell(full)

    assert len(live._producer or ()) * MOST_PART <= 1.1 * MOST_KBYTES * 1024, "librdkafka stops when it is over"
    live.close()


def part(attempt: int, n: int, began_ms: int = 0) -> StreamPart:
    return StreamPart(RunId("r-1"), CallId("r-1/3"), attempt, began_ms or attempt, n, "text", "{}")


def test_a_try_that_was_superseded_is_told_from_the_one_that_counts() -> None:
    tries = Tries()
    sent = [part(1, 1), part(1, 2), part(2, 1), part(1, 3), part(2, 2), part(2, 1, 9), part(2, 3)]

    told = [tries.read(each) for each in sent]

    assert [each and (each.attempt, each.n, each.supersedes) for each in told] == [
        *((1, 1, False), (1, 2, False), (2, 1, True), None, (2, 2, False), (2, 1, True), None)
    ]


# On a real platform.


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dev, Path]]:
    data, place = tmp_path_factory.mktemp("dev"), tmp_path_factory.mktemp("place")
    app = ROOT / "tests/contrib/streaming.py"
    with served(app, data, PLACE=str(place), PYTHONPATH=str(ROOT)) as running:
        yield running, place


@pytest.mark.long
def test_who_looks_on_is_told_that_a_killed_try_counts_no_more_and_costs_nothing(talk: tuple[Dev, Path]) -> None:
    dev, place = talk
    (place / "hang").touch()
    asked = place / "asked"

    with Client(data=str(dev.data)) as client:
        client.start("talker", {"prompt": "speak"}, id="talk-1")
        stream, heard = client.stream("talk-1"), list[LivePart]()
        while "".join(each.data["text"] for each in heard) != "one two ":
            heard.append(next(stream))
        dev.kill("executor")
        (place / "hang").unlink()
        assert client.result("talk-1") == "one two three"
        while not heard[-1].supersedes:
            heard.append(next(stream))
        again = heard[-1:]
        while "".join(each.data["text"] for each in again) != "one two three":
            again.append(next(stream))

    assert asked.read_text().count("asked") == 2
    assert [each.n for each in again] == list(range(1, len(again) + 1))
    lines = dev.refold("run", "watch", "talk-1", "--tokens", "--timeout", "2").stdout
    assert "counts no more" in lines
    assert asked.read_text().count("asked") == 2


def test_who_looks_on_with_asyncio_hears_the_same(talk: tuple[Dev, Path]) -> None:
    async def story() -> list[LivePart]:
        async with AsyncClient(data=str(talk[0].data)) as client:
            await client.start("talker", {"prompt": "speak"}, id="talk-2")
            heard = list[LivePart]()
            async with aclosing(client.stream("talk-2")) as stream:  # type: ignore[type-var]
                async for part in stream:
                    heard.append(part)
                    if part.data["text"] == "three":
                        break
            # All threads are free again, whoever has looked on.
            assert await asyncio.gather(*(client.result("talk-2") for _ in range(20))) == ["one two three"] * 20
            assert [each async for each in client.stream("nobody", timeout=timedelta(seconds=0.2))] == []
            return heard

    heard = asyncio.run(story())

    assert "".join(each.data["text"] for each in heard) == "one two three"
    assert [(each.n, each.supersedes) for each in heard] == [(n, False) for n in range(1, len(heard) + 1)]


@pytest.mark.long
def test_an_agent_that_waits_for_people_and_the_world_outlives_every_process(talk: tuple[Dev, Path]) -> None:
    dev, place = talk
    with Client(data=str(dev.data), actor="ada") as client:
        client.start("clerk", {"prompt": "Charge 5 and ship."}, id="clerk-1")
        [asked] = eventually(lambda: client.get("clerk-1").approvals, what="the question")
        for service in ("planner", "executor", "approval"):
            dev.kill(service)
        assert not (place / "charged").exists()
        client.decide(asked, "approve")
        eventually((place / "posted").exists, what="the token")
        for service in ("executor", "planner"):
            dev.kill(service)
        [token] = set((place / "posted").read_text().split())
        client.complete(token, {"calls": {"call-1": "parcel 7"}})

        assert client.result("clerk-1") == "charged 5; parcel 7"

    assert (place / "decided").read_text().split() == ["0", "1", "2"]
    assert (place / "charged").read_text().split() == ["5"]
