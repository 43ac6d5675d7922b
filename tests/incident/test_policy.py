"""What the incident's policy, and the default one, say of an edit before anybody is asked: the planner, in memory."""

from __future__ import annotations

from typing import Any

import pytest

from refold import App, CallFailed, Context
from refold.client import policies
from refold.core.approval.authority import Authority
from refold.core.approval.catalog import CURRENT, Catalog
from refold.core.approval.policy import Policy, merge
from refold.core.events import (
    ApprovalRequested,
    CallDispatched,
    CallProposed,
    Cause,
    Entry,
    Event,
    RunCompleted,
    RunRequested,
    RunStarted,
)
from refold.core.events import CallFailed as Failed
from refold.core.ids import EntryId
from refold.core.planning.verdict import Rules
from refold.core.run.fold import fold
from refold.core.wire import canonical
from refold.core.wire.resources import resource
from refold.engine.planner.agents.agent_host import Agents
from tests.incident.scene import APP, EXAMPLE
from tests.roots import TRUST, publish

INCIDENT = [str(EXAMPLE / "policies")]
DEFAULT = [str(resource("infra", "default-policy.yaml"))]
HOUR_MS = 3_600_000

app = App("wanderer")
app.tools |= App.load(APP).tools


@app.agent
async def wanderer(ctx: Context, path: str) -> str:
    """Proposes an edit of any file at all."""
    try:
        return str(await ctx.call("edit_file", path=path, before="a", after="b"))
    except CallFailed as failure:
        return str(failure.fields["message"])


@app.agent
async def reader(ctx: Context, path: str) -> str:
    """Reads any file at all."""
    return str(await ctx.call("read_file", path=path))


def proposed(files: list[str], agent: str, path: str) -> list[Event]:
    """What the planner appends when an agent asks for a call with this path, while these policy files are in force."""
    known = Catalog(TRUST)
    policy = Policy.parse(merge(policies.load_files(files))) if files else None
    entries: list[tuple[str, str, Any]] = []
    if policy is not None:
        entries = [(f"policy/{policy.digest}", "policy", policy.content), (CURRENT, "current", policy.digest)]
    for each in entries:
        assert publish(known, *each) == ""
    tools = {tool.name: tool.facts for tool in app.tools.values()}
    rules = Rules(authority=Authority(tools, "test", known))
    given = canonical.dumps({"path": path})
    asked = RunRequested(agent, given, "d", "s", requester="bob", policy=known.current)
    begun: list[Event] = [asked, RunStarted(app.agents[agent].version)]
    state = fold([(EntryId(b"x"), Entry("r-1", 1, b"", 0, Cause("run-requested", 0, 0), "p", b"", begun))], "r-1")
    return Agents(app, rules, "test").react(state, begun, 0)


@pytest.mark.parametrize("path", ["/etc/passwd", "../roles.yaml", "x/../../app.py"])
def test_a_call_that_leaves_the_folder_is_denied_and_nobody_is_asked(path: str) -> None:
    call, denied, ended = proposed(INCIDENT, "wanderer", path)

    assert isinstance(call, CallProposed)
    assert call.rule == "nobody leaves the service's folder"
    assert isinstance(denied, Failed)
    assert denied.failure.code == "denied"
    assert isinstance(ended, RunCompleted)
    assert "Only files of the service itself" in ended.result


def test_a_change_of_the_service_asks_the_person_on_call_but_not_the_requester() -> None:
    _, asked = proposed(INCIDENT, "wanderer", "settings.toml")

    assert isinstance(asked, ApprovalRequested)
    assert (asked.requirement.approvers, asked.requirement.not_requester) == (["role:oncall"], True)
    assert (asked.requirement.escalate_to, asked.requirement.on_expiry) == (["role:lead"], "reject")
    assert asked.expires_ms == 8 * HOUR_MS


def test_without_a_policy_nobody_may_decide_on_an_edit() -> None:
    _, denied, *_ = proposed([], "wanderer", "settings.toml")

    assert isinstance(denied, Failed)
    assert "no policy is in force that says who decides" in denied.failure.message


def test_an_edit_is_asked_for_although_no_rule_says_so() -> None:
    _, asked = proposed(DEFAULT, "wanderer", "settings.toml")

    assert isinstance(asked, ApprovalRequested)
    assert asked.requirement.approvers == ["*"]


@pytest.mark.parametrize("files", [INCIDENT, DEFAULT], ids=["the incident's policy", "the default policy"])
def test_reading_goes_out_at_once(files: list[str]) -> None:
    _, sent = proposed(files, "reader", "settings.toml")

    assert isinstance(sent, CallDispatched)
