"""A planner that lies: it has all of a planner's rights and none of its manners, and accomplices with rights of theirs.

It writes what it likes into every topic that planners may write, forged and true, beside honest executors and approval
services, and in half of the cases beside an honest planner. Others write into Redis, the catalog, the dead letters and
the topics of another pool, and vote and sign what nobody has said. No tool that needs a decision may run without one
for exactly that call, made of the votes that the policy asks for, however often ledgers are wiped and executors die;
nothing that attackers made up may be taken for a result; and no honest service may crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

from refold.core.run import chain
from refold.core.topics import RUN_LOG
from refold.engine.executor.service import Executor
from refold.engine.ports.log import Record
from tests.simulator.app import DANGEROUS
from tests.simulator.attacks.foothold import SPECIAL
from tests.simulator.attacks.letters import SENT_AGAIN
from tests.simulator.attacks.liar import Liar
from tests.simulator.case import Case, CaseOutcome
from tests.simulator.checker import decisions
from tests.simulator.reading.values import read_value
from tests.simulator.reading.witness import APPROVAL_TOPICS, Witness
from tests.simulator.settings import ANSWERS
from tests.simulator.workload.inputs import Scenario, start_run
from tests.simulator.world.faults import Chance
from tests.simulator.world.law import LEADS, Decree
from tests.simulator.world.people import People, Say
from tests.simulator.world.receiver import Deed
from tests.simulator.world.tools import ANY
from tests.simulator.world.world import World

LIES_MS, _CALM_MS, _LOOKS_MS = 1_600, 1_000, 100
"""Virtual time in which lies are told; then what was ordered gets some more to happen. And how long people look who are
asked what came of a call."""

NEEDED_LIES = (
    *("allowed", "wiped", "refused: the decision has expired", "refused: the key approval-N was revoked"),
    *("lie: an odd time", "record.void"),
)
"""What has to have happened at least once beside every kind of lie, or a campaign has proved nothing."""


class Bystander(Witness):
    """Sees decisions and effects alone: of a log that a liar writes nothing else is believed, or judged."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: dict[str, chain.Head] = {}
        self.taken: list[str] = []
        self.doubted = 0

    def writes(self, record: Record) -> None:
        before = self.written.setdefault(record.topic, [])
        place = f"{record.topic}/{record.partition}/{record.offset}"
        if record.topic in (RUN_LOG, ANSWERS) and SPECIAL.encode() in (record.value or b""):
            self.taken.append(f"taken: {place} has a result that no tool gave")
        again = SENT_AGAIN in (record.read_headers() or ())
        if again and (record.key, record.value) not in [(other.key, other.value) for other in before]:
            self.taken.append(f"taken: {place} was sent again by the operator, and never lay there")
        before.append(record)
        if record.topic == ANSWERS and _doubted(record):
            self.doubted += 1
        if record.topic in APPROVAL_TOPICS:
            self.asks(record)
        elif record.topic == RUN_LOG:
            judged = chain.read(record.key, record.value)
            if isinstance(judged, chain.LogRecord):
                run = judged.entry.run_id
                if chain.extends(self.heads.get(run, chain.Head()), judged.entry):
                    self.heads[run] = chain.Head(judged.id, judged.entry.last_seq)

    def settles(self, inputs: Sequence[Record], partitions: int) -> None:
        """See `Witness`."""


class Trusting(People):
    """People who say yes to nearly everything that they are asked, whoever asks."""

    def _random(self) -> list[Say]:
        rng = self._world.chance.rng
        said = rng.choices(("approve", "edit", "reject"), (18, 2, 1))[0]
        return [Say(actor, said, rng.randrange(20, 200)) for actor in LEADS if rng.random() < 0.9]


