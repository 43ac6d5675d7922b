"""All lanes of a planner process: what came goes to its lane, and what the lanes want is carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.topics import RUN_LOG
from refold.planner import inputs
from refold.planner.answering import Shared
from refold.planner.hosting import Agents
from refold.planner.lane import Lane
from refold.planner.outbox import Asker
from refold.planner.settings import PlannerSettings
from refold.ports.effects import Append, AskEnd, Effect, Item, Now, Publish, Read
from refold.ports.log import Assigned, Delivery, Outgoing
from refold.runtime.lanes import Journal, Lanes, Tokens
from refold.sdk.app import App


class Planner:
    """The planner as a `Service`. `nonce` gives 16 fresh random bytes."""

    def __init__(self, app: App, settings: PlannerSettings, nonce: Callable[[], bytes]) -> None:
        self._app, self._settings = app, settings
        self.journal = Journal()
        self.counts, self.news = self.journal.counts, self.journal.news
        self._shared = Shared(settings, nonce, self.journal)
        self._tokens: Tokens[tuple[Lane, Asker]] = Tokens(count(1).__next__)
        self.lanes = Lanes(self._open, leave=self._leave, commit_ms=settings.commit_ms)

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        effects: list[Effect] = []
        for item in inbox:
            if isinstance(item, Delivery):
                effects += self._deliver(item)
            else:
                effects += self.lanes.route(item)
        for lane in self.lanes:
            lane.work(now.wall_ms)
        effects += self._collect()
        effects += self.lanes.throttle(lambda lane: len(lane.inbox), limit=self._settings.backlog, topics=inputs.TOPICS)
        return effects + self.lanes.commit(now)

    def next_due_ms(self) -> int | None:
        return min((due for lane in self.lanes if (due := lane.next_due_ms()) is not None), default=None)

    def _deliver(self, delivery: Delivery) -> list[Effect]:
        if (asked := self._tokens.take(delivery.token)) is None:
            return []
        lane, asker = asked
        lane.delivered(asker, delivery.offset)
        if not lane.log.shrunk:
            return []
        self.journal.tell("log.shrunk", topic=RUN_LOG, partition=lane.partition, position=lane.log.position)
        return self.lanes.begin_anew(lane.partition)

    def _leave(self, lane: Lane) -> None:
        # What a lane sent that was revoked since is its successor's to find out about.
        self._tokens.forget(lambda asked: asked[0] is lane)

    def _open(self, assigned: Assigned) -> Lane:
        settings, catalog = self._settings, Catalog()
        tools = {tool.name: tool.facts for tool in self._app.tools.values()}
        rules = replace(settings.rules, authority=Authority(tools, settings.environment, catalog))
        agents = Agents(self._app, rules, settings.environment)
        return Lane(assigned, self._shared, self._tokens, agents=agents, rules=rules, catalog=catalog)

    def _collect(self) -> list[Effect]:
        publishes: list[Outgoing] = []
        appends: list[Outgoing] = []
        asks: list[Effect] = []
        for lane in self.lanes:
            publishes += lane.outbox.publishes
            appends += lane.outbox.appends
            lane.outbox.publishes, lane.outbox.appends = [], []
            if lane.repairs.wants_log:
                lane.repairs.wants_log = False
                asks.append(Read(RUN_LOG, lane.partition, 0))
            if lane.wants_end:
                asks.append(AskEnd(RUN_LOG, lane.partition))
        effects: list[Effect] = []
        if publishes:
            effects.append(Publish(publishes))
        if appends:
            effects.append(Append(appends))
        return effects + asks
