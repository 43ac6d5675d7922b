"""The hijacked planner itself, and in what order it and its accomplices act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from refold.core import events
from refold.core.ids import RunId, home, log_key
from refold.core.run.chain import Head
from refold.core.topics import APPROVAL_REQUESTED, RUN_LOG, tool_requested
from refold.core.wire import codec
from tests.simulator.attacks.doubts import Denier
from tests.simulator.attacks.foothold import Foothold, Order, rights
from tests.simulator.attacks.letters import Clearance
from tests.simulator.attacks.lies import HARMLESS, LIES, Means
from tests.simulator.attacks.poison import Poisoner
from tests.simulator.attacks.questions import Inquirer
from tests.simulator.attacks.strangers import Neighbour, Usurper
from tests.simulator.attacks.votes import Elector
from tests.simulator.reading.tokens import payload_of
from tests.simulator.settings import ORDERS, OTHER, PARTITIONS, POOL
from tests.simulator.world.world import World

ODD_TIMES = (2**53, -1, 0, 2**63 - 1, events.LAST_MS + 1)
ODD_RUNS = ("", "\0", "a\n\ndata: x", "x" * 5_000, "a..1", "a/1", "é")


class Liar:
    """Writes something every few milliseconds until its time is over. `heads` are those of the runs in the log."""

    def __init__(self, world: World, heads: Mapping[str, Head], rng: Random, *, until_ms: int) -> None:
        self._world, self._heads, self._rng = world, heads, rng
        self._foothold = foothold = Foothold(world, heads, rng)
        self._until_ms = world.settings.epoch_ms + until_ms
        self._poisoner = Poisoner(foothold)
        self._moves: dict[Callable[[], None], int] = {
            **Inquirer(foothold).moves,
            self._order: 5,
            self._lie: 14,
            self._replay: 2,
            self._forge_entry: 4,
            self._bury: 2,
            self._babble: 2,
            self._crash: 1,
            **Elector(foothold, self._send).moves,
            **Denier(foothold, self._send).moves,
            **Clearance(foothold).moves,
            **self._poisoner.moves,
            **Neighbour(foothold).moves,
            **Usurper(foothold).moves,
        }

    def begin(self) -> None:
        """Starts to write."""
        self._world.at(self._rng.randrange(50), self._act, waits=False)

    def _act(self) -> None:
        if self._world.now_ms < self._until_ms:
            self._poisoner.look()
            self._rng.choices(list(self._moves), list(self._moves.values()))[0]()
            self._world.at(self._rng.randrange(5, 65), self._act, waits=False)

    # Orders

    def _true_order(self) -> Order | None:
        tokens = self._foothold.decisions
        if not tokens:
            return None
        token = self._rng.choice(tokens[-6:])
        found = payload_of(token)
        requests = self._world.witness.approvals.asked[found["approval"]]
        asked = next((each for each in requests if each["question"] == found["question"]), None)
        return self._foothold.order(found, token, asked["args"]) if asked else None

    def _send(self, order: Order, topic: str = ORDERS) -> None:
        self._foothold.write(topic, order.partition, order.request.call_id, codec.encode(order.request))

    def _order(self) -> None:
        """What was decided, as it was decided; sometimes into all partitions at once, or twice, or to another pool."""
        if order := self._true_order():
            self._world.counts["true order"] += 1
            self._send(order)
            if self._rng.random() < 0.3:
                self._foothold.tell("another partition")
                self._send(replace(order, partition=(order.partition + 1) % PARTITIONS))
            if self._rng.random() < 0.3:
                self._foothold.tell("an order to another pool")
                self._send(order, tool_requested(OTHER))

    def _lie(self) -> None:
        if order := self._true_order():
            means = Means(self._rng, self._foothold.decisions)
            for name in self._rng.sample(list(LIES), self._rng.choice((1, 1, 1, 2))):
                try:
                    order = LIES[name](order, means)
                except ValueError:  # nothing is left of the decision to lie about
                    continue
                self._foothold.tell(name)
                if name not in HARMLESS:
                    self._world.counts["lies"] += 1
            self._send(order)

    def _replay(self) -> None:
        """An old record, as it was, wherever."""
        old = self._world.witness.written.get(ORDERS)
        if old:
            record = self._rng.choice(old)
            self._foothold.tell("a replay")
            self._foothold.write(ORDERS, self._rng.randrange(PARTITIONS), (record.key or b"").decode(), record.value)

    # All else

    def _bury(self) -> None:
        """The tombstone of a call or of an approval."""
        topic = self._rng.choice((ORDERS, APPROVAL_REQUESTED))
        if old := self._world.witness.written.get(topic):
            record = self._rng.choice(old[-8:])
            self._foothold.write(topic, record.partition, (record.key or b"").decode(), None)

    def _babble(self) -> None:
        """Bytes that mean nothing, into any topic that it may write."""
        topic, value = self._rng.choice(sorted(rights())), self._rng.choice((b"", b"{}", b"\0\0\0\0\x09x", b"\xff"))
        self._foothold.write(
            topic, self._rng.randrange(PARTITIONS), self._rng.choice(("r-1", "z-1/2", "", "//")), value
        )

    def _forge_entry(self) -> None:
        rng = self._rng
        if not self._heads:
            return
        run = RunId(rng.choice(list(self._heads)))
        head, now, token = self._heads[run], self._world.now_ms, rng.choice([*self._foothold.decisions, "true"])
        step, attempt, seq = rng.choice((1, 2, 3)), rng.choice((1, 2, 9)), rng.randrange(1, 12)
        sent = events.CallDispatched(step, attempt, now + 800)
        until, expired = now + 1_000_000, events.Failure("decision_expired", "no")
        call = events.CallProposed(step, "wipe_pay", '{"n":1}', "k" * 64, POOL, "pure", 800, events.RetryPolicy(3))
        choices: list[list[events.Event]] = [
            [sent],
            [events.ApprovalDecided(step, seq, "approve", token=token, covers=99, expires_ms=until), sent],
            [events.ApprovalDecided(step, seq, "edit", token=token, args='{"n":9}', key="0" * 64, covers=9), sent],
            [events.CallJudged(step, "", ""), sent],
            [events.CallCompleted(step, attempt, '{"effect":1}')],
            [events.CallFailed(step, attempt, events.Failure("x", "y"))],
            [events.AttemptFailed(step, attempt, expired, unknown=False, retry_ms=now)],
            [events.DoubtResolved(step, attempt, "did_not_happen", "me")],
            [call, sent],
            [events.SleepEnded(step)],
            [events.RunCancelled("because", "me")],
            [events.RunRequested("handling", '{"tool":"wipe_pay"}', "", "", requester="eve"), events.RunStarted()],
        ]
        prev = b"\1" * 16 if rng.random() < 0.1 else head.id
        entry = events.Entry(run, head.seq + 1, prev, now, None, "planner-1", rng.randbytes(16), rng.choice(choices))
        self._misdate(entry)
        name, value = codec.encode_entry(entry)
        self._foothold.tell("the run log")
        place = home(run, PARTITIONS)
        self._foothold.write(RUN_LOG, place, log_key(run, entry.seq, name).decode(), value)

    def _misdate(self, entry: events.Entry) -> None:
        """The end of a run, which extends it, at a time that no log has; and the same under a key that is none."""
        odd = Random(entry.nonce)  # of its own: what else a seed brings about stays
        ended: list[events.Event] = [events.RunFailed(events.Failure("x", "y"))]
        name, value = codec.encode_entry(replace(entry, at_ms=odd.choice(ODD_TIMES), events=ended))
        self._foothold.tell("an odd time")
        place = home(entry.run_id, PARTITIONS)
        self._foothold.write(RUN_LOG, place, log_key(entry.run_id, entry.seq, name).decode(), value)
        run = RunId(odd.choice(ODD_RUNS))
        name, value = codec.encode_entry(replace(entry, run_id=run, seq=1, prev=b""))
        self._foothold.write(RUN_LOG, place, log_key(run, 1, name).decode(), value)

    def _crash(self) -> None:
        groups = self._world.groups
        up = [process for process in groups.processes if process.state == "up" and process.role == "executor"]
        if up:
            groups.die(self._rng.choice(up))
