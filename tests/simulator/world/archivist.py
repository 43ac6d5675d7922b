"""A simulated archivist: the product's own, which blocks, in a thread that goes on from one effect to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from threading import Lock, Thread

from refold.core.errors import BlobError, ConflictError, NotFoundError, UnreachableError
from refold.core.ids import RunId
from refold.engine.archive.blobs import ArchivedBlobs
from refold.engine.archive.service import Archivist
from refold.engine.archive.settings import ArchivistSettings
from refold.engine.ports.effects import BlobLoaded, LoadBlob
from refold.engine.ports.log import Delivery, Membership, Outgoing, Record
from tests.simulator.settings import OTHER, POOL
from tests.simulator.world.archive import Demand, MemoryObjects, MemoryShelf
from tests.simulator.world.process import Act, SimProcess
from tests.simulator.world.surroundings import Surroundings

FOR_EVER_MS = 1 << 45
STEPS = 6
"""How far a pass goes in a turn, at most: records that it writes, and so on."""

READS = 10
"""How many partitions it reads in a step: others write meanwhile. A switch of threads costs as much as a short fold."""

AGAIN_MS = 1_500
"""How long an operator waits before repeating what was refused."""


class _StoppedError(BaseException):
    """The process of a pass is dead."""


class Pass:
    """A blocking function that hands over before each of its effects: either it runs or the world does, never both."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._mine, self._worlds = work, Lock(), Lock()
        self._mine.acquire()
        self._worlds.acquire()
        self._thread = Thread(target=self._run, daemon=True)
        self._act: Act | None = None
        self._reply: object = None
        self._error: Exception | None = None
        self._stopped = False

    def resume(self, reply: object) -> Act | None:
        """Goes on with the answer to the last effect, to the next; None at its end. **Raises** what the work raises."""
        self._reply = reply
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._mine.release()
        self._worlds.acquire()
        if self._error is not None:
            raise self._error
        return self._act

    def act(self, act: Act) -> object:
        """Hands an effect over, from inside; returns the answer."""
        self._act = act
        self._worlds.release()
        self._mine.acquire()
        if self._stopped:
            raise _StoppedError
        return self._reply

    def stop(self) -> None:
        """Ends it where it is."""
        if self._thread.is_alive():
            self._stopped = True
            self._mine.release()
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except _StoppedError:
            return
        except Exception as error:  # noqa: BLE001
            self._error = error
        self._act = None
        self._worlds.release()


