"""Membership of a process in its group: partition numbers and committed offsets. This consumer never fetches: another
one (`intake`) reads on during a rebalance, as the log judges concurrent writes of two members."""

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from math import inf
from threading import Thread

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from refold.engine.adapters.kafka import clients, offsets
from refold.engine.adapters.kafka.clients import Names
from refold.engine.adapters.kafka.errors import FENCED, is_final, meaning
from refold.engine.adapters.kafka.trouble import ONE_ANSWER_S, Trouble
from refold.engine.ports.log import Membership, Place
from refold.engine.runtime.outages import OUTAGES
from refold.engine.runtime.settings import KafkaSettings

_AGAIN_S = 0.2
"""Pause after a failed commit: about as long as a rebalance."""

_LEAVE_S = 1.0
"""Longest wait of a close for a running rebalance, and for the leave to reach the group."""

_SENT_S = 0.02
"""Time of a request from librdkafka's queue to the wire."""


# A rebalance takes seconds; beyond that, a client may wait silently for a lost answer.
_NO_PLACE_S = 30.0
"""Wait for a place before a member asks with a new client, doubled each time."""

_NO_PLACE_MAX_S = 600.0


class GroupMembership:
    """Member of a group; all but `commit` belongs to one thread."""

    def __init__(self, settings: KafkaSettings, membership: Membership, *, names: Names, trouble: Trouble) -> None:
        self._names, self._trouble, self._topics = names, trouble, membership.topics
        self._settings, self._membership, self._client = settings, membership, 0
        self._consumer = self._connected()
        self._settled_s, self._give_up_s = 0.0, _NO_PLACE_S
        self.owned: set[int] = set()
        self._assigned: set[int] | None = None
        self._lost: set[int] = set()
        self._reassigned: set[int] = set()
        self._settled = self.placed = False
        self._pending: dict[Place, int] = {}
        self._again_s = 0.0
        self._joined = self._left = False
        self._outage_s = -inf

    def look(self) -> tuple[set[int], set[int]]:
        """Poll the group; return the partition numbers that went, and those that came."""
        if not (self._joined or self._left):
            self._join()
        message = self._consumer.poll(0)
        if message is not None and (error := message.error()) and not self._fenced(error):
            topic = message.topic()
            self._trouble.report("kafka.read_error", error, f"read {topic or 'the topics'}", topic=topic)
        if not self._left:
            self._insist()
        gone, self._lost = self._lost, set()
        came: set[int] = set()
        if self._assigned is not None:
            # A member that returns after its expulsion begins again, with earlier partitions too.
            gone, came = gone | (self.owned - self._assigned), self._assigned - self.owned
            self.owned, self._assigned = self._assigned, None
        again, self._reassigned = self._reassigned & self.owned, set()
        if self._pending:
            self._commit()
        return gone | (again - came), came | again

    def committed(self, numbers: set[int]) -> dict[int, dict[str, int]]:
        """Committed offsets of partition numbers, by topic. **Raises** KafkaException."""
        places = [(topic, number) for topic in self._topics for number in numbers]
        by_number: dict[int, dict[str, int]] = {number: {} for number in numbers}
        for (topic, number), at in offsets.committed(self._consumer, self._names, places, ONE_ANSWER_S).items():
            by_number[number][topic] = at
        return by_number

    def reopen(self, number: int) -> None:
        """Revoke and assign an owned partition again."""
        self._reassigned.add(number)

    def commit(self, positions: Mapping[Place, int]) -> None:
        """Commit positions, repeated until the group has them or the partition moved."""
        self._pending.update(positions)

    def _join(self) -> None:
        # At the first look: a member that does not read would keep partitions from others.
        self._joined, self._settled_s = True, time.monotonic()
        topics = [self._names[self._membership.shared]]
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _connected(self) -> Consumer:
        """New client of this member; errors of earlier ones are ignored."""
        self._client += 1
        on_error = partial(self._on_error, self._client)
        return clients.member(self._settings, self._membership, error_cb=on_error, on_commit=self._committed)

    def _insist(self) -> None:
        """Join with a new client after a long wait or a fence."""
        now = time.monotonic()
        if self._settled:
            self._settled_s, self._give_up_s = now, _NO_PLACE_S
        elif now - self._settled_s > self._give_up_s:
            OUTAGES.failed("kafka.no_place", "no_place", group=self._membership.group, waits_s=self._give_up_s)
            self._give_up_s = min(2 * self._give_up_s, _NO_PLACE_MAX_S)
            before, self._consumer = self._consumer, self._connected()
            Thread(target=before.close, name="kafka-membership-close", daemon=True).start()  # which may take as long
            self._join()

    def _fenced(self, error: KafkaError) -> bool:
        """True if this member was fenced after an outage: it joins again."""
        if meaning(error).kind is not FENCED.kind or time.monotonic() - self._outage_s > FENCED.later_s:
            return False
        self._on_lost(self._consumer, [])
        self._settled_s = -inf
        return True

    def close(self, *, leave: bool) -> None:
        """End the membership; without `leave` the group keeps the partitions for this name."""
        self._depart(leave=leave)
        self._consumer.close()

    def leave(self) -> None:
        """Leave the group for good, with all partitions lost; `close` completes it."""
        self._depart(leave=True)
        self._left, self._assigned, self._pending = True, None, {}
        self._lost |= self.owned
        self.owned = set()

    def _depart(self, *, leave: bool) -> None:
        if self._joined and not self._left:
            self._settle()
            self._again_s = 0.0
            self._commit()
            if leave:
                self._leave()

    def _settle(self) -> None:
        deadline = time.monotonic() + _LEAVE_S
        with suppress(KafkaException):
            # Closed in the middle of an assignment, librdkafka 2.16 may hang.
            while not self._settled and time.monotonic() < deadline:
                self._consumer.poll(0.01)
            if not self._settled:
                self._consumer.unsubscribe()

    def _leave(self) -> None:
        deadline = time.monotonic() + _LEAVE_S
        with suppress(KafkaException):
            # Closing a static member does not leave (KIP-345), the end of its subscription does.
            self._consumer.unsubscribe()
            while self._consumer.memberid() and time.monotonic() < deadline:
                self._consumer.poll(0.005)
            self._consumer.poll(_SENT_S)

    # Callbacks of the group, inside a poll

    def _on_error(self, client: int, error: KafkaError) -> None:
        if client == self._client and not self._fenced(error):
            if not is_final(error):
                self._outage_s = time.monotonic()
            self._trouble.on_error(error)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign([])
        if consumer is self._consumer:
            self._settled = self.placed = True
            self._assigned = {place.partition for place in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._settled = False

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if consumer is self._consumer:
            self._settled = self.placed = False
            self._lost |= self.owned
            self.owned = set()

    # Commits

    def _commit(self) -> None:
        now = time.monotonic()
        if not self._settled or now < self._again_s:
            return
        pending, self._pending = self._pending, {}
        own = [self._names.at(place, offset) for place, offset in pending.items() if place[1] in self.owned]
        if not own:
            return
        try:
            self._consumer.commit(offsets=own, asynchronous=True)
        except KafkaException as error:
            OUTAGES.failed("kafka.commit_late", "commit", error=str(error))
            self._pending, self._again_s = pending | self._pending, now + _AGAIN_S

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Queue failed commits again, unless a newer offset is queued."""
        late = [place for place in partitions if error or place.error]
        # Without this an idle group would never commit them.
        for place in late:
            self._pending.setdefault((self._names.logical(place.topic), place.partition), place.offset)
        if late:
            self._again_s = time.monotonic() + _AGAIN_S
            OUTAGES.failed("kafka.commit_late", "commit", error=str(error or late[0].error))
