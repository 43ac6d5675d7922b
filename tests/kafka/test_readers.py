"""Each service may read the topics that its code reads, and no others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from refold.client.reading.approval import READ_TOPICS
from refold.core.topics import (
    APPROVAL_REQUESTED,
    MEMBER,
    RUN_INSIGHT,
    RUN_LOG,
    RUN_REQUESTED,
    RUN_SNAPSHOT,
    RUN_STREAM,
    kind_of,
    tool_requested,
)
from refold.engine.adapters.kafka.acls import expected_acls, principals
from refold.engine.adapters.kafka.source import TOPICS
from refold.engine.adapters.kafka.topics import declared
from refold.engine.approval.settings import ApprovalSettings
from refold.engine.archive.erasure import ORDER
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.planner.settings import PlannerSettings

WAITING = {RUN_REQUESTED, APPROVAL_REQUESTED}
"""Topics whose oldest unread record shows how long planners and approval services have been missing."""

# Before they start, services compare where runs lie in the run log with the homes of those runs.
READS: Mapping[str, set[str]] = {
    "planner": {*PlannerSettings(1, windows=True).membership.topics},
    "executor.default": {*ExecutorSettings().membership.topics},
    "approval": {*ApprovalSettings(1).membership.topics, RUN_LOG},
    "viewer": {*TOPICS, *WAITING, MEMBER},
    "insights": {RUN_LOG, RUN_SNAPSHOT},
    # With SQLite it keeps the views, too.
    "gateway": {*TOPICS, *READ_TOPICS, RUN_INSIGHT, RUN_STREAM, *WAITING, MEMBER},
}
"""Topics that a service reads, or asks the ends of, as its own modules name them."""


def granted(role: str, operation: str) -> set[str]:
    """Kinds of the topics of which a role has a right."""
    who = principals(pools=("default",))
    rules = [rule for rule in expected_acls("", who) if rule.principal in who[role] and rule.kind == "topic"]
    return {kind_of(rule.name.rstrip(".")) for rule in rules if rule.operation == operation}


@pytest.mark.parametrize("role", READS)
def test_a_service_may_read_what_it_reads_and_nothing_else(role: str) -> None:
    assert granted(role, "read") == set(map(kind_of, READS[role]))


def test_an_archivist_reads_all_that_it_erases() -> None:
    assert set(map(kind_of, ORDER)) <= granted("archivist", "read") == granted("archivist", "write")


def test_a_planner_sees_how_far_executors_have_come() -> None:
    """It asks for the ends of their topics, and for the positions of their groups."""
    assert kind_of(tool_requested("default")) in granted("planner", "write")
    assert "planner" in declared()["groups"]["refold-executor-*"]["visible"]
