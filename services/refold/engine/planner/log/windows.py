"""Shared limits (windows): this lane's sums of usage, and the published sums of others. A lane publishes its sums every
second to all partitions of `budget-spent`, so that each lane reads only its own."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from refold.core import events
from refold.core.errors import FoldError, MalformedError
from refold.core.events import Entry, Spendable, Used
from refold.core.ids import RunId, child_id, is_below, parent_of
from refold.core.messages import WindowSpent
from refold.core.planning.verdict import Scope
from refold.core.planning.windows import (
    DAY_MS,
    Counted,
    Window,
    WindowKey,
    binding,
    end_of,
    key_of,
    taken_by,
    value_digest,
    value_of,
)
from refold.core.run.account import NOTHING, Amount
from refold.core.run.state import RunState
from refold.core.topics import BUDGET_SPENT
from refold.core.wire import canonical, codec
from refold.core.wire.headers import cloud_event
from refold.engine.ports.log import NEVER, Outgoing, Record
from refold.engine.runtime.lanes import Journal

TELL_MS = 1_000
"""Interval of publishing, and so the delay in other lanes."""

KEEP_MS = 2 * DAY_MS
"""Retention of a window after its end, for late bills and for readers."""

MOST_VALUES = 10_000
"""Values of a label counted one by one, by limit and window; each takes 1 KB in every reading process."""

OTHERS = "rest"
"""Shared value of labels beyond `MOST_VALUES`: invented values gain nothing."""

_LATER = 1 << 62
"""Offset of an owed sum that holds back no mark."""


@dataclass(frozen=True, slots=True, eq=False)
class SentSpent:
    """A published sum up to run-log offset `log`; usage from `since` on is new in it."""

    key: WindowKey
    partition: int
    log: int
    since: int


class LaneSpent(NamedTuple):
    """A lane's published sum up to `log`; `reserved` is the part for open calls, `name` the record's key."""

    log: int
    amount: Amount
    reserved: Amount
    name: bytes


class Windows:
    """Sums of one lane under `limits`, without which it does nothing. `actor` names this process; positions published
    in a `mirrored` log belong to another one. **Units**: milliseconds, by the log or (`mono_ms`) the local clock."""

    def __init__(
        self, partition: int, partitions: int, limits: Sequence[Window], *, actor: str, journal: Journal, mirrored: bool
    ) -> None:
        self.limits, self._partition, self._partitions, self._actor = limits, partition, partitions, actor
        self._journal, self._mirrored = journal, mirrored
        self.orders: list[tuple[Outgoing, SentSpent | None]] = []
        self._own: dict[WindowKey, Amount] = {}
        self._reserved: dict[WindowKey, Amount] = {}
        self._values: Counter[WindowKey] = Counter()
        self._base: dict[WindowKey, int] = {}
        self._spent: dict[WindowKey, dict[int, dict[str, LaneSpent]]] = {}
        self._names: dict[bytes, tuple[WindowKey, int, str]] = {}
        self._owed: dict[WindowKey, int] = {}
        self._sent: set[SentSpent] = set()
        self._reported: dict[WindowKey, int] = {}
        self._due = self._tidied = 0
        self._loaded = False

    # A take-over

    def load(self) -> None:
        """Start this lane's sums from those published before the take-over."""
        if self._loaded:
            return
        self._loaded = True
        for key, lanes in self._spent.items():
            if own := lanes.get(self._partition):
                self._base[key], self._own[key], self._reserved[key], _ = max(own.values())
                self._values[key._replace(value="")] += 1
                self._owed[key] = _LATER  # once this process has published it, sums of earlier owners can go

    def distrust(self, end: int) -> None:
        """Lower the positions of sums to the `end` of a log that has lost records."""
        # A mirror has other offsets: its sums count as complete up to its end.
        self._base = {key: end if self._mirrored else min(base, end) for key, base in self._base.items()}
        for lanes in self._spent.values():  # nor do positions show any more which process came furthest
            own = lanes.get(self._partition, {})
            lanes[self._partition] = {who: spent._replace(log=-1) for who, spent in own.items()}

    # Usage of entries

    def accepted(self, entry: Entry, after: RunState, offset: int) -> None:
        if not self.limits or after.request is None:
            return
        request = after.request
        for charge in taken_by(entry):
            for bound in binding(self.limits, request.agent, request.labels, request.requester, charge.at_ms):
                key = self._counted(bound.key)
                if offset >= self._base.get(key, 0):
                    self._add(key, charge)
                    self._owed[key] = min(self._owed.get(key, offset), offset)

    def _add(self, key: WindowKey, taken: Counted) -> None:
        if key not in self._own:
            self._values[key._replace(value="")] += 1
        reserved = self._reserved.get(key, NOTHING).plus(taken.held)
        # Reservations from before the limit were never counted, and are not given back.
        freed = Amount(*map(min, taken.freed, reserved))
        self._reserved[key] = reserved.minus(freed)
        self._own[key] = self._own.get(key, NOTHING).plus(taken.amount).minus(freed)

    def _counted(self, key: WindowKey) -> WindowKey:
        """Key of the sum that counts a value: beyond `MOST_VALUES` the shared one."""
        if not key.label or key in self._own or self._values[key._replace(value="")] < MOST_VALUES:
            return key
        return key._replace(value=OTHERS)

    # Reading

    def scopes(
        self, state_of: Callable[[RunId], RunState | None], newer: Mapping[RunId, RunState], state: RunState, now: int
    ) -> Iterator[Scope]:
        """Limits that bind a run, with others' usage; `state_of` returns logged states, `newer` are speculated ones."""
        if not self.limits or state.request is None:
            return
        request = state.request
        for named, value, limits in binding(self.limits, request.agent, request.labels, request.requester, now):
            key = self._counted(named)
            # Its own state has its usage in entries that are on their way, or being made; usage of others is added.
            before = newer.get(state.run_id)
            spent = self.total(key).minus(_own(before if before and before.copying else state_of(state.run_id)))
            for after in newer.values():
                if after.run_id != state.run_id and not after.copying and self._binds(key, after):
                    spent = spent.plus(_usage_on_the_way(state_of(after.run_id), after))
            yield Scope(key.named(value if key == named else "(others)"), limits, now, spent, window=True)

    def _binds(self, key: WindowKey, state: RunState) -> bool:
        request = state.request
        if request is None or key.agent not in ("", request.agent):
            return False
        if not key.label:
            return True
        digest = value_digest(value_of(key.label, request.labels, request.requester))
        return self._counted(key._replace(value=digest)) == key

    def total(self, key: WindowKey) -> Amount:
        """Usage under a limit: accepted entries of this lane and published sums of others."""
        total = self._own.get(key, NOTHING)
        for lane, sums in self._spent.get(key, {}).items():
            if lane != self._partition and sums:
                # Several processes may have published for a lane: the sum furthest in the log counts, not the highest.
                total = total.plus(max(sums.values()).amount)
        return total

    # Publishing

    def report(self, position: int, *, mono_ms: int, now: int) -> None:
        """Publish changed sums when due; all entries below this position are counted."""
        if not self.limits:
            return
        self._tidy(now)
        if not self._owed or mono_ms < self._due:
            return
        self._due = mono_ms + TELL_MS
        owed, self._owed = self._owed, {}
        for key, since in owed.items():
            limits = next((limit.limits for limit in self.limits if _matches_limit(key, limit)), None)
            if limits is not None and key in self._own and end_of(key.window) + KEEP_MS >= now:
                self._report(key, since, position, limits, now)

    def _report(self, key: WindowKey, since: int, position: int, limits: Spendable, now: int) -> None:
        (tokens, nano_usd, _), amount = self._reserved[key], self._own[key]
        message = WindowSpent(*key, self._partition, position, *amount, limits, self._actor, tokens, nano_usd)
        # Each process has its own key: a zombie overwrites no sum of its successor.
        name, value = _record_key(key, self._partition, self._actor), codec.encode(message)
        event = f"{self._partition}/{position}/{name.decode()}"
        headers = cloud_event(BUDGET_SPENT, key.named(key.value), id=event, source=self._actor, at_ms=now)
        for copy in range(self._partitions):
            sent = SentSpent(key, copy, position, since)
            if copy == self._partition:
                self._sent.add(sent)
            self.orders.append((Outgoing(BUDGET_SPENT, copy, name, value, headers, 0), sent))

    def delivered(self, sent: SentSpent, offset: int | None) -> None:
        # A successor reads the copy in the lane's own partition.
        own = sent in self._sent
        self._sent.discard(sent)
        if offset is None or offset == NEVER:
            if offset == NEVER:
                hint = "snapshots of this partition wait: see the ACLs of budget-spent"
                self._journal.tell("spent.refused", partition=sent.partition, hint=hint)
            self._owed[sent.key] = min(self._owed.get(sent.key, _LATER), sent.since if own else _LATER)
        elif own:
            self._reported[sent.key] = sent.log
            for actor, spent in list(self._spent.get(sent.key, {}).get(self._partition, {}).items()):
                if actor != self._actor and spent.log <= sent.log:
                    self._bury(spent.name, range(self._partitions))

    def low_water(self, position: int) -> int:
        """Run-log offset below which all usage is published for a successor."""
        # Marks wait for the sums below them: a successor begins with those, and adds later entries only.
        return min([position, *self._owed.values(), *(sent.since for sent in self._sent)])

    def next_due_ms(self) -> int | None:
        return self._due if self._owed else None

    def follow(self, record: Record) -> None:
        name = record.key or b""
        if record.value is None:
            if (previous := self._names.pop(name, None)) is not None:
                self._spent[previous[0]][previous[1]].pop(previous[2], None)
            return
        try:
            message = codec.decode(WindowSpent, record.value)
            end_of(message.window)
        except (FoldError, MalformedError, ValueError):
            self._journal.tell("spent.void", partition=record.partition, offset=record.offset)
            return
        amount = Amount(message.tokens, message.nano_usd, message.calls)
        key, reserved = key_of(message), Amount(message.held_tokens, message.held_nano_usd)
        spent = LaneSpent(message.log, amount, amount if reserved.tokens < 0 else reserved, name)
        self._names[name] = key, message.lane, message.member
        self._spent.setdefault(key, {}).setdefault(message.lane, {})[message.member] = spent
        is_own = self._loaded and message.lane == self._partition and message.member != self._actor
        if is_own and message.log <= self._reported.get(key, -1):  # a late sum of a former owner of this lane
            self._bury(name, range(self._partitions))

    def _tidy(self, now: int) -> None:
        """Once a day, delete sums of windows that ended long ago."""
        if now // DAY_MS == self._tidied:
            return
        self._tidied = now // DAY_MS
        for key in [key for key in {*self._spent, *self._own} if end_of(key.window) + KEEP_MS < now]:
            for spent in [spent for sums in self._spent.pop(key, {}).values() for spent in sums.values()]:
                self._names.pop(spent.name, None)
                self._bury(spent.name, [self._partition])
            for amounts in (self._own, self._reserved, self._values, self._base, self._owed, self._reported):
                amounts.pop(key, None)

    def _bury(self, name: bytes, copies: Iterable[int]) -> None:
        for copy in copies:
            self.orders.append((Outgoing(BUDGET_SPENT, copy, name, None, (), 0), None))


