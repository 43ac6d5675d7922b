"""Somebody who writes into Redis: leases, results and what is done, made up, or copied from where they are true."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from refold.core.ids import CallId, RunId, home
from refold.core.messages import ToolResult
from refold.core.wire import codec
from refold.core.wire.seal import OrderPlace, Seal
from refold.engine.adapters.memory.ledger import CallEntry
from refold.engine.ports.ledger import outbox_field
from tests.simulator.attacks.foothold import SPECIAL, Foothold
from tests.simulator.settings import CLAIMS, ORDERS, PARTITIONS, POOL

_OWN = Seal(POOL, b"of somebody who has no key")
_DAY_MS = 86_400_000


class Poisoner:
    """Has the rights of the pool's user in Redis, and not the pool's key."""

    def __init__(self, foothold: Foothold) -> None:
        self._foothold, self._rng = foothold, foothold.rng
        self._orders: dict[str, bytes] = {}
        self.moves: Mapping[Callable[[], None], int] = {self._write: 5, self._wipe: 1}

    def look(self) -> None:
        """Remembers what lies there."""
        entries = self._foothold.world.ledger.entries()
        self._orders.update((name, entry.order) for (_, _, name), entry in entries.items() if entry.order)

    def _wipe(self) -> None:
        world = self._foothold.world
        if world.counts[f"truncated: {CLAIMS}"]:
            return  # where claims are lost as well nobody can tell what was begun (docs/limits.md)
        world.counts["wiped"] += 1
        world.ledger.wipe()

    def _write(self) -> None:
        rng = self._rng
        asked = next(self._foothold.questions(), None)
        if asked is None:
            return
        place, call = home(asked.run_id, PARTITIONS), asked.call_id
        made = rng.choice((self._lease, self._result, self._done))
        made(place if rng.random() < 0.9 else 1 - place, call, asked.key)

    def _lease(self, place: int, call: CallId, key: str) -> None:
        """A lease that has lapsed: whoever finds it takes the call over. It may be the call's own, of before."""
        world, rng = self._foothold.world, self._rng
        others = [order for name, order in self._orders.items() if name != key]
        if key in self._orders and rng.random() < 0.3:
            self._foothold.tell("a lease, of before")
            order = self._orders[key]
        elif others and rng.random() < 0.5:
            self._foothold.tell("a lease, copied")
            order = rng.choice(others)
        else:
            self._foothold.tell("a lease, made up")
            lies = OrderPlace(call, 1, rng.randrange(max(1, world.broker.log(ORDERS, place).end)))
            order = rng.choice((_OWN.close_order(place, key, lies), b"", b"\xff" * 40))
        self._put(place, key, CallEntry("started", call, 1, "mine", world.now_ms + _DAY_MS, order=order), lapsed=True)

    def _result(self, place: int, call: CallId, key: str) -> None:
        """A result that waits to be published."""
        true = [entry.result for entry in self._foothold.world.ledger.entries().values() if entry.result]
        copied = bool(true) and self._rng.random() < 0.5
        self._foothold.tell("a result in Redis, copied" if copied else "a result in Redis, made up")
        sealed = self._rng.choice(true) if copied else self._made_up(place, call, key)
        content = self._foothold.world.ledger.snapshot()
        content.outbox.setdefault((place, POOL), {})[outbox_field(call, self._rng.choice((1, 7)))] = sealed
        self._foothold.world.ledger.rollback(content)

    def _done(self, place: int, call: CallId, key: str) -> None:
        """A call that was done: whoever is asked for it tells what came of it."""
        world = self._foothold.world
        true = [entry.result for (_, _, name), entry in world.ledger.entries().items() if entry.result and name != key]
        copied = bool(true) and self._rng.random() < 0.5
        self._foothold.tell("an outcome in Redis, copied" if copied else "an outcome in Redis, made up")
        result = self._rng.choice(true) if copied else self._made_up(place, call, key)
        expires = world.now_ms + _DAY_MS
        self._put(place, key, CallEntry("done", call, 1, "mine", expires, success=True, result=result), lapsed=False)

    def _made_up(self, place: int, call: CallId, key: str) -> bytes:
        result = ToolResult(call, RunId(call.partition("/")[0]), 1, 1, "completed", SPECIAL)
        return self._rng.choice((_OWN.close("result", place, key, codec.encode(result)), codec.encode(result), b"{}"))

    def _put(self, place: int, key: str, entry: CallEntry, *, lapsed: bool) -> None:
        world = self._foothold.world
        content = world.ledger.snapshot()
        content.entries[place, POOL, key] = entry
        leases = content.leases.setdefault((place, POOL), {})
        leases.pop(key, None)
        if lapsed:
            leases[key] = world.now_ms - 1
        world.ledger.rollback(content)
