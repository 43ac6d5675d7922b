"""Every route with every role: the table says who may use it, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from refold.console.gateway import writing
from refold.console.gateway.app import routed
from refold.console.gateway.logins import Login
from refold.console.gateway.roles import ACCESS, GRANTS, PUBLIC, ROUTE_ROLES, SAFE, role_of
from refold.console.gateway.site import StrictRoute
from refold.console.projections import service
from refold.console.projections.shipped.projection import Shipped
from refold.engine.runtime.settings import GatewayPart
from tests.gateway.test_hostile import Ending, Heard
from tests.gateway.test_logins import Keys, bearer
from tests.gateway.test_reading import Bench

APP = routed()
LATER = {"repair_run", "fail_run", "replay_letter"}
"""Routes that the table names before they are there."""


def routes_of(app: object) -> list[BaseRoute]:
    """All routes, those of routers that are included too."""
    found: list[BaseRoute] = []
    for route in getattr(app, "routes", ()):
        found += [route] if isinstance(route, Route | APIRoute) else routes_of(getattr(route, "original_router", route))
    return found


ROUTES = [route for route in routes_of(APP) if isinstance(route, Route | APIRoute)]
CALLS = [(route.name, method, route.path) for route in ROUTES for method in sorted((route.methods or set()) - {"HEAD"})]
CLOSED = [call for call in CALLS if role_of(call[0], {call[1]}) != PUBLIC]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, dict[str, str]]]:
    keys = Keys(tmp_path_factory.mktemp("keys") / "api.json")
    tokens = {role: keys.new("ada", role) for role in ACCESS} | {"lead": keys.new("ada", "lead")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("refold.console.gateway.site.RunStreams", Ending)
        patch.setattr(writing.Refusals, "_listen", lambda refusals: refusals.listens.set())
        bench = Bench(Heard, GatewayPart(api_keys=str(keys.path), writes={"program": 10**9}), wait_s=0.0)
        with bench.http:
            yield bench, tokens


def asked(bench: Bench, method: str, path: str, **headers: str) -> int:
    """The status of a request without a body, about things that are not there."""
    filled = path.replace("{", "").replace(":path", "").replace("}", "")
    params = {"wait": "0"} if path.startswith("/api/") else {}
    answer = bench.http.request(method, filled, headers=headers, params=params, follow_redirects=False)
    return 401 if answer.headers.get("location", "").startswith("/login") and path != "/logout" else answer.status_code


def test_every_route_is_in_the_document_and_reads_bodies_after_logins_alone() -> None:
    names = [name for name, _, _ in CALLS]

    assert len(names) >= 25
    assert {route.name for route in ROUTES if not isinstance(route, StrictRoute)} == {"openapi"}
    assert set(ROUTE_ROLES) - set(names) <= LATER
    assert {operation["operationId"] for methods in APP.openapi()["paths"].values() for operation in methods.values()}
    assert {name for name, method, _ in CALLS if role_of(name, {method}) == PUBLIC} == {
        *("health", "ready", "openapi", "logout", "login_page", "login_form", "logout_form", "static_file"),
    }


def test_what_only_reads_is_for_viewers_and_a_vote_is_for_approvers() -> None:
    for name, method, path in CLOSED:
        role = role_of(name, {method})
        if name not in ROUTE_ROLES:
            assert role == ("viewer" if method in SAFE else "operator"), path
    assert role_of("vote", {"POST"}) == "approver"
    assert "approver" not in GRANTS["operator"]
    assert GRANTS["approver"] == {"viewer", "approver"}
    assert GRANTS["admin"] == set(ACCESS)


@pytest.mark.parametrize(("name", "method", "path"), CLOSED, ids=lambda part: str(part))
def test_a_route_is_open_to_the_roles_that_include_its_own(
    site: tuple[Bench, dict[str, str]], name: str, method: str, path: str
) -> None:
    bench, tokens = site

    for role in ACCESS:
        status = asked(bench, method, path, **bearer(tokens[role]))
        allowed = role_of(name, {method}) in GRANTS[role]
        assert (status == 403) is not allowed, (role, status)
        assert status != 401
    assert asked(bench, method, path, **bearer(tokens["lead"])) == 403


@pytest.mark.parametrize(("name", "method", "path"), CALLS, ids=lambda part: str(part))
def test_without_a_login_only_what_is_public_answers(
    site: tuple[Bench, dict[str, str]], name: str, method: str, path: str
) -> None:
    bench, _ = site

    statuses = {asked(bench, method, path), asked(bench, method, path, **bearer("rfk_" + "0" * 12 + "_" + "x" * 43))}

    assert (statuses == {401}) is (role_of(name, {method}) != PUBLIC or name == "login_form")


@pytest.mark.parametrize("path", sorted({path for _, _, path in CALLS}))
def test_a_verb_that_a_path_has_not_is_none_for_anybody(site: tuple[Bench, dict[str, str]], path: str) -> None:
    bench, tokens = site

    for method in {"PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}:
        assert asked(bench, method, path, **bearer(tokens["admin"])) == 405


def test_why_a_gateway_is_not_ready_is_for_those_who_are_logged_in(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "api.json")
    ada = keys.new("ada", "viewer")
    bench = Bench(Heard, GatewayPart(api_keys=str(keys.path)))
    bench.database.drop(Shipped.name, service.serving(bench.database, Shipped.name))
    with bench.http as http:
        found = [http.get("/readyz", headers=headers).json()["views"] for headers in ({}, bearer(ada))]

    assert found[0] == "not ok"
    assert Shipped.name in found[1]


def test_a_refusal_says_how_to_log_in_and_not_what_was_wrong(site: tuple[Bench, dict[str, str]]) -> None:
    bench, tokens = site
    good = tokens["viewer"]
    wrong = [
        "",
        "Basic eDp5",
        f"Bearer {good[:-1]}",
        f"Bearer {good[:5]}{'0' * 11}{good[16:]}",
        "Bearer a.b.c",
        "Bearer",
    ]

    found = [bench.http.get("/api/runs", headers={"Authorization": each} if each else {}) for each in wrong]

    assert {each.headers["www-authenticate"] for each in found} == {'Bearer realm="refold"'}
    assert len({each.text for each in found}) == 1
    assert found[0].json()["code"] == "login"


def test_writes_and_reads_are_counted_by_key_and_their_limits_are_settings(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "api.json")
    ada, bob, own = keys.new("ada", "operator"), keys.new("bob", "admin"), keys.new("ada", "operator")
    limits = {"operator": 60, own[4:16]: 2}
    bench = Bench(Heard, GatewayPart(api_keys=str(keys.path), writes=limits, reads={own[4:16]: 1}))
    unsafe = [(method, path) for name, method, path in CLOSED if role_of(name, {method}) == "operator"]

    with bench.http:
        for number in range(60):
            method, path = unsafe[number % len(unsafe)]
            asked(bench, method, path, **bearer(ada))
        writes = [(method, path) for _, method, path in CLOSED if method not in SAFE]
        refused = bench.http.post("/api/runs", headers=bearer(ada))
        assert {asked(bench, *each, **bearer(ada)) for each in writes if each in unsafe} == {429}
        assert (refused.json()["detail"], "REFOLD_GATEWAY__WRITES" in refused.json()["hint"]) == (
            "60 writes a minute",
            True,
        )
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert asked(bench, "GET", "/api/login", **bearer(ada)) == 200
        assert [asked(bench, "POST", "/api/runs", **bearer(own)) for _ in range(3)] == [422, 422, 429]
        assert [asked(bench, "GET", "/api/login", **bearer(own)) for _ in range(2)] == [200, 429]
        assert {asked(bench, "POST", "/api/runs", **bearer(bob)) for _ in range(70)} == {422}


def test_people_and_programs_have_limits_of_their_own_whatever_else_is_set() -> None:
    part = GatewayPart(writes={"approver": 100, "0123456789ab": 5})
    person, program = Login("ada", ("viewer",), cookie="c"), Login("ci", ("viewer",), key="f" * 12)

    assert [each.most(part.writes) for each in (person, program)] == [60, 6_000]
    assert Login("eve", ("viewer", "approver"), cookie="c").most(part.writes) == 100
    assert Login("ci", ("approver",), key="0123456789ab").most(part.writes) == 5
    assert Login("me", local=True).most(part.writes) == 6_000
    assert Login("proxied", ("viewer",)).most(part.writes) == 60


def test_what_came_of_a_doubt_is_a_vote_where_people_are_asked(site: tuple[Bench, dict[str, str]]) -> None:
    bench, tokens = site
    body = {"verdict": "give_up"}
    for path, may in (("run-1/3~" + "0" * 32, {"approver", "admin"}), ("run-1/3", {"operator", "admin"})):
        for role in ACCESS:
            headers = {"Authorization": f"Bearer {tokens[role]}"}
            answer = bench.http.post(f"/api/doubts/{path}/resolve", json=body, headers=headers)
            assert (answer.status_code == 403) is (role not in may), (role, answer.text)
