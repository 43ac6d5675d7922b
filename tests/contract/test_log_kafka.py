"""What only a real broker can do to an event log, and what only Kafka has: topics and their settings."""

from __future__ import annotations

import sys
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from refold.core.errors import ConflictError, RefoldError, UnreachableError, UsageError
from refold.core.ids import RunId, home
from refold.core.messages import RunRequest, RunSignal
from refold.core.topics import RUN_VIEW
from refold.core.wire import codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka import errors
from refold.engine.adapters.kafka import membership as group
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import TopicDifference, Topics, expected_topics
from refold.engine.adapters.kafka.writer import KafkaWriter, TableTopic
from refold.engine.ports.log import Assigned
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import KafkaSettings
from tests.contract.log_benches import CHAIN, INPUTS, MORE, KafkaBench, membership, outgoing, places, take_until
from tests.contract.raw_kafka import break_for_good, write_with_header
from tests.waiting import eventually, under_load


@pytest.fixture
def settings(kafka: EmbeddedKafka) -> KafkaSettings:
    """Give a prefix under which there are no topics."""
    return KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"topics-{uuid.uuid4().hex[:8]}.", partitions=2)


def set_topic(settings: KafkaSettings, topic: str, setting: str, value: str) -> None:
    change = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, settings.prefix + topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


def drop_records(producer: Producer) -> None:
    """Drop records that wait: they refer to the client, whose threads would look for the broker till the very end."""
    producer.purge()
    with suppress(KafkaException):
        producer.poll(0)


@pytest.mark.skipif(sys.platform != "linux", reason="finds librdkafka where Linux wheels have it")
def test_a_header_whose_name_is_not_utf8_does_not_end_the_process(kafka: EmbeddedKafka) -> None:
    bench = KafkaBench(kafka.bootstrap)
    write_with_header(kafka.bootstrap, bench.settings.prefix + INPUTS, name=b"\xff\xfe", key=b"k", value=b"poison")
    log = bench.log()

    record = take_until(log, lambda taken: taken.records).records[0]

    assert (record.key, record.value) == (b"k", b"poison")
    assert [record.read_headers(), record.read_headers()] == [[], []]
    bench.close()


def test_a_full_queue_makes_a_writer_wait_and_loses_nothing(kafka: EmbeddedKafka) -> None:
    bench = KafkaBench(kafka.bootstrap)
    bench.settings = bench.settings.model_copy(update={"options": {"queue.buffering.max.messages": "10"}})
    log = bench.log()

    deliveries = log.append([outgoing(b"%d" % i, token=i) for i in range(200)])

    assert places(deliveries) == [(i, i) for i in range(200)]
    bench.close()


def test_a_table_with_more_rows_than_the_client_holds_is_written(settings: KafkaSettings) -> None:
    Topics(settings).apply()
    table = TableTopic(settings.model_copy(update={"options": {"queue.buffering.max.messages": "10"}}), RUN_VIEW, 2)

    table.write({f"r-{i}": b"%d" % i for i in range(200)})

    assert len(list(KafkaLogReader(settings).scan(RUN_VIEW))) == 200


def test_a_process_that_is_back_reads_the_log_at_once(kafka: EmbeddedKafka) -> None:
    """A client notices only once a second that it does not know where a topic is that nobody has subscribed to."""
    bench = KafkaBench(kafka.bootstrap)
    bench.log().append([outgoing(b"1", topic=CHAIN)])
    waits = []

    for _ in range(3):
        log = bench.log()
        found = take_until(log, lambda taken: taken.rebalances)
        begun = time.monotonic()
        if not found.records:
            take_until(log, lambda taken: taken.records)
        waits.append(time.monotonic() - begun)

    assert min(waits) < under_load(0.6)
    bench.close()


