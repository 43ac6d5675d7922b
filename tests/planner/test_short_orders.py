"""Orders that go on from what an executor has seen: when they are sent, and what an executor makes of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from refold import App, Context
from refold.core import topics
from refold.core.events import AttemptFailed, CallDispatched, Entry
from refold.core.ids import EntryId, RunId
from refold.core.messages import INCOMPLETE, EarlierCall, ShortRequest, ToolRequest, ToolResult
from refold.core.run.building import Base
from refold.core.run.chain import Head
from refold.core.run.state import Retried, RunState
from refold.core.wire import codec
from refold.core.wire.headers import BASE
from refold.core.wire.schemas import registered
from refold.engine.executor.inputs import SeenCalls
from refold.engine.ports.log import Outgoing
from refold.sdk.loop import running
from tests.planner.rig import POOL, Rig

TEXT = "x" * 3_000

app = App("talkers")


@app.tool(effect="pure")
def say(n: int) -> str:
    """Never runs: its result is played."""
    return f"{n}"


@app.agent
async def errand(ctx: Context, run: str, steps: int) -> int:
    """Talks: each call builds on the one before it."""
    on: tuple[int, ...] = ()
    for n in range(steps):
        step = running("a test").ask(app.tools["say"].call(f'{{"n":{n}}}', builds_on=on))
        await step
        on = (step.step,)
    return steps


class Talk(Rig):
    """A planner whose executor keeps what orders bring, and says so in a header; `seen` is what it has."""

    def boot(self, turns: int = 400) -> None:
        """See `Rig`."""
        self.seen = getattr(self, "seen", SeenCalls(1 << 20, 4_096))
        self.orders: list[ToolRequest] = getattr(self, "orders", [])
        self.names = True
        super().boot(turns)

    def _answer(self) -> None:
        for number in self._read:
            log = self.broker.log(POOL, number)
            for record in log.records:
                if record.offset < self._read[number] or record.value is None:
                    continue
                self._read[number] = record.offset + 1
                self.answer(codec.decode(ToolRequest, record.value), number)

    def answer(self, request: ToolRequest, number: int) -> None:
        """The answer of an executor to an order."""
        self.orders.append(request)
        names = request.call_id, request.run_id, request.step, request.attempt
        found = self.seen.whole(request)
        result = ToolResult(*names, INCOMPLETE)
        if found is not None:
            result = replace(result, status="completed", result=json.dumps(f"{request.step} {TEXT}"))
        held = [(BASE, found[1].digest.encode())] if found and found[1] and self.names else []
        topic = topics.tool_completed("default")
        self.broker.write(Outgoing(topic, number, request.call_id.encode(), codec.encode(result), held, 0))


def kinds(rig: Talk) -> list[tuple[int, int, str, list[int]]]:
    """Of each order: step, attempt, kind, and the steps that it brings."""
    return [
        (
            each.step,
            each.attempt,
            "short" if isinstance(each, ShortRequest) else "whole",
            [e.step for e in each.earlier],
        )
        for each in rig.orders
    ]


def talked(steps: int = 5) -> Talk:
    rig = Talk(code=app)
    rig.start("r-1", steps)
    return rig


def test_an_order_brings_what_its_executor_has_not_seen() -> None:
    rig = talked()

    rig.pump()

    assert kinds(rig) == [
        (1, 1, "whole", []),
        (2, 1, "whole", [1]),
        (3, 1, "whole", [1, 2]),
        (4, 1, "short", [3]),
        (5, 1, "short", [4]),
    ]
    assert rig.outcomes()["r-1"]


def test_who_never_says_that_it_has_seen_anything_is_sent_all_as_before() -> None:
    rig = talked()
    rig.names = False

    rig.pump()

    assert [kind for _, _, kind, _ in kinds(rig)] == ["whole"] * 5
    number = registered()[1][topics.TOOL_REQUESTED][0]
    values = [record.value for record in rig.broker.log(POOL, 0).records if record.value]
    assert {int.from_bytes(value[1:5]) for value in values} == {number}


def test_who_has_forgotten_is_sent_all_at_once_and_that_is_no_attempt() -> None:
    rig = talked()
    answer = rig.answer

    def forgetful(request: ToolRequest, number: int) -> None:
        if isinstance(request, ShortRequest):
            rig.seen = SeenCalls(1 << 20, 4_096)
        answer(request, number)

    rig.answer = forgetful  # type: ignore[method-assign]
    rig.pump()

    assert kinds(rig)[3:] == [
        (4, 1, "short", [3]),
        (4, 1, "whole", [1, 2, 3]),
        (5, 1, "short", [4]),
        (5, 1, "whole", [1, 2, 3, 4]),
    ]
    assert [each.again for each in rig.orders[3:]] == [False, True, False, True]
    records = rig.broker.log(topics.RUN_LOG, 0).records
    values = [record.value for record in records if record.value and record.value[:1] == b"\0"]
    events = [event for value in values for event in codec.decode(Entry, value).events]
    assert not [event for event in events if isinstance(event, AttemptFailed)]
    assert len([event for event in events if isinstance(event, CallDispatched)]) == 5


def test_a_word_about_an_attempt_that_is_over_or_not_yet_sends_nothing() -> None:
    rig = talked()
    answer = rig.answer
    rig.answer = lambda request, number: answer(request, number) if request.step < 5 else None  # type: ignore[method-assign]
    rig.pump()
    before, last = rig.broker.log(POOL, 0).end, rig.orders[-1]

    for step, call, attempt in ((4, last.call_id, 1), (5, rig.state("r-1").call_id(5), 2)):  # type: ignore[union-attr]
        said = ToolResult(call, last.run_id, step, attempt, INCOMPLETE)
        rig.write(topics.tool_completed("default"), "r-1", call, codec.encode(said))
    rig.pump()

    assert last.step == 4
    assert not [record for record in rig.broker.log(POOL, 0).records if record.offset >= before and record.value]


def test_a_planner_that_begins_sends_all() -> None:
    rig = talked(6)
    answer = rig.answer

    def dying(request: ToolRequest, number: int) -> None:
        answer(request, number)
        if request.step == 4:
            rig.answers = False

    rig.answer = dying  # type: ignore[method-assign]
    rig.pump()
    rig.answer, rig.answers = answer, True  # type: ignore[method-assign]
    rig.boot()

    assert [kind for step, _, kind, _ in kinds(rig) if step > 4] == ["short", "whole"]
    assert rig.outcomes()["r-1"]


CALLS = [EarlierCall(1, '{"n":1}', TEXT), EarlierCall(2, "{}", "7")]


def order(run: str, base: str = "", calls: list[EarlierCall] = CALLS) -> ToolRequest:
    given = (f"{run}/9", run, 3, 1, 0, "say", "{}", "k", "pure", 1_000)
    return ShortRequest(*given, earlier=calls, base=base) if base else ToolRequest(*given, earlier=calls)  # type: ignore[arg-type]


def seen(limit: int = 1 << 20) -> SeenCalls:
    return SeenCalls(limit, 0)


def test_a_base_of_another_run_is_none() -> None:
    known = seen()
    found = known.whole(order("r-1"))
    assert found is not None
    assert found[1] is not None

    assert known.whole(order("r-2", found[1].digest, [])) is None
    assert known.whole(order("r-1", found[1].digest, [])) is not None


@pytest.mark.parametrize("change", [{"result": "8"}, {"args": "[]"}, {"step": 4}])
def test_what_was_altered_is_another_base(change: dict[str, object]) -> None:
    known, altered = seen(), [CALLS[0], replace(CALLS[1], **change)]  # type: ignore[arg-type]
    known.whole(order("r-1", calls=altered))

    assert known.whole(order("r-1", Base.of("r-1").followed_by(CALLS).digest, [])) is None  # type: ignore[arg-type]


def test_where_one_text_ends_and_the_next_begins_is_in_the_digest() -> None:
    first, second = ([EarlierCall(1, args, result)] for args, result in (("ab", "c"), ("a", "bc")))

    of_both = {Base.of("r-1").followed_by(calls).digest for calls in (first, second)}  # type: ignore[arg-type]

    assert len(of_both) == 2


def test_it_keeps_so_many_bytes_and_names_nothing_that_it_does_not_keep() -> None:
    known, digests = seen(3 * len(TEXT)), []
    for run in ("r-1", "r-2", "r-3", "r-4"):
        found = known.whole(order(run))
        digests.append(found[1].digest if found and found[1] else "")

    assert all(digests)
    assert known.whole(order("r-1", digests[0], [])) is None
    assert known.whole(order("r-4", digests[3], [])) is not None
    too_large = seen(100).whole(order("r-1"))
    assert too_large is not None
    assert too_large[1] is None
    assert seen(0).whole(order("r-1")) == (order("r-1"), None)


def test_a_base_is_of_one_history_and_of_no_other_that_has_the_same_steps() -> None:
    def state(entry: bytes, retried: int = 0) -> RunState:
        made = RunState(RunId("r-1"), retried=Retried(at=retried))
        made.seqs = made.seqs.append(2)
        made.link(Head(EntryId(entry), 2))
        return made

    places = {each.place_of(1) for each in (state(b"a"), state(b"a"), state(b"b"), state(b"a", 7))}

    assert len(places) == 3
