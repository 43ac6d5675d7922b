"""Bugs with versions of an agent: a run goes on by code that is not its own."""

from __future__ import annotations

from refold.sdk.agent import AgentDef
from refold.sdk.app import App
from tests.sim.bugs.planting import Bug


def _newest(app: App, name: str, version: str) -> AgentDef | None:
    return app.agents.get(name)


FAITHLESS: dict[str, Bug] = {
    "newest-takes-all": Bug(("migrated-asleep",), (("App.agent_of", _newest),)),
    "migrated-unrehearsed": Bug(("migrate-refused",), (("migrating.rehearse", lambda *_, **__: None),)),
    "overruled-order-taken-again": Bug(("migrated-and-back",), (("migrating.pairwise", lambda _: ()),), ("outage",)),
    "never-tried-with-new-code": Bug(("rolled-out",), (("Holds.review", lambda *_: False),)),
}
"""By name."""
