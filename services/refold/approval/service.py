"""All lanes of an approval service: what came goes to its lane, and what the lanes want is published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from refold.approval.lane import TOPICS, Lane
from refold.approval.process import Limits, Seat
from refold.core.approval.signature import SigningKey
from refold.core.topics import APPROVAL_REQUESTED
from refold.ports.effects import Effect, Item, News, Now, Publish
from refold.ports.log import Assigned, Delivery, Membership, Reached, Record, Revoked
from refold.sdk.app import App


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    """How an approval service works."""

    partitions: int
    member: str = "approval-1"
    environment: str = "dev"
    limits: Limits = field(default_factory=Limits)


def membership(settings: ApprovalSettings) -> Membership:
    """How the service reads: the group decides on the requests, and everything is read from the start."""
    return Membership(group="refold-approval", member=settings.member, subscribe=APPROVAL_REQUESTED, replay=TOPICS)


class ApprovalService:
    """The approval service as a `Service`.

    `key` signs decisions and has to be in the catalog before anything is decided; `nonce` gives fresh random text. The
    tools of the app say which edits and answers can be.
    """

    def __init__(self, app: App, settings: ApprovalSettings, *, key: SigningKey, nonce: Callable[[], str]) -> None:
        self.lanes: dict[int, Lane] = {}
        self._now = 0
        self.counts: Counter[str] = Counter()
        self.news: list[News] = []
        numbers = count(1)
        self._seat = Seat(
            partitions=settings.partitions,
            environment=settings.environment,
            member=settings.member,
            key=key,
            tools=app.tools,
            limits=settings.limits,
            nonce=nonce,
            token=lambda: next(numbers),
            counts=self.counts,
            news=self.news,
        )

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        """See `Service`."""
        # `now` never runs backwards: what has expired stays expired.
        self._now = max(self._now, now.wall_ms)
        for lane in self.lanes.values():
            lane.now = self._now
        for item in inbox:
            self._route(item)
        effects: list[Effect] = []
        left = self._seat.limits.turn_votes
        for lane in self.lanes.values():
            # However busy the lanes before it are, every lane gets on.
            left -= lane.work(max(1, left))
            if lane.post.publishes:
                effects.append(Publish(lane.post.publishes))
                lane.post.publishes = []
        return effects

    def next_due_ms(self) -> int | None:
        """See `Service`."""
        return min((due for lane in self.lanes.values() if (due := lane.next_due_ms()) is not None), default=None)

    def _route(self, item: Item) -> None:
        if isinstance(item, Record):
            if lane := self.lanes.get(item.partition):
                lane.take(item)
        elif isinstance(item, Reached):
            if lane := self.lanes.get(item.partition):
                lane.reached(item.topic, item.offset)
        elif isinstance(item, Delivery):
            for lane in self.lanes.values():
                if lane.post.delivered(item.token, item.offset):
                    break
        elif isinstance(item, Assigned):
            self.lanes[item.partition] = Lane(item, self._seat, self._now)
        elif isinstance(item, Revoked):
            self.lanes.pop(item.partition, None)
