"""Each route of the gateway, out of its own route table, with the input that costs it most: CPU time, bytes, and share.

A route without a row fails. The views have what a planner without manners can write: a run of a thousand calls, one
of megabytes, a large family, and more runs, labels, questions and letters than any page has.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pytest
from fastapi.routing import APIRoute

from refold.console.gateway import site as gateway_site
from refold.console.gateway import writing
from refold.console.gateway.app import routed
from refold.console.gateway.roles import PUBLIC, role_of
from refold.console.sql.opening import open_views
from refold.core.events import (
    ApprovalRequested,
    CallCompleted,
    CallDispatched,
    CallDoubted,
    CallProposed,
    ChildStarted,
    Failure,
    Requirement,
    RetryPolicy,
    RunCompleted,
    RunRequested,
    RunStarted,
    StatusSet,
)
from refold.core.messages import DeadLetter
from refold.core.run.intents import EXPOSED_BYTES, MOST_EXPOSED
from refold.core.topics import DEAD_LETTER
from refold.core.wire import codec
from refold.engine.ports.tables import ViewDatabase
from refold.engine.runtime.settings import GatewayPart
from tests.gateway.test_hostile import Ending, Heard
from tests.gateway.test_logins import SECRET, Keys, bearer
from tests.gateway.test_reading import Bench
from tests.projections.histories import NOW, Pair, begun, call, entries
from tests.waiting import under_load

MB = 1_000_000
CALLS, CHILDREN, RUNS, LETTERS = 1_000, 500, 600, 600
MOST_S, MOST_BYTES = 1.5, 8 * MB
LONG, HEAVY, PARENT, ASKS, SHOWS = "long", "heavy", "parent", "asks", "shows"
NAME = "x" * 500
WIDE = json.dumps([0] * (MB // 3))
DEEP = "[" * 60 + ",".join(["[]"] * 100_000) + "]" * 60
LINES = json.dumps("a b\n" * (MB // 5))
QUESTION = f"{ASKS}/5~{4:032x}"


def api_routes() -> dict[str, APIRoute]:
    """All routes of the application by name."""
    found: dict[str, APIRoute] = {}
    for each in routed().routes:
        for route in getattr(getattr(each, "original_router", None), "routes", ()):
            assert isinstance(route, APIRoute)
            assert route.name not in found
            found[route.name] = route
    return found


ROUTES = api_routes()


def of_calls(run: str, calls: int) -> list[Pair]:
    """A run of many calls, which is not over."""
    steps = [
        [*([CallCompleted(n - 1, 1, '{"n":1}')] if n > 1 else []), *call(n, f'{{"n":{n}}}')] for n in range(1, calls)
    ]
    return entries(run, begun(), *steps)


def of_megabytes(run: str) -> list[Pair]:
    """A run whose values are as large as they may be, with an open question and a call in doubt."""

    def proposed(step: int, args: str, name: str = "edit") -> CallProposed:
        return CallProposed(step, name, args, f"k{step}", "default", "once", 1_000, RetryPolicy())

    changed = json.dumps({"before": "a b\n" * (MB // 10), "after": "a c\n" * (MB // 10)})
    asked = ApprovalRequested(4, 1, 1, "p", "big", Requirement(["ada"]), "dev", "1", "s", f"{4:032x}")
    messages = json.dumps({"messages": [{"parts": [{"part_kind": "user-prompt", "content": "x"}]}] * (MB // 60)})
    return entries(
        run,
        [RunRequested("shop", WIDE, "d", "s", "ann"), RunStarted("1", "app")],
        [proposed(1, DEEP), CallDispatched(1, 1, NOW)],
        [CallCompleted(1, 1, LINES), proposed(2, messages, "coder__model.request"), CallDispatched(2, 1, NOW)],
        [CallCompleted(2, 1, WIDE), proposed(3, WIDE), CallDispatched(3, 1, NOW)],
        [CallDoubted(3, 1, Failure("lost", "?" * MB)), proposed(4, changed), asked],
    )


def of_values(run: str) -> list[Pair]:
    """A run that exposes more and larger values than an agent can."""
    sizes = [MB if n % 4 else EXPOSED_BYTES - 2 for n in range(2 * MOST_EXPOSED)]
    return entries(run, begun(), *([StatusSet(f'"{"x" * size}"', f"v{n:04}")] for n, size in enumerate(sizes)))


def family(run: str, children: int) -> Iterator[list[Pair]]:
    """A run with many below it."""
    started = [[ChildStarted(step, "shop", "{}")] for step in range(1, children + 1)]
    yield entries(run, begun(), *started)
    for step in range(1, children + 1):
        asked = RunRequested("shop", "{}", "d", "s", "ann")
        yield entries(f"{run}.{step}", [asked, RunStarted("1", "app"), RunCompleted("1")])


def world(views: ViewDatabase) -> Bench:
    """A gateway whose views have the most that a run, a family and a list may have."""
    site = Bench(Heard, GatewayPart(writes={"program": 10**9}, reads={"program": 10**9}), views=views, wait_s=0.0)
    question = ApprovalRequested(1, 1, 1, "p", NAME, Requirement(["ada"], message=NAME), "dev", "1", "s", f"{1:032x}")
    many = (
        entries(
            f"many-{n}",
            [
                RunRequested(f"agent-{n % 300}", "{}", "d", "s", f"p{n}", labels={f"l{n}": NAME}, sessions=[f"s-{n}"]),
                RunStarted("1", "app"),
                call(1)[0],
                question,
            ],
        )
        for n in range(RUNS)
    )
    for pairs in (of_calls(LONG, CALLS), of_megabytes(HEAVY), of_values(SHOWS), *family(PARENT, CHILDREN), *many):
        for key, value in pairs:
            site.log.write(key, value)
    for n in range(LETTERS):
        letter = DeadLetter("run-signalled", 0, n, f"code-{n}", NAME, NAME.encode(), b"v", "planner-1", NOW + n)
        site.log.append(DEAD_LETTER, 0, f"run-{n}/s".encode(), codec.encode(letter))
    site.catch_up()
    return site


class Worst(NamedTuple):
    """A request that costs a route most, and its bounds. **Units**: seconds of CPU, bytes of the answer."""

    path: str
    body: bytes = b""
    most_s: float = MOST_S
    most_bytes: int = MOST_BYTES
    headers: dict[str, str] = {}  # noqa: RUF012 - of a named tuple


JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


def get(path: str, query: Any = (), **bounds: Any) -> Worst:
    return Worst(f"{path}?{urlencode(query, doseq=True)}" if query else path, **bounds)


def sent(path: str, body: Any, **bounds: Any) -> Worst:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Worst(path, text, headers=JSON, **bounds)


def form(path: str, /, **fields: str) -> Worst:
    return Worst(path, urlencode(fields).encode(), headers=FORM)


FILTER = {"label": [f"l{n}={NAME}" for n in range(20)], "text": "%_" * 100, "limit": 500}
CURSOR = base64.urlsafe_b64encode(b"[" * 1_400).decode()
AFTER = {"Refold-After": ",".join(f"run-log/{n}/1" for n in range(600))}
DATA = json.loads(DEEP)
FIELDS = "&".join(f"f{n}=" for n in range(MB // 8)).encode()
PLACE = quote(QUESTION, safe="/")

WORST: dict[str, list[Worst]] = {
    # Pages
    "runs_page": [get("/", FILTER), get("/", {"text": "a", "state": "running"})],
    "start_page": [get("/start"), get("/start", {"agent": NAME})],
    "start_form": [form("/start", agent="a", input=WIDE), Worst("/start", FIELDS, headers=FORM)],
    "fork_page": [get(f"/runs/{run}/fork") for run in (LONG, HEAVY, PARENT)],
    "fork_form": [form(f"/runs/{HEAVY}/fork", at="5", input=WIDE), Worst(f"/runs/{LONG}/fork", FIELDS, headers=FORM)],
    "run_page": [
        *(get(f"/runs/{run}") for run in (LONG, HEAVY, PARENT, SHOWS)),
        get(f"/runs/{LONG}", {"show": "events", "seq": [*range(1, 101)]}),
        get(f"/runs/{LONG}", {"at": 1, "with": 2 * CALLS}),
        get(f"/runs/{HEAVY}", {"show": "conversation", "seq": [*range(1, 13)]}, most_s=4.0),
        get(f"/runs/{HEAVY}", {"at": 3, "with": 12}),
    ],
    "record_file": [get(f"/runs/{HEAVY}/records/{seq}") for seq in (1, 3, 12)],
    "run_form": [form(f"/runs/{LONG}/cancel", reason="x" * MB), form(f"/runs/{HEAVY}/{NAME}")],
    "settle_form": [form(f"/calls/{HEAVY}/9/settle", came="happened", result=DEEP)],
    "inbox_page": [get("/inbox", {"show": tab}) for tab in ("", "all", "doubt", "decided")],
    "inbox_form": [form("/inbox", **{f"pick-{n}": "1" for n in range(45)}), Worst("/inbox", FIELDS, headers=FORM)],
    "approval_page": [get(f"/approvals/{HEAVY}/12~{4:032x}"), get(f"/approvals/{'9' * 2_000}/{'1' * 2_000}~")],
    "vote_form": [form(f"/approvals/{HEAVY}/12~{4:032x}/vote", action="edit", args=DEEP, digest="0" * 64)],
    "outcome_form": [form(f"/approvals/{HEAVY}/12~{4:032x}/outcome", came="happened", result=WIDE)],
    "sessions_page": [get("/sessions")],
    "tools_page": [get("/tools")],
    "schedules_page": [get("/schedules")],
    "schedule_form": [form("/schedules", schedule="x" * MB, act="trigger")],
    "limits_page": [get("/limits")],
    "operators_page": [get("/operators")],
    "letters_page": [get("/dead-letters"), get("/dead-letters", {"code": NAME})],
    "letter_page": [get("/dead-letters/0/1"), get(f"/dead-letters/{'0/' * 1_000}1")],
    "replay_form": [form("/dead-letters/0/1/replay", reason="x" * MB)],
    "versions_page": [get("/versions")],
    "health_page": [get("/health")],
    "workers_page": [get("/workers")],
    "policies_page": [get("/policies", {"left": "1" * 64, "right": "2" * 64})],
    "try_policy_form": [form("/policies", policy=DEEP), form("/policies", policy=json.dumps({"rules": [{}] * 20_000}))],
    "login_page": [get("/login")],
    "login_form": [form("/login", key="x" * MB), Worst("/login", FIELDS, headers=FORM)],
    "logout_form": [form("/logout", csrf="x" * MB)],
    "acting_form": [form("/acting", actor="x" * MB)],
    "static_file": [get("/static/refold.js"), get(f"/static/{'%2E%2E%2F' * 300}")],
    # Runs
    "list_runs": [get("/api/runs", FILTER), get("/api/runs", {"cursor": CURSOR}), Worst("/api/runs", headers=AFTER)],
    "show_run": [get(f"/api/runs/{run}") for run in (LONG, HEAVY, PARENT, SHOWS)],
    "diff_run": [get(f"/api/runs/{LONG}/diff/1/{2 * CALLS - 2}"), get(f"/api/runs/{HEAVY}/diff/1/12")],
    "audit_run": [get(f"/api/runs/{run}/audit") for run in (LONG, HEAVY)],
    "list_steps": [get(f"/api/runs/{run}/steps") for run in (LONG, HEAVY)],
    "show_messages": [get(f"/api/runs/{HEAVY}/steps/2/messages")],
    "list_events": [get(f"/api/runs/{run}/events", {"limit": 500}) for run in (LONG, HEAVY)],
    "list_values": [get(f"/api/runs/{run}/values") for run in (LONG, SHOWS)],
    "list_schedules": [get("/api/schedules")],
    "list_family": [get(f"/api/runs/{PARENT}/family")],
    "read_blob": [get(f"/api/blobs/{'0' * 64}", {"run": HEAVY}), get(f"/api/blobs/{NAME}")],
    "show_why": [get(f"/api/runs/{LONG}/why/{2 * CALLS - 3}"), get(f"/api/runs/{HEAVY}/why/12")],
    "download_bundle": [get(f"/api/runs/{run}/bundle") for run in (LONG, HEAVY)],
    "fork_run": [sent(f"/api/runs/{HEAVY}/fork", {"at": 1, "edits": {str(n): {} for n in range(20_000)}})],
    # Streams
    "stream_run": [Worst(f"/api/runs/{LONG}/stream", headers={"Last-Event-ID": "9" * 8_000})],
    "stream_family": [Worst(f"/api/runs/{PARENT}/family/stream", headers={"Last-Event-ID": "0:1," * 2_000})],
    "stream_session": [get("/api/sessions/s-1/stream"), get(f"/api/sessions/{NAME}/stream")],
    "stream_all": [get("/api/stream"), Worst("/api/stream", headers={"Last-Event-ID": "0:1," * 2_000})],
    "stream_inbox": [get("/api/inbox/stream")],
    # Inputs
    "start_run": [
        sent("/api/runs?wait=0", {"agent": "a", "input": DATA}),
        sent("/api/runs?wait=0", {"agent": "a", "labels": {f"l{n}": "v" for n in range(80_000)}}),
        sent("/api/runs?wait=0", {"agent": "a", "sessions": [f"s{n}" for n in range(80_000)]}),
        sent("/api/runs?wait=0", b"[" * 2 * MB),
        sent("/api/runs?wait=0", b'{"agent":' + b"9" * 2 * MB + b"}"),
        sent("/api/runs?wait=0", b"{" + b",".join(b'"a":1' for _ in range(MB // 4)) + b"}"),
    ],
    "send_signal": [sent(f"/api/runs/{LONG}/signals?wait=0", {"name": NAME, "data": DATA})],
    "update_run": [
        sent(f"/api/runs/{LONG}/updates/add?wait=0", {"data": DATA}),
        sent(f"/api/runs/{LONG}/updates/{NAME}?wait=0", {"data": 1}),
    ],
    "answer_callback": [sent("/api/callbacks/cb_run-1_x", {"data": DATA}), sent(f"/api/callbacks/{NAME}", {"data": 1})],
    "cancel_run": [sent(f"/api/runs/{LONG}/cancel?wait=0", {"reason": "x" * MB})],
    "pause_run": [sent(f"/api/runs/{LONG}/pause?wait=0", {"reason": "x" * MB})],
    "resume_run": [sent(f"/api/runs/{LONG}/resume?wait=0", {"reason": "x" * MB})],
    "annotate_run": [sent(f"/api/runs/{LONG}/notes?wait=0", {"note": "x" * MB})],
    "retry_run": [sent(f"/api/runs/{LONG}/retry?wait=0", {"from_step": 1, "edit": {"a": DATA}})],
    "fail_run": [sent(f"/api/runs/{LONG}/fail?wait=0", {"reason": "x" * MB})],
    "repair_run": [sent(f"/api/runs/{LONG}/repair?wait=0", {"head": "0" * 32})],
    # People
    "list_approvals": [get("/api/approvals", {"state": "open"}), get("/api/approvals", {"state": NAME})],
    "vote": [sent(f"/api/approvals/{HEAVY}/12~{4:032x}/votes", {"action": "edit", "args": {"a": DATA}})],
    "list_doubts": [get("/api/doubts", {"limit": 500}), get("/api/doubts", {"cursor": CURSOR})],
    "resolve_doubt": [sent(f"/api/doubts/{HEAVY}/9/resolve?wait=0", {"verdict": "happened", "result": DATA})],
    "show_approval": [get(f"/api/approvals/{PLACE}"), get(f"/api/approvals/{HEAVY}/12~{4:032x}")],
    # Lists
    "list_sessions": [get("/api/sessions", {"limit": 500})],
    "show_session": [get("/api/sessions/s-1"), get(f"/api/sessions/{NAME}")],
    "list_daily": [get("/api/daily"), get("/api/daily", {"agent": "x" * 200})],
    "list_operator_actions": [get("/api/operator-actions", {"actor": NAME})],
    "export_operator_actions": [get("/api/operator-actions.jsonl")],
    "list_letters": [get("/api/dead-letters", {"limit": 500}), get("/api/dead-letters", {"code": NAME})],
    "replay_letter": [sent("/api/dead-letters/0/1/replay?dry_run=true", {})],
    "show_letter": [get("/api/dead-letters/0/1"), get(f"/api/dead-letters/{'0/' * 1_000}1")],
    "list_limits": [get("/api/limits")],
    "list_agents": [get("/api/agents")],
    "list_tools": [get("/api/tools")],
    "list_versions": [get("/api/versions")],
    "list_workers": [get("/api/workers")],
    "list_halts": [get("/api/halts")],
    "list_projections": [get("/api/projections")],
    # Registry, login, health
    "list_schema_types": [get("/registry/schemas/types")],
    "show_schema": [get("/registry/schemas/ids/1"), get(f"/registry/schemas/ids/{'9' * 3_000}")],
    "list_subjects": [get("/registry/subjects")],
    "list_schema_versions": [get(f"/registry/subjects/{NAME}/versions")],
    "show_schema_version": [get(f"/registry/subjects/{NAME}/versions/latest")],
    "show_registry_config": [get("/registry/config")],
    "show_login": [get("/api/login")],
    "log_in": [sent("/api/login", {"x": DATA})],
    "logout": [sent("/api/logout", {"x": DATA})],
    "health": [get("/healthz")],
    "ready": [get("/readyz")],
}
"""Requests by the name of their route."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing.Refusals, "_listen", lambda refusals: refusals.listens.set())
        patch.setattr(gateway_site, "RunStreams", Ending)
        # Views in memory are copied whole for each request, and these are large.
        bench = world(open_views(f"sqlite:///{tmp_path_factory.mktemp('views') / 'views.db'}"))
        with bench.http:
            yield bench


