"""Members as they report themselves: agents of planners, tools of executors."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import Field, field_serializer

from refold.client.reading.history import ReadRecord
from refold.client.reading.model import ReadModel, json_text
from refold.core.messages import Member
from refold.core.wire import codec


class Worker(ReadModel):
    """A process that is a member of its role's group (`alive`), or was killed. `versions` are its agents or tools.

    `slots_used`: calls under way at its last report, at most 30 s ago if it lives; None if it reports no number.

    **Units**: milliseconds since 1970. `seen_ms` of a killed process is its last report.
    """

    role: str
    pool: str
    member: str
    alive: bool
    host: str = ""
    partitions: list[int] = Field(default_factory=list)
    slots: int = 0
    slots_used: int | None = None
    started_ms: int = 0
    seen_ms: int = 0
    versions: list[str] = Field(default_factory=list)

    @property
    def load(self) -> str:
        """Slots in use and all slots; empty for a process without slots."""
        used = "" if self.slots_used is None else f"{self.slots_used} / "
        return f"{used}{self.slots}" if self.slots else ""


class WorkerGroup(ReadModel):
    """All workers of a role, or of a pool. `unserved` are partitions without a member.

    `needed`: work waits for the group, or one of its members was killed. `waiting` counts requests, calls or questions
    that no member has taken, the oldest for `oldest_s` seconds. `lag` is in records, by topic.
    """

    role: str
    pool: str
    members: int
    unserved: list[int]
    needed: bool
    waiting: int
    oldest_s: float
    lag: dict[str, int]

    @property
    def missing(self) -> bool:
        return self.needed and bool(self.unserved)

    @property
    def command(self) -> str:
        key = " --key KEY" if self.role == "approval" else ""
        return f"refold serve {self.role} --app APP{f' --pool {self.pool}' if self.pool else ''}{key}"

    @property
    def name(self) -> str:
        return f"{self.role} of pool {self.pool}" if self.pool else self.role


class Workers(ReadModel):
    """Workers and their groups."""

    groups: list[WorkerGroup]
    workers: list[Worker]


class ServedBy(ReadModel):
    """A member that serves an agent or a tool, or did until it was killed. `alive`: it is in its group; None: unknown.

    **Units**: milliseconds since 1970. `reported_ms` is its last report; it reports once a day. The record of a killed
    member stays for eight days after that.
    """

    member: str
    started_ms: int
    reported_ms: int
    alive: bool | None = None

    @property
    def shown(self) -> str:
        return f"{self.member} (gone)" if self.alive is False else self.member


class AgentServed(ReadModel):
    """A version of an agent, and the planners that have it. Planners with a different `manifest` are separate rows."""

    agent: str
    version: str
    manifest: dict[str, str]
    members: list[ServedBy]


class ToolServed(ReadModel):
    """A tool, and the executors that run it. `arguments` is the JSON Schema of its arguments, empty if left out.

    `approval`: each call needs a decision, even if a policy allows it.
    """

    tool: str
    pool: str
    effect: str
    version: str
    tags: list[str]
    approval: bool
    arguments: str = Field(repr=False)
    members: list[ServedBy]

    @field_serializer("arguments")
    def _schema_as_data(self, schema: str) -> Any:
        return json_text(schema)


_Row = TypeVar("_Row", AgentServed, ToolServed)


def workers_reported(records: Iterable[ReadRecord], used: Mapping[bytes | None, int | None] = {}) -> list[Worker]:
    """Last report of each member, with `alive` False; `used` has the slots in use by key."""
    return [
        Worker(
            role=member.kind,
            member=member.name,
            alive=False,
            slots_used=used.get(member.name.encode()),
            seen_ms=by.reported_ms,
            versions=[*(f"{agent.name} {agent.version}" for agent in member.agents), *(t.name for t in member.tools)],
            **{name: getattr(member, name) for name in ("pool", "slots", "started_ms")},
        )
        for member, by in _last_reports(records)
    ]


def agents_served(records: Iterable[ReadRecord], alive: Collection[str] | None = None) -> list[AgentServed]:
    """Agents by name and version, from the reports; `alive` are members in their groups, None if unknown."""
    return _with_joined_members(
        (AgentServed(agent=row.name, version=row.version, manifest=dict(sorted(row.manifest.items())), members=[by]))
        for member, by in _last_reports(records, alive)
        for row in member.agents
    )


def tools_served(records: Iterable[ReadRecord], alive: Collection[str] | None = None) -> list[ToolServed]:
    """Tools by name and pool, from the reports; `alive` as in `agents_served`."""
    same = ("pool", "effect", "version", "tags", "approval")
    return _with_joined_members(
        ToolServed(tool=tool.name, arguments=tool.schema, members=[by], **{name: getattr(tool, name) for name in same})
        for member, by in _last_reports(records, alive)
        for tool in member.tools
    )


def _with_joined_members(rows: Iterable[_Row]) -> list[_Row]:
    merged: dict[str, list[_Row]] = {}
    for row in rows:
        merged.setdefault(row.model_dump_json(exclude={"members"}), []).append(row)
    return [
        alike[0].model_copy(update={"members": [by for row in alike for by in row.members]})
        for _, alike in sorted(merged.items())
    ]


def _last_reports(records: Iterable[ReadRecord], alive: Collection[str] | None = None) -> list[tuple[Member, ServedBy]]:
    last: dict[bytes, tuple[Member, ServedBy]] = {}
    for record in records:
        key = record.key or b""
        member = codec.decode_known(Member, record.value)
        # A record under the key of another member is void.
        if member is not None and member.name.encode() == key:
            lives = None if alive is None else member.name in alive
            by = ServedBy(member=member.name, started_ms=member.started_ms, reported_ms=record.at_ms, alive=lives)
            last[key] = member, by
        elif record.value is None:
            last.pop(key, None)
    return [last[key] for key in sorted(last)]
