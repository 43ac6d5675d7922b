"""A question whose answer from the log was lost is sent again as what it is by then."""

from __future__ import annotations

from itertools import count

from refold.core.approval.policy import Policy
from refold.core.messages import ApprovalRequest, RunRequest
from refold.core.wire import codec
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports.effects import Append, Effect, Item, Now, Publish
from refold.engine.ports.log import Assigned, Delivery, Outgoing, Record
from tests.approval.planning import app
from tests.roots import TRUST, entry

NOW = 1_800_000_000_000
ASSIGNED = Assigned(0, {}, {}, {"run-log": 0, "run-snapshot": 0, "catalog": 2})
RISING = {
    "rules": [
        {
            "name": "asks",
            "when": "true",
            "require": {
                "approvers": ["ada"],
                "expires": "60s",
                "on_expiry": "escalate",
                "escalate": {"to": ["bob"]},
            },
        }
    ]
}


class Bench:
    """A planner, and the turns that it is given; what it appends is in the log at once."""

    def __init__(self) -> None:
        nonces = count(1)
        settings = PlannerSettings(1, "p", "test", trust=TRUST)
        self.planner = Planner(app, settings, lambda: next(nonces).to_bytes(16, "big"))
        self._log = count(0)
        self.now = NOW

    def turn(self, *inbox: Item) -> list[Outgoing]:
        """What it publishes."""
        published: list[Outgoing] = []
        todo: list[Item] = list(inbox)
        for _ in range(5):
            effects: list[Effect] = self.planner.turn(todo, Now(self.now, self.now))
            appended = [record for effect in effects if isinstance(effect, Append) for record in effect.records]
            sent = [record for effect in effects if isinstance(effect, Publish) for record in effect.records]
            todo = [Delivery(record.token, 0, self.now) for record in sent if record.topic == "run-snapshot"]
            for record in appended + [record for record in sent if record.topic == "run-log"]:
                offset = next(self._log)
                todo += [Delivery(record.token, offset, self.now)]
                todo += [Record("run-log", 0, offset, record.key, record.value, lambda: None)]
            published += sent
        return published


def questions(published: list[Outgoing]) -> list[tuple[int, Outgoing]]:
    """What people are asked, with the level of each question."""
    records = [record for record in published if record.topic == "approval-requested" and record.value]
    return [(codec.decode(ApprovalRequest, record.value or b"").level, record) for record in records]


def test_a_question_that_has_escalated_since_is_not_sent_as_it_was() -> None:
    bench = Bench()
    policy = Policy.parse(RISING)
    entries = [
        entry(f"policy/{policy.digest}", "policy", policy.content),
        entry("current", "current", policy.digest),
    ]
    catalog = [
        Record("catalog", 0, at, each.name.encode(), codec.encode(each), lambda: None)
        for at, each in enumerate(entries)
    ]
    start = Record("run-requested", 0, 0, b"r1", codec.encode(RunRequest("r1", "one", '{"n":1}')), lambda: None)
    ((first, asked),) = questions(bench.turn(ASSIGNED, *catalog, start))
    bench.now += 61_000
    ((second, _),) = questions(bench.turn())

    again = questions(bench.turn(Delivery(asked.token, None)))

    assert (first, second, again) == (0, 1, [])