class ArchivistProcess(SimProcess):
    """Makes a pass now and then, and what an operator wants erased at once. It is in no group and keeps nothing."""

    def __init__(self, world: Surroundings, name: str, member: str) -> None:
        super().__init__(world, "archivist", name, services=(), membership=Membership("archivist", member, ()))
        self._pass: Pass | None = None
        self._left = self._reads = 0
        self._settled = -1
        self.due_ms = world.now_ms + world.settings.pass_ms

    def assign(self, partition: int) -> None:
        """It may work; which partition stands for that is all the same."""
        self.expelled_at_ms = None

    @property
    def quiet(self) -> bool:
        """See `SimProcess`."""
        return self._pass is None and self._rests()

    def _rests(self) -> bool:
        """True if its last pass found nothing to do, and nothing was written since."""
        archive = self.world.archive
        return not archive.demands and self._settled == archive.written

    # One step

    def begins(self) -> bool:
        """See `SimProcess`."""
        self.rebalances.clear()
        now = self.world.now_ms
        if self._pass is None:
            if now < self.due_ms or self._rests():
                self.due_ms = max(self.due_ms, now + 1) if now < self.due_ms else now + self.world.settings.pass_ms
                return False
            self.stood_still = self.expelled_at_ms is not None
            self.delayed.clear()
            self._pass, self._reply = Pass(self._work), None
            self._reads = self.world.chance.rng.randint(1, READS) if self.world.chance.wild else READS
        chance = self.world.chance
        self._left = chance.rng.randint(1, STEPS) if chance.wild else STEPS
        return True

    def proceed(self) -> Act | None:
        """See `SimProcess`. A turn ends after some steps, wherever the pass is."""
        while self._left and self._pass is not None:
            self._left -= 1
            self.act = self._pass.resume(self._reply)
            self._reply = None
            if self.act is None:
                self._pass, self.due_ms = None, self.world.now_ms + self.world.settings.pass_ms
                del self.world.archive.held[self.name]
            elif self.act.kind != "scan":
                return self.act
        self.act = None
        return None

    def grasps(self) -> bool:
        """See `SimProcess`."""
        return self._pass is not None

    def drained(self) -> bool:
        """See `SimProcess`."""
        return bool(self.leave_by_ms) and (self._pass is None or self.world.now_ms >= self.leave_by_ms)

    def stop(self) -> None:
        """See `SimProcess`. A pass that is cut short may leave files in the archive that decay."""
        if self._pass is None:
            return
        self._pass.stop()
        self._pass = None
        self.world.archive.held.pop(self.name, None)
        self.world.counts["passes.cut"] += 1
        if self.world.settings.rots:
            self.world.counts["archive.rotten"] += self.world.archive.rot(self.world.erasures.files)

    # A pass

    def reads(self) -> None:
        """It reads a partition next."""
        self._reads = (self._reads or READS) - 1
        if not self._reads:
            self._step("scan", None, None)

    def _step(self, kind: str, what: object, detail: object) -> object:
        assert self._pass is not None, "effects are those of a pass"
        return self._pass.act(Act(kind, what, detail))

    def _work(self) -> None:
        world, settings = self.world, self.world.settings
        keep_ms = settings.keep_ms or FOR_EVER_MS
        told = ArchivistSettings(keep_ms, pools=(POOL, OTHER), horizon_ms=settings.horizon_ms)
        held = world.archive.held[self.name] = set()
        shelf = MemoryShelf(MemoryObjects(world.archive.files, partial(self._step, "shelf"), held))
        copies = _Values(world, {})
        archivist = Archivist(
            _Topics(self), self, shelf, told, archived_values=ArchivedBlobs(_Values(world, None), copies)
        )
        before, demands = world.archive.written, world.archive.demands
        try:
            if demands:
                self._meet(archivist, demands[0])
            else:
                swept = archivist.sweep()
                world.counts["archived"] += len(swept.archived)
                world.counts["erase.left"] += len(swept.left)
                late = [run for run in world.witness.history.runs.values() if run.over]
                waits = any(run.at_ms + keep_ms > swept.now_ms for run in late if run.id not in world.erasures.ever)
                if world.archive.written == before and not (waits and settings.keep_ms):
                    self._settled = before
        except UnreachableError:
            world.counts["passes.failed"] += 1

    def _meet(self, archivist: Archivist, demand: Demand) -> None:
        """What an operator wants, until it is done, or was refused often enough."""
        archive, counts = self.world.archive, self.world.counts
        try:
            archivist.erase(demand.run)
            counts["erase.demanded"] += 1
        except NotFoundError:
            counts["erase.unknown"] += 1
        except ConflictError:
            counts["erase.refused"] += 1
            if demand.unknown_runs and demand in archive.demands:
                again = Demand(demand.run, demand.unknown_runs - 1)
                self.world.at(AGAIN_MS, lambda: archive.demands.append(again))
        if demand in archive.demands:
            archive.demands.remove(demand)

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """See `TopicWriter`."""
        answers = []
        for record in records:
            reply = self._step("publish", record, (record.topic, record.partition, record.key))
            answers.append(reply if isinstance(reply, Delivery) else Delivery(record.token, None))
        return answers


class _Topics:
    """A `LogReader` of a pass: while it reads, others write."""

    def __init__(self, process: ArchivistProcess) -> None:
        self._process = process

    def partitions(self, topic: str) -> int:
        """See `LogReader`."""
        return self._process.world.settings.partitions

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        """See `LogReader`."""
        for number in range(self.partitions(topic)) if partition is None else (partition,):
            self._process.reads()
            yield from list(self._process.world.broker.log(topic, number).records)

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        """See `LogReader`. An archivist follows nothing."""
        raise NotImplementedError

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        """See `LogReader`. An archivist follows nothing."""
        raise NotImplementedError


class _Values:
    """The blob store of the platform, or with `texts` one of the archive's own, as the archived_values asks it."""

    def __init__(self, world: Surroundings, texts: dict[str, str] | None) -> None:
        self._world, self._texts = world, texts

    def put(self, run: RunId, text: str) -> str:
        """See `Blobs`."""
        assert self._texts is not None, "a pass writes no values of runs"
        self._texts[f"{run}/{len(self._texts)}"] = text
        return text

    def get(self, run: RunId, pointer: str) -> str:
        """See `Blobs`."""
        found = self._world.store.answer(LoadBlob(0, run, pointer))
        if isinstance(found, BlobLoaded) and isinstance(found.value, str):
            return found.value
        raise BlobError(f"{pointer} is not there", code="blob_missing")

    def erase(self, run: RunId) -> int:
        """See `Blobs`."""
        return self._world.store.erase(run)