def test_a_broker_that_is_not_there_is_an_unknown_outcome_and_an_error_with_advice() -> None:
    settings = KafkaSettings(bootstrap="127.0.0.1:1", delivery_timeout_ms=1_000)
    log = KafkaEventLog(settings, membership())

    deliveries = log.append([outgoing(b"1", token=5)])
    log.close()

    assert deliveries == [(5, None, 0)]
    publisher = KafkaPublisher(settings, partitions=1)
    with pytest.raises(UnreachableError, match="REFOLD_KAFKA__BOOTSTRAP"):
        publisher.send(RunRequest("r-1", "agent"), timeout_s=0.5)
    drop_records(publisher._client.producer)


@pytest.mark.parametrize("writer", ["log", "writer"])
def test_a_client_that_breaks_for_good_while_a_write_is_under_way_says_so(writer: str) -> None:
    """An unclean election takes records away that an idempotent producer has counted."""
    settings = KafkaSettings(bootstrap="127.0.0.1:1")  # nobody answers, so the write is under way
    made = KafkaEventLog(settings, membership()) if writer == "log" else KafkaWriter(settings, "a")
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(made.append, [outgoing(b"1", token=5)])
        eventually(lambda: len(made._producer) == 1, what="the record in the client")
        break_for_good(made._producer)

        with pytest.raises(RefoldError, match="restart this process"):
            written.result(60)

    drop_records(made._producer)


def test_a_publisher_whose_client_breaks_for_good_shows_it_and_writes_with_another(
    settings: KafkaSettings,
) -> None:
    Topics(settings).apply()
    publisher = KafkaPublisher(settings, partitions=2, source="shop")
    publisher.send(RunRequest(RunId("r-1"), "agent"))
    assert publisher.broken == ""
    break_for_good(publisher._client.producer)

    assert "records were lost" in publisher.broken
    with pytest.raises(UnreachableError, match="records were lost") as refused:
        publisher.send(RunRequest(RunId("r-2"), "agent"))
    assert "a second one with the same id is harmless" in refused.value.hint
    with structlog.testing.capture_logs() as lines:
        eventually(lambda: not publisher.broken, what="another client")
    assert [line["client"] for line in lines if line["event"] == "kafka.client_replaced"] == ["shop"]
    assert publisher.send(RunRequest(RunId("r-2"), "agent"))[1] >= 0


def test_a_write_that_is_under_way_when_its_publisher_breaks_for_good_is_refused_at_once() -> None:
    publisher = KafkaPublisher(KafkaSettings(bootstrap="127.0.0.1:1"), partitions=1)  # no broker: it stays under way
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(publisher.send, RunRequest(RunId("r-1"), "agent"), timeout_s=60)
        eventually(lambda: len(publisher._client.producer) == 1, what="the record in the client")
        break_for_good(publisher._client.producer)

        with pytest.raises(UnreachableError, match="records were lost"):
            written.result(10)


@pytest.mark.parametrize("name", ["enable.idempotence", "acks", "group.instance.id", "isolation.level"])
def test_an_option_that_the_promises_rest_on_is_refused(kafka: EmbeddedKafka, name: str) -> None:
    settings = KafkaSettings(bootstrap=kafka.bootstrap, options={name: "x"})

    with pytest.raises(UsageError, match=name):
        KafkaEventLog(settings, membership())


def test_an_option_that_librdkafka_does_not_know_is_a_usage_error(kafka: EmbeddedKafka) -> None:
    with pytest.raises(UsageError, match="sasl.mechanixm"):
        KafkaLogReader(KafkaSettings(bootstrap=kafka.bootstrap, options={"sasl.mechanixm": "PLAIN"})).partitions("x")