def test_every_route_has_a_row() -> None:
    assert WORST.keys() == ROUTES.keys()


def test_every_route_that_needs_a_login_has_a_limit_for_each_actor(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "api.json")
    mal = bearer(keys.new("mal", "admin"))
    part = GatewayPart(api_keys=str(keys.path), session_key=SECRET, writes={"program": 1}, reads={"program": 1})
    site = Bench(Heard, part)
    found = dict[str, int]()
    with site.http:
        for path in ("/api/runs", "/api/runs/r/cancel"):
            site.http.request("GET" if path == "/api/runs" else "POST", path, headers={**mal, **JSON}, content=b"{}")
        for name, route in ROUTES.items():
            worst, method = WORST[name][0], next(iter(route.methods or ()))
            headers = {**worst.headers, **mal}
            found[name] = site.http.request(method, worst.path, content=worst.body or None, headers=headers).status_code
    public = {name for name, route in ROUTES.items() if role_of(name, route.methods or ()) == PUBLIC}

    assert {name for name, code in found.items() if code != 429} <= public


@pytest.mark.parametrize("name", WORST)
def test_no_route_works_or_answers_beyond_its_bound(site: Bench, name: str) -> None:
    method = next(iter(ROUTES[name].methods or ()))
    for worst in WORST[name]:
        began = time.process_time()
        answer = site.http.request(method, worst.path, content=worst.body or None, headers=worst.headers)
        took_s = time.process_time() - began

        where = f"{method} {worst.path[:80]} ({len(worst.body):,} bytes)"
        print(f"{name}: {where}: {answer.status_code}, {took_s:.3f} s, {len(answer.content):,} bytes")  # noqa: T201 - with -s
        assert answer.status_code < 500 or answer.status_code == 503, where
        assert "internal" not in answer.text[:1_000] or answer.json()["code"] != "internal", where
        assert took_s < under_load(worst.most_s), where
        assert len(answer.content) < worst.most_bytes, where
