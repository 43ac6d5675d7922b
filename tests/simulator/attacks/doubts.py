"""A second attempt of a call that is sent once: as if nothing had come of the first, by a word that nobody has said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from refold.core.errors import FoldError, MalformedError
from refold.core.ids import RunId, call_id, home
from refold.core.messages import ToolRequest
from refold.core.wire import codec
from refold.core.wire.canonical import idempotency_key
from tests.simulator.app import FACTS
from tests.simulator.attacks.foothold import Foothold, Order
from tests.simulator.reading.tokens import payload_of
from tests.simulator.settings import ORDERS, PARTITIONS
from tests.simulator.world.crew import ENVIRONMENT

_TOOL = FACTS["pay"]
"""It needs no decision, so nothing else is in the way of a second attempt."""


class Denier:
    """Orders again what was ordered before. `send` gives an order to executors."""

    def __init__(self, foothold: Foothold, send: Callable[[Order], None]) -> None:
        self._foothold, self._rng, self._send = foothold, foothold.rng, send
        self.moves: Mapping[Callable[[], None], int] = {self._first: 2, self._again: 6}

    def _first(self) -> None:
        """An order as any planner gives one."""
        run, step, args = RunId(f"z-{self._rng.randrange(4)}"), self._rng.choice((1, 2)), '{"n":1}'
        key = idempotency_key(environment=ENVIRONMENT, run=run, step=step, tool=_TOOL.name, args=args)
        now, policy = self._foothold.world.now_ms, self._foothold.world.witness.approvals.laws.all(0)[-1].current
        request = ToolRequest(
            call_id(run, step * 2), run, step, 1, 0, _TOOL.name, args, key, _TOOL.effect, 800, at_ms=now, policy=policy
        )
        self._send(Order(request, home(run, PARTITIONS)))

    def _again(self) -> None:
        rng, foothold = self._rng, self._foothold
        asked = self._ordered()
        if asked is None:
            return
        about = [(token, payload_of(token)) for token in foothold.decisions]
        words = [(token, said) for token, said in about if said["asked"].get("about")]
        own = [token for token, said in words if said["call"] == asked.call_id]
        older = [token for token, said in words if said["call"] == asked.call_id and said["attempt"] <= asked.attempt]
        others = [token for token, said in words if said["call"] != asked.call_id]
        lies = {
            "a second attempt": [""],
            "a second attempt, by a permission": [token for token, said in about if not said["asked"].get("about")],
            "a second attempt, by the word on another call": others,
            "a second attempt, by a word of before": older,
        }
        attempt = asked.attempt + 1
        if own and rng.random() < 0.3:  # what people have said: true or not, it is theirs
            settled = rng.choice(own)
        else:
            lie = rng.choice([name for name, tokens in lies.items() if tokens])
            foothold.tell(lie)
            settled = rng.choice(lies[lie])
        again = replace(asked, attempt=attempt, settled=settled, at_ms=foothold.world.now_ms)
        self._send(Order(again, home(asked.run_id, PARTITIONS)))

    def _ordered(self) -> ToolRequest | None:
        """A call of this tool that was ordered, at the highest attempt there was."""
        found: list[ToolRequest] = []
        for record in self._foothold.written(ORDERS, 40):
            try:
                asked = codec.decode(ToolRequest, record.value or b"")
            except (MalformedError, FoldError):
                continue
            if asked.tool == _TOOL.name:
                found.append(asked)
        if not found:
            return None
        chosen = self._rng.choice(found)
        return max((each for each in found if each.call_id == chosen.call_id), key=lambda each: each.attempt)