def test_a_client_publishes_to_the_home_of_the_run(settings: KafkaSettings) -> None:
    Topics(settings).apply()
    publisher = KafkaPublisher(settings, partitions=2)

    number, offset = publisher.send(
        RunRequest("r-1", "deploy", '{"a":1}'), trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    )
    publisher.send(RunSignal("r-1.7", "s-1", "cancel"))

    record = next(iter(KafkaLogReader(settings).scan("run-requested")))
    signal = next(iter(KafkaLogReader(settings).scan("run-signalled", home("r-1", 2))))
    assert (number, offset) == (record.partition, record.offset) == (home("r-1", 2), 0)
    assert (record.key, codec.decode(RunRequest, record.value or b"")) == (
        b"r-1",
        RunRequest("r-1", "deploy", '{"a":1}'),
    )
    assert dict(record.read_headers() or ())["ce_subject"] == b"r-1"
    assert dict(record.read_headers() or ())["traceparent"].startswith(b"00-aaa")
    assert signal.key == b"r-1.7/s-1"


@pytest.mark.parametrize(
    "message",
    [RunRequest("r-1", "deploy", '"' + "字" * 1_366 + '"'), RunSignal("r-1", "s", "x", '"' + "a" * 4_097 + '"')],
)
def test_a_client_is_told_how_much_is_too_much_before_it_is_sent(
    settings: KafkaSettings, message: RunRequest | RunSignal
) -> None:
    Topics(settings).apply()
    publisher = KafkaPublisher(settings, partitions=2, payload_bytes=4_098)

    with pytest.raises(UsageError, match=r"has (4,?100|4,?099) bytes, more than 4,?098.*REFOLD_MAX_PAYLOAD_BYTES"):
        publisher.send(message)

    assert list(KafkaLogReader(settings).scan(codec.SUBJECTS[type(message)])) == []


def test_services_refuse_to_start_without_the_topics(settings: KafkaSettings) -> None:
    with pytest.raises(UsageError, match="refold topics apply"):
        Topics(settings).check()


def test_apply_creates_what_is_missing_and_then_changes_nothing(settings: KafkaSettings) -> None:
    topics = Topics(settings, ("default", "model"))

    first = topics.apply()

    assert {each.setting for each in first} == {"topic"}
    assert {each.topic for each in first} >= {
        "run-log",
        "tool-requested.default",
        "tool-requested.model",
        "dead-letter",
    }
    assert (topics.diff(), topics.apply()) == ([], [])
    topics.check()
    assert {(each.partitions, each.replication) for each in topics.present()} == {(2, 1)}


def test_topics_can_be_read_as_soon_as_they_are_made(settings: KafkaSettings) -> None:
    """A broker names itself the leader of a partition before it serves it."""
    many = settings.model_copy(update={"prefix": f"{settings.prefix}many.", "partitions": 8})
    topics = Topics(many)
    topics.apply()

    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    places = [TopicPartition(many.prefix + each.name, number) for each in topics.expected for number in range(8)]
    answers = admin.list_offsets({place: OffsetSpec.latest() for place in places})

    assert [str(error) for answer in answers.values() if (error := answer.exception(60))] == []


def test_services_start_without_the_topic_on_which_nothing_rests(settings: KafkaSettings) -> None:
    topics = Topics(settings)
    topics.apply()
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    for done in admin.delete_topics([f"{settings.prefix}run-stream.default"]).values():
        done.result(60)

    eventually(lambda: [(each.topic, each.setting) for each in topics.diff()] == [("run-stream.default", "topic")])

    topics.check()


def test_apply_mends_a_setting_that_somebody_changed(settings: KafkaSettings) -> None:
    topics = Topics(settings)
    topics.apply()
    set_topic(settings, "run-log", "cleanup.policy", "delete")

    found = eventually(topics.diff)
    topics.apply()

    assert found == [TopicDifference("run-log", "cleanup.policy", "compact", "delete")]
    assert topics.diff() == []


