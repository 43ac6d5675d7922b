"""All lanes of an approval service: routes items to them, and publishes their records."""

from collections.abc import Callable
from itertools import count

from refold.core.approval.signature import SigningKey
from refold.core.topics import APPROVAL_VOTED
from refold.engine.approval.lane import ApprovalLane
from refold.engine.approval.outbox import Equipment, Signer
from refold.engine.approval.settings import ApprovalSettings
from refold.engine.ports.effects import Effect, Item, LanesNow, Now, Publish
from refold.engine.ports.log import Delivery
from refold.engine.runtime.lanes import Journal, Lanes
from refold.sdk.app import App


class ApprovalService:
    """The approval service as a `Service`. `key`, of the catalog, signs decisions; `nonce` returns random text."""

    def __init__(self, app: App, settings: ApprovalSettings, *, key: SigningKey, nonce: Callable[[], str]) -> None:
        journal, numbers = Journal(), count(1)
        self.counts, self.news = journal.counts, journal.news
        self._mono = 0
        self._equipment = Equipment(settings, Signer(key, settings, nonce), app.tools, lambda: next(numbers), journal)
        self.lanes = Lanes(lambda assigned: ApprovalLane(assigned, self._equipment, self._mono))

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        self._mono = now.mono_ms
        for lane in self.lanes:
            lane.clock.tick(now.mono_ms)
        effects: list[Effect] = []
        for item in inbox:
            if isinstance(item, Delivery):
                # The search ends at the lane that has sent the record.
                any(lane.delivered(item) for lane in self.lanes)
            else:
                effects += self.lanes.route(item)
        left = self._equipment.settings.limits.turn_votes
        for lane in self.lanes:
            # However busy the lanes before it are, every lane advances.
            left -= lane.work(max(1, left))
            if lane.outbox.publishes:
                effects.append(Publish(lane.outbox.publishes))
                lane.outbox.publishes = []
            effects += lane.orders
            lane.orders = []
        limit = self._equipment.settings.limits.waiting_bytes
        return effects + self.lanes.throttle(ApprovalLane.waiting_bytes, limit=limit, topics=(APPROVAL_VOTED,))

    def drain(self) -> bool:
        """True at once: a successor reads everything again, and decides the same."""
        return True

    def lanes_now(self) -> LanesNow:
        return LanesNow(len(self.lanes), sum(not lane.live for lane in self.lanes))

    def next_due_ms(self) -> int | None:
        return min((due for lane in self.lanes if (due := lane.next_due_ms()) is not None), default=None)
