"""All lanes of a planner process: what came goes to its lane, and what the lanes want becomes effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.planning.verdict import Rules
from refold.core.topics import APPROVAL_DECIDED, CATALOG, RUN_LOG, RUN_REQUESTED, RUN_SIGNALLED, TOOL_COMPLETED
from refold.planner import inputs
from refold.planner.hosting import Agents
from refold.planner.lane import Lane, Limits, Sent
from refold.ports.effects import Append, AskEnd, Commit, Effect, Flow, Item, News, Now, Publish
from refold.ports.log import Assigned, Delivery, End, Membership, Outgoing, Reached, Record, Revoked
from refold.sdk.app import App


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """How a planner works.

    **Units**: milliseconds; `backlog` in inputs per lane, above which a lane's inputs are no longer taken (twice what
    a turn decides, so that a turn never starves).
    """

    partitions: int
    member: str = "planner-1"
    environment: str = "dev"
    commit_ms: int = 500
    backlog: int = 5_000
    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)


def membership(settings: PlannerSettings) -> Membership:
    """How a planner reads: the group decides on the requests, everything else of a partition comes along."""
    return Membership(
        group="refold-planner",
        member=settings.member,
        subscribe=RUN_REQUESTED,
        resume=(RUN_SIGNALLED, TOOL_COMPLETED, APPROVAL_DECIDED),
        replay=(CATALOG, RUN_LOG),
    )


def _feed(lane: Lane, item: Record | End | Reached) -> None:
    if isinstance(item, End):
        lane.reached_end(item.offset)
    elif isinstance(item, Reached):
        lane.reached(item.topic, item.offset)
    elif item.topic == RUN_LOG:
        lane.follow(item)
    elif item.topic == CATALOG:
        lane.learn(item)
    else:
        lane.take(item)


class Planner:
    """The planner as a `Service`. `nonce` gives 16 fresh random bytes."""

    def __init__(self, app: App, settings: PlannerSettings, nonce: Callable[[], bytes]) -> None:
        self._app, self._settings, self._nonce = app, settings, nonce
        self.lanes: dict[int, Lane] = {}
        self.counts: Counter[str] = Counter()
        self.news: list[News] = []
        self._tokens: dict[int, tuple[Lane, object]] = {}
        self._next_token = 0
        self._committed: dict[tuple[str, int], int] = {}
        self._commit_due = 0
        self._paused: set[int] = set()

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        """See `Service`."""
        effects: list[Effect] = []
        for item in inbox:
            self._route(item, effects)
        for lane in self.lanes.values():
            lane.work(now.wall_ms)
        effects += self._collect()
        self._throttle(effects)
        if now.mono_ms >= self._commit_due:
            self._commit_due = now.mono_ms + self._settings.commit_ms
            self._commit(effects, self.lanes.values())
        return effects

    def next_due_ms(self) -> int | None:
        """See `Service`."""
        return min((due for lane in self.lanes.values() if (due := lane.next_due_ms()) is not None), default=None)

    def _route(self, item: Item, effects: list[Effect]) -> None:
        if isinstance(item, Delivery):
            self._deliver(item)
        elif isinstance(item, Record | End | Reached):
            if lane := self.lanes.get(item.partition):
                _feed(lane, item)
        elif isinstance(item, Assigned):
            self.lanes[item.partition] = self._open(item)
        elif isinstance(item, Revoked) and (gone := self.lanes.pop(item.partition, None)):
            self._commit(effects, [gone])
            self._paused.discard(item.partition)

    def _deliver(self, delivery: Delivery) -> None:
        lane, what = self._tokens.pop(delivery.token, (None, None))
        if lane is None or self.lanes.get(lane.partition) is not lane:
            return
        if isinstance(what, Sent):
            lane.delivered(what, delivery.offset)
        else:
            lane.acknowledged(what, delivery.offset)

    def _open(self, assigned: Assigned) -> Lane:
        settings, known_to_all = self._settings, Catalog()
        tools = {tool.name: tool.facts for tool in self._app.tools.values()}
        rules = replace(settings.rules, authority=Authority(tools, settings.environment, known_to_all))
        for known in [key for key in self._committed if key[1] == assigned.partition]:
            del self._committed[known]
        return Lane(
            assigned,
            partitions=settings.partitions,
            agents=Agents(self._app, rules, settings.environment),
            rules=rules,
            catalog=known_to_all,
            limits=settings.limits,
            nonce=self._nonce,
            token=self._token,
            actor=settings.member,
            counts=self.counts,
            news=self.news,
        )

    def _token(self, what: tuple[Lane, object]) -> int:
        self._next_token += 1
        self._tokens[self._next_token] = what
        return self._next_token

    def _collect(self) -> list[Effect]:
        publishes: list[Outgoing] = []
        appends: list[Outgoing] = []
        asks: list[Effect] = []
        for lane in self.lanes.values():
            publishes += lane.publishes
            appends += lane.appends
            lane.publishes, lane.appends = [], []
            if lane.wants_end:
                lane.wants_end = False
                asks.append(AskEnd(RUN_LOG, lane.partition))
        effects: list[Effect] = []
        if publishes:
            effects.append(Publish(publishes))
        if appends:
            effects.append(Append(appends))
        return effects + asks

    def _throttle(self, effects: list[Effect]) -> None:
        """Stops taking inputs for a lane that has too many, until it has worked off the half of them."""
        for partition, lane in self.lanes.items():
            paused = partition in self._paused
            if not paused and lane.backlog > self._settings.backlog:
                self._paused.add(partition)
                effects += [Flow("pause", topic, partition) for topic in inputs.TOPICS]
            elif paused and lane.backlog < self._settings.backlog // 2:
                self._paused.discard(partition)
                effects += [Flow("resume", topic, partition) for topic in inputs.TOPICS]

    def _commit(self, effects: list[Effect], lanes: Iterable[Lane]) -> None:
        positions: dict[tuple[str, int], int] = {}
        for lane in lanes:
            for key, position in lane.low_water().items():
                if self._committed.get(key) != position:
                    self._committed[key] = positions[key] = position
        if positions:
            effects.append(Commit(positions))
