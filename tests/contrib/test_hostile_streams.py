"""What lies in the stream of live words may be anybody's: whoever looks on believes the pool that a call is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, cast

import pytest

from refold.client import streams
from refold.client.operations.runs import Runs
from refold.client.streams import MOST_WAITING_BYTES, Vouched, live_parts
from refold.core.events import RunCompleted
from refold.core.ids import CallId, RunId
from refold.core.messages import StreamPart
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT, RUN_STREAM, pool_of, run_stream
from refold.core.wire import codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryLogReader
from refold.engine.ports.log import Outgoing, Record
from tests.core.histories import Log, call, start

RUN, CALL = RunId("r"), CallId("r/3")
KINDS = (RUN_LOG, RUN_STREAM)
OWN, OTHER = run_stream("default"), run_stream("web")
PART = StreamPart(RUN, CALL, 1, 1, 1, "text", '{"text":"true"}')


def part(**changes: Any) -> bytes:
    return codec.encode(replace(PART, **changes))


class Looking:
    """A run with a call of pool `default`, and somebody who looks on."""

    def __init__(self) -> None:
        self.broker = MemoryBroker((RUN_LOG, RUN_SNAPSHOT, OWN, OTHER), 1)
        self.reader = MemoryLogReader(self.broker)
        self.parts = live_parts(Runs(self.reader), RUN, None)

    def propose(self) -> None:
        log = Log(RUN)
        log.feed(start(run_id=RUN))
        log.append([call()])
        for key, value in log.records:
            self.broker.write(Outgoing(RUN_LOG, 0, key, value, (), 0))

    def finish(self) -> None:
        log = Log(RUN)
        log.feed(start(run_id=RUN))
        log.append([call()])
        log.append([RunCompleted('"done"')])
        self.broker.write(Outgoing(RUN_LOG, 0, *log.records[-1], (), 0))

    def say(self, *values: bytes | None, topic: str = OWN) -> None:
        for value in values:
            self.broker.write(Outgoing(topic, 0, CALL.encode(), value, (), 0))

    def vouched(self) -> Vouched:
        """What is kept of parts, after all that lies there was read."""
        found = Vouched(RUN)
        for record in takewhile(lambda record: record is not None, self.reader.tail_kinds(KINDS, 0)):
            found.read(cast(Record, record))
        return found

    def seen(self) -> Sequence[str]:
        return [found.data["text"] for found in iter(lambda: next(self.parts), None) if found]


@pytest.fixture
def looking() -> Looking:
    """Give a run whose call the log has, and somebody who looks on."""
    found = Looking()
    found.propose()
    return found


def test_the_stream_of_a_run_ends_after_its_parts(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "OVER_S", 0.0)
    looking.say(part())
    assert next(looking.parts) is not None
    assert next(looking.parts) is None

    looking.say(part(n=2))
    looking.finish()

    looks = islice(looking.parts, 1_000)
    assert [found.n for found in looks if found] == [2]
    assert next(looking.parts, "ended") == "ended"


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"\0\0\0\xff\xffnewer"),
        *(part(data="{"), part(call_id=CallId("other/3")), part(call_id=CallId("?")), part(run_id=RunId("other"))),
    ],
)
def test_what_nobody_can_read_or_is_of_another_run_is_passed_over(looking: Looking, value: bytes | None) -> None:
    looking.say(value, part())

    assert looking.seen() == ["true"]


def test_an_executor_of_another_pool_says_nothing_for_a_call(looking: Looking) -> None:
    looking.say(part(attempt=99, began_ms=1 << 60, data='{"text":"made up"}'), topic=OTHER)
    looking.say(part())

    assert looking.seen() == ["true"]


def test_what_a_call_says_is_shown_when_the_log_has_the_call() -> None:
    looking = Looking()
    looking.say(part(data='{"text":"made up"}'), topic=OTHER)
    looking.say(part())

    early = looking.seen()
    looking.propose()

    assert (early, looking.seen()) == ([], ["true"])


def test_parts_of_calls_that_never_were_take_bounded_memory_and_no_room_of_another_pool() -> None:
    looking, text = Looking(), "x" * (MOST_WAITING_BYTES // 8)
    looking.say(part())
    looking.say(*(part(call_id=CallId(f"r/{n}"), data=f'{{"text":"{text}"}}') for n in range(9, 49)), topic=OTHER)

    early, vouched = looking.seen(), looking.vouched()
    looking.propose()

    assert vouched._bytes[pool_of(OTHER)] <= MOST_WAITING_BYTES
    assert (early, looking.seen()) == ([], ["true"])
