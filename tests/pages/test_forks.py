"""Forks on the pages of runs: the form, the report, and code that hangs, dies, lies or is not there."""

from __future__ import annotations

import fcntl
import html
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from refold.client.reading.history import Run
from refold.console.gateway.forks import FORK_S, ForkRoom
from refold.console.pages import rendering
from refold.console.pages.fork_pages import fork_file, fork_parts
from refold.console.pages.screen import SCREEN
from refold.core.ids import RunId
from refold.engine.archive.collecting import runs_of_log, whole_runs
from refold.engine.archive.store import ArchiveStore
from refold.engine.runtime.settings import GatewayPart
from refold.lab.forks.engine import UnansweredStep
from refold.lab.forks.report import ForkReport, OtherJudgement
from refold.lab.forks.worker import ForkJob, ForkSetup
from refold.lab.processes import ForkProcess
from refold.testing import reject
from tests.forks.recording import Noted
from tests.gateway.test_reading import Bench
from tests.pages.forkable import app
from tests.pages.hostile import CORPUS
from tests.pages.test_pages import Tags, check_text_alone
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
TARGET = "tests.pages.forkable:app"
MANY = 300
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
DENIES = "rules:\n- name: no more <b>tea</b>\n  when: 'true'\n  deny: not today\n"


def recorded() -> list[Noted]:
    """Runs with all that the page shows."""
    return [
        Noted(app, "shops", {"items": ["tea", "milk"]}, name="plain").finish(),  # type: ignore[list-item]
        Noted(app, "drops", {"table": "t"}, name="drop", decisions={"drop": reject("keep it")}).finish(),  # type: ignore[list-item]
        Noted(app, "shops", {"items": ["tea"] * MANY}, name="many").finish(),  # type: ignore[list-item]
        Noted(app, "parent", {}, name="family").finish(),  # type: ignore[list-item]
        *(Noted(app, "shops", {"items": [text]}, name=f"foul-{n}").finish() for n, text in enumerate(foul())),  # type: ignore[list-item]
    ]


def foul() -> list[str]:
    return [text for text in CORPUS if "\ud800" not in text]


def write(bench: Bench, runs: list[Noted]) -> None:
    for run in runs:
        for _, (key, value) in run.order:
            bench.log.write(key, value)
    bench.catch_up()


@pytest.fixture(scope="module")
def site() -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_ENVIRONMENT", "test")
        patch.chdir(ROOT)
        bench = Bench(part=GatewayPart(writes={"program": 10**9}))
        bench.gateway.forks = ForkRoom(TARGET)
        write(bench, recorded())
        with bench.http:
            yield bench


class OneProcess(ForkRoom):
    """A room that forks in one process, which takes a second to start. It leaves out the model: no agent has one."""

    def fork(self, job: ForkJob, setup: ForkSetup) -> ForkReport:
        if self._process is None:
            self._process = ForkProcess(replace(setup, model="")).load()
        return self._process.fork(job)


@pytest.fixture(scope="module")
def room() -> Iterator[OneProcess]:
    room = OneProcess(TARGET)
    yield room
    room.close()


