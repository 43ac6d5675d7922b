"""Whether somebody may do everything: what `refold doctor` says of a cluster and of a Redis."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis

from refold.dev.kafka import EmbeddedKafka
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka.acls import may_do_everything
from refold.engine.adapters.redis import ledger
from refold.engine.runtime.settings import KafkaSettings
from tests.embedded.secured import ADMIN
from tests.kafka.secured import SecuredCluster


def test_a_broker_without_an_authorizer_lets_everybody_do_everything(kafka: EmbeddedKafka) -> None:
    assert may_do_everything(KafkaSettings(bootstrap=kafka.bootstrap))


@pytest.mark.parametrize(("role", "everything"), [(ADMIN, True), ("planner", False), ("client", False)])
def test_of_a_secured_cluster_only_super_users_may(
    secured_cluster: SecuredCluster, role: str, everything: bool
) -> None:
    assert may_do_everything(secured_cluster.settings(role)) is everything


def test_a_server_without_a_password_lets_everybody_in(tmp_path_factory: pytest.TempPathFactory) -> None:
    limit = timedelta(seconds=10)
    with EmbeddedValkey(tmp_path_factory.mktemp("open")) as server:
        url = server.url.replace("redis://", "redis://default:secret@")
        before = ledger.open_to_all(url, timeout=limit)
        client = redis.Redis.from_url(server.url)
        client.execute_command("ACL", "SETUSER", "default", "resetpass", ">secret")
        after = ledger.open_to_all(url, timeout=limit)

    assert (before, after) == (True, False)
