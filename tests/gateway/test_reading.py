"""The gateway over views in memory, with Kafka away: reads go on, writes say so, and other sites are kept out."""

from __future__ import annotations

import base64
import gc
import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.prefill import finished
from starlette.testclient import TestClient

from refold.client.awaiting import AsyncClient
from refold.client.platform import Platform
from refold.client.reading.steps import Timeline
from refold.console.gateway import guard, reading, writing
from refold.console.gateway.app import build_api
from refold.console.gateway.logins import Login, Logins
from refold.console.gateway.rates import GatewayLimits
from refold.console.gateway.site import Gateway
from refold.console.projections.runs import ViewedRuns
from refold.console.projections.service import KeptProjection, serving
from refold.console.projections.shipped.projection import Shipped
from refold.core.errors import ConflictError, UnreachableError
from refold.core.events import RunCompleted, StatusSet
from refold.core.ids import RunId, home
from refold.core.messages import Hold
from refold.core.topics import RUN_LOG
from refold.engine.adapters.kafka import publisher as kafka_publisher
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.archive.collecting import runs_of_log, whole_runs
from refold.engine.archive.store import ArchiveStore
from refold.engine.ports.tables import ViewChanges, ViewDatabase
from refold.engine.runtime.addresses import Addresses
from refold.engine.runtime.settings import ArchivePart, GatewayPart, KafkaSettings, Settings
from tests.contract.raw_kafka import break_for_good
from tests.projections.histories import begun, entries, long
from tests.projections.memory_views import MemoryViewDatabase, MemoryViewStore
from tests.projections.source import T0, ListedLog
from tests.waiting import eventually

AWAY = "127.0.0.1:1"
JSON = {"content-type": "application/json"}
SLOW = RunId("slow")
RUNS = [f"run-{number}" for number in range(12)]


class Bench:
    """A gateway on views of a log in memory."""

    def __init__(
        self,
        platform: type[Platform] = Platform,
        part: GatewayPart | None = None,
        archive: str = "",
        views: ViewDatabase | None = None,
        **limits: Any,
    ) -> None:
        self.log, self.database = ListedLog(), views or MemoryViewDatabase()
        self.kept = KeptProjection(Shipped(), self.database, self.log, refresh_s=0.0)
        self.log.finish(*RUNS)
        self.catch_up()
        part = part or GatewayPart()
        where = Addresses(
            Settings(kafka=KafkaSettings(bootstrap=AWAY), gateway=part, archive=ArchivePart(url=archive)),
            dev=False,
            lost=None,
        )
        self.limits = GatewayLimits(**{"failed_s": 0.0, **limits})
        logins, client = Logins(part, "ada", self.limits), AsyncClient(kafka=AWAY)
        self.gateway = Gateway(platform(where), self.database, logins, client, limits=self.limits)
        self.http = TestClient(build_api(self.gateway), base_url="http://127.0.0.1:8321", raise_server_exceptions=False)

    def catch_up(self) -> None:
        idle = 0
        for _ in range(200):
            applied = self.kept.turn(0.0)
            idle = idle + 1 if self.kept.serves and not applied else 0
            if idle == 3:
                break

    def get(self, path: str, status: int = 200, **headers: str) -> Any:
        found = self.http.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        assert found.status_code == status, found.text
        return found.json()


@contextmanager
def served(*, wait_s: float = 0.0) -> Iterator[Bench]:
    """A gateway that answers, whose reads wait so long for a write."""
    site = Bench(wait_s=wait_s)
    with site.http:
        yield site


@pytest.fixture
def site() -> Iterator[Bench]:
    with served(wait_s=0.2) as site:
        yield site


def test_a_gateway_hears_kafka_once_it_serves() -> None:
    before = {*threading.enumerate()}
    site = Bench()
    made = [thread.name for thread in {*threading.enumerate()} - before]
    with site.http:
        serves = [thread.name for thread in {*threading.enumerate()} - before]

    assert "refold-gateway-refusals" not in made
    assert "refold-gateway-refusals" in serves


