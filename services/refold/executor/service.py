"""All claims of an executor process: commands become jobs, answers find theirs, time moves what waits."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Refusal
from refold.core.errors import FoldError, MalformedError
from refold.core.messages import ToolClaim, ToolRequest, ToolResult
from refold.core.topics import CATALOG, DEAD_LETTER, TOOL_CLAIMED, tool_requested
from refold.core.wire import codec, letters
from refold.core.wire.headers import cloud_event
from refold.executor.attempt import Job, Times
from refold.executor.claim_chain import Claims
from refold.executor.claim_chain import key as claim_key
from refold.executor.gate import Guard
from refold.ports.effects import (
    Answers,
    Append,
    AskLedger,
    Commit,
    Effect,
    Flow,
    Item,
    News,
    Now,
    Publish,
    StartTool,
    StopTool,
    ToolEnded,
)
from refold.ports.ledger import Close, Lapsed, Operation, Reply
from refold.ports.log import Assigned, Delivery, Membership, Outgoing, Reached, Record, Revoked


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """How an executor works.

    **Units**: milliseconds. `slots` is how many calls are acted on at once; commands beyond `backlog` stay in Kafka.
    `remember` is how many settled calls are known well enough to pass over their tombstones without asking Redis.
    """

    pool: str = "default"
    member: str = "executor-1"
    slots: int = 200
    backlog: int = 2_000
    tend_ms: int = 20
    reap_ms: int = 200
    commit_ms: int = 500
    resend_ms: int = 100
    remember: int = 20_000
    times: Times = field(default_factory=Times)
    guard: Guard = field(default_factory=Guard)


def membership(settings: ExecutorSettings) -> Membership:
    """How an executor reads: the group decides on its pool's requests, the claim chain comes along."""
    return Membership(
        group=f"refold-executor-{settings.pool}",
        member=settings.member,
        subscribe=tool_requested(settings.pool),
        replay=(CATALOG, TOOL_CLAIMED),
    )


class Outlet(Protocol):
    """Where results go: the relay."""

    def offer(self, home: int, *, field: str, result: bytes) -> None:
        """Publish a result that is in the outbox under this field, then have it dropped there."""
        ...

    def late(self, home: int, result: ToolResult) -> None:
        """Publish a result that the ledger refused."""
        ...


@dataclass(slots=True)
class Part:
    """What an executor knows of one of its partitions. `offsets` maps them to whether the claim is answered.

    No call is claimed before the catalog is read to `learn_to`: it may hold the revocation of a key.
    """

    claims: Claims
    learn_to: int
    catalog: Catalog = field(default_factory=Catalog)
    offsets: OrderedDict[int, bool] = field(default_factory=OrderedDict)
    position: int | None = None
    reaped_ms: int = 0

    @property
    def ready(self) -> bool:
        """Whether calls may be claimed."""
        return self.catalog.position >= self.learn_to


@dataclass(slots=True)
class Command:
    """A request that waits for a free slot, and the offset to commit once its claim is answered (None: reaped)."""

    home: int
    request: ToolRequest
    raw: bytes
    offset: int | None


