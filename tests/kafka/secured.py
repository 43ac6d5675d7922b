"""A secured cluster of three brokers with topics and rights, for tests of who may do what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from refold.core.errors import RefoldError
from refold.engine.adapters.kafka.acls import Acls, may_write, principals, roles
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.approval.settings import ApprovalSettings
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports.log import Membership
from refold.engine.runtime.settings import KafkaSettings
from tests.embedded.secured import ADMIN, SecuredKafka
from tests.lent import lend
from tests.waiting import eventually

OUTSIDER = "outsider"
"""Who may log in, and no more."""

PARTITIONS = 3
"""So that every broker leads one of every topic."""

POOLS = ("default", "model")
ROLES = roles(POOLS)
MORE_POOLS = ("elsewhere", "newer")
"""Those of a play, whose executors can log in; their topics and rights are made where it is staged."""

WRITERS = {"authority": "catalog", "approver": "approval-voted", "planner": "run-log"}
"""Who writes first where a play is staged, and what: a broker comes to know rights one after the other."""


def _user(role: str) -> str:
    return f"refold-{role.replace('.', '-')}"


USERS = [*map(_user, roles((*POOLS, *MORE_POOLS))), OUTSIDER]
"""Who can log in."""


@dataclass(frozen=True)
class SecuredCluster:
    """A running cluster with the users of every role, an outsider, and the topics and rights of the default prefix."""

    kafka: SecuredKafka

    def settings(self, role: str, prefix: str = "refold.") -> KafkaSettings:
        """What a service of a role is set up with; `admin` and `outsider` are roles here, too."""
        return KafkaSettings(
            bootstrap=self.kafka.bootstrap, prefix=prefix, partitions=PARTITIONS, options=self.options(role)
        )

    def options(self, role: str) -> dict[str, str]:
        """How a client of a role logs in."""
        return self.kafka.client_options(_user(role) if role in roles((*POOLS, *MORE_POOLS)) else role)

    def furnish(self, prefix: str, pools: tuple[str, ...] = POOLS) -> None:
        """Make topics and rights under another prefix, for a test that leaves things behind."""
        settings = self.settings(ADMIN, prefix)
        Topics(settings, pools).apply()
        Acls(settings, principals(pools=pools)).apply()
        for node in self.kafka.nodes:
            eventually(partial(self._knows_rights, node.bootstrap, prefix), what=f"the ACLs at {node.bootstrap}")

    def _knows_rights(self, bootstrap: str, prefix: str) -> bool:
        """Whether a broker has the rights: a new client asks the one that it is told of."""
        try:
            return all(
                may_write(self.settings(role, prefix).model_copy(update={"bootstrap": bootstrap}), topic)
                for role, topic in WRITERS.items()
            )
        except RefoldError:  # it does not know that this role may ask
            return False


@contextmanager
def _served(folder: Path) -> Iterator[SecuredCluster]:
    with SecuredKafka(folder, USERS) as kafka:
        cluster = SecuredCluster(kafka)
        cluster.furnish("refold.")
        yield cluster
        kafka.kill()  # nobody needs it again, and a clean stop takes 5 s


@pytest.fixture(scope="module")
def secured_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SecuredCluster:
    """Give a cluster that denies by default; what a test spoils for others belongs under a prefix of its own."""
    return lend(request, lambda: _served(tmp_path_factory.mktemp("secured")))


def membership(role: str) -> Membership:
    if role == "planner":
        return PlannerSettings(partitions=PARTITIONS, member="planner-1", pools=POOLS).membership
    if role.startswith("executor."):
        return ExecutorSettings(pool=role.removeprefix("executor."), member="executor-1").membership
    return ApprovalSettings(partitions=PARTITIONS).membership