def test_a_gateway_whose_kafka_client_broke_for_good_is_not_ready_until_it_has_another(
    site: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing.WriteSide, "listens", True)  # the bench has no Kafka
    monkeypatch.setattr(kafka_publisher, "REPLACED_S", 5.0)
    publisher = KafkaPublisher(KafkaSettings(bootstrap=AWAY), partitions=1)
    vars(site.gateway.platform)["publisher"] = publisher  # as its first write opens it
    assert site.get("/readyz")["kafka"] == "ok"

    break_for_good(publisher._client.producer)

    assert "records were lost" in site.get("/readyz", 503)["kafka"]
    refused = site.http.post("/api/runs", json={"agent": "ten", "input": 1, "id": "new-1"})
    assert (refused.status_code, "records were lost" in refused.json()["detail"]) == (503, True)
    eventually(lambda: site.http.get("/readyz").json()["ready"], what="another client")


def test_pages_of_runs_follow_each_other(site: Bench) -> None:
    found: list[str] = []
    cursor = ""
    while True:
        page = site.get(f"/api/runs?limit=5&cursor={cursor}")
        found += [run["run_id"] for run in page["runs"]]
        if not (cursor := page["cursor"]):
            break

    assert found == RUNS[::-1]


def test_a_cursor_of_another_query_is_refused(site: Bench) -> None:
    cursor = site.get("/api/runs?limit=5")["cursor"]

    of, *_ = json.loads(base64.urlsafe_b64decode(cursor))
    places: list[list[Any]] = [[], [1], [None, "a"], ["1", "a"], [{}, []], [1.5, "a"], [10**30, "a"], [1, "a", 2]]
    forged: list[Any] = [
        *([of, *place] for place in places),
        *(5, None, "x", {}, []),
    ]
    sealed = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode() for each in forged]
    sealed += [base64.urlsafe_b64encode(b"[" * 1_400).decode(), "A" * 2_001]

    for each in sealed:
        assert site.get(f"/api/runs?limit=5&cursor={each}", 422)["code"] == "malformed", each
    for wrong in (f"/api/runs?limit=5&agent=ten&cursor={cursor}", "/api/runs?cursor=bm9uZQ==", "/api/runs?cursor=ä"):
        assert site.get(wrong, 422)["code"] == "malformed"


def test_runs_are_found_by_what_they_are(site: Bench) -> None:
    assert len(site.get("/api/runs?state=completed&agent=ten")["runs"]) == len(RUNS)
    assert site.get("/api/runs?state=doubt")["runs"] == []
    assert [run["run_id"] for run in site.get("/api/runs?text=RUN-11")["runs"]] == ["run-11"]
    assert site.get("/api/runs?label=team", 422)["code"] == "malformed"
    assert site.get("/api/runs?sort=agent", 422)["code"] == "malformed"
    assert site.get("/api/runs?limit=501", 422)["code"] == "malformed"
    assert site.get("/api/runs?state=compleet", 422)["hint"].startswith("use one of pending, ")
    assert site.get(f"/api/runs?since_ms={2**63}", 422)["code"] == "malformed"
    for text in ("%25", "_", "%5C", "'%20or%20'1'='1", "%00", "%ED%A0%80"):
        assert site.get(f"/api/runs?text={text}")["runs"] == [], text
        assert site.get(f"/api/runs?agent={text}&session={text}&root={text}&label=team={text}")["runs"] == [], text


def test_a_run_is_shown_as_it_is_and_as_it_was(site: Bench) -> None:
    now = site.get("/api/runs/run-3")
    then = site.get("/api/runs/run-3?at_seq=9")

    assert (now["status"], len(now["timeline"])) == ("completed", 10)
    assert (then["status"], then["seq"]) == ("running", 9)
    assert site.get("/api/runs/run-3/diff/9/9")["steps"] == []
    assert site.get("/api/runs/run-3?at_seq=999", 422)["hint"] == "its events are 1 to 33"
    assert site.get("/api/runs/run-3?at_ms=7", 422)["hint"].startswith(
        f"its entries are from {then['requested_ms']} to"
    )
    assert [event["seq"] for event in site.get("/api/runs/run-3/events?after_seq=30")] == [31, 32, 33]
    assert len(site.get("/api/runs/run-3/steps")) == 10
    assert len(site.get("/api/runs/run-3/audit")) == 33


