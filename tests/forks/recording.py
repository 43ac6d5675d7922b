"""RecordedRun runs for tests: families that the test kit has run, and golden ones, as rows that a fork takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.core.approval.policy import Policy
from refold.core.ids import RunId
from refold.lab.forks.engine import Act, ForkChanges, Surroundings
from refold.lab.forks.record import LogRow
from refold.lab.forks.report import ForkReport, forked
from refold.sdk.app import App
from refold.testing.agents import AgentRun
from tests.golden.recording import kept

Family = dict[RunId, list[LogRow]]


class Noted(AgentRun):
    """A run of the test kit that notes in which order the runs of its family write."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.order: list[tuple[RunId, tuple[bytes, bytes]]] = []
        super().__init__(*args, **options)

    def _check_with_fresh_code(self) -> None:
        self.order.append((self.state.run_id, self.records[-1]))
        super()._check_with_fresh_code()


def family_of(run: AgentRun) -> Family:
    """A run of the test kit, with all that it has started, as one partition has them."""
    assert isinstance(run, Noted), "only those note the order"
    family: Family = {}
    for place, (name, record) in enumerate(run.order):
        family.setdefault(name, []).append(LogRow(place, *record))
    return family


def golden_family(run: str) -> Family:
    """A golden run, as rows."""
    rows = [LogRow(place, bytes.fromhex(key), bytes.fromhex(value)) for place, (key, value) in enumerate(kept()[run])]
    return {RunId(run): rows}


def fork(
    app: App,
    family: Family,
    run: str,
    at: int = 0,
    *,
    policy: Mapping[str, Any] | None = None,
    draft: Mapping[str, Any] | None = None,
    act: Act | None = None,
    **changes: Any,
) -> ForkReport:
    """A fork in the environment of the test kit; `policy` is in the catalog, `draft` judges in the place of all."""
    known = [Policy.parse(dict(policy))] if policy else []
    asked = ForkChanges(**changes, policy=Policy.parse(dict(draft)) if draft else None)
    return forked(app, family, RunId(run), at, asked, Surroundings("test", known, act=act))
