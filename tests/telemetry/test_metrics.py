"""What a process shows of itself: its numbers as Prometheus takes them, and whether it lives and is ready."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from threading import Semaphore
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.cli.commands.doctor import _waiting_inputs
from refold.console.projections import metrics
from refold.console.projections.metrics import BUSIEST, OTHER, ViewMetrics
from refold.console.projections.service import KeptProjection, shipped
from refold.core.errors import UnreachableError, UsageError
from refold.core.events import CallCompleted, CallFailed, CallProposed, Failure, RetryPolicy
from refold.dev.ports import free_port
from refold.engine.ports.effects import LanesNow, Service
from refold.engine.ports.log import Depth, Place
from refold.engine.runtime.gauges import HUNG_S, Vitals
from refold.engine.runtime.metrics import place_of, shown
from tests.planner.clocked import Rig
from tests.projections.histories import USAGE, begun, entries
from tests.projections.memory_views import MemoryViewDatabase
from tests.projections.source import ListedLog
from tests.projections.test_service import settle


def ask(port: int, path: str, host: str = "localhost") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def samples(text: str) -> dict[str, float]:
    """The values by name and labels."""
    return {
        each.name + json.dumps({k: v for k, v in each.labels.items() if k != "service"}, sort_keys=True): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def ends(places: Mapping[Place, int]) -> dict[Place, int]:
    return {place: at + 2 for place, at in places.items()}


def read(vitals: Vitals, *beside: ViewMetrics) -> dict[str, float]:
    with shown(str(port := free_port()), {"planner": vitals}, beside, ends=ends):
        status, text = ask(port, "/metrics")
    assert status == 200
    return samples(text)


def test_the_numbers_of_a_process_are_what_its_loop_has_counted() -> None:
    vitals = Vitals(
        alarms=Counter({"run.frozen": 2}), counts=Counter({"record.void": 3}), positions={("t", 0): 4, ("t", 1): 4}
    )
    vitals.turns.add(0.0005)
    vitals.turns.add(0.3)
    vitals.turns.add(60.0)

    found = read(vitals)

    assert found['refold_turn_seconds_bucket{"le": "0.001"}'] == 1
    assert found['refold_turn_seconds_bucket{"le": "0.5"}'] == 2
    assert found['refold_turn_seconds_bucket{"le": "+Inf"}'] == found["refold_turn_seconds_count{}"] == 3
    assert found["refold_turn_seconds_sum{}"] == pytest.approx(60.3005)
    assert (found["refold_void_records_total{}"], found['refold_lag_records{"topic": "t"}']) == (3, 4)
    assert found['refold_alarms_total{"alarm": "run.frozen", "severity": "critical"}'] == 2
    assert found['refold_alarms_total{"alarm": "log.shrunk", "severity": "critical"}'] == 0, "it is there to be watched"


def test_a_process_is_alive_while_its_turns_end_and_ready_when_it_has_caught_up() -> None:
    vitals, port = Vitals(), free_port()
    with shown(f"127.0.0.1:{port}", {"planner": vitals}, (), ends=ends):
        first = [ask(port, path)[0] for path in ("/livez", "/readyz", "/startupz")]
        vitals.stand("it reads")
        begun_ = [ask(port, path)[0] for path in ("/livez", "/readyz", "/startupz")]
        vitals.stand("")
        vitals.begin_turn(time.monotonic() - HUNG_S + 10)
        slow = [ask(port, path)[0] for path in ("/livez", "/readyz", "/startupz")]
        vitals.begin_turn(time.monotonic() - HUNG_S - 1)
        hung = ask(port, "/livez")[0]
        vitals.ask = lambda: "views ok, Kafka not heard"
        asked = ask(port, "/readyz")
        other = ask(port, "/etc/passwd")[0]

    assert first == [200, 503, 503]
    assert begun_ == [200, 503, 200]
    assert slow == [200, 200, 200]
    assert (hung, other) == (503, 404)
    assert asked == (503, "no: views ok, Kafka not heard\n")


@pytest.mark.parametrize("path", ["/metrics", "/livez", "/readyz", "/startupz"])
def test_on_loopback_only_who_names_this_machine_gets_an_answer(path: str) -> None:
    port = free_port()
    with shown(f"127.0.0.1:{port}", {"planner": Vitals()}, (), ends=ends):
        assert [ask(port, path, host)[0] for host in ("evil.example", f"evil.example:{port}", "")] == [421] * 3
        assert ask(port, path, f"127.0.0.1:{port}")[0] != 421
    with shown(f"0.0.0.0:{port}", {"planner": Vitals()}, (), ends=ends):
        assert ask(port, path, "planner.pods.example:9464")[0] != 421


@pytest.mark.parametrize(
    ("lanes", "placed", "ready"),
    [
        (LanesNow(2), True, True),
        (LanesNow(2, behind=1), True, False),
        (LanesNow(), True, True),
        (LanesNow(), False, False),
    ],
    ids=["serves", "is behind", "is spare", "waits for the group"],
)
def test_a_member_is_ready_once_the_group_has_placed_it_though_no_partition_is_left(
    lanes: LanesNow, placed: bool, ready: bool
) -> None:
    vitals, service = Vitals(), cast(Service, SimpleNamespace(counts=Counter(), lanes_now=lambda: lanes))

    vitals.measure([service], Depth({}, 0, placed))

    assert (not vitals.readiness) == ready
    assert vitals.spare == (placed and not lanes.lanes)


def test_an_executor_whose_redis_is_away_is_not_ready_and_says_so() -> None:
    vitals, service = Vitals(), cast(Service, SimpleNamespace(counts=Counter(), lanes_now=lambda: LanesNow(2)))
    with shown(str(port := free_port()), {"executor": vitals}, (), ends=ends):
        vitals.measure([service], Depth({}, 0, True), "Redis")
        away = ask(port, "/readyz")
        vitals.measure([service], Depth({}, 0, True))
        back = ask(port, "/readyz")

    assert (away, back) == ((503, "no: Redis does not answer\n"), (200, "yes\n"))


def test_a_probe_that_hangs_up_leaves_no_traceback_between_the_lines_of_a_log(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Semaphore(0)
    handle = ThreadingHTTPServer.process_request_thread

    def counted(self: ThreadingHTTPServer, request: socket.socket, client_address: str) -> None:
        handle(self, request, client_address)
        ended.release()

    monkeypatch.setattr(ThreadingHTTPServer, "process_request_thread", counted)
    with shown(str(port := free_port()), {"planner": Vitals()}, (), ends=ends):
        with socket.create_connection(("127.0.0.1", port)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets the connection
            probe.sendall(b"GET /readyz")
        assert ended.acquire(timeout=60)

    assert "Traceback" not in capfd.readouterr().err


def test_an_address_is_of_this_machine_unless_it_says_otherwise() -> None:
    assert place_of("9464") == ("127.0.0.1", 9464)
    assert place_of("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert place_of("[::1]:9464") == ("::1", 9464)
    for wrong in ("", "metrics", "example.com:80", "127.0.0.1:70000", "127.0.0.1"):
        with pytest.raises(UsageError):
            place_of(wrong)


def test_a_second_process_at_an_address_says_so() -> None:
    again, at = pytest.raises(UsageError, match="cannot be shown"), str(free_port())
    with shown(at, {"a": Vitals()}, (), ends=ends), again, shown(at, {"b": Vitals()}, (), ends=ends):
        raise AssertionError("it listens where another process does")


def viewed(monkeypatch: pytest.MonkeyPatch, tools: int) -> ViewMetrics:
    log, database = ListedLog(), MemoryViewDatabase()
    calls: list[object] = []
    for number in range(1, tools + 1):
        made = CallProposed(number, f"tool{number:03}", "{}", "k", "model", "pure", 1_000, RetryPolicy())
        calls += [[made], [CallCompleted(number, 1, USAGE, how="stored")]]
    failed = CallProposed(tools + 1, "tool001", "{}", "k", "default", "pure", 1_000, RetryPolicy())
    calls += [[failed], [CallFailed(tools + 1, 1, Failure("no", "no"))]]
    for key, value in entries("r-1", begun(), *calls):  # type: ignore[arg-type]
        log.write(key, value)
    slot = KeptProjection(shipped()[0], database, log)
    settle(slot)
    monkeypatch.setattr(metrics, "SHOWN_S", 0.0)
    return ViewMetrics(database, log)


def test_views_are_counted_by_state_and_by_the_busiest_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(Vitals(), viewed(monkeypatch, BUSIEST + 20))

    assert found['refold_runs{"status": "running"}'] == 1
    tools = {name: value for name, value in found.items() if name.startswith("refold_tool_calls_total")}
    assert len(tools) == BUSIEST + 1
    assert tools['refold_tool_calls_total{"tool": "tool001"}'] == 2
    assert tools[f'refold_tool_calls_total{{"tool": "{OTHER}"}}'] == 20
    assert sum(value for name, value in found.items() if name.startswith("refold_tokens_total")) == 12_000
    assert found['refold_tool_failures_total{"tool": "tool001"}'] == 1
    assert found['refold_tool_failures_total{"tool": "tool002"}'] == 0, "so that the first failure is a rise"
    assert found['refold_effects_avoided_total{"tool": "tool002"}'] == 1
    assert found['refold_projection_lag_records{"projection": "refold"}'] == 0
    assert found["refold_views_unreadable{}"] == 0


def test_a_database_that_is_away_is_said_and_nothing_old_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shows = viewed(monkeypatch, 1)

    def away(projection: str) -> dict[int, str]:
        raise UnreachableError("it is away")

    monkeypatch.setattr(shows._database, "generations", away)
    found = read(Vitals(), shows)

    assert found["refold_views_unreadable{}"] == 1
    assert not any(name.startswith("refold_runs") for name in found)


def test_what_the_inputs_of_a_planner_wait_for_is_in_its_metrics_and_a_doctor_reads_it() -> None:
    rig, vitals = Rig(active=1), Vitals()
    rig.start("first", "looking", {"what": "it"})
    rig.run(10)
    rig.start("behind", "looking", {"what": "it"})
    rig.signal("nobody", "cancel")
    rig.run(10)
    vitals.measure([rig.planner], Depth({}, 0, True))

    port = free_port()
    with shown(str(port), {"planner": vitals}, (), ends=ends):
        waits = [what for _, what in _waiting_inputs(f"127.0.0.1:{port}")]
        text = ask(port, "/metrics")[1]
    with shown(str(port), {"relay": Vitals()}, (), ends=ends):
        [(other, _)] = _waiting_inputs(f"127.0.0.1:{port}")
    [(gone, why)] = _waiting_inputs(f"127.0.0.1:{port}")

    assert waits == ["1 input for a run that is not known", "1 input for room for a run"]
    assert samples(text)['refold_waiting_inputs{"for": "large values"}'] == 0
    assert (other, gone) == ("problem", "problem")
    assert f"REFOLD_METRICS__ADDRESS=127.0.0.1:{port}" in why
