"""Settings are read once, from the environment and the command line, and a mistake in them is found at once."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from refold.core.errors import UsageError
from refold.engine.runtime.settings import load


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the developer's shell says out of the tests."""
    import os

    for name in [name for name in os.environ if name.startswith("REFOLD_")]:
        monkeypatch.delenv(name)


def test_without_an_environment_everything_points_to_this_machine() -> None:
    settings = load()

    assert (settings.kafka.bootstrap, settings.kafka.partitions) == ("127.0.0.1:9092", 4)
    assert (settings.environment, settings.max_payload_bytes) == ("dev", 1_048_576)


def test_the_environment_sets_rooms_by_two_underscores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_KAFKA__BOOTSTRAP", "broker:9093")
    monkeypatch.setenv("REFOLD_KAFKA__OPTIONS", '{"security.protocol": "SASL_SSL"}')
    monkeypatch.setenv("REFOLD_REDIS__RETENTION_MS", "60000")

    settings = load()

    assert settings.kafka.bootstrap == "broker:9093"
    assert settings.kafka.options == {"security.protocol": "SASL_SSL"}
    assert settings.redis.retention_ms == 60_000


def test_options_of_librdkafka_may_be_written_as_the_numbers_and_truth_values_that_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "REFOLD_KAFKA__OPTIONS", '{"max.poll.interval.ms": 10000, "enable.ssl": true, "a": 0.5, "b": "c"}'
    )

    options = load().kafka.options

    assert options == {"max.poll.interval.ms": "10000", "enable.ssl": "true", "a": "0.5", "b": "c"}


@pytest.mark.parametrize("value", ["null", "[1]", "{}"])
def test_an_option_that_is_no_single_value_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("REFOLD_KAFKA__OPTIONS", f'{{"client.id": {value}}}')

    with pytest.raises(UsageError, match="REFOLD_KAFKA__OPTIONS"):
        load()


def test_the_command_line_wins_and_leaves_the_rest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_KAFKA__BOOTSTRAP", "broker:9093")
    monkeypatch.setenv("REFOLD_KAFKA__PARTITIONS", "12")

    settings = load(kafka={"bootstrap": "other:9092"})

    assert (settings.kafka.bootstrap, settings.kafka.partitions) == ("other:9092", 12)


OF_SERVICES = {
    "{}_PORT": "tcp://10.0.0.1:8321",
    "{}_SERVICE_HOST": "10.0.0.1",
    "{}_SERVICE_PORT": "8321",
    "{}_SERVICE_PORT_HTTP": "8321",
    "{}_PORT_8321_TCP": "tcp://10.0.0.1:8321",
    "{}_PORT_8321_TCP_PROTO": "tcp",
    "{}_PORT_8321_TCP_PORT": "8321",
    "{}_PORT_53_UDP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("service", ["REFOLD", "REFOLD_GATEWAY", "REFOLD_KAFKA", "REFOLD_MEMBER", "REFOLD_UI_V2"])
def test_variables_that_kubernetes_sets_for_a_service_are_left_alone_with_a_line(
    service: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = load()
    caplog.set_level("DEBUG")
    for name, value in OF_SERVICES.items():
        monkeypatch.setenv(name.format(service), value)

    assert load() == plain
    assert len(caplog.records) == len(OF_SERVICES)


@pytest.mark.parametrize("name", ["REFOLD_PORT", "REFOLD_GATEWAY_PORT", "REFOLD_GATEWAY_HOST", "REFOLD_KAFKA_PORT_TCP"])
def test_a_setting_with_one_underscore_is_refused_though_it_ends_like_a_variable_of_kubernetes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "8321")

    with pytest.raises(UsageError, match=name):
        load()


@pytest.mark.parametrize("name", ["REFOLD_KAFKA__BOOTSTRP", "REFOLD_KAFAK__BOOTSTRAP", "REFOLD_ENVIROMENT"])
def test_a_name_that_is_not_a_setting_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")

    with pytest.raises(UsageError, match=name):
        load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REFOLD_KAFKA__PARTITIONS", "0"),
        ("REFOLD_KAFKA__PARTITIONS", "many"),
        ("REFOLD_KAFKA__PREFIX", "no spaces."),
        ("REFOLD_KAFKA__OPTIONS", "not json"),
        ("REFOLD_MAX_PAYLOAD_BYTES", "1"),
    ],
)
def test_a_value_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(UsageError):
        load()


@pytest.mark.parametrize("name", ["REFOLD_CACHE", "REFOLD_SOAK", "REFOLD_FAULT_AT"])
def test_what_is_not_a_setting_but_ours_is_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")

    assert load() == load()


def test_settings_do_not_change_once_they_are_read() -> None:
    settings = load()

    with pytest.raises(ValidationError):
        settings.kafka.prefix = "other."  # type: ignore[misc]  # mypy knows as well
