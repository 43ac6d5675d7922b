"""The relay as a service: publishes offered results, drops acknowledged ones, sweeps the outbox for others."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from refold.core.errors import FoldError, MalformedError
from refold.core.events import Failure
from refold.core.messages import ToolResult
from refold.core.wire import codec
from refold.core.wire.headers import BASE, cloud_event
from refold.engine.ports.effects import Answers, Effect, Item, LanesNow, Now, Publish
from refold.engine.ports.ledger import Sent, SetAside, Unpublished, outbox_field
from refold.engine.ports.log import NEVER, Assigned, Delivery, Outgoing, Revoked
from refold.engine.relay.settings import RelaySettings
from refold.engine.runtime.lanes import Batches, Journal, Tokens


class Offer(NamedTuple):
    """A result on its way. `field` is its place in the outbox, "" if it is not there; `refused`: it replaces one that
    the log did not take; `base` names the earlier calls that its executor holds."""

    home: int
    field: str
    result: ToolResult
    refused: bool = False
    base: str = ""


class Relay:
    """The relay as a `Service` and an `Outlet`. `token` numbers outgoing records."""

    def __init__(self, settings: RelaySettings, *, token: Callable[[], int]) -> None:
        self._settings = settings
        self._journal = Journal()
        self.counts, self.news = self._journal.counts, self._journal.news
        self._homes: set[int] = set()
        self._offers: list[Offer] = []
        self._flying: Tokens[Offer] = Tokens(token)
        self._listed: set[tuple[int, str]] = set()
        self._sent: dict[int, list[str]] = {}
        self._barred: deque[tuple[int, tuple[int, str]]] = deque()
        self._batches: Batches[None] = Batches(token, resend_ms=settings.resend_ms)
        self._drop_due = self._dropping = self._sweep_due = 0
        self._draining = False
        self._now = Now(0, 0)

    def offer(self, home: int, *, field: str, result: ToolResult, base: str = "") -> None:
        if (home, field) not in self._listed:
            self._listed.add((home, field))
            self._offers.append(Offer(home, field, result, base=base))

    def late(self, home: int, result: ToolResult) -> None:
        self._offers.append(Offer(home, "", result))

    @property
    def idle(self) -> bool:
        return not (self._offers or self._flying or self._sent or self._batches)

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        self._now = now
        for item in inbox:
            if isinstance(item, Delivery):
                self._delivered(item)
            elif isinstance(item, Answers):
                self._answered(item)
            elif isinstance(item, Assigned):
                # Results of the home's last owner may wait: search at once.
                self._homes.add(item.partition)
                self._sweep_due = 0
            elif isinstance(item, Revoked):
                self._homes.discard(item.partition)
        self._sweep()
        return self._collect()

    def next_due_ms(self) -> int | None:
        if self._sent:
            return self._drop_due
        ahead = self._settings.resend_ms if self._batches else self._settings.sweep_ms
        return self._now.mono_ms + ahead if self._homes or not self.idle else None

    def lanes_now(self) -> LanesNow:
        return LanesNow()

    def drain(self) -> bool:
        """True if all offers are published and dropped."""
        self._draining = True
        return self.idle

    def _delivered(self, delivery: Delivery) -> None:
        offer = self._flying.take(delivery.token)
        if offer is None:
            return
        if delivery.offset is None:
            self.counts["publish.unknown"] += 1
            self._offers.append(offer)
        elif delivery.offset == NEVER:
            self._refused(offer)
        elif offer.field:
            if not self._sent:
                self._drop_due = self._now.mono_ms + self._settings.drop_ms
            self._sent.setdefault(offer.home, []).append(offer.field)
            self._dropping += 1

    def _refused(self, offer: Offer) -> None:
        """Replace a result too large for the log by a small one that settles the call."""
        result = offer.result
        call, size, topic = result.call_id, len(codec.encode(result)), self._settings.topic
        self._journal.tell("publish.refused", topic=topic, call_id=call, bytes=size)
        if not offer.refused:
            message = f"the log takes no result of {size} bytes: `max.message.bytes` of {topic} is too small"
            # The effect has happened; without a result the status alone describes it.
            status = "broken" if result.status == "completed" else result.status
            small = replace(result, status=status, result="", failure=Failure("too_large", message), retryable=False)
            self._offers.append(offer._replace(result=small, refused=True))
        elif offer.field:
            self._barred.append((self._now.mono_ms + self._settings.refused_ms, (offer.home, offer.field)))

    def _answered(self, answers: Answers) -> None:
        for _, operation, reply in self._batches.answered(answers, self._now):
            if isinstance(operation, Sent):
                self._listed -= {(operation.home, field) for field in operation.fields}
            elif isinstance(operation, Unpublished):
                if isinstance(reply, list):
                    self._offer_unpublished(operation.home, reply)
                else:
                    self._set_aside(SetAside(operation.home, self._settings.pool), "the outbox is none")

    def _offer_unpublished(self, home: int, results: list[tuple[str, bytes]]) -> None:
        for field, sealed in results:
            if (home, field) in self._listed:
                continue
            try:
                _, value = self._settings.seal.open("result", home, sealed)
                result = codec.decode(ToolResult, value)
                if field != outbox_field(result.call_id, result.attempt):
                    raise MalformedError("it is the result of another attempt")
            except (MalformedError, FoldError) as error:
                self._set_aside(SetAside(home, self._settings.pool, fields=(field,)), error.message)
                continue
            self.counts["outbox.found"] += 1
            self.offer(home, field=field, result=result)

    def _set_aside(self, aside: SetAside, reason: str) -> None:
        """Remove an unreadable entry from the outbox, or every sweep would find it."""
        place = {"partition": aside.home, "pool": aside.pool, "names": ", ".join(aside.fields)}
        self._journal.tell("ledger.unreadable", **place, reason=reason)
        self._batches.ask(aside)

    def _sweep(self) -> None:
        # Forgotten, a refused result is found and offered again.
        while self._barred and self._barred[0][0] <= self._now.mono_ms:
            self._listed.discard(self._barred.popleft()[1])
        if self._now.mono_ms < self._sweep_due:
            return
        self._sweep_due = self._now.mono_ms + self._settings.sweep_ms
        for home in sorted(self._homes):
            self._batches.ask(Unpublished(home, self._settings.pool, self._settings.sweep_limit))

    def _collect(self) -> list[Effect]:
        effects: list[Effect] = []
        if self._offers:
            effects.append(Publish([self._outgoing(offer) for offer in self._offers]))
            self._offers = []
        if self._sent and (
            self._now.mono_ms >= self._drop_due or self._dropping >= self._settings.drop_most or self._draining
        ):
            for home, fields in self._sent.items():
                self._batches.ask(Sent(home, self._settings.pool, tuple(fields)))
            self._sent, self._dropping = {}, 0
        return effects + self._batches.send(self._now)

    def _outgoing(self, offer: Offer) -> Outgoing:
        result = offer.result
        call, member, at_ms = result.call_id, self._settings.member, self._now.wall_ms
        name, trace = f"{call}/{result.attempt}/{result.status}", result.traceparent
        headers = cloud_event(self._settings.topic, call, id=name, source=member, at_ms=at_ms, trace=trace)
        if offer.base:
            headers.append((BASE, offer.base.encode()))
        token = self._flying.give(offer)
        return Outgoing(self._settings.topic, offer.home, call.encode(), codec.encode(result), headers, token)
