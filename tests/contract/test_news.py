"""Readers of whole topics get a record at once, and what comes while they rest in one answer of the broker."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from refold.core.topics import RUN_LOG
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka import reader
from refold.engine.adapters.kafka.clients import SENT_REQUESTS, STATISTICS
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaNews
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime.settings import KafkaSettings

LIES_S = 4.0


@pytest.fixture
def settings(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> KafkaSettings:
    """A topic of its own, whose broker answers a fetch for nothing after seconds."""
    monkeypatch.setitem(reader._AHEAD, "fetch.wait.max.ms", int(1_000 * LIES_S))
    prefix = f"news-{uuid.uuid4().hex[:8]}."
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=prefix, partitions=1)
    Topics(settings).apply()
    return settings


@pytest.fixture
def news(settings: KafkaSettings) -> Iterator[KafkaNews]:
    counted = settings.model_copy(update={"options": {STATISTICS: "50"}})
    with closing(KafkaNews(counted, (RUN_LOG,), 1, starts={(RUN_LOG, 0): 0})) as news:
        yield news


def write(publisher: KafkaPublisher, number: int) -> None:
    publisher.send_raw(RUN_LOG, 0, key=b"%d" % number, value=b"v", headers=[])


def fetches() -> int:
    threading.Event().wait(0.2)  # the counts come with the statistics
    return SENT_REQUESTS.counts()["Fetch"]


def test_a_record_that_comes_alone_is_not_held_up_at_the_broker(settings: KafkaSettings, news: KafkaNews) -> None:
    publisher, taken, delays = KafkaPublisher(settings, partitions=1), list[bytes | None](), list[float]()

    for number in range(9):
        write(publisher, number)
        begun = time.monotonic()
        while len(taken) <= number:
            taken += [record.key for record in news.take(0.1)]
        delays.append(time.monotonic() - begun)

    assert taken == [b"%d" % number for number in range(9)]
    assert sorted(delays)[4] < LIES_S / 2


def test_what_comes_during_a_rest_is_one_answer_and_one_batch(settings: KafkaSettings, news: KafkaNews) -> None:
    publisher = KafkaPublisher(settings, partitions=1)
    news.take(0.5)
    write(publisher, 0)
    before = fetches()

    for number in range(1, 31):
        write(publisher, number)
        threading.Event().wait(0.01)
    sent = fetches() - before
    taken = news.take(0.0)
    news.take(0.5)

    assert sent <= 1
    assert [record.offset for record in taken] == list(range(31))
    assert 1 <= fetches() - before <= 5