def test_calls_and_completions_of_one_model_are_one_row_of_a_day(site: Bench) -> None:
    for key, value in long("metered"):
        site.log.write(key, value)
    site.catch_up()

    rows = site.get("/api/daily?agent=shop&tool=pay")

    assert [row["model"] for row in rows] == ["acme:small"]
    assert rows[0]["calls"] > rows[0]["completed"] > 0
    assert rows[0]["failed"] > 0


def test_sums_by_day_contain_what_erased_runs_have_added(site: Bench) -> None:
    before = site.get("/api/daily?agent=ten&tool=nothing")
    site.log.mark("run-5")
    site.log.bury("run-5")
    site.catch_up()

    assert [(row["day"], row["calls"], row["completed"]) for row in before] == [("2026-09-21", 120, 120)]
    assert before[0]["p95_ms"] > 0
    assert site.get("/api/daily?agent=ten&tool=nothing") == before
    assert sum(row["runs_completed"] for row in site.get("/api/daily?tool=")) == len(RUNS)
    assert site.get("/api/daily?since=2026-09-22") == []
    assert site.get("/api/daily?since=yesterday", 422)["code"] == "malformed"
    assert site.get("/api/operator-actions?actor=ada") == []


def test_a_run_that_is_read_again_is_folded_from_where_it_was(site: Bench) -> None:
    reads, records = site.gateway.reading, list(finished(SLOW, T0))
    for key, value in records[:6]:
        site.log.write(key, value)
    site.catch_up()
    with reads.still() as view:
        first = reads.run(view, SLOW)
        first.stall(Hold(SLOW, "stalled", "drift", "other code"))
        again = reads.run(view, SLOW)
    assert again.timeline is first.timeline
    assert again.hold is None  # it is noted of a copy

    before = first.state.digest()
    for key, value in records[6:]:
        site.log.write(key, value)
    site.catch_up()
    with reads.still() as view:
        grown, whole = reads.run(view, SLOW), ViewedRuns(view).find(SLOW)
    assert whole is not None
    assert (grown.state.digest(), grown.timeline.steps) == (whole.state.digest(), whole.timeline.steps)
    assert [each.place for each in grown.records] == [each.place for each in whole.records]
    assert grown.records[0] is first.records[0]  # it was not read again
    assert first.state.digest() == before


def test_a_run_with_another_history_is_folded_whole(site: Bench) -> None:
    other = Bench()
    for bench in (site, other):  # nonces differ
        for key, value in list(finished(SLOW, T0))[: 4 if bench is site else 8]:
            bench.log.write(key, value)
        bench.catch_up()
    reads = site.gateway.reading
    with reads.still() as view, other.gateway.reading.still() as then:
        reads.run(view, SLOW)
        found, whole = reads.run(then, SLOW), ViewedRuns(then).find(SLOW)
    assert whole is not None
    assert [each.id for each in found.records] == [each.id for each in whole.records]


def test_a_folded_run_leaves_when_it_was_erased_or_others_need_its_room(site: Bench) -> None:
    reads = site.gateway.reading

    def read(*runs: int) -> list[weakref.ref[Timeline]]:
        with reads.still() as view:
            found = [weakref.ref(reads.run(view, f"run-{number}").timeline) for number in runs]
        gc.collect()
        return found

    erased, there = read(5, 6)
    assert erased() is not None
    assert there() is not None
    site.log.mark("run-5")
    site.log.bury("run-5")
    site.catch_up()
    read(6)
    assert erased() is None
    assert there() is not None

    site.limits.kept_bytes = 150_000
    assert [each() is not None for each in read(7, 8, 9)] == [False, True, True]
    assert there() is None


def expose(site: Bench, run: str) -> None:
    """Write a run that exposes values in three entries, and is over."""
    cart = [StatusSet("asks"), StatusSet("1", "cart")], [StatusSet('{"n":2}', "cart"), StatusSet("[]", "odd")]
    for key, value in entries(run, begun(), *cart, [StatusSet("", "odd"), RunCompleted("1")]):
        site.log.write(key, value)


