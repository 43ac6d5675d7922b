"""Tells every partition of a session's grant, and of its end."""

from __future__ import annotations

from refold.approval import outbox
from refold.approval.grants import Standing
from refold.approval.outbox import Post
from refold.approval.process import Seat
from refold.core.approval.decision import Decision
from refold.core.ids import home


class Broadcast:
    """What one lane tells the others. Only the home of the run that a grant was given in speaks of it."""

    def __init__(self, partition: int, seat: Seat, out: Post) -> None:
        self._partition, self._seat, self._post = partition, seat, out

    def at_home(self, found: Decision) -> bool:
        """Whether the run of a decision lives in this partition."""
        return home(found.run, self._seat.partitions) == self._partition

    def show(self, standing: Standing, now: int) -> None:
        """Brings all partitions to where a grant is, this one last: what stands here stands everywhere."""
        if standing.grant.scope != "session" or not self.at_home(standing.given):
            return
        in_force = not standing.revoked and now < standing.grant.until_ms
        wanted = "shown" if in_force else "gone"
        if standing.sending == wanted or (not standing.sending and standing.shown == in_force):
            return
        standing.sending = wanted
        given, token, actor = standing.given, standing.token, self._seat.member
        records = [
            outbox.standing(given, token, partition=number, actor=actor)
            if in_force
            else outbox.gone(given.approval, partition=number)
            for number in range(self._seat.partitions)
        ]
        own = records.pop(self._partition)

        def holds() -> bool:
            return standing.sending == wanted

        def last() -> None:
            if holds():
                self._post.send([own], holds=holds)

        self._post.send(records, last, holds=holds)
