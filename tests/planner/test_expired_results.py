"""Results expire: what is in the log needs none, and what nobody has read in time is asked for again."""

from __future__ import annotations

import pytest

from refold.core.topics import RUN_SNAPSHOT, tool_completed
from refold.engine.adapters.kafka.topics import expected_topics
from refold.engine.runtime.settings import RedisSettings
from tests.planner.clocked import Rig

RESULTS = tool_completed("default")


def expire(rig: Rig) -> None:
    """So much time has passed that Kafka has deleted all results."""
    rig.broker.delete(RESULTS, 0, below=rig.broker.log(RESULTS, 0).end)


def begun() -> Rig:
    """A run whose first call is answered, and that sleeps then."""
    rig = Rig()
    rig.start("r", "buying", {})
    rig.run(10)
    rig.answer(rig.take()[0])
    return rig


@pytest.mark.parametrize("snapshots", [True, False])
def test_a_successor_misses_no_result_that_is_in_the_log(snapshots: bool) -> None:
    rig = begun().run(20_000)
    expire(rig)
    if not snapshots:
        rig.broker.log(RUN_SNAPSHOT, 0).records.clear()

    rig.successor()
    rig.run(3_600_000)
    rig.say_go("r")
    rig.run(10)
    rig.answer(rig.take()[0])
    rig.run(10)

    assert rig.kinds("r")[-2:] == ["CallCompleted", "RunCompleted"]
    assert len(rig.requests()) == 2, "nothing is asked for again"


def test_a_result_that_expired_before_anybody_read_it_is_asked_for_again_under_its_key() -> None:
    rig = begun()
    expire(rig)  # no turn was taken since
    rig.successor()
    rig.run(120_000)

    [lane] = rig.planner.lanes
    assert lane.low_water()[RESULTS, 0] == rig.broker.log(RESULTS, 0).end, "the hole is passed"
    first, again = rig.requests()[0], rig.take()[-1]
    rig.answer(again)
    rig.run(10)

    assert (again.key, again.call_id, again.attempt) == (first.key, first.call_id, first.attempt)
    assert "CallCompleted" in rig.kinds("r")


def test_results_stay_for_longer_than_the_ledger_remembers_calls_and_than_any_outage() -> None:
    config = next(topic.config for topic in expected_topics() if topic.name == RESULTS)

    assert config["cleanup.policy"] == "compact,delete"
    assert int(config["retention.ms"]) >= 2 * RedisSettings().retention_ms
    others = [topic.name for topic in expected_topics() if "delete" in topic.config["cleanup.policy"]]
    assert not {"run-log", "run-requested", "run-completed", "run-snapshot", "tool-claimed.default"} & {*others}