def test_exposed_values_are_read_as_they_are_and_as_they_were(site: Bench) -> None:
    expose(site, "shop-1")
    site.catch_up()

    assert site.get("/api/runs/shop-1/values") == {"status": "asks", "cart": {"n": 2}}
    shown = {seq: site.get(f"/api/runs/shop-1?at_seq={seq}")["values"] for seq in (2, 4, 6, 8)}
    assert shown[2] == {}
    assert shown[4] == {"status": "asks", "cart": 1}
    assert shown[6] == {"status": "asks", "cart": {"n": 2}, "odd": []}
    assert shown[8] == site.get("/api/runs/shop-1/values")
    named = [event["event"] for event in site.get("/api/runs/shop-1/events") if event["type"] == "StatusSet"]
    assert {"text": '{"n":2}', "name": "cart"} in named
    assert site.get("/api/runs/run-5/values") == {}
    (changed,) = [each for each in site.get("/api/runs/shop-1/diff/4/8")["fields"] if each["name"] == "values"]
    assert (changed["left"], changed["right"]) == ({"cart": 1}, {"cart": {"n": 2}})


def test_values_of_an_erased_or_unknown_run_are_gone(site: Bench) -> None:
    expose(site, "shop-1")
    site.catch_up()
    site.log.mark("shop-1")
    site.log.bury("shop-1")
    site.catch_up()

    assert site.get("/api/runs/shop-1/values", 410)["code"] == "erased"
    assert site.get("/api/runs/shop-2/values", 404)["code"] == "not_found"


def test_views_that_are_built_anew_have_the_same_values(site: Bench) -> None:
    expose(site, "shop-1")
    site.catch_up()
    before = site.get("/api/runs/shop-1/values")
    used = serving(site.database, Shipped.name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shipped, "version", Shipped.version + 1)
        site.kept = KeptProjection(Shipped(), site.database, site.log, refresh_s=0.0)
        site.catch_up()

    assert serving(site.database, Shipped.name) > used
    assert site.get("/api/runs/shop-1/values") == before != {}


def test_what_is_not_there_and_what_was_erased_differ(site: Bench) -> None:
    site.log.mark("run-5")
    site.log.bury("run-5")
    site.catch_up()

    assert site.get("/api/runs/nobody", 404)["code"] == "not_found"
    assert site.get("/api/runs/run-5", 410) == {
        **site.get("/api/runs/run-5/steps", 410),
        "code": "erased",
        "detail": "run run-5 was erased at 2026-09-21T14:13:20Z",
        "hint": "no copy of it was kept",
    }
    assert site.get("/api/runs/run-5/events", 410)["code"] == "erased"
    assert site.get("/api/runs/run-5/stream", 410)["code"] == "erased"
    assert site.get("/api/runs/no%20id", 422)["code"] == "malformed"


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[Bench]:
    """Give a gateway whose archive has every run. Of them the view has no more than what erasures left."""
    site, archive_store = Bench(archive=tmp_path.as_uri()), ArchiveStore(tmp_path.as_uri())
    expose(site, "shop-1")
    site.catch_up()
    for number in range(site.log.number):
        files = archive_store.keep(whole_runs(site.log, number, runs_of_log(site.log, number).ended))
        for run in ("run-3", "run-5", "shop-1"):
            if run in files:
                site.log.mark(run, file=files[RunId(run)] * (run != "run-5"))
    with site.http:
        yield site


def test_an_archived_run_is_read_from_the_archive_as_it_was_from_the_view(archived: Bench) -> None:
    paths = [
        f"/api/runs/run-3{path}"
        for path in ("", "?at_seq=9", "/events?after_seq=30", "/steps", "/audit", "/family", "/diff/3/9")
    ]
    paths.append("/api/runs/shop-1/values")
    before = [archived.get(path) for path in paths]
    assert before[-1] != {}
    archived.log.bury("run-3")
    archived.log.bury("shop-1")
    archived.log.bury("run-5")
    archived.catch_up()

    assert [archived.get(path) for path in paths] == before
    assert archived.http.get(paths[0]).headers["Refold-Archive"].endswith(".avro")
    assert "Refold-Archive" not in archived.http.get("/api/runs/run-4").headers
    assert archived.get("/api/runs/run-3?at_seq=99", 422)["code"] == "malformed"
    assert archived.get("/api/runs/run-5", 410)["hint"] == "no copy of it was kept"
    assert archived.get("/api/runs/nobody", 404)["code"] == "not_found"
    assert archived.get("/api/runs/run-3/stream", 410)["code"] == "erased"


