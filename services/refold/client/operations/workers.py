"""Planners, executors and approval services: their members, partitions and backlog."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from refold.client.reading import member as reading
from refold.core.errors import RefoldError, UsageError
from refold.core.topics import APPROVAL_REQUESTED, MEMBER, PLANNERS, RUN_REQUESTED, TOOL_REQUESTED, executors, pool_of
from refold.core.wire.headers import SLOTS_USED, number_in
from refold.engine.adapters.kafka.groups import GroupMember, GroupState, group_states
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.ports.log import LogReader, Place
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import KafkaSettings

MOST_MEMBERS = 1_000
MOST_READ = 5_000
"""Most records behind a group's position that are read, in about 50 ms; beyond it all count as open."""


class Served(NamedTuple):
    agents: list[reading.AgentServed]
    tools: list[reading.ToolServed]


def served(reader: LogReader, ask: Callable[[Iterable[str]], Mapping[str, GroupState]]) -> Served:
    """Read the reports of members; `ask` reads groups. **Raises** UnreachableError."""
    records, alive = [*reader.scan(MEMBER)], None
    # Any executor may write reports, of any number of pools.
    groups = {
        executors(row.pool) if row.pool else PLANNERS for row in islice(reading.workers_reported(records), MOST_MEMBERS)
    }
    # Without the right to see groups, there are reports alone.
    with suppress(RefoldError):
        alive = {member.name for state in ask(groups).values() for member in state.members} if groups else set()
    return Served(reading.agents_served(records, alive), reading.tools_served(records, alive))


def workers(settings: KafkaSettings) -> reading.Workers:
    """Read all workers and their groups; a killed one has a report, but no place in a group. **Raises**
    UnreachableError; UsageError without a right."""
    reader, source = KafkaLogReader(settings), KafkaLogSource(settings)
    groups = {PLANNERS: ("planner", "", RUN_REQUESTED), "refold-approval": ("approval", "", APPROVAL_REQUESTED)}
    for topic in reader.names({TOOL_REQUESTED}):
        groups[executors(pool_of(topic))] = "executor", pool_of(topic), topic
    states, now_ms, numbers = group_states(settings, groups), clock_ms(), range(source.partitions)
    records = [*reader.scan(MEMBER)]
    used = {record.key: number_in(record.read_headers(), SLOTS_USED) for record in records}
    reports = {(row.role, row.pool, row.member): row for row in reading.workers_reported(records, used)}
    places = {(topic, number) for *_, topic in groups.values() for number in numbers}
    ends = source.ends(places.union(*(state.committed for state in states.values())))
    rows, worker_groups = list[reading.Worker](), list[reading.WorkerGroup]()
    for group, (role, pool, topic) in groups.items():
        state = states[group]
        living = [_living(reports.pop((role, pool, by.name), None), role, pool, by, now_ms) for by in state.members]
        gone = [row for row in reports.values() if (row.role, row.pool) == (role, pool)]
        rows += living + gone
        waiting = _waiting_since_ms(reader, topic, state, {number: ends.get((topic, number), 0) for number in numbers})
        row = reading.WorkerGroup(
            role=role,
            pool=pool,
            members=len(living),
            unserved=sorted({*numbers}.difference(*(row.partitions for row in living))),
            # Only planners are needed without work.
            needed=role == "planner" or bool(waiting or gone),
            waiting=len(waiting),
            oldest_s=max(0, now_ms - min(waiting, default=now_ms)) / 1000,
            lag=_lag(state.committed, ends),
        )
        worker_groups.append(row)
    return reading.Workers(groups=worker_groups, workers=rows)


def _living(report: reading.Worker | None, role: str, pool: str, member: GroupMember, now_ms: int) -> reading.Worker:
    now = {"alive": True, "host": member.host, "partitions": list(member.partitions), "seen_ms": now_ms}
    worker = report or reading.Worker(role=role, pool=pool, member=member.name, alive=True)
    return worker.model_copy(update=now)


def _lag(committed: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[str, int]:
    lag = Counter[str]()
    for place, offset in committed.items():
        lag[place[0]] += max(0, ends.get(place, 0) - offset)
    return lag


def _waiting_since_ms(reader: KafkaLogReader, topic: str, state: GroupState, ends: Mapping[int, int]) -> list[int]:
    """Append times of requests that a group has not read, one per key; without the right to read, the oldest of all."""
    starts = {number: state.committed.get((topic, number), 0) for number in ends}
    behind = {number: at for number, at in starts.items() if at < ends[number]}
    waiting = dict[bytes | None, int]()
    try:
        for record in islice(reader.since(topic, behind).to_the_end(), MOST_READ) if behind else ():
            waiting.setdefault(record.key, record.at_ms)
            if record.value is None:
                del waiting[record.key]
    # Projectors and gateways may not read orders: they know their number, and the time of the last append.
    except UsageError:
        return [reader.appended_ms(topic, behind, clock_ms())] * sum(ends[number] - at for number, at in behind.items())
    return [*waiting.values()]
