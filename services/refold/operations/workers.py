"""Planners, executors and approval services: which live, what each serves, and what waits for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from refold.adapters.kafka.groups import GroupState, group_states
from refold.adapters.kafka.reader import KafkaLogReader
from refold.adapters.kafka.source import KafkaLogSource
from refold.core.errors import RefoldError
from refold.core.topics import APPROVAL_REQUESTED, MEMBER, RUN_REQUESTED, TOOL_REQUESTED, executors, pool_of
from refold.ports.log import LogReader, Place
from refold.runtime.clock import clock_ms
from refold.runtime.settings import KafkaSettings
from refold.views.member import (
    AgentServed,
    MemberReport,
    ToolServed,
    Worker,
    WorkerGroup,
    Workers,
    agents_served,
    reports_of,
    tools_served,
)

PLANNERS = "refold-planner"
MOST_MEMBERS = 1_000
MOST_READ = 5_000
"""Records behind a group's position that are read for those that are still open: some 50 ms. Behind that all count."""


def groups_of(pools: list[str]) -> dict[str, tuple[str, str, str]]:
    """The groups of workers: role, pool, and the topic of what waits for them."""
    return {
        PLANNERS: ("planner", "", RUN_REQUESTED),
        "refold-approval": ("approval", "", APPROVAL_REQUESTED),
        **{executors(pool): ("executor", pool, f"{TOOL_REQUESTED}.{pool}") for pool in pools},
    }


class Served(NamedTuple):
    """Agents and tools that members report, with a mark on members that were killed."""

    agents: list[AgentServed]
    tools: list[ToolServed]


def served(reader: LogReader, ask: Callable[[Iterable[str]], Mapping[str, GroupState]]) -> Served:
    """Return what members report; `ask` returns groups. **Raises** UnreachableError."""
    records, alive = [*reader.scan(MEMBER)], None
    # Any executor may write reports, of any number of pools.
    groups = {executors(each.pool) if each.pool else PLANNERS for each in islice(reports_of(records), MOST_MEMBERS)}
    with suppress(RefoldError):  # who may not see groups sees reports alone
        alive = {member.name for state in ask(groups).values() for member in state.members} if groups else set()
    return Served(agents_served(records, alive), tools_served(records, alive))


def workers(settings: KafkaSettings) -> Workers:
    """Return all workers, living or killed, and their groups. **Raises** UnreachableError; UsageError without a right.

    Killed are those that still report what they serve, and are in no group.
    """
    reader, source = KafkaLogReader(settings), KafkaLogSource(settings)
    groups = groups_of([pool_of(name) for name in reader.names({TOOL_REQUESTED})])
    states, now_ms = group_states(settings, groups), clock_ms()
    reports = {(report.kind, report.pool, report.member): report for report in reports_of(reader.scan(MEMBER))}
    places = {(topic, number) for *_, topic in groups.values() for number in range(source.partitions)}
    ends = source.ends(places.union(*(state.committed for state in states.values())))
    rows, found = list[Worker](), list[WorkerGroup]()
    for group, (role, pool, topic) in groups.items():
        state = states[group]
        for member in state.members:
            report = reports.pop((role, pool, member.name), None)
            about = _about(report) | {"host": member.host, "partitions": list(member.partitions), "seen_ms": now_ms}
            rows.append(Worker(role=role, pool=pool, member=member.name, alive=True, **about))
        gone = [report for (kind, of, _), report in reports.items() if (kind, of) == (role, pool)]
        rows += [Worker(role=role, pool=pool, member=report.member, alive=False, **_about(report)) for report in gone]
        served = {number for member in state.members for number in member.partitions}
        waiting = list(_waiting(reader, topic, state, ends, source.partitions))
        lag = Counter[str]()
        for place, offset in state.committed.items():
            lag[place[0]] += max(0, ends.get(place, 0) - offset)
        found.append(
            WorkerGroup(
                role=role,
                pool=pool,
                members=len(state.members),
                unserved=sorted(set(range(source.partitions)) - served),
                needed=role == "planner" or bool(waiting or gone),
                waiting=len(waiting),
                oldest_s=max(0, now_ms - min(waiting, default=now_ms)) / 1000,
                lag=dict(lag),
            )
        )
    return Workers(groups=found, workers=rows)


def _about(report: MemberReport | None) -> dict[str, object]:
    if report is None:
        return {}
    return {
        "versions": report.versions,
        "slots": report.slots,
        "started_ms": report.started_ms,
        "seen_ms": report.at_ms,
    }


def _waiting(
    reader: KafkaLogReader, topic: str, state: GroupState, ends: Mapping[Place, int], partitions: int
) -> Iterator[int]:
    """Times of what lies behind a group's position and was not taken back by a tombstone since."""
    starts = {number: state.committed.get((topic, number), 0) for number in range(partitions)}
    behind = {number: at for number, at in starts.items() if at < ends.get((topic, number), 0)}
    waiting, records = dict[bytes | None, int](), reader.since(topic, behind).to_the_end() if behind else iter(())
    for record in islice(records, MOST_READ):
        if record.value is None:
            waiting.pop(record.key, None)
        else:
            waiting.setdefault(record.key, record.at_ms)
    yield from waiting.values()
