"""Reports of members: the agents of planners and the tools of executors, as they report it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import Field, field_serializer

from refold.core.messages import Member, MemberTool
from refold.views.history import ReadRecord, read
from refold.views.model import ReadModel, json_text


class ServedBy(ReadModel):
    """A member that serves it. **Units**: milliseconds since 1970.

    A member reports once a day that it still serves: `reported_ms` is the last time. The record of a member that was
    killed stays until eight days after that.
    """

    member: str
    started_ms: int
    reported_ms: int


class AgentServed(ReadModel):
    """A version of an agent, and the planners that have it. Planners with different code are apart (`manifest`)."""

    agent: str
    version: str
    manifest: dict[str, str]
    members: list[ServedBy]


class ToolServed(ReadModel):
    """A tool, and the executors that run it. `arguments` is the JSON Schema of its arguments, empty if left out.

    `approval`: it never runs without a decision, whatever a policy says.
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
    def _as_data(self, text: str) -> Any:
        return json_text(text)


_Row = TypeVar("_Row", AgentServed, ToolServed)


def agents_served(records: Iterable[ReadRecord]) -> list[AgentServed]:
    """The agents of all planners, by the records of `member`, by name and version."""
    return _merged(
        (AgentServed(agent=each.name, version=each.version, manifest=dict(sorted(each.manifest.items())), members=[by]))
        for member, by in _members(records)
        for each in member.agents
    )


def tools_served(records: Iterable[ReadRecord]) -> list[ToolServed]:
    """The tools of all executors, by the records of `member`, by name and pool."""
    return _merged(
        ToolServed(tool=each.name, arguments=each.schema, members=[by], **_same(each))
        for member, by in _members(records)
        for each in member.tools
    )


def _same(tool: MemberTool) -> dict[str, Any]:
    return {name: getattr(tool, name) for name in ("pool", "effect", "version", "tags", "approval")}


def _merged(rows: Iterable[_Row]) -> list[_Row]:
    """Equal rows of several members as one, in the order of their fields."""
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.model_dump_json(exclude={"members"}), []).append(row)
    return [
        alike[0].model_copy(update={"members": [by for row in alike for by in row.members]})
        for _, alike in sorted(found.items())
    ]


def _members(records: Iterable[ReadRecord]) -> list[tuple[Member, ServedBy]]:
    """The last record of each member, by name. A record under the key of another member counts as none."""
    last: dict[bytes, tuple[Member, ServedBy]] = {}
    for record in records:
        key = record.key or b""
        member = None if record.value is None else read(Member, record.value)
        if member is not None and member.name.encode() == key:
            by = ServedBy(member=member.name, started_ms=member.started_ms, reported_ms=record.at_ms)
            last[key] = member, by
        elif record.value is None:
            last.pop(key, None)
    return [last[key] for key in sorted(last)]