class Siege(Case):
    """A case with a liar in it."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"byzantine {seed}")
        super().__init__(*_scenario(rng, seed))
        self.world.witness = self._bystander = Bystander()
        self._liar = Liar(self.world, self._bystander.heads, rng, until_ms=LIES_MS)

    def _convene(self) -> None:
        super()._convene()
        self.world.witness.on_question = Trusting(self.world, None, self._found, silent=True, looks_ms=_LOOKS_MS).asked

    def _count(self) -> None:
        self.world.counts["refused: in doubt"] += self._bystander.doubted
        self.world.counts["allowed"] += len({effect.decision for effect in _dangerous(self.world)})

    def _judge(self) -> tuple[str, ...]:
        self._liar.begin()
        self._drive()
        danger = [text for text in self.world.witness.approvals.wrong if text.startswith("danger")]
        found = [*danger, *self._bystander.taken, *decisions(self.world)]
        return (*found, *_doubled(self.world), *_unsigned(self.world))

    def _drive(self) -> bool:
        world = self.world
        end = world.settings.epoch_ms + LIES_MS + _CALM_MS
        while world.now_ms < end:
            if not world.round():
                world.advance()
        return True


def _doubted(record: Record) -> bool:
    """Whether an executor says that it did not act, because nobody knows what came of the attempt before."""
    told = read_value(record.value or b"")
    return told["status"] == "doubt" and (told["failure"] or {}).get("code") == "in_doubt"


def _dangerous(world: World) -> list[Deed]:
    return [effect for effect in world.receiver.done if effect.applied and effect.tool in DANGEROUS]


def _doubled(world: World) -> list[str]:
    """What the class alone forbids: two effects of one key where the receiver knows keys or can be asked."""
    keys = Counter(effect.key for effect in _dangerous(world) if effect.tool != "wipe_pay")
    return [f"twice: the key {key[:8]} had its effect {count} times" for key, count in keys.items() if count > 1]


def _unsigned(world: World) -> Iterator[str]:
    """Keys and policies that an executor believes, and the root key has never signed."""
    for partition, process in world.groups.owners["executor"].items():
        executor = process.services[0]
        assert isinstance(executor, Executor), "an executor's process hosts an executor"
        if (lane := executor.lanes.get(partition)) is None:
            continue
        laws = world.witness.approvals.laws.all(partition)
        signed = {name for law in laws for name in (*law.keys, *law.policies)}
        for name in sorted({*lane.catalog.keys, *lane.catalog.policies} - signed):
            yield f"unsigned: the executor of partition {partition} believes {name}"


def _scenario(rng: Random, seed: int) -> tuple[Scenario, Chance]:
    tool = rng.choice(DANGEROUS)
    honest = seed % 2
    inputs = tuple(
        start_run(f"r-{number}", "handling", {"tool": tool}, at_ms=rng.randrange(300), requester="eve")
        for number in range(1, rng.choice((2, 3)) if honest else 1)
    )
    decrees = []
    if rng.random() < 0.4:
        decrees.append(Decree(rng.randrange(300, 1_200), rng.choice(("revoke", "rotate"))))
    if rng.random() < 0.15:
        decrees.append(Decree(rng.randrange(300, 1_200), "policy", "recheck-ask"))
    policy = rng.choice(("ask", "ask", "ask-two", "brief", "ask-anybody", "rejecting"))
    changes = {
        "planners": honest,
        "executors": rng.choice((1, 1, 2)),
        "approvals": 1,
        "others": 1,
        "sharing": rng.random() < 0.5,
    }
    chance = Chance(Random(rng.random()), wild=True, rate=0.005, left=rng.randint(0, 3), until_ms=LIES_MS)
    scripts = {ANY: ()} if rng.random() < 0.3 else {}
    scenario = Scenario(f"siege {seed}", inputs, scripts, "truth", changes, None, policy, tuple(decrees), silent=True)
    return scenario, chance


def run_siege(seed: int, *, traced: bool = True) -> CaseOutcome:
    """What a liar does with this seed; the same every time."""
    return Siege(seed).run(traced=traced)