def test_an_archived_run_is_found_when_nothing_of_it_is_left_in_any_topic(
    archived: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = archived.get("/api/runs/run-3/events")
    archived.log.bury("run-3")
    archived.catch_up()
    archived.log.mark("run-3", marked=False)
    archived.catch_up()

    assert archived.get("/api/runs/run-3/events") == before
    monkeypatch.delattr(ArchiveStore, "files")  # it is not asked for each id that somebody makes up
    assert [archived.get(f"/api/runs/nobody-{number}", 404)["code"] for number in range(20)] == ["not_found"] * 20
    for file in tmp_path.rglob("*.avro"):
        file.write_bytes(file.read_bytes()[:200])
    assert archived.get("/api/runs/run-3", 503)["code"] == "unreachable"
    for file in tmp_path.rglob("*.avro"):
        file.unlink()
    assert archived.get("/api/runs/run-3", 404)["code"] == "not_found"


def test_a_read_waits_for_the_write_that_it_names(site: Bench) -> None:
    site.log.finish("late")
    place = RUN_LOG, home(RunId("late"), 2)
    after = f"{RUN_LOG}/{place[1]}/{site.log.ends[place] - 1}"

    assert site.get("/api/runs/late", 503, Refold_After=after)["code"] == "behind"
    site.catch_up()
    assert site.get("/api/runs/late", Refold_After=after)["status"] == "completed"
    for wrong in (
        "nonsense",
        "run-log/0/-1",
        f"run-log/0/{10**30}",
        "tool-requested/0/1",
        "run-log/0/1," * 200,
    ):
        assert site.get("/api/runs/late", 422, Refold_After=wrong)["code"] == "malformed", wrong


def test_a_read_waits_for_what_an_input_has_caused(site: Bench) -> None:
    assert site.get("/api/runs/run-1", Refold_After="run-requested/0/0")["status"] == "completed"
    assert site.get("/api/runs/run-1", 503, Refold_After="run-requested/0/1")["code"] == "behind"
    assert site.get("/api/runs/run-1/stream", 503, Refold_After="run-signalled/0/0")["code"] == "behind"


def test_views_that_are_dropped_at_that_moment_are_503_and_not_a_conflict(site: Bench) -> None:
    name, number = Shipped.name, serving(site.database, Shipped.name)
    site.database.drop(name, number)

    for path in ("/api/runs", "/api/runs/run-1", "/api/runs/run-1/events", "/api/runs/run-1/stream"):
        assert site.get(path, 503)["code"] == "unreachable", path
    assert site.http.post("/api/runs/run-1/cancel").status_code == 503
    assert site.get("/readyz", 503)["views"] != "ok"

    site.catch_up()
    assert site.get("/api/runs/run-1")["status"] == "completed"


class Dropped(MemoryViewDatabase):
    """A database whose generation in use is dropped between two looks."""

    gone = False

    def store(self, projection: str, generation: int) -> MemoryViewStore:
        if self.gone:
            raise ConflictError(f"generation {generation} of {projection} was dropped")
        return super().store(projection, generation)


def test_a_generation_that_is_dropped_between_two_looks_is_503(site: Bench) -> None:
    dropped = Dropped()
    dropped.create(Shipped.name, 1, (), {})
    dropped.switch(Shipped.name, 1, ())
    dropped.gone = True

    with pytest.raises(UnreachableError), reading.ReadSide(dropped).still():
        pass


def test_a_fault_of_the_gateway_is_503_and_its_log_has_the_reason(site: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "page_behind", None)

    found = site.http.get("/api/runs?state=doubt")

    assert (found.status_code, found.json()["code"]) == (503, "internal")
    assert found.headers["content-type"] == "application/problem+json"
    assert "NoneType" not in found.text
    assert found.headers["x-content-type-options"] == "nosniff"


def test_a_stream_gives_every_event_once_from_any_point(site: Bench) -> None:
    whole = site.http.get("/api/runs/run-7/stream").text
    rest = site.http.get("/api/runs/run-7/stream", headers={"Last-Event-ID": "20"}).text

    assert ids(whole) == list(range(1, 34))
    assert ids(rest) == list(range(21, 34))
    assert json.loads(whole.split("data: ")[1].split("\n")[0])["type"] == "RunRequested"
    assert site.get("/api/runs/run-7/stream", 422, Last_Event_ID="x")["code"] == "malformed"
    assert site.get("/api/runs/run-7/stream", 503, Last_Event_ID="99")["code"] == "behind"


def ids(stream: str) -> list[int]:
    return [int(line.removeprefix("id: ")) for line in stream.splitlines() if line.startswith("id: ")]


def test_while_kafka_is_away_reads_go_on_and_writes_say_so(site: Bench) -> None:
    found = site.http.post("/api/runs", json={"agent": "ten", "input": None})

    assert (found.status_code, found.json()["code"]) == (503, "unreachable")
    assert found.headers["retry-after"]
    assert site.get("/readyz", 503)["kafka"] == "not heard"
    assert site.get("/api/runs/run-1")["status"] == "completed"
    assert int(site.http.get("/api/runs/run-1").headers["refold-lag"]) >= 1


def test_another_host_and_another_origin_are_refused(site: Bench) -> None:
    assert site.get("/api/runs", 421, Host="evil.example")["code"] == "other_host"
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        found = site.http.post("/api/runs/run-1/cancel", headers=headers)
        assert (found.status_code, found.json()["code"]) == (403, "other_origin"), headers
    for mode, status in (("no-cors", 403), ("cors", 403), ("navigate", 200)):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
        assert site.http.get("/api/runs?text=guess", headers=headers).status_code == status, mode
    twice = [("Origin", "http://evil.example"), ("Origin", "http://127.0.0.1:8321")]
    assert site.http.post("/api/runs/run-1/cancel", headers=twice).status_code == 403
    own = site.http.post("/api/runs/run-1/cancel", headers={"Origin": "http://127.0.0.1:8321"})
    assert own.status_code != 403


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "LOCALHOST:8321", "[::1]", "[::1]:8321", "127.1.2.3:1"),
        # An IPv6 socket has IPv4's loopback so; browsers write it in hex.
        *("[::ffff:127.0.0.1]", "[::FFFF:127.0.0.1]:8321", "[::ffff:7f00:1]:8321"),
    ],
)
def test_names_of_this_machine_are_served(site: Bench, host: str) -> None:
    assert site.http.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.", "localhost.evil.example", "0.0.0.0", "127.1"),
        *("evil.example@127.0.0.1", "127.0.0.1@evil.example", "unix://x", "http://127.0.0.1", "127.0.0.1/.."),
        *("localhost#x", "localhost:abc", "localhost:", "[::1", "::ffff:127.0.0.1", "127.0.0.1, evil.example"),
        *("[::ffff:10.0.0.1]", "[::ffff:0.0.0.0]", "[::ffff:a00:1]", "[::ffff:7f00]", "[::127.0.0.1]", "[fe80::1]"),
        *("[::ffff:127.0.0.1].evil.example", "[::ffff:127.0.0.1", "evil.example@[::ffff:127.0.0.1]"),
    ],
)
def test_any_other_host_is_refused(site: Bench, host: str) -> None:
    assert site.get("/healthz", 421, Host=host)["code"] == "other_host"


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "ODD"])
def test_other_methods_are_a_problem_that_names_those_there_are(site: Bench, method: str) -> None:
    found = site.http.request(method, "/api/runs")

    assert (found.status_code, found.headers["content-type"]) == (405, "application/problem+json")
    assert found.headers["allow"] in ("GET", "POST")