def test_topics_of_an_earlier_version_are_refused_until_they_are_mended(settings: KafkaSettings) -> None:
    """Their records say when their sender claims to have sent them."""
    topics = Topics(settings)
    old = [
        NewTopic(settings.prefix + each.name, 2, 1, config={**each.config, "message.timestamp.type": "CreateTime"})
        for each in topics.expected
    ]
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    for done in admin.create_topics(old).values():
        done.result(60)
    eventually(lambda: {each.setting for each in topics.diff()} == {"message.timestamp.type"}, what="the old topics")
    with pytest.raises(UsageError, match=r"message.timestamp.type=CreateTime.*LogAppendTime is needed"):
        topics.check()

    topics.apply()

    topics.check()
    producer = Producer({"bootstrap.servers": settings.bootstrap})
    producer.produce(f"{settings.prefix}run-log", b"v", b"k", 0, timestamp=1_000)
    producer.flush(60)
    (record,) = KafkaLogReader(settings).scan("run-log")
    assert abs(record.at_ms - clock_ms()) < 60_000


@pytest.mark.parametrize(
    ("setting", "value", "fits"),
    [
        ("cleanup.policy", "delete", False),
        ("max.message.bytes", "1000", False),
        ("max.message.bytes", "90000000", True),
        ("message.timestamp.type", "CreateTime", False),
    ],
)
def test_services_refuse_topics_that_would_lose_or_refuse_records(
    settings: KafkaSettings, setting: str, value: str, *, fits: bool
) -> None:
    topics = Topics(settings)
    topics.apply()
    set_topic(settings, "run-log", setting, value)
    eventually(topics.diff, what="the setting")

    with nullcontext() if fits else pytest.raises(UsageError, match=f"run-log has {setting}={value}"):
        topics.check()
    assert [each.unfit for each in topics.diff()] == [not fits]


def test_sync_can_be_switched_on_and_off(settings: KafkaSettings) -> None:
    Topics(settings).apply()

    on = Topics(settings.model_copy(update={"sync": True})).apply()
    off = Topics(settings).apply()

    assert {(each.setting, each.expected) for each in on} == {("flush.messages", "1")}
    assert "run-log" in {each.topic for each in on}
    assert {each.topic for each in on} == {each.topic for each in off}


def test_another_partition_count_is_never_changed_silently(settings: KafkaSettings) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    for done in admin.create_topics([NewTopic(settings.prefix + "run-log", 3, 1)]).values():
        done.result(60)

    with pytest.raises(ConflictError, match="run-log has 3"):
        Topics(settings).apply()
    assert [each.topic for each in Topics(settings).present()] == [settings.prefix + "run-log"]

    Topics(settings.model_copy(update={"partitions": 3})).apply()
    with pytest.raises(ConflictError, match="run-log has 3"):
        Topics(settings).check()


def test_an_answer_that_does_not_come_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "ANSWER_S", 0.01)

    with pytest.raises(UnreachableError, match="cannot read the settings of run-log"):
        errors.admin_result(Future[None](), "read the settings of run-log")


