"""The clients against a real platform: what a program sees that starts runs, waits for them and decides for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from refold import Budget
from refold.client import AsyncClient, Client, RunEvent, Started
from refold.core.errors import (
    ConflictError,
    MalformedError,
    NotFoundError,
    RunFailedError,
    TimedOutError,
    UnreachableError,
    UsageError,
)
from refold.engine.adapters.kafka import clients
from tests.cli.terminal import Dev
from tests.waiting import eventually

SOON = timedelta(seconds=60)


@pytest.fixture
def client(dev: Dev) -> Iterator[Client]:
    """Give a client of the platform."""
    with Client(data=str(dev.data), actor="ann") as made:
        yield made


def token_of(client: Client, run: str) -> str:
    """The token that a run has noted."""
    for event in client.events(run, timeout=SOON):
        if event.type == "NoteRecorded" and event.event["kind"] == "token":
            return str(event.event["data"])
    raise AssertionError("the run has made no callback")


def test_a_run_is_started_once_by_its_id_and_answers_with_its_result(client: Client) -> None:
    first = client.start("marks", {"count": 2}, id="c-first", labels={"team": "a"}, sessions=["s-1"])
    again = client.start("marks", {"count": 2}, id="c-first", labels={"team": "a"}, sessions=["s-1"])

    assert (first, again) == (Started(run_id="c-first", known=False), Started(run_id="c-first", known=True))
    assert client.result("c-first", timeout=SOON) == 2
    assert client.start("marks", {"count": 2}, id="c-first", labels={"team": "a"}, sessions=["s-1"]).known
    with pytest.raises(ConflictError, match="exists with other input"):
        client.start("marks", {"count": 3}, id="c-first", labels={"team": "a"}, sessions=["s-1"])
    with pytest.raises(ConflictError, match="exists with other .*labels"):
        client.start("marks", {"count": 2}, id="c-first")
    info = client.get("c-first")
    assert (info.status, info.value, info.input, info.requester) == ("completed", 2, {"count": 2}, "ann")
    assert (info.labels, info.sessions, info.steps, info.approvals) == ({"team": "a"}, ["s-1"], 2, [])
    assert info.requested_at.tzinfo is UTC


def test_who_starts_a_run_may_make_its_budget_smaller(client: Client) -> None:
    client.start("marks", {"count": 3}, id="c-poor", budget=Budget(calls=1))

    with pytest.raises(RunFailedError) as raised:
        client.result("c-poor", timeout=SOON)

    assert raised.value.fields["failure"] == "budget_calls"


def test_without_an_id_every_start_is_another_run(client: Client) -> None:
    one, other = (client.start("marks", {"count": 1}) for _ in range(2))

    assert one.run_id != other.run_id
    assert [client.result(run.run_id, timeout=SOON) for run in (one, other)] == [1, 1]


@pytest.mark.parametrize(("inputs", "starters"), [([1, 1], 1), ([1, 2], 1)])
def test_of_two_clients_that_race_for_an_id_one_starts_the_run(dev: Dev, inputs: list[int], starters: int) -> None:
    run = f"c-race-{inputs[1]}"
    barrier = threading.Barrier(2)

    def start(count: int) -> Started | ConflictError:
        with Client(data=str(dev.data), actor="ann") as client:
            barrier.wait()
            try:
                return client.start("marks", {"count": count}, id=run)
            except ConflictError as error:
                return error

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(start, inputs))

    started = [answer for answer in answers if isinstance(answer, Started)]
    assert sum(not answer.known for answer in started) == starters
    assert len(started) == (2 if inputs[0] == inputs[1] else 1)


def test_the_end_of_a_run_without_a_result_says_why(client: Client) -> None:
    client.start("doomed", id="c-doomed")
    with pytest.raises(RunFailedError, match="has failed") as failed:
        client.result("c-doomed", timeout=SOON)
    assert (failed.value.fields["status"], failed.value.fields["failure"]) == ("failed", "not_done")
    assert "not today" in failed.value.fields["reason"]
    assert client.wait("c-doomed").status == "failed"

    client.start("sleeper", id="c-cancelled")
    said = client.cancel("c-cancelled", reason="too long")
    assert (said.outcome, said.status) == ("accepted", "cancelled")
    with pytest.raises(RunFailedError, match="was cancelled") as cancelled:
        client.result("c-cancelled", timeout=SOON)
    assert cancelled.value.fields["reason"] == "too long"
    assert client.cancel("c-cancelled").outcome == "known"


def test_a_wait_that_is_over_leaves_nothing_behind(client: Client) -> None:
    client.start("sleeper", id="c-sleeps")

    with pytest.raises(TimedOutError, match="run c-sleeps is not over after 0.3 s"):
        client.result("c-sleeps", timeout=timedelta(seconds=0.3))
    with pytest.raises(TimedOutError, match="run c-never is not over"):
        client.result("c-never", timeout=timedelta(seconds=0.3))
    events = client.events("c-sleeps", timeout=timedelta(seconds=0.3))
    with pytest.raises(TimedOutError, match="nothing new of run c-sleeps"):
        list(events)

    assert client._client._watcher._all() == []
    client.cancel("c-sleeps")


def test_a_request_that_nobody_can_take_is_refused_at_once(client: Client) -> None:
    with pytest.raises(MalformedError, match="is not a run id"):
        client.start("marks", id="a/b")
    with pytest.raises(MalformedError):
        client.start("marks", {"count": object()}, id="c-json")
    with pytest.raises(UsageError, match="without a zone"):
        client.start("marks", id="c-zone", deadline=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(NotFoundError, match="no run c-nobody"):
        client.get("c-nobody")
    assert client._client._watcher._all() == []


def test_the_events_of_a_run_are_those_of_its_history_from_any_position_on(dev: Dev, client: Client) -> None:
    client.start("marks", {"count": 3}, id="c-events")

    followed = list(client.events("c-events", timeout=SOON))

    listed = dev.lines("run", "events", "c-events")
    assert [(each.seq, each.type, each.event) for each in followed] == [
        (row["seq"], row["type"], row["event"]) for row in listed
    ]
    assert list(client.events("c-events", after=4, timeout=SOON)) == followed[4:]
    assert list(client.events("c-events", after=followed[-1].seq, timeout=SOON)) == []


def test_whoever_follows_a_run_that_goes_on_misses_nothing_and_hears_nothing_twice(client: Client) -> None:
    """Each begins elsewhere: what was before is read from the past, while what comes is heard."""
    client.start("marks", {"count": 100}, id="c-busy")

    def follow(number: int) -> list[int]:
        eventually(lambda: client.get("c-busy").seq > number * 25)
        return [event.seq for event in client.events("c-busy", after=number, timeout=SOON)]

    with ThreadPoolExecutor(8) as threads:
        heard = list(threads.map(follow, range(8)))

    last = client.get("c-busy").seq
    assert heard == [list(range(number + 1, last + 1)) for number in range(8)]


def test_what_a_run_waits_for_is_told_and_answered(client: Client) -> None:
    client.start("ordering", id="c-order")
    token = token_of(client, "c-order")

    told = client.signal("c-order", "shipped", {"parcel": "p-1"}, id="parcel-1")
    again = client.signal("c-order", "shipped", {"parcel": "p-1"}, id="parcel-1")
    paid = client.complete(token, 7, key="payment-1")

    assert (told.outcome, told.step > 0, again.outcome, again.step) == ("accepted", True, "known", told.step)
    assert (paid.outcome, client.result("c-order", timeout=SOON)) == (
        "accepted",
        {"parcel": "p-1", "by": "ann", "paid": 7},
    )
    with pytest.raises(ConflictError, match="is completed"):
        client.complete(token, 8)


def test_a_callback_that_is_failed_reaches_the_agent(client: Client) -> None:
    client.start("ordering", id="c-unpaid")
    token = token_of(client, "c-unpaid")
    client.signal("c-unpaid", "shipped", {"parcel": "p-2"})

    client.fail(token, "the card was declined")

    with pytest.raises(RunFailedError, match="the card was declined"):
        client.result("c-unpaid", timeout=SOON)


def test_a_run_is_paused_resumed_and_retried(dev: Dev, client: Client) -> None:
    client.start("sleeper", id="c-paused")
    assert client.pause("c-paused", reason="lunch").outcome == "accepted"
    assert client.get("c-paused").paused
    assert client.resume("c-paused").outcome == "accepted"
    assert not client.get("c-paused").paused
    client.cancel("c-paused")

    (dev.data / "closed-c-retry").touch()
    client.start("parcels", {"count": 1}, id="c-retry")
    assert client.wait("c-retry", timeout=SOON).status == "failed"
    (dev.data / "closed-c-retry").unlink()
    assert client.retry("c-retry", reason="the door is open").outcome == "accepted"
    assert client.result("c-retry", timeout=SOON) == 1
    with pytest.raises(ConflictError, match="nothing to retry"):
        client.retry("c-retry")


def test_a_question_is_shown_and_decided_signed(client: Client) -> None:
    client.start("cleaner", id="c-clean")
    [name] = eventually(lambda: client.get("c-clean").approvals)
    question = eventually(lambda: next((each for each in client.approvals() if each.id == name), None))

    assert (question.tool, question.args, question.state, question.agent) == (
        "wipe",
        {"run": "c-clean"},
        "open",
        "cleaner",
    )
    assert client.approval("c-clean") == question
    with pytest.raises(UsageError, match="does not name the question"):
        client.decide(question.call_id, "approve")
    decided = client.decide(name, "approve", message="go on")

    assert (decided.outcome, decided.verdict) == ("decided", "approve")
    assert client.result("c-clean", timeout=SOON) == "wiped"
    with pytest.raises(ConflictError, match="decided already"):
        client.decide(name, "reject")
    assert client.approval(name).state == "decided"


def test_an_answer_in_the_tool_s_place_is_the_result(client: Client) -> None:
    client.start("cleaner", id="c-answered")
    [name] = eventually(lambda: client.get("c-answered").approvals)
    eventually(lambda: name in [each.id for each in client.approvals()])

    client.decide(name, "answer", result="nothing to wipe")

    assert client.result("c-answered", timeout=SOON) == "nothing to wipe"


def test_however_many_results_are_waited_for_they_cost_one_consumer(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    original = clients.consumer

    def counting(settings: Any, group: str, **more: Any) -> Any:
        made.append(group)
        return original(settings, group, **more)

    monkeypatch.setattr(clients, "consumer", counting)

    async def many() -> list[Any]:
        async with AsyncClient(data=str(dev.data)) as client:
            started = await asyncio.gather(*(client.start("marks", {"count": 1}) for _ in range(40)))
            return await asyncio.gather(*(client.result(each.run_id, timeout=SOON) for each in started))

    assert asyncio.run(many()) == [1] * 40
    # One that listens, one that counts partitions, and passes over the past of all runs that were waited for by then.
    assert len(made) <= 10


def test_the_client_for_asyncio_does_the_same(dev: Dev) -> None:
    async def story() -> tuple[Any, ...]:
        async with AsyncClient(data=str(dev.data), actor="ann") as client:
            await client.start("ordering", id="c-async", budget=Budget(calls=1))
            token, calls = "", 0
            async with aclosing(client.events("c-async", timeout=SOON)) as events:  # type: ignore[type-var]
                async for event in events:
                    if event.type == "RunRequested":
                        calls = event.event["budget"]["calls"]
                    if event.type == "NoteRecorded":
                        token = event.event["data"]
                        break
            told = await client.signal("c-async", "shipped", {"parcel": "p-3"})
            await client.complete(token, 9)
            result = await client.result("c-async", timeout=SOON)
            with pytest.raises(ConflictError):
                await client.start("marks", id="c-async")
            with pytest.raises(TimedOutError):
                await client.result("c-async-never", timeout=timedelta(seconds=0.2))
            info = await client.get("c-async")
            return told.outcome, calls, result, info.status, [each async for each in seqs(client)]

    outcome, calls, result, status, numbers = asyncio.run(story())

    assert (outcome, calls, result, status) == ("accepted", 1, {"parcel": "p-3", "by": "ann", "paid": 9}, "completed")
    assert numbers == list(range(3, 3 + len(numbers)))


async def seqs(client: AsyncClient) -> AsyncIterator[int]:
    """The numbers of the events behind the second."""
    async for event in client.events("c-async", after=2, timeout=SOON):
        yield event.seq


@pytest.mark.long
def test_who_follows_a_run_outlives_the_broker(dev: Dev, client: Client) -> None:
    client.start("ordering", id="c-broker")
    events = client.events("c-broker", timeout=SOON)
    begun: list[RunEvent] = []
    while not begun or begun[-1].type != "WaitStarted":
        begun.append(next(events))

    dev.kill("broker")

    def cancelled() -> bool:
        with suppress(UnreachableError):
            return client.cancel("c-broker", timeout=SOON).status == "cancelled"
        return False

    eventually(cancelled, within=60)
    rest = list(events)
    assert [each.seq for each in (*begun, *rest)] == list(range(1, len(begun) + len(rest) + 1))
    assert rest[-1].type == "RunCancelled"


def test_a_client_that_is_closed_says_so_to_whoever_waits(dev: Dev) -> None:
    client = Client(data=str(dev.data))
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(client.result, "c-closed")
        eventually(lambda: "_watcher" in client._client.__dict__ and client._client._watcher._all())
        client.close()

        with pytest.raises(UsageError, match="was closed"):
            waits.result(30)
    with pytest.raises(UsageError, match="is closed"):
        client.result("c-closed")
