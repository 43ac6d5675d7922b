"""Whoever may send what users send says nothing of a run of somebody else: on three brokers, with their own rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from refold.client.operations.operation import OperationRow, RunInput, one
from refold.client.operations.run import By, start_run, word
from refold.client.operations.runs import Runs
from refold.client.reading.history import Run
from refold.core.approval.requester import signed
from refold.core.approval.signature import SigningKey
from refold.core.errors import UsageError
from refold.core.ids import home
from refold.core.messages import RunOperation, RunRequest, RunSignal
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime import keys
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import KafkaSettings
from tests.kafka.secured import PARTITIONS, SecuredCluster
from tests.planner.test_leaving import served
from tests.waiting import eventually, under_load

PREFIX = "operated."
KINDS = ("cancel", "retry", "fail", "repair", "migrate")

Settings = Callable[[str], KafkaSettings]


@pytest.fixture(scope="module")
def settings(secured_cluster: SecuredCluster) -> Iterator[Settings]:
    """Give the settings of a role where a planner works with its own rights."""
    secured_cluster.furnish(PREFIX)
    own = lambda role: secured_cluster.settings(role, PREFIX)  # noqa: E731
    with served(own("planner"), "planner-1"):
        yield own


def performed(settings: Settings, role: str, operation: OperationRow) -> Run:
    """The run after an operation by a role."""
    sender = KafkaPublisher(settings(role), partitions=PARTITIONS)
    return one(runs(settings, role), sender, operation, under_load(60)).run


def ends(said: RunInput) -> OperationRow:
    """A message that is to end its run."""
    return OperationRow(said, lambda look: "accepted" if look.over else None)


def cancelled(settings: Settings, role: str, run: str, actor: str) -> str:
    """The status of a run after somebody has cancelled it."""
    state = runs(settings, role).get(run).state
    return performed(settings, role, word(state, "cancel", By(actor, "enough"))).status


def runs(settings: Settings, role: str = "client") -> Runs:
    return Runs(KafkaLogReader(settings(role)))


def started(settings: Settings, name: str, *, key: SigningKey | None = None) -> Run:
    """A run of ada's that waits for its call."""
    request = RunRequest(name, "looking", '{"what":"it"}', "ada")
    return performed(settings, "client", start_run(signed(request, key, clock_ms()) if key else request))


@pytest.mark.parametrize("role", ["client", "operator", "approver", "approval", "authority", "executor.default"])
def test_nobody_but_a_steward_writes_what_operators_say(settings: Settings, role: str) -> None:
    said = RunOperation("r", "o", "cancel", "{}", "eve")

    with pytest.raises(UsageError, match="grant this principal the ACLs"):
        KafkaPublisher(settings(role), partitions=PARTITIONS).send(said)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_says_nothing_of_a_run_of_somebody_else(settings: Settings, kind: str) -> None:
    run = started(settings, f"mine-{kind}")
    said = RunSignal(run.state.run_id, "s", kind, '{"head":"","reason":"mine"}', "eve")

    with pytest.raises(UsageError, match="operator"):
        performed(settings, "client", ends(said))

    now = runs(settings).get(run.state.run_id)
    assert now.state.head == run.state.head
    assert len(now.records) == len(run.records)


def test_a_client_that_calls_itself_as_the_requester_does_not_end_what_they_have_signed(settings: Settings) -> None:
    run = started(settings, "signed", key=keys.new("request", "ada")).state.run_id
    plain = RunSignal(run, "s", "cancel", '{"reason":"mine"}', "ada")
    own = signed(plain, keys.new("request", "eve"), clock_ms())

    for said in (plain, own):
        with pytest.raises(UsageError, match="has signed the request"):
            performed(settings, "client", ends(said))
    assert not runs(settings).get(run).state.over


def test_who_asked_for_a_run_cancels_it(settings: Settings) -> None:
    started(settings, "own")

    assert cancelled(settings, "client", "own", "ada") == "cancelled"


def test_a_steward_cancels_anybodys_run_and_sends_nothing_else(settings: Settings) -> None:
    started(settings, "theirs")

    assert cancelled(settings, "steward", "theirs", "op") == "cancelled"
    for other in (RunRequest("r", "looking"), RunSignal("theirs", "s", "cancel")):
        with pytest.raises(UsageError, match="grant this principal the ACLs"):
            KafkaPublisher(settings("steward"), partitions=PARTITIONS).send(other)


def test_what_an_operator_says_in_a_foreign_partition_comes_home(settings: Settings) -> None:
    name = next(name for name in map("astray-{}".format, range(99)) if home(name, PARTITIONS) != 0)
    run = started(settings, name).state.run_id
    KafkaPublisher(settings("steward"), partitions=1).send(RunOperation(run, "o", "cancel", "{}", "op"))

    found = eventually(
        lambda: (state := runs(settings).get(run).state).over and state, within=60, what="the end of the run"
    )

    assert found.status == "cancelled"