class Executor:
    """The executor as a `Service`. `token` numbers outgoing records, `fresh` gives random ids."""

    def __init__(
        self, settings: ExecutorSettings, outlet: Outlet, *, token: Callable[[], int], fresh: Callable[[], str]
    ) -> None:
        self._settings, self._outlet, self._token, self.fresh = settings, outlet, token, fresh
        self.counts: Counter[str] = Counter()
        self.news: list[News] = []
        self.parts: dict[int, Part] = {}
        self.jobs: dict[int, Job] = {}
        self.draining = False
        self._by_call: dict[str, Job] = {}
        self._commands: deque[Command] = deque()
        self._queued: dict[str, int] = defaultdict(int)
        self._offset_of: dict[int, tuple[int, int]] = {}
        self._batches: dict[int, list[tuple[Job | None, Operation]]] = {}
        self._batch = 0
        self._asked: list[tuple[Job | None, Operation]] = []
        self._again: list[tuple[int, list[tuple[Job | None, Operation]]]] = []
        self._appends: list[Outgoing] = []
        self._publishes: list[Outgoing] = []
        self._appending: dict[int, Job] = {}
        self._letters: dict[int, tuple[Outgoing, int]] = {}
        self._effects: list[Effect] = []
        self._ended_here: OrderedDict[str, None] = OrderedDict()
        self._settled: OrderedDict[str, None] = OrderedDict()
        self._busy: set[int] = set()
        self._paused: set[int] = set()
        self._tend_due = self._commit_due = 0
        self._now = Now(0, 0)

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        """See `Service`."""
        self._now = now
        for item in inbox:
            self._route(item)
        if now.mono_ms >= self._tend_due:
            self._tend_due = now.mono_ms + self._settings.tend_ms
            self._tend()
        self._admit()
        return self._collect()

    def next_due_ms(self) -> int | None:
        """See `Service`."""
        waiting = self.jobs or self._again or self._commands
        ahead = self._settings.tend_ms if waiting else self._settings.reap_ms
        return self._now.wall_ms + ahead if self.parts else None

    def drain(self) -> None:
        """Takes no new work; what has not begun is released, what runs may go on until the host's grace is over."""
        self.draining = True
        self._commands.clear()
        self._queued.clear()
        for job in list(self.jobs.values()):
            job.closed = job.closed or job.phase not in ("running", "completing", "over")

    # What comes in

    def _route(self, item: Item) -> None:
        if isinstance(item, Record):
            self._read(item)
        elif isinstance(item, ToolEnded):
            self._ended(item)
        elif isinstance(item, Answers):
            self._answered(item)
        elif isinstance(item, Delivery):
            self._delivered(item)
        elif isinstance(item, Assigned):
            self._leave(item.partition)
            self.parts[item.partition] = Part(Claims(item.ends[TOOL_CLAIMED]), item.ends[CATALOG])
        elif isinstance(item, Reached):
            self._reached(item)
        elif isinstance(item, Revoked):
            self.parts.pop(item.partition, None)
            self._paused.discard(item.partition)
            self._leave(item.partition)

    def _reached(self, item: Reached) -> None:
        part = self.parts.get(item.partition)
        if part is not None and item.topic == CATALOG:
            part.catalog.reached(item.offset)
        elif part is not None and item.topic == TOOL_CLAIMED:
            part.claims.reached(item.offset)
            self._look(item.partition)

    def _leave(self, home: int) -> None:
        for job in [job for job in self.jobs.values() if job.home == home]:
            job.leave(self)
            self._retire(job)

    def _read(self, record: Record) -> None:
        part = self.parts.get(record.partition)
        if part is None:
            return
        if record.topic == TOOL_CLAIMED:
            part.claims.follow(record, self._now.mono_ms)
            self._look(record.partition)
            return
        if record.topic == CATALOG:
            part.catalog.follow(record.offset, record.key, record.value)
            return
        part.offsets[record.offset] = False
        if record.value is None:
            self._tombstone(record)
            part.offsets[record.offset] = True
            return
        try:
            request = codec.decode(ToolRequest, record.value)
        except (MalformedError, FoldError) as error:
            self._dead_letter(record, error)
        else:
            self._enqueue(Command(record.partition, request, record.value, record.offset))

    def _tombstone(self, record: Record) -> None:
        call = (record.key or b"").decode(errors="replace")
        self._withdraw(call)
        if job := self._by_call.get(call):
            job.close(self)
        elif self._settled.pop(call, 0) is None:
            return
        self._asked.append((None, Close(record.partition, self._settings.pool, call)))

    def _withdraw(self, call: str) -> None:
        """Forgets requests that still wait for a slot: their claim would come after the `Close` and find nothing."""
        if call not in self._queued:
            return
        gone = [command for command in self._commands if command.request.call_id == call]
        self._commands = deque(command for command in self._commands if command.request.call_id != call)
        del self._queued[call]
        for command in gone:
            if command.offset is not None and (part := self.parts.get(command.home)):
                part.offsets[command.offset] = True

    def _enqueue(self, command: Command) -> None:
        self._commands.append(command)
        self._queued[command.request.call_id] += 1

    def _dequeued(self, call: str) -> None:
        self._queued[call] -= 1
        if self._queued[call] <= 0:
            del self._queued[call]

    def _dead_letter(self, record: Record, error: MalformedError | FoldError) -> None:
        self.counts["dead_letter"] += 1
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        self.news.append(("input.dead", {**place, "code": error.code, "reason": str(error)}))
        member, at_ms = self._settings.member, self._now.wall_ms
        key, value, headers = letters.letter(record, code=error.code, reason=str(error), service=member, at_ms=at_ms)
        self._put_away(Outgoing(DEAD_LETTER, record.partition, key, value, headers, 0), record.offset)

    def _put_away(self, letter: Outgoing, offset: int) -> None:
        """Publishes a dead letter; the request at this offset is done with when the log has acknowledged that."""
        token = self._token()
        self._letters[token] = letter, offset
        self._publishes.append(letter._replace(token=token))

    def _delivered(self, delivery: Delivery) -> None:
        if job := self._appending.pop(delivery.token, None):
            job.appended(self, delivery.offset, self._now.mono_ms)
        elif known := self._letters.pop(delivery.token, None):
            letter, offset = known
            if delivery.offset is None:
                self._put_away(letter, offset)
            elif part := self.parts.get(letter.partition):
                part.offsets[offset] = True

    def _ended(self, ended: ToolEnded) -> None:
        self._busy.discard(ended.number)
        job = self.jobs.get(ended.number)
        if job is None:
            return
        job.ended(self, ended, self._now.mono_ms)
        if job.claim:
            self._remember(self._ended_here, job.claim.claim_id)
        self._retire(job)

    def _answered(self, answers: Answers) -> None:
        asked = self._batches.pop(answers.batch, None)
        if asked is None:
            return
        if answers.replies is None:
            self.counts["ledger.unreachable"] += 1
            self._again.append((self._now.mono_ms + self._settings.resend_ms, asked))
            return
        for (job, operation), reply in zip(asked, answers.replies, strict=True):
            if job is not None:
                self._claim_answered(job)
                job.answered(self, operation, reply, self._now.mono_ms)
                self._retire(job)
            elif isinstance(operation, Lapsed):
                self._reaped(operation.home, reply)

    def _claim_answered(self, job: Job) -> None:
        """Offsets are committed after CLAIM, not after the effect, so a long tool never holds a partition."""
        known = self._offset_of.pop(job.number, None)
        if known and (part := self.parts.get(known[0])):
            part.offsets[known[1]] = True

    def _reaped(self, home: int, reply: Reply) -> None:
        assert isinstance(reply, list), "lapsed leases come as a list"
        for raw in reply:
            assert isinstance(raw, bytes), "a lapsed lease comes with its request"
            request = codec.decode(ToolRequest, raw)
            if request.call_id not in self._by_call and home in self.parts:
                self.counts["lease.lapsed"] += 1
                self.news.append(("lease.lapsed", {"call_id": request.call_id, "attempt": request.attempt}))
                self._enqueue(Command(home, request, raw, None))

    # What time makes due

    def _tend(self) -> None:
        mono = self._now.mono_ms
        for job in list(self.jobs.values()):
            job.tend(self, mono)
            self._retire(job)
        due, self._again = [a for a in self._again if a[0] <= mono], [a for a in self._again if a[0] > mono]
        for _, asked in due:
            self._asked += asked
        for home, part in self.parts.items():
            if mono - part.reaped_ms >= self._settings.reap_ms and not self.draining:
                part.reaped_ms = mono
                free = max(1, self._settings.slots - len(self.jobs) - len(self._commands))
                self._asked.append((None, Lapsed(home, self._settings.pool, free)))

    def _look(self, home: int) -> None:
        for job in list(self.jobs.values()):
            if job.home == home and job.phase in ("waiting", "reading"):
                job.look(self, self._now.mono_ms)
                self._retire(job)

    def _admit(self) -> None:
        """Claims only with a free slot: a claim that waits behind others would only use up its lease."""
        early: list[Command] = []
        while self._commands and len(self.jobs) < self._settings.slots and not self.draining:
            command = self._commands.popleft()
            part = self.parts.get(command.home)
            if part is not None and not part.ready:
                early.append(command)
                continue
            self._dequeued(command.request.call_id)
            if part is None:
                continue
            if command.request.call_id in self._by_call:
                if command.offset is not None:
                    part.offsets[command.offset] = True
                continue
            self._begin(command, part)
        self._commands.extendleft(reversed(early))

    def _begin(self, command: Command, part: Part) -> None:
        settings, number = self._settings, self._token()
        job = Job(
            number=number,
            home=command.home,
            pool=settings.pool,
            request=command.request,
            raw=command.raw,
            claims=part.claims,
            catalog=part.catalog,
            times=settings.times,
            executor=settings.member,
        )
        self.jobs[number] = self._by_call[command.request.call_id] = job
        if command.offset is not None:
            self._offset_of[number] = (command.home, command.offset)
        job.begin(self, self._now.mono_ms)

    def _retire(self, job: Job) -> None:
        if job.phase == "over" and self._by_call.get(job.request.call_id) is job:
            del self._by_call[job.request.call_id]
        if job.phase == "over" and job.number not in self._busy:
            self.jobs.pop(job.number, None)

    def _remember(self, memory: OrderedDict[str, None], name: str) -> None:
        memory[name] = None
        if len(memory) > self._settings.remember:
            memory.popitem(last=False)

    # The desk of the jobs

    def ledger(self, job: Job, operation: Operation) -> None:
        """See `Desk`."""
        self._asked.append((job, operation))

    def append(self, job: Job, claim: ToolClaim) -> None:
        """See `Desk`."""
        token = self._token()
        self._appending[token] = job
        member, at_ms, trace = self._settings.member, self._now.wall_ms, job.request.traceparent
        headers = cloud_event(TOOL_CLAIMED, claim.call_id, id=claim.claim_id, source=member, at_ms=at_ms, trace=trace)
        self._appends.append(Outgoing(TOOL_CLAIMED, job.home, claim_key(claim), codec.encode(claim), headers, token))

    def start(self, job: Job, *, probe: bool) -> None:
        """See `Desk`."""
        self._busy.add(job.number)
        self._effects.append(StartTool(job.number, job.request, probe))

    def stop(self, job: Job, reason: str) -> None:
        """See `Desk`."""
        self.counts[f"tool.{reason}"] += 1
        self.news.append((f"tool.{reason}", {"call_id": job.request.call_id, "tool": job.request.tool}))
        self._effects.append(StopTool(job.number, reason))

    def outbox(self, job: Job, field: str, result: bytes) -> None:
        """See `Desk`."""
        if (
            job.result is not None and job.result.status == "completed"
        ):  # after anything else another attempt may follow
            self._remember(self._settled, job.request.call_id)
        self._outlet.offer(job.home, field=field, result=result)

    def late(self, job: Job, result: ToolResult) -> None:
        """See `Desk`."""
        self.counts["result.late"] += 1
        self.news.append(("result.late", {"call_id": result.call_id, "status": result.status}))
        self._outlet.late(job.home, result)

    def ended_here(self, claim_id: str) -> bool:
        """See `Desk`."""
        return claim_id in self._ended_here

    def key_forgotten(self, job: Job) -> bool:
        """See `Desk`."""
        return self._settings.guard.key_forgotten(job.request, job.catalog, self._now.wall_ms)

    def refusal(self, job: Job) -> Refusal | None:
        """See `Desk`."""
        wall = self._now.wall_ms
        return self._settings.guard.refusal(job.request, job.catalog, partition=job.home, now_ms=wall)

    def refused(self, job: Job, refused: Refusal) -> None:
        """See `Desk`."""
        if job.claim:  # nothing is sent under it, so the next attempt does not wait for it
            self._remember(self._ended_here, job.claim.claim_id)
        place = {"call_id": job.request.call_id, "tool": job.request.tool, "partition": job.home}
        alarm = "call.refused" if refused.stale else "call.unauthorised"
        self.counts[alarm] += 1
        self.news.append((alarm, {**place, "code": refused.code, "reason": refused.message}))

    # What goes out

    def _collect(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        if self._asked:
            self._batch = self._token()
            self._batches[self._batch] = self._asked
            effects.append(AskLedger(self._batch, [operation for _, operation in self._asked]))
            self._asked = []
        if self._publishes:
            effects.append(Publish(self._publishes))
            self._publishes = []
        if self._appends:
            effects.append(Append(self._appends))
            self._appends = []
        self._throttle(effects)
        if self._now.mono_ms >= self._commit_due:
            self._commit_due = self._now.mono_ms + self._settings.commit_ms
            self._commit(effects)
        return effects

    def _throttle(self, effects: list[Effect]) -> None:
        topic, full = tool_requested(self._settings.pool), len(self._commands) > self._settings.backlog
        for home in self.parts:
            if full and home not in self._paused:
                self._paused.add(home)
                effects.append(Flow("pause", topic, home))
            elif home in self._paused and len(self._commands) < self._settings.backlog // 2:
                self._paused.discard(home)
                effects.append(Flow("resume", topic, home))

    def _commit(self, effects: list[Effect]) -> None:
        positions: dict[tuple[str, int], int] = {}
        for home, part in self.parts.items():
            before = part.position
            while part.offsets and part.offsets[offset := next(iter(part.offsets))]:
                del part.offsets[offset]
                part.position = offset + 1
            if part.position is not None and part.position != before:
                positions[tool_requested(self._settings.pool), home] = part.position
        if positions:
            effects.append(Commit(positions))
