"""Dead letters about what never was, and the operator who clears them: an accomplice who does not know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from refold.client.letters import home_of, original
from refold.core.errors import FoldError, MalformedError, RefoldError
from refold.core.ids import run_id
from refold.core.messages import ApprovalDecision, CatalogEntry, DeadLetter, RunSignal
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_VOTED, CATALOG, DEAD_LETTERS, RUN_REQUESTED, RUN_SIGNALLED
from refold.core.wire import canonical, codec
from refold.engine.ports.log import Outgoing, Record
from tests.simulator.attacks.foothold import Foothold, rights
from tests.simulator.settings import PARTITIONS
from tests.simulator.world.law import STRANGER

SENT_AGAIN = ("sent-by", b"operator")
"""The header of what the operator sends again."""

_NAME = "z-1/2~" + "0" * 32


class Clearance:
    """Any service may write a letter that says that it comes from anywhere. Whoever clears them has other rights."""

    def __init__(self, foothold: Foothold) -> None:
        self._foothold, self._rng, self._cleared = foothold, foothold.rng, 0
        self.moves: Mapping[Callable[[], None], int] = {self._forge: 3, self._clear: 2}

    def _forge(self) -> None:
        rng, foothold = self._rng, self._foothold
        topic, key, value = rng.choice((self._entry, self._vote, self._decision, self._signal))()
        place, offset = rng.randrange(PARTITIONS), rng.randrange(4)
        if rng.random() < 0.4 and (true := foothold.written(RUN_REQUESTED)):  # where an input does lie
            topic, key, place, offset = (
                RUN_REQUESTED,
                (true[-1].key or b"").decode(),
                true[-1].partition,
                true[-1].offset,
            )
        now, why = foothold.world.now_ms, "a newer schema: send it again after the upgrade"
        letter = DeadLetter(topic, place, offset, "malformed", why, key.encode(), value, "planner-1", now)
        foothold.tell("a letter")
        by = rng.choice(("planner", "planner", "executor", "approval"))
        into = rng.choice(sorted(rights(by).intersection(DEAD_LETTERS)))
        foothold.write(into, place, key, codec.encode(letter), by=by)

    def _entry(self) -> tuple[str, str, bytes]:
        entry = CatalogEntry(f"key/{STRANGER.kid}", "key", canonical.dumps(STRANGER.public().content()))
        return CATALOG, entry.name, codec.encode(entry)

    def _vote(self) -> tuple[str, str, bytes]:
        said = self._foothold.written(APPROVAL_VOTED)
        return APPROVAL_VOTED, f"{_NAME}/mine", said[-1].value or b"" if said else b"{}"

    def _decision(self) -> tuple[str, str, bytes]:
        token = self._rng.choice([*self._foothold.decisions, "true"])
        return APPROVAL_DECIDED, _NAME, codec.encode(ApprovalDecision(_NAME, run_id("z-1"), token))

    def _signal(self) -> tuple[str, str, bytes]:
        signal = RunSignal(run_id("r-1"), "mine", "cancel", '{"reason":"because"}', "operator")
        return RUN_SIGNALLED, "r-1/mine", codec.encode(signal)

    def _clear(self) -> None:
        """The operator looks at what is new, and sends again what may be, as `refold deadletter replay` does."""
        world = self._foothold.world
        laid = world.witness.laid(*DEAD_LETTERS)
        new, self._cleared = laid[self._cleared :], len(laid)
        for record in new[-6:]:
            try:
                letter = codec.decode(DeadLetter, record.value or b"")
                found = original(letter, lambda letter=letter: self._lying(letter), letter="")  # type: ignore[misc]
            except (MalformedError, FoldError):
                continue
            except RefoldError as error:
                world.counts[f"refused: a letter, {error.code}"] += 1
                continue
            self._send(found)

    def _lying(self, letter: DeadLetter) -> list[Record]:
        return self._foothold.world.broker.log(letter.topic, letter.partition).records

    def _send(self, found: Record) -> None:
        world = self._foothold.world
        if found.topic not in rights("operator"):
            world.counts["refused: a letter, by the broker"] += 1
            return
        self._foothold.tell("a letter, sent again")
        place = home_of(found, PARTITIONS)
        world.broker.write(Outgoing(found.topic, place, found.key or b"", found.value, (SENT_AGAIN,), 0))
