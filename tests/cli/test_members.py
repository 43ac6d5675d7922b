"""The reports of members: their content, their size, and what readers make of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar, NamedTuple

import pytest

from refold import App, Context
from refold.cli.commands.serve import presence
from refold.cli.commands.serve.presence import Presence, executor_member, fitted, planner_member
from refold.client.reading.member import AgentServed, agents_served, tools_served
from refold.core.errors import UnreachableError
from refold.core.messages import Member, MemberTool
from refold.core.wire import codec
from refold.engine.runtime.settings import KafkaSettings, Settings
from tests.waiting import eventually

app = App("shop")


@app.tool(effect="keyed", pool="bank", version="3", tags=["money", "abroad"], approval="required")
def pay(amount: int, *, idempotency_key: str) -> str:
    """Pays."""
    return idempotency_key


@app.tool(effect="pure")
def look(path: str) -> str:
    """Looks."""
    return path


@app.agent(version="1")
async def order(ctx: Context, n: int) -> int:
    return n


@app.agent(name="order", version="2")
async def order_anew(ctx: Context, n: int) -> int:
    return n + 1


class Lies(NamedTuple):
    """A record of the topic, as any reader has it."""

    key: bytes | None
    value: bytes | None
    at_ms: int = 7
    topic: str = "member"
    partition: int = 0
    offset: int = 0


def report(member: Member, at_ms: int = 7) -> Lies:
    return Lies(member.name.encode(), codec.encode(member), at_ms)


PLANNER = replace(planner_member("planner-1", app), started_ms=5)
BANK = replace(executor_member("bank-1", app, "bank"), started_ms=5)


def test_a_planner_reports_every_version_of_its_agents_with_the_manifest_of_their_runs() -> None:
    reported = [(agent.name, agent.version, agent.manifest) for agent in PLANNER.agents if agent.name == "order"]

    assert reported == [("order", "1", app.manifest("order", "1")), ("order", "2", app.manifest("order", "2"))]
    assert (PLANNER.kind, PLANNER.app, PLANNER.pool, PLANNER.tools) == ("planner", "shop", "", [])


def test_an_executor_reports_the_tools_of_its_pool_and_no_others() -> None:
    (tool,) = BANK.tools

    assert (tool.name, tool.version, tool.effect, tool.pool) == ("pay", app.tools["pay"].facts.version, "keyed", "bank")
    assert (tool.tags, tool.approval) == (["abroad", "money"], True)
    assert json.loads(tool.schema)["properties"] == {"amount": {"title": "Amount", "type": "integer"}}
    assert [tool.name for tool in executor_member("e", app, "default").tools if tool.name in app.tools] == ["look"]


@pytest.mark.parametrize("limit", [100_000, 60_000, 20_000, 500, 100])
def test_a_report_fits_into_a_record(limit: int) -> None:
    tools = [replace(BANK.tools[0], name=f"tool-{n}", schema=json.dumps("x" * 300)) for n in range(200)]
    whole = replace(BANK, tools=tools)

    told = fitted(whole, limit)

    assert len(codec.encode(told)) <= limit
    assert told.cut == (len(codec.encode(whole)) > limit)
    if limit == 100_000:
        assert told == whole
    if limit == 60_000:
        assert [(tool.name, tool.schema) for tool in told.tools] == [(tool.name, "") for tool in tools]


def test_readers_see_who_serves_what_with_the_newest_report_of_each_member() -> None:
    other = replace(PLANNER, name="planner-2", agents=PLANNER.agents[:1])
    rows = agents_served([report(other), report(PLANNER), report(replace(PLANNER, started_ms=9), 11)])

    first = next(row for row in rows if row.agent == PLANNER.agents[0].name)
    assert [(by.member, by.started_ms, by.reported_ms) for by in first.members] == [
        ("planner-1", 9, 11),
        ("planner-2", 5, 7),
    ]
    assert [by.member for row in rows[1:] for by in row.members] == ["planner-1"] * (len(rows) - 1)


def test_planners_whose_code_differs_are_apart() -> None:
    agent = PLANNER.agents[0]
    changed = replace(PLANNER, name="planner-2", agents=[replace(agent, manifest={**agent.manifest, "code": "other"})])

    rows = [row for row in agents_served([report(PLANNER), report(changed)]) if row.agent == agent.name]

    assert len([row for row in rows if row.version == agent.version]) == 2


def test_a_member_that_has_left_serves_nothing() -> None:
    assert tools_served([report(BANK), Lies(b"bank-1", None)]) == []
    assert len(tools_served([report(BANK), Lies(b"bank-2", None)])) == 1


@pytest.mark.parametrize(
    "lie",
    [
        Lies(b"bank-1", codec.encode(replace(BANK, name="bank-2", tools=[]))),
        Lies(b"bank-1", b"odd"),
        Lies(b"bank-1", b""),
        Lies(None, codec.encode(PLANNER)),
        Lies(None, None),
    ],
)
def test_what_is_no_report_of_its_key_counts_as_none(lie: Lies) -> None:
    assert [row.tool for row in tools_served([report(BANK), lie])] == ["pay"]
    assert agents_served([lie]) == []


def test_a_schema_is_data_for_programs_and_nothing_where_it_was_cut() -> None:
    (row,), (short,) = tools_served([report(BANK)]), tools_served([report(fitted(BANK, 150))])

    assert row.dump()["arguments"]["properties"] == {"amount": {"title": "Amount", "type": "integer"}}
    assert short.dump()["arguments"] is None


def test_rows_are_ordered_by_name_whatever_members_report() -> None:
    odd = MemberTool("a", "", "odd", "b", [], False, "{")
    rows = tools_served(
        [report(BANK), report(Member("e", "executor", "x", -1, "p", tools=[odd, replace(odd, pool="")]))]
    )

    assert [(row.tool, row.pool) for row in rows] == [("a", ""), ("a", "b"), ("pay", "bank")]
    assert rows[0].dump()["arguments"] == "{"
    assert isinstance(agents_served([report(PLANNER)])[0], AgentServed)


class Unreachable:
    """Stands for a broker that does not answer."""

    tries: ClassVar[list[bytes | None]] = []

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def send_raw(self, *_: object, value: bytes | None, **__: object) -> None:
        Unreachable.tries.append(value)
        raise UnreachableError("no answer")


def test_a_service_does_not_fail_with_a_report_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "KafkaPublisher", Unreachable)
    settings = Settings(kafka=KafkaSettings(bootstrap="127.0.0.1:1"))

    with Presence(settings, BANK, first_s=0):
        eventually(lambda: Unreachable.tries)

    *reports, tombstone = Unreachable.tries
    assert None not in reports
    assert reports
    assert tombstone is None


def test_a_service_that_ends_at_once_has_reported_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "KafkaPublisher", Unreachable)
    before = len(Unreachable.tries)

    with Presence(Settings(), BANK):
        pass

    assert len(Unreachable.tries) == before
