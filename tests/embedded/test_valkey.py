"""The embedded Valkey keeps what it acknowledged, at one address, until it is wiped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from refold.core.errors import RefoldError, UsageError
from refold.dev.ports import free_port
from refold.dev.valkey import EmbeddedValkey
from tests.embedded.wiping import wipe
from tests.waiting import eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """Give a Valkey of the test's own, to be killed and wiped."""
    with EmbeddedValkey(tmp_path) as running:
        yield running


def test_an_acknowledged_write_survives_kill_9(server: EmbeddedValkey) -> None:
    address = server.url
    Redis.from_url(server.url).set("effect", "done")

    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.running)
    server.start()

    assert server.url == address
    assert Redis.from_url(server.url).get("effect") == b"done"


def test_the_live_server_syncs_every_write_and_evicts_nothing(server: EmbeddedValkey) -> None:
    live = Redis.from_url(server.url)

    assert live.config_get("appendonly")["appendonly"] == "yes"
    assert live.config_get("appendfsync")["appendfsync"] == "always"
    assert live.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    assert live.config_get("bind")["bind"] == "127.0.0.1"


def test_a_wiped_server_is_empty_at_the_same_address(server: EmbeddedValkey) -> None:
    address = server.url
    Redis.from_url(server.url).set("effect", "done")

    wipe(server)

    assert server.url == address
    assert Redis.from_url(server.url).dbsize() == 0


def test_another_object_on_the_folder_finds_port_and_data(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as first:
        Redis.from_url(first.url).set("effect", "done")

    with EmbeddedValkey(tmp_path) as second:
        assert second.port == first.port
        assert Redis.from_url(second.url).get("effect") == b"done"


def test_overrides_reach_the_server(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, overrides={"appendfsync": "no"}) as server:
        assert Redis.from_url(server.url).config_get("appendfsync")["appendfsync"] == "no"


def test_a_second_start_and_a_pid_without_process_are_usage_errors(server: EmbeddedValkey) -> None:
    with pytest.raises(UsageError, match="runs already"):
        server.start()

    server.stop()

    with pytest.raises(UsageError, match="not running"):
        _ = server.pid


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    broken = EmbeddedValkey(tmp_path, overrides={"appendonly": "perhaps"})

    with pytest.raises(RefoldError, match="ended while starting") as caught:
        broken.start()

    assert "appendonly" in caught.value.fields["tail"]
    assert not broken.running


def test_ports_lie_below_those_of_outgoing_connections() -> None:
    assert all(17_000 <= free_port() < 32_000 for _ in range(50))