@pytest.mark.parametrize(("replication", "in_sync"), [(1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_one_copy_may_be_away_where_there_are_three(replication: int, in_sync: str) -> None:
    assert {topic.config["min.insync.replicas"] for topic in expected_topics(replication=replication)} == {in_sync}


def test_every_topic_takes_the_largest_payload_and_dead_letters_take_any_input() -> None:
    limits = {topic.name: int(topic.config["max.message.bytes"]) for topic in expected_topics(payload_bytes=5_000_000)}

    del limits["run-stream.default"]  # no payloads, but parts of one, of 16 KiB each
    del limits["run-view"]  # no payload, but a row of a table
    del limits["member"]  # no payload, but a report that is cut to the size of one
    assert min(limits.values()) > 2 * 5_000_000
    assert limits["dead-letter"] > limits["run-requested"] + 5_000_000
    assert limits["run-log"] > 8 * 5_000_000


def test_a_dead_letter_is_not_compacted_before_it_expires() -> None:
    config = next(topic.config for topic in expected_topics() if topic.name == "dead-letter")

    assert config["cleanup.policy"] == "compact,delete"
    assert int(config["min.compaction.lag.ms"]) >= int(config["retention.ms"])
    assert int(config["max.compaction.lag.ms"]) >= int(config["min.compaction.lag.ms"])


@pytest.mark.parametrize("name", ["run-requested", "run-signalled", "run-operated"])
def test_what_people_send_is_not_cleaned_before_a_planner_has_read_it(name: str) -> None:
    config = next(topic.config for topic in expected_topics() if topic.name == name)
    week_ms = 7 * 86_400_000

    assert config["cleanup.policy"] == "delete" or int(config["min.compaction.lag.ms"]) >= week_ms
    assert int(config["max.compaction.lag.ms"]) >= int(config["min.compaction.lag.ms"])


def test_members_that_read_different_topics_share_all_partitions(kafka: EmbeddedKafka) -> None:
    """As in a deploy that adds a pool or the first limit: 12 partitions, of three planners one or two are new."""
    bench = KafkaBench(kafka.bootstrap, partitions=12)
    members = {name: bench.log(name, topics=(INPUTS,)) for name in ("a", "b", "c")}
    ours: dict[str, set[int]] = {name: set() for name in members}

    def served() -> bool:
        for name, member in members.items():
            for change in member.take(10, 0.02).rebalances:
                (ours[name].add if isinstance(change, Assigned) else ours[name].discard)(change.partition)
        return sorted(number for each in ours.values() for number in each) == list(range(12))

    eventually(served, what="every partition is one member's")
    for name in ("b", "c", "a"):
        members[name].close()
        ours[name] = set()
        members[name] = bench.log(name, topics=(INPUTS, MORE))

        eventually(lambda: served() and all(ours.values()), what=f"each partition is served beside the new {name}")
        for _ in range(10):
            assert served(), "and stays so"
    bench.close()


def test_a_position_in_a_topic_that_the_group_does_not_share_is_committed(kafka: EmbeddedKafka) -> None:
    bench = KafkaBench(kafka.bootstrap)
    log = bench.log("a", topics=(INPUTS, MORE))
    eventually(lambda: bool(log.take(10, 0.02).rebalances), what="the assignment")

    log.commit({(MORE, 1): 5})

    def committed() -> bool:
        log.take(10, 0.02)
        return log.committed("group", MORE).get(1) == 5

    eventually(committed, what="the commit")
    bench.close()


def test_a_member_that_hears_nothing_of_its_group_asks_with_a_new_client(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the old one still has to say, that a newer has its name, ends nobody."""
    monkeypatch.setattr(group, "_NO_PLACE_S", 0.5)
    bench = KafkaBench(kafka.bootstrap)
    silent, log = bench.log("b"), bench.log("a")
    take_until(silent, lambda taken: {each.partition for each in taken.rebalances} == {0, 1})

    eventually(lambda: (log.take(1, 0.02), capsys.readouterr().out.count("kafka.no_place"))[1], what="another try")
    old = log._group._client - 1
    log._group._on_error(old, KafkaError(KafkaError.FENCED_INSTANCE_ID))
    ours = set[int]()

    def shared() -> bool:
        silent.take(1, 0.02)
        ours.update(each.partition for each in log.take(1, 0.02).rebalances if isinstance(each, Assigned))
        return ours == {0}

    eventually(shared, what="the share of who waited")
    assert old >= 1
    bench.close()


def test_a_commit_that_did_not_arrive_is_made_again_unless_there_is_more_to_say(kafka: EmbeddedKafka) -> None:
    bench = KafkaBench(kafka.bootstrap)
    log = bench.log()
    log.append([outgoing(b"1"), outgoing(b"2")])
    take_until(log, lambda taken: len(taken.records) == 2)
    late = [TopicPartition(bench.settings.prefix + topic, 0, 1) for topic in (INPUTS, CHAIN)]

    log._group.commit({(INPUTS, 0): 2})
    log._group._committed(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), late)

    eventually(lambda: (log.take(1, 0.01), log.committed("group", CHAIN))[1] == {0: 1}, what="the commit")
    assert log.committed("group", INPUTS) == {0: 2}
    bench.close()