@pytest.fixture
def warm(site: Bench, room: OneProcess, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The site, of which the forks of all tests that are not about processes share one."""
    monkeypatch.setattr(site.gateway, "forks", room)
    return site


def forked(bench: Bench, run: str, fields: Mapping[str, str] | None = None, status: int = 200, **more: str) -> Any:
    """The page that answers a form."""
    form = {"at": "0", **(fields or {}), **more}
    answer = bench.http.post(f"/runs/{run}/fork", content=urlencode(form), headers=FORM)
    assert answer.status_code == status, text_of(answer)[:800]
    check_text_alone(Tags(answer.text), run)
    return answer


def text_of(answer: Any) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.text)))


def words(answer: Any) -> list[str]:
    """The differences of the rows, in order."""
    return re.findall(r'data-head="Difference"><div><span class="pill">([^<]+)', answer.text)


def decided(call: str, verdict: str, said: str = "") -> dict[str, str]:
    return {f"decide:{call}": verdict, f"words:{call}": said}


def call_of(bench: Bench, run: str, name: str) -> Any:
    return next(step for step in bench.get(f"/api/runs/{run}/steps") if step["name"].endswith(name))


def test_a_fork_without_changes_is_the_same(site: Bench) -> None:
    answer = forked(site, "plain")

    assert "the same Steps, judgements and result are those of the run." in text_of(answer)
    assert words(answer) == ["same"] * 4
    assert "buy 2" not in text_of(answer)


def test_what_is_kept_added_left_out_or_changed_has_its_word(warm: Bench) -> None:
    left_out = forked(warm, "plain", input='{"items": ["tea"]}')
    changed = forked(warm, "plain", at="8", edit="4 buy milk", args='{"item": "silk"}', stubs="buy: 9")
    added = forked(warm, "plain", input='{"items": ["tea", "milk", "silk"]}', stubs="buy: {n: 9}")

    assert words(left_out) == ["same", "same", "left out", "left out"]
    assert "another run" in text_of(left_out)
    assert words(changed) == ["kept", "kept", "same", "changed"]
    assert '+ item: " silk "' in text_of(changed)
    assert 'item: " milk "' in text_of(changed)
    assert words(added) == ["same"] * 4 + ["added"] * 2
    skipped = forked(warm, "plain", input='{"items": ["milk"]}')  # in its place, and not at the end
    assert words(skipped) == ["another outcome", "left out", "left out", "same"]
    assert "record 2, stub 1" in text_of(added)


def test_a_fork_stops_and_shows_what_it_would_have_fired(warm: Bench) -> None:
    text = text_of(answer := forked(warm, "plain", input='{"items": ["silk"]}'))

    assert "stopped It came to what nothing answers. Nothing was written" in text
    assert re.search(r'It would have fired buy once plain/\d+ \{ "item": "silk" \} Policy allow', text)
    assert words(answer) == ["another outcome", "stops here", "not reached", "not reached", "not reached"]


def test_people_a_policy_and_another_result_are_changes_of_the_form(warm: Bench) -> None:
    call = call_of(warm, "drop", "drop")["call_id"]
    approved = text_of(forked(warm, "drop", decided(call, "approve")))
    answered = text_of(forked(warm, "drop", decided(call, "answer", '"gone"')))
    otherwise = text_of(forked(warm, "drop", decided(call, "reject", "never <i>again</i>")))
    denied = forked(warm, "plain", draft=DENIES)
    result = text_of(forked(warm, "plain", given="2 buy tea", result='"none"'))

    assert "It would have fired drop" in approved
    assert "in the fork" in answered
    assert "+ no: drop failed: never <i>again</i>" in otherwise
    assert words(denied)[:2] == ["same", "judged otherwise"]
    assert "allow → deny, rule no more <b>tea</b>" in text_of(denied)
    assert '" none ",' in result


def test_the_form_offers_what_lies_behind_the_event(site: Bench) -> None:
    call = call_of(site, "drop", "drop")["call_id"]
    begin, end = (site.http.get(f"/runs/drop/fork?at={at}").text for at in (0, 99))

    assert f'name="decide:{call}"' in begin
    assert '<textarea id="fork-input"' in begin
    assert "no event is kept" in begin
    assert "decide:" not in end
    assert re.search(r"events 1 to \d+ are kept", end)
    assert '<input type="hidden" name="input"' in end
    run = site.http.get("/runs/drop").text
    assert f'href="/runs/drop/fork?at={call.rpartition("/")[2]}"' in run
    assert 'href="/runs/drop/fork?at=2" aria-label="Fork from event 2"' in site.http.get("/runs/drop?show=events").text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"at": "x"}, "a value that no fork takes: at"),
        ({"at": "9" * 40}, "a value that no fork takes: at"),
        ({"at": "8", "edit": "2 buy", "args": "1"}, "step 2 was asked for before the cut"),
        ({"at": "8", "input": "1"}, "has its input from its first entry on"),
        ({"args": '{"item": "x"}'}, "a call has no args, or args no call"),
        ({"edit": "9" * 17 + " buy", "args": "1"}, "a value that no fork takes: edits"),
        ({"edit": "2 buy", "args": "{"}, "is not JSON"),
        ({"given": "2 buy"}, "a call has no result, or result no call"),
        ({"edit": "0 buy", "args": "1"}, "a value that no fork takes: edits"),
        ({"stubs": "- buy"}, "no results by tool"),
        ({"stubs": "a: &a [1]\nb: *a"}, "aliases are for files alone"),
        ({"stubs": "buy: 2026-01-01"}, "has no JSON form"),
        ({"draft": "- 1"}, "a value that no fork takes: policy"),
        ({"draft": "rules: 7"}, "rules"),
        ({"policy": "0" * 64}, "a value that no fork takes: policy"),
        ({"decide:plain/4": "perhaps"}, "is no verdict"),
        ({"decide:plain/4": "edit"}, "is no verdict"),
        ({"decide:<script>": "approve"}, "is not a call id"),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_the_form_as_it_was(
    site: Bench, fields: dict[str, str], says: str
) -> None:
    answer = forked(site, "plain", fields, 422, model="kept-as-it-was")

    assert "Nothing was forked" in answer.text
    assert says in text_of(answer)
    assert 'value="kept-as-it-was"' in answer.text


def test_a_fork_with_another_model_goes_to_a_process_of_its_own(site: Bench) -> None:
    stop = forked(site, "foul-0", input='{"items": ["another"]}', model=foul()[0])

    assert "It would have fired buy" in text_of(stop)


def test_no_text_of_a_fork_becomes_part_of_its_page(warm: Bench) -> None:
    for number, text in enumerate(foul()):
        run = f"foul-{number}"
        check_text_alone(Tags(warm.http.get(f"/runs/{run}/fork").text), run)
        stops = forked(warm, run, input=f'{{"items": [{_json(text + "!")}]}}', model=text)
        policy = f"rules:\n- name: {_json(text[:100])}\n  when: 'true'\n  deny: {_json(text[:1_000])}\n"
        denied = forked(warm, run, draft=policy, stubs=f"buy: {_json(text)}")
        for answer in (stops, denied):
            assert not re.search("[\u202e\u200b\u00ad\x1b\x07\x00]", text_of(answer).replace(text, "")), run


def _json(text: str) -> str:
    return ForkReport(run_id="", at=0, verdict="same", message=text).model_dump_json(include={"message"})[11:-1]


LIES: list[dict[str, Any]] = [
    {"rows": {"plain": [("zz", "zz")]}, "steps": {"plain": [1]}},
    {"rows": {"plain": [("ff" * 20, "00" * 20)]}, "steps": {"plain": [1]}},
    {"rows": {CORPUS[0]: [("", "")]}, "steps": {CORPUS[0]: []}},
    {"kept": {"plain": 10**9}, "steps": {"plain": [9, -1, 10**12]}},
    {"kept": {"plain": -3}, "steps": {CORPUS[0]: [0]}},
    {"kept": {CORPUS[0]: 3, "plain": 2}, "steps": {"plain": [2, 2, 2]}},
    {"answered": {CORPUS[0]: -5}, "refused": {CORPUS[7]: 10**30}, "usd": (float("nan"), None)},
    {"judgements": [OtherJudgement(run_id=CORPUS[0], step=1, tool=CORPUS[1], before="a", after="b", rule=CORPUS[2])]},
    {"verdict": "other", "result": (CORPUS[0], ["[" * 500]), "status": (CORPUS[0], CORPUS[1])},
    {"verdict": "disagrees", "step": -1, "fork_at": -5, "message": CORPUS[0]},
    {"stopped": [UnansweredStep(run_id=t, step=1, call_id=t, phase=t, tool=t, args={t: t}, effect=t) for t in CORPUS]},
]


@pytest.mark.parametrize("lie", LIES)
def test_a_report_that_is_not_true_is_a_page_all_the_same(site: Bench, lie: dict[str, Any]) -> None:
    """It is the word of a process that has run foreign code."""
    with site.gateway.view("") as view:
        family: list[Run] = [site.gateway.reading.run(view, "plain")]
    report = ForkReport(**{"run_id": "plain", "at": 0, "verdict": "stopped", **lie})

    page = rendering.html_page(SCREEN, title="x", place="/", parts=[*fork_parts(family, report)])

    check_text_alone(Tags(bytes(page.body).decode()), str(lie))


def test_a_file_loads_nothing_and_leads_nowhere(site: Bench) -> None:
    with site.gateway.view("") as view:
        family = [site.gateway.reading.run(view, "plain")]
    report = ForkReport(run_id="plain", at=0, verdict="stopped", message=CORPUS[0], agent=CORPUS[1])

    text = fork_file(CORPUS[0], [report, report], [{CORPUS[2]: CORPUS[3]}], family)

    tags = Tags(text).found
    assert not {"script", "link", "a", "img"} & {tag for tag, of in tags if of.get("href") not in ("data:,", "#main")}
    assert "http" not in re.sub(r"'http://www.w3.org/2000/svg'", "", text)


def test_one_fork_runs_at_a_time_and_others_are_told_so(site: Bench) -> None:
    with site.gateway.forks.free():
        page = forked(site, "plain", status=429)
        api = site.http.post("/api/runs/plain/fork", json={})

    assert "another fork is running" in text_of(page)
    assert (api.status_code, api.json()["code"]) == (429, "busy")
    assert int(api.headers["retry-after"]) > 0
    assert words(forked(site, "plain"))


@pytest.mark.parametrize(
    ("how", "status", "says"),
    [
        ("hangs", 200, "it took longer than 3 s"),
        ("exits", 200, "has ended without a word"),
        ("import-hangs", 422, "cannot be loaded in a fork"),
        ("import-raises", 422, "cannot be loaded in a fork: RuntimeError"),
    ],
)
def test_code_that_hangs_or_dies_costs_its_own_fork_alone(
    site: Bench, monkeypatch: pytest.MonkeyPatch, how: str, status: int, says: str
) -> None:
    monkeypatch.setenv("FORK_TEST_HOW", how)
    site.gateway.forks.limit_s = 3.0
    begun = time.monotonic()
    answer = forked(site, "plain", status=status)
    took = time.monotonic() - begun
    monkeypatch.delenv("FORK_TEST_HOW")
    site.gateway.forks.limit_s = FORK_S

    assert says in text_of(answer)
    assert took < 12
    assert "the same" in text_of(forked(site, "plain"))


@pytest.mark.parametrize("path", ["/runs/plain/fork", "/api/runs/plain/fork"])
def test_the_gateway_answers_others_while_a_fork_runs_and_ends_it_with_itself(
    site: Bench, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("FORK_TEST_HOW", "hangs")
    done: list[Any] = []
    before = site.gateway.forks._process
    headers, body = ({"content-type": "application/json"}, "{}") if path.startswith("/api/") else (FORM, "at=0")
    asks = threading.Thread(target=lambda: done.append(site.http.post(path, headers=headers, content=body)))
    asks.start()
    process = eventually(lambda: (now := site.gateway.forks._process) is not before and now, within=20)
    begun = time.monotonic()
    assert site.http.get("/api/runs/plain").status_code == 200
    assert time.monotonic() - begun < 2
    assert process.alive
    site.gateway.forks.close()
    asks.join(10)

    assert "has ended without a word" in done[0].text
    assert not process.alive


def test_code_that_never_ends_does_not_outlive_a_gateway_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORK_TEST_HOW", "import-hangs")
    program = (
        "from refold.lab.processes import ForkProcess; from refold.lab.forks.worker import ForkSetup\n"
        f"mine = ForkProcess(ForkSetup({TARGET!r}, 'test', [])); print(mine._process.pid, flush=True); mine.load()"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        own, its = (Path(f"/proc/{each}/ns/user") for each in ("self", worker))
        eventually(lambda: its.readlink() != own.readlink(), within=30, what="the walls")
        parent.kill()
    eventually(lambda: not Path(f"/proc/{worker}").exists(), within=10, what="the end of the fork")


def test_code_that_does_not_agree_says_where_to_fork_instead(site: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    last = site.get("/api/runs/plain")["head"]["seq"] - 1  # behind its end nothing is left that could differ
    monkeypatch.setenv("FORK_TEST_HOW", "differs")

    answer = forked(site, "plain", at=str(last))

    found = re.search(r"differs. Fork at or before (\d+)", text_of(answer))
    assert found is not None
    assert f'href="/runs/plain/fork?at={found[1]}"' in answer.text
    assert "does not agree" in text_of(answer)


def test_nothing_of_the_gateway_reaches_the_process_of_a_fork(site: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("REFOLD_KAFKA__CONFIG", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "AZURE_STORAGE_KEY", "refold_x")
    for name in secrets:
        monkeypatch.setenv(name, "s3cret-value")
    monkeypatch.setenv("FORK_TEST_HOW", "tells")
    with Path("/dev/null").open() as file:
        held = fcntl.fcntl(file, fcntl.F_DUPFD, 150)  # every process that is started inherits it, if it may
    try:
        report = site.http.post("/api/runs/plain/fork", json={}).json()
    finally:
        os.close(held)

    environ, files, parent = report["result"][1]
    assert "s3cret-value" not in environ.values()
    assert environ["PATH"]
    assert not files[held - 3]
    if report["isolated"]:
        assert parent == "PermissionError"


def test_a_module_beside_the_app_is_none_of_the_walls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks into the folder that it is started in before its own: there lies what the app's author has put."""
    (tmp_path / "resource.py").write_text("open('acted', 'w').close()\nraise SystemExit(0)\n")
    (tmp_path / "mine.py").write_text("from refold import App\napp = App('mine')\n")
    monkeypatch.chdir(tmp_path)

    process = ForkProcess(ForkSetup("mine.py", "test", [])).load()
    process.close()

    assert not (tmp_path / "acted").exists()


def test_without_an_app_or_the_role_the_page_has_the_command(site: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.gateway.forks, "app", "")

    page = site.http.get("/runs/plain/fork?at=4")

    assert "refold fork plain --at 4 --app MODULE:APP" in text_of(page)
    assert "it was started without --app" in text_of(page)
    assert "<form" not in page.text[page.text.index("<main") :]
    assert "no code to fork with" in text_of(forked(site, "plain", status=422))


def test_a_family_has_a_timeline_for_each_run_and_a_long_one_is_counted(warm: Bench) -> None:
    family, many = forked(warm, "family"), forked(warm, "many")

    assert "family.1, step by step" in text_of(family)
    assert words(many) == ["same", "same"]
    assert f"{2 * MANY - 2} more steps are the same" in text_of(many)
    assert len(many.content) < 100_000


def test_runs_that_are_gone_or_archived_are_forked_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_ENVIRONMENT", "test")
    monkeypatch.chdir(ROOT)
    bench, kept = Bench(archive=tmp_path.as_uri()), ArchiveStore(tmp_path.as_uri())
    bench.gateway.forks = ForkRoom(TARGET)
    write(bench, [Noted(app, "shops", {"items": ["tea"]}, name=name).finish() for name in ("old", "gone")])  # type: ignore[misc]
    for number in range(bench.log.number):
        files = kept.keep(whole_runs(bench.log, number, runs_of_log(bench.log, number).ended))
        if "old" in files:
            bench.log.mark("old", file=files[RunId("old")])
    with bench.http:
        bench.log.mark("gone")
        bench.catch_up()
        for name in ("old", "gone"):
            bench.log.bury(name)
        bench.catch_up()

        assert "the same" in text_of(forked(bench, "old"))
        assert bench.http.get("/runs/old/fork").headers["Refold-Archive"].endswith(".avro")
        for method in (bench.http.get, bench.http.post):
            assert method("/runs/gone/fork", headers=FORM).status_code == 410
            assert method("/runs/none/fork", headers=FORM).status_code == 404