def test_answers_tell_browsers_to_load_nothing_else(site: Bench) -> None:
    for path in ("/api/runs", "/api/runs/nobody", "/healthz", "/no/such/path"):
        headers = site.http.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'"), path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(site: Bench) -> None:
    for content in (b"x" * (guard.MOST_BODY + 1), iter([b"x" * 100_000] * 30)):
        found = site.http.post("/api/runs", content=content, headers=JSON)

        assert (found.status_code, found.json()["code"]) == (413, "too_large")
        assert found.headers["connection"] == "close"


def test_a_body_that_is_no_json_or_is_compressed_is_415(site: Bench) -> None:
    for headers in ({}, {"content-type": "text/plain"}, {**JSON, "content-encoding": "gzip"}):
        found = site.http.post("/api/runs", content=b'{"agent": "ten"}', headers=headers)

        assert (found.status_code, found.json()["code"]) == (415, "media_type"), headers


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b'{"agent": 7}', b'{"agent": "a", "more": 1}', b'{"agent": "a", "not_before_ms": -1}', b"[]"),
        *(b"[" * 100_000, b'{"agent": "a", "input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        *(
            b'{"agent": "a", "input": %s}' % each
            for each in (b"NaN", b"Infinity", b"1e999", b"9" * 5_000, b'"\\ud800"')
        ),
        *(b'{"agent": "a", "agent": "b"}', b'{"agent": "a", "input": {"x": 1, "x": 2}}', b"\xff\xfe"),
        *(b'{"agent": "a", "sessions": ["\\ud800"]}', b'{"agent": "a", "labels": {"\\udfff": ""}}', b'{"\\ud800": 1}'),
        *(b'{"agent": "a", "deadline_ms": 9223372036854775808}', b'{"agent": "a", "id": "../b"}'),
    ],
)
def test_a_body_that_is_none_is_a_problem(site: Bench, body: bytes) -> None:
    found = site.http.post("/api/runs", content=body, headers=JSON)

    assert (found.status_code, found.json()["code"]) == (422, "malformed")
    assert found.headers["content-type"] == "application/problem+json"