def _own(state: RunState | None) -> Amount:
    """Usage of a run itself; of a copied history, the fork's part."""
    if state is None or state.account is None:
        return NOTHING
    return state.account.own.minus(state.account.open) if state.copying else state.account.own


def _usage_on_the_way(stands: RunState | None, after: RunState) -> Amount:
    """Usage in entries on their way; the part that a fork copies counts for its source."""
    forked = stands is None and after.request is not None and after.request.forked is not None
    return after.account.open if forked and after.account else _own(after).minus(_own(stands))


def _matches_limit(key: WindowKey, limit: Window) -> bool:
    per = "day" if key.window.count("-") > 1 else "month"
    return (per, key.agent, key.label) == (limit.per, limit.agent, limit.label)


def _record_key(key: WindowKey, lane: int, actor: str) -> bytes:
    # Names may have any characters, so they are digested.
    subject = blake2b(canonical.dumps(list(key[1:])).encode(), digest_size=16).hexdigest()
    return f"{key.window}/{subject}/{lane}/{actor}".encode()


class BudgetAccounts:
    """Budgets of one lane's runs. `find` returns a run's latest state, `shared` its limits across lanes; `unheard` is
    the usage of finished runs that no ancestor has counted."""

    def __init__(
        self,
        find: Callable[[RunId], RunState | None],
        shared: Callable[[RunState, int], Iterable[Scope]] = lambda state, now: (),
    ) -> None:
        self._find, self._shared = find, shared
        self.unheard: dict[RunId, Used] = {}

    def above(self, state: RunState, now: int) -> list[Scope]:
        """Limits of a run (its own, its ancestors', windows), each with the usage of other runs."""
        scopes: list[Scope] = []
        run: RunState | None = state
        while run is not None and run.account is not None and not run.over:
            account = run.account
            spent = self._spent_by(run, but=state).plus(self._unheard(run, state))
            scopes.append(Scope(run.run_id, account.limits, account.since_ms, spent))
            # A run whose parent does not count it is bound by no run above: it outlives them, or they count nothing.
            run = self._find(parent_of(run.run_id)[0]) if account.limits.root else None
        return [*scopes, *self._shared(state, now)]

    def _spent_by(self, run: RunState, *, but: RunState) -> Amount:
        """Usage of a run and its live descendants, without the run `but`."""
        if run.account is None:
            return NOTHING
        spent = NOTHING if run.run_id == but.run_id else run.account.total
        for step, opened in run.open.items():
            if opened.phase != "child":
                continue
            started, child = run.steps[step - 1], child_id(run.run_id, step)
            if isinstance(started, events.ChildStarted) and not started.outlives:
                below = but if child == but.run_id else None if child in self.unheard else self._find(child)
                spent = spent.plus(self._spent_by(below, but=but)) if below is not None else spent
        return spent

    def _unheard(self, run: RunState, state: RunState) -> Amount:
        """Usage of finished runs below `run` that none up to it has counted; `state` is newer than the log."""
        spent = NOTHING
        for child, used in self.unheard.items():
            if is_below(child, run.run_id) and not self._is_reported(child, run.run_id, state):
                spent = spent.plus(Amount(used.tokens, used.nano_usd, used.calls))
        return spent

    def _is_reported(self, child: RunId, top: RunId, newest: RunState) -> bool:
        above = child
        while above != top:
            above = parent_of(above)[0]
            # In the entry that records its child's end, the log still has it as it was before.
            state = newest if above == newest.run_id else self._find(above)
            if state is not None and state.account is not None and child in state.account.billed:
                return True
        return False
