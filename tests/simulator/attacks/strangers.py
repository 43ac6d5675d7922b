"""An executor of another pool, and somebody who may write into the catalog and has no root key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from refold.core.approval.policy import policy_digest
from refold.core.approval.signature import SigningKey, sealed
from refold.core.events import Failure
from refold.core.ids import CallId, RunId
from refold.core.messages import CatalogEntry, ToolClaim, ToolResult
from refold.core.topics import CATALOG, tool_claimed, tool_completed
from refold.core.wire import canonical, codec
from refold.engine.executor.claim_chain import record_key
from tests.simulator.attacks.foothold import SPECIAL, Foothold
from tests.simulator.settings import CLAIMS, ORDERS, OTHER, PARTITIONS, ROOT
from tests.simulator.world.law import BADGE, FIRST, OUTSIDER, PUBLIC, STATUTES, STRANGER

_OTHER_ROOT = SigningKey("root-2", "root", bytes([8] * 32))
_FORGED_ROOT = SigningKey(ROOT.kid, "root", bytes([9] * 32))


class Neighbour:
    """An executor of another pool: it answers calls that it was not asked for, and claims them."""

    def __init__(self, foothold: Foothold) -> None:
        self._foothold, self._rng = foothold, foothold.rng
        self.moves: Mapping[Callable[[], None], int] = {self._answer: 4, self._claim: 1}

    def _answer(self) -> None:
        """The result of a call of an honest run, as soon as it was ordered."""
        rng, foothold = self._rng, self._foothold
        orders = [record for record in foothold.written(ORDERS, 30) if (record.key or b"").startswith(b"r-")]
        if not orders:
            return
        order = rng.choice(orders)
        call, attempt = CallId((order.key or b"").decode(errors="replace")), rng.choice((1, 1, 2))
        status = rng.choice(("completed", "completed", "failed", "unknown", "unauthorised", "doubt"))
        failure = None if status == "completed" else Failure("mine", "as I say")
        result = ToolResult(call, RunId(call.partition("/")[0]), 1, attempt, status, SPECIAL, failure)
        foothold.tell("a result of another pool")
        foothold.write(tool_completed(OTHER), order.partition, call, codec.encode(result), by="executor")

    def _claim(self) -> None:
        """What is claimed and buried in another pool's chains is nothing to the pool that has the call."""
        rng, foothold = self._rng, self._foothold
        if claims := foothold.written(CLAIMS):
            record = rng.choice(claims)
            claim = replace(codec.decode(ToolClaim, record.value or b""), executor="mine")
            foothold.tell("a claim of another pool")
            for value in (codec.encode(claim), *([None] if rng.random() < 0.5 else [])):
                place, key = record.partition, record_key(claim).decode()
                foothold.write(tool_claimed(OTHER), place, key, value, by="executor")


class Usurper:
    """Writes into the catalog: what nobody has signed, what others have, and what was in force before."""

    def __init__(self, foothold: Foothold) -> None:
        self._foothold, self._rng = foothold, foothold.rng
        self.moves: Mapping[Callable[[], None], int] = {self._enact: 2, self._restore: 2}

    def _enact(self) -> None:
        rng, foothold = self._rng, self._foothold
        entry = self._entry()
        if (how := rng.randrange(12)) < 3:
            foothold.tell("an entry, unsigned")
        elif how < 6:
            foothold.tell("an entry, by another root")
            entry = sealed(entry, _OTHER_ROOT, entry.counter)
        elif how < 9:
            foothold.tell("an entry, by a forged root")
            entry = sealed(entry, _FORGED_ROOT, entry.counter)
        elif written := foothold.written(CATALOG, 30):
            foothold.tell("an entry, tampered")
            true = codec.decode(CatalogEntry, rng.choice(written).value or b"{}")
            entry = replace(entry, token=true.token, counter=true.counter)
        self._publish(entry.name, codec.encode(entry))

    def _restore(self) -> None:
        """An entry as it was signed once; and a tombstone, which takes nothing back."""
        rng, foothold = self._rng, self._foothold
        names = [record.key for record in foothold.written(CATALOG, 60)]
        if rng.random() < 0.3 and names:
            foothold.tell("a tombstone in the catalog")
            self._publish((rng.choice(names) or b"").decode(), None)
        elif old := [r for r in foothold.written(CATALOG, 60) if names.count(r.key) > PARTITIONS]:
            foothold.tell("an entry of before")
            keys = [record for record in old if (record.key or b"").startswith(b"key/")]  # of which one was revoked
            record = rng.choice(keys or old)
            self._publish((record.key or b"").decode(), record.value)

    def _entry(self) -> CatalogEntry:
        policy = STATUTES["allow"]
        contents: dict[str, tuple[str, Any]] = {
            f"key/{STRANGER.kid}": ("key", STRANGER.public().content()),
            f"key/{FIRST.kid}": ("key", PUBLIC[FIRST.kid].content()),
            f"key/{BADGE.kid}": ("key", BADGE.public().content()),
            "roles": ("roles", {"roles": {"lead": [OUTSIDER], "head": [OUTSIDER]}, "revoked": []}),
            f"policy/{policy_digest(policy)}": ("policy", policy),
            "current": ("current", policy_digest(policy)),
        }
        name = self._rng.choice(list(contents))
        kind, content = contents[name]
        return CatalogEntry(name, kind, canonical.dumps(content), "operator", self._foothold.world.now_ms, 1_000_000)

    def _publish(self, name: str, value: bytes | None) -> None:
        places = range(PARTITIONS) if self._rng.random() < 0.3 else (self._rng.randrange(PARTITIONS),)
        for place in places:
            self._foothold.write(CATALOG, place, name, value, by="authority")