@pytest.fixture
def slow_site() -> Iterator[Bench]:
    """A gateway that lets programs write 60 times a minute."""
    with (site := Bench(part=GatewayPart(writes={"program": 60}))).http:
        yield site


def test_more_writes_than_a_minute_has_room_for_are_refused(slow_site: Bench) -> None:
    site = slow_site
    for _ in range(60):
        with site.gateway.by(Login("ada", local=True)).room("writes"):
            pass

    found = site.http.post("/api/runs", json={"agent": "ten"})

    assert (found.status_code, found.json()["code"]) == (429, "busy")
    assert int(found.headers["retry-after"]) > 50


def test_a_refused_write_counts_too(slow_site: Bench) -> None:
    site = slow_site
    for _ in range(60):
        assert site.http.post("/api/runs/nobody/cancel").status_code == 404

    assert site.http.post("/api/runs/nobody/cancel").status_code == 429


def test_two_names_for_one_input_are_refused(site: Bench) -> None:
    body = {"agent": "ten", "id": "one"}
    found = site.http.post("/api/runs", json=body, headers={"Idempotency-Key": "two"})

    assert (found.status_code, found.json()["code"]) == (422, "malformed")


@pytest.mark.parametrize(
    "body", [{"action": "edit"}, {"action": "approve", "args": {}}, {"action": "reject", "result": 1}]
)
def test_a_vote_that_is_no_whole_one_is_refused(site: Bench, body: dict[str, Any]) -> None:
    found = site.http.post("/api/approvals/run-1/3/votes", json=body)

    assert (found.status_code, found.json()["code"]) == (422, "malformed")


def test_nothing_is_written_beside_views_of_another_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(refusals: writing.Refusals) -> None:
        refusals.log = "log-2"
        refusals.listens.set()

    monkeypatch.setattr(writing.Refusals, "_listen", listen)
    site = Bench()
    with site.http:
        found = site.http.post("/api/runs", json={"agent": "ten"})

        assert (found.status_code, found.json()["detail"][:30]) == (503, "the views are of the log log-1")
        assert "log-2" in site.get("/readyz", 503)["views"]
        assert site.get("/api/runs/run-1", 503)["code"] == "unreachable", "this Kafka may have no such run"


def test_questions_are_read_from_kafka_and_503_while_it_is_away(site: Bench) -> None:
    assert site.get("/api/approvals", 503)["code"] == "unreachable"
    assert site.get("/api/approvals/run-1/3", 503)["code"] == "unreachable"


def test_a_view_that_stands_still_answers_for_no_run_that_it_has_and_for_none_that_it_lacks(site: Bench) -> None:
    store = site.gateway.reading.store()
    store.commit(ViewChanges((), notes={"stopped": "KeyError: 'x'\nTraceback"}))

    answers = [site.http.get(path) for path in ("/api/runs/run-1", "/api/runs/run-99", "/runs/run-1", "/runs/run-99")]
    store.commit(ViewChanges((), notes={"stopped": ""}))

    assert [answer.status_code for answer in answers] == [503] * 4
    assert answers[0].json()["detail"] == "the views stand still: KeyError: 'x'"
    assert "refold run show" in answers[0].json()["hint"]
    assert [site.http.get(f"/api/runs/run-{number}").status_code for number in (1, 99)] == [200, 404]
