"""Outbox of an executor: ledger operations, claims, dead letters, orders to tools, results for the relay."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from refold.core.errors import FoldError, MalformedError
from refold.core.ids import CallId
from refold.core.messages import INCOMPLETE, ToolClaim, ToolRequest, ToolResult
from refold.core.topics import DEAD_LETTER_EXECUTOR
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.core.wire.seal import OrderPlace
from refold.engine.executor import claim_chain, outcome
from refold.engine.executor.inputs import Requested, SeenCalls
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import Append, Effect, Now, Publish
from refold.engine.ports.ledger import Close, SetAside, Stored, Superseded, owner_of
from refold.engine.ports.log import NEVER, Delivery, Outgoing, Record
from refold.engine.runtime import letters
from refold.engine.runtime.lanes import Batches, Journal, Owed, Recent, Tokens, record_bytes

Claimant = TypeVar("Claimant")

_ANOTHER_CALL = "it is the result of another call"


class Outlet(Protocol):
    """Destination of results: the relay."""

    def offer(self, home: int, *, field: str, result: ToolResult, base: str = "") -> None:
        """Publish a result that is in the outbox under this field, then have it dropped. `base`: see `SeenCalls`."""

    def late(self, home: int, result: ToolResult) -> None:
        """Publish a result that is not in the outbox: the ledger refused it, or has had it for long."""


class Burial(NamedTuple):
    """A dead letter on its way, and the request to finish once the log has it."""

    letter: Outgoing
    owed: Owed


class TimeAsked(NamedTuple):
    """A clock probe of a lane, sent at this monotonic time."""

    home: int
    sent_ms: int


@dataclass(slots=True, eq=False)
class Closing(Owed):
    """Calls to be closed in the ledger, each as in `Close`; finished when it has closed them."""

    calls: list[tuple[str, CallId, int]] = field(default_factory=list)


class ExecutorOutbox(Generic[Claimant]):
    """Outgoing records and requests of a process, and the receivers of their answers. `now` is the time of the turn,
    `orders` start and stop tools. `ended` are claims under which this process acts no more, `keys` the idempotency keys
    of recent calls, `gone` calls whose tombstone had no key, `taken_back` the last withdrawn attempt of calls."""

    def __init__(
        self, settings: ExecutorSettings, outlet: Outlet, *, token: Callable[[], int], fresh: Callable[[], str]
    ) -> None:
        self.settings, self.outlet, self.fresh = settings, outlet, fresh
        self.now, self.journal = Now(0, 0), Journal()
        self._owner = ""
        self.ended, self.gone = Recent[str, None](settings.remember), Recent[str, None](settings.remember)
        self.keys, self.taken_back = Recent[str, str](settings.remember), Recent[str, int](settings.remember)
        self.calls_seen = SeenCalls(settings.conversation_bytes, settings.conversation_least)
        self.ledger: Batches[Claimant | Closing] = Batches(token, resend_ms=settings.resend_ms)
        self.orders: list[Effect] = []
        self._sent: Tokens[Claimant | Burial | TimeAsked] = Tokens(token)
        self._publishes: list[Outgoing] = []
        self._appends: list[Outgoing] = []
        self._closing: dict[int, Closing] = {}
        self._closed: set[str] = set()
        self._close_due = 0

    @property
    def owner(self) -> str:
        """Name of this process in the ledger, as an owner and as an heir."""
        if not self._owner:
            self._owner = owner_of(self.fresh(), f"{self.settings.lock_id}{self.settings.member}")
        return self._owner

    def closing(self, home: int) -> Closing:
        if not self._closing:
            self._close_due = self.now.mono_ms + self.settings.close_ms
        return self._closing.setdefault(home, Closing())

    def close(self, home: int, key: str, call: CallId, attempt: int = 0) -> None:
        """Have the ledger forget a call, or (with `attempt`) refuse its attempts up to that one."""
        self.closing(home).calls.append((key, call, attempt))
        self._closed.add(key)

    def settle(self, key: str) -> None:
        """Have the ledger forget a settled call before its key is claimed again."""
        if key in self._closed:
            self.send_closes(at_once=True)

    def send_closes(self, *, at_once: bool = False) -> None:
        if self.now.mono_ms < self._close_due and len(self._closed) < self.settings.close_most and not at_once:
            return
        for home, closing in self._closing.items():
            if closing.calls:
                self.ledger.ask(Close(home, self.settings.pool, tuple(closing.calls)), closing)
            else:  # the keys are unknown here
                closing.done = True
        self._closing = {}
        self._closed.clear()

    def requested(self, home: int, request: ToolRequest, record: Record) -> Requested | None:
        """A call with all earlier ones on which it builds. None: a part is missing, and its planner is notified."""
        if (rebuilt := self.calls_seen.whole(request)) is None:
            names = request.call_id, request.run_id, request.step, request.attempt
            self.journal.tell("request.incomplete", call_id=request.call_id, attempt=request.attempt)
            executor, trace = self.settings.member, request.traceparent
            self.outlet.late(home, ToolResult(*names, INCOMPLETE, executor=executor, traceparent=trace))
            return None
        whole, base = rebuilt
        size = max(record_bytes(record), base.bytes if base else 0)
        return Requested(whole, record.offset, size, record.at_ms, base.digest if base else "")

    def refuse(self, home: int, request: ToolRequest) -> None:
        """Answer an order that was taken back: its outcome is unknown here."""
        run = outcome.ToolRun(self.settings.member)
        self.outlet.late(home, outcome.result_of(request, "unknown", run, failure=outcome.PASSED))

    def sealed(self, home: int, request: ToolRequest, result: ToolResult) -> bytes:
        return self.settings.seal.close("result", home, request.key, codec.encode(result))

    def stored(self, home: int, request: ToolRequest, stored: Stored) -> None:
        """Publish an earlier result again, if it can be read."""
        if (result := self._opened(home, request, stored.result)) is None:
            return
        own = (result.call_id, result.attempt) == (request.call_id, request.attempt)
        if not (own or result.status == "completed"):
            self.set_aside(home, _ANOTHER_CALL, broken=(request.key,))
            return
        if result.call_id != request.call_id:  # of the same effect, in another life of the run
            result = replace(result, call_id=request.call_id, attempt=request.attempt)
        self.outlet.late(home, replace(result, how="stored"))

    def _opened(self, home: int, request: ToolRequest, sealed: bytes) -> ToolResult | None:
        """Result under the key of a request, if it can be read and this pool has written it."""
        try:
            key, body = self.settings.seal.open("result", home, sealed)
            result = codec.decode(ToolResult, body)
        except FoldError as error:
            # A newer version has written it, and can read it: it stays.
            self._unreadable(home, request.key, error.message)
            return None
        except MalformedError as error:
            self.set_aside(home, error.message, broken=(request.key,))
            return None
        if key != request.key:
            self.set_aside(home, _ANOTHER_CALL, broken=(request.key,))
            return None
        return result

    def overtaken(self, home: int, request: ToolRequest, reply: Superseded) -> bool:
        """True if this pool has begun a higher attempt of the call; put an invalid entry away."""
        opened: ToolResult | OrderPlace | None
        if reply.done:
            opened = self._opened(home, request, reply.sealed)
        else:
            try:
                opened = self.settings.seal.open_order(home, request.key, reply.sealed)
            except MalformedError as error:
                self.set_aside(home, error.message, broken=(request.key,))
                return False
        if opened is None:
            return False
        call = opened.call_id if isinstance(opened, ToolResult) else opened.call
        if call != request.call_id or opened.attempt <= request.attempt:
            self.set_aside(home, "it is of another attempt", broken=(request.key,))
            return False
        return True

    def set_aside(self, home: int, reason: str, *, leases: tuple[str, ...] = (), broken: tuple[str, ...] = ()) -> None:
        """Have the ledger put away unreadable `leases`, and `broken` entries that this pool has not written."""
        self._unreadable(home, ", ".join((*leases, *broken)), reason)
        # Left there, leases would be found at every look for lapsed ones.
        self.ledger.ask(SetAside(home, self.settings.pool, leases=leases, broken=broken))

    def _unreadable(self, home: int, names: str, reason: str) -> None:
        self.journal.tell("ledger.unreadable", partition=home, pool=self.settings.pool, names=names, reason=reason)

    def claim(self, claim: ToolClaim, claimant: Claimant, *, home: int, trace: str) -> None:
        """Append a link to the claim chain; `claimant` gets its delivery."""
        call, member, at_ms = claim.call_id, self.settings.member, self.now.wall_ms
        topic = self.settings.chains
        headers = cloud_event(topic, call, id=claim.claim_id, source=member, at_ms=at_ms, trace=trace)
        key, token = claim_chain.record_key(claim), self._sent.give(claimant)
        self._appends.append(Outgoing(topic, home, key, codec.encode(claim), headers, token))

    def probe_clock(self, home: int) -> None:
        topic, member, at_ms = self.settings.chains, self.settings.member, self.now.wall_ms
        nothing = ToolClaim.of_none(member)
        headers = cloud_event(topic, member, id=f"{member}/{at_ms}", source=member, at_ms=at_ms)
        key, token = claim_chain.CLOCK_PROBE + member.encode(), self._sent.give(TimeAsked(home, self.now.mono_ms))
        self._publishes.append(Outgoing(topic, home, key, codec.encode(nothing), headers, token, awaited=True))

    def bury(self, record: Record, error: MalformedError | FoldError, owed: Owed) -> None:
        """Write the dead letter of an unreadable request, which is `owed` until the log has the letter."""
        code, reason = error.code, str(error)
        self.journal.tell("input.dead", **letters.place(record), code=code, reason=reason)
        service, at_ms, into = self.settings.member, self.now.wall_ms, DEAD_LETTER_EXECUTOR
        self._put(Burial(letters.letter(record, (code, reason), service=service, at_ms=at_ms, into=into), owed))

    def delivered(self, delivery: Delivery) -> Claimant | TimeAsked | None:
        """Claimant or clock probe of a delivery, if any."""
        sent = self._sent.take(delivery.token)
        if sent is not None and delivery.offset == NEVER:
            self.journal.tell("publish.refused", what=type(sent).__name__, topic=self.settings.chains)
        if not isinstance(sent, Burial):
            return sent
        if delivery.offset is None:
            self._put(sent)
        else:  # in the topic, or refused for its size: no one else needs it
            sent.owed.done = True
        return None

    def collect(self) -> list[Effect]:
        # Tools first: nothing that waits may come after the last look at the clock.
        effects, self.orders = [*self.orders, *self.ledger.send(self.now)], []
        if self._publishes:
            effects.append(Publish(self._publishes))
            self._publishes = []
        if self._appends:
            effects.append(Append(self._appends))
            self._appends = []
        return effects

    def _put(self, burial: Burial) -> None:
        self._publishes.append(burial.letter._replace(token=self._sent.give(burial)))
