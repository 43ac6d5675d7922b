"""The process of forks: what is refused there, and what comes of an app that breaks it."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from refold import App, Context
from refold.core.events import Spendable
from refold.core.ids import RunId
from refold.lab.forks.engine import ForkChanges
from refold.lab.forks.record import RecordedRun
from refold.lab.forks.report import CheckJob
from refold.lab.forks.worker import ForkJob, ForkSetup
from refold.lab.processes import checks, forks
from tests.forks.recording import Family, family_of, fork
from tests.forks.thinking import app as thinking
from tests.forks.zoo import RUNS, start
from tests.forks.zoo import app as zoo

ROOT = Path(__file__).parents[2]
PREVENTED = {
    "open",
    "os.system",
    "subprocess.Popen",
    "os.posix_spawn",
    "os.fork",
    "socket.getaddrinfo",
    "ctypes.dlopen",
}
ZOO = "tests.forks.zoo:app"


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def family(name: str) -> Family:
    return family_of(RUNS[name]())


def setup(target: str) -> ForkSetup:
    return ForkSetup(target, "test", [])


def test_forks_of_many_runs_in_two_processes_are_what_they_are_here() -> None:
    """Equal bytes, though hashes have other seeds there."""
    names = ["plain", "family", "rejected", "fans", "hurries"]
    families = {f"r-{number}": family(name) for number, name in enumerate(names)}
    jobs = [ForkJob("r-1", rows, 6) for rows in families.values()]

    reports = list(forks(jobs, setup(ZOO), at_once=2))
    there = [report.model_copy(update={"isolated": False}).model_dump_json() for report in reports]

    assert sorted(there) == sorted(fork(zoo, rows, "r-1", 6).model_dump_json() for rows in families.values())
    assert all('"verdict":"same"' in report for report in there)


def test_pure_calls_run_under_the_budget_of_all_processes_and_no_others() -> None:
    looks = ForkJob("r-1", family("fans"), 0, ForkChanges(input='{"many":6}'))
    buys = ForkJob("r-1", family("plain"), 0, ForkChanges(input='{"items":["silk"]}'))

    enough, bought = forks([looks, buys], setup(ZOO), budget=Spendable(calls=9))
    (short,) = forks([looks], setup(ZOO), budget=Spendable(calls=1))

    assert (enough.answered["pure"], enough.stopped[0].tool) == (2, "pay")
    assert (bought.answered, bought.stopped[0].tool) == ({}, "buy")
    assert (short.answered["pure"], short.stopped[0].tool) == (1, "look")


def test_models_answer_from_the_record_and_another_model_is_asked_by_nobody() -> None:
    run = start(thinking, "thinker", prompt="what is dear?").finish()
    job = ForkJob("r-1", family_of(run), 0)

    (same,) = forks([job], setup("tests.forks.thinking:app"))
    (other,) = forks([job], replace(setup("tests.forks.thinking:app"), model="test"))

    assert (same.verdict, same.result[1], same.tokens[0] > 0) == ("same", "tea is dear", True)
    assert (other.verdict, other.stopped[0].tool) == ("stopped", "thinker__model.request")
    assert other.stopped[0].args["asked"] == "test"


def test_a_hostile_app_does_nothing_that_the_process_can_prevent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        monkeypatch.setenv("FORK_TEST_FOLDER", str(tmp_path))
        monkeypatch.setenv("FORK_TEST_PORT", str(server.getsockname()[1]))
        (report,) = forks([ForkJob("r-1", hostile_run(), 0)], setup("tests.forks.hostile:app"))
        with pytest.raises(TimeoutError):
            server.accept()

        (checked,) = checks([CheckJob(RecordedRun.of(hostile_run()[RunId("r-1")]).state)], "tests.forks.hostile:app")
        with pytest.raises(TimeoutError):
            server.accept()

    assert list(tmp_path.iterdir()) == []
    assert (checked.verdict, checked.change) == ("differs", "replaced")
    assert (report.verdict, report.stopped[0].tool) == ("stopped", "act")
    assert set(report.refused) >= PREVENTED


def test_what_an_app_wanted_to_do_when_it_was_loaded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORK_TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("FORK_TEST_PORT", "1")
    (tame,) = forks([ForkJob("r-1", dying_run("stay"), 0)], setup("tests.forks.hostile:app"))

    assert set(tame.refused) >= PREVENTED


def test_an_app_that_ends_its_process_costs_its_own_fork_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORK_TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("FORK_TEST_PORT", "1")
    jobs = [ForkJob("r-1", dying_run(how), 0) for how in ("exit", "stay", "lie", "stay")]

    found = list(forks(jobs, ForkSetup("tests.forks.hostile:app", "test", [])))

    assert [report.verdict for report in found][:2] == ["raises", "same"]
    assert "ended without a word" in found[0].message
    assert len(found) == len(jobs)


def test_a_check_of_code_that_ends_its_process_says_so_and_the_next_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORK_TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("FORK_TEST_PORT", "1")
    jobs = [CheckJob(RecordedRun.of(dying_run(how)[RunId("r-1")]).state) for how in ("exit", "stay", "lie", "stay")]

    found = list(checks(jobs, "tests.forks.hostile:app"))

    assert [check.verdict for check in found][:2] == ["raises", "agrees"]
    assert "ended without a word" in found[0].message
    assert [check.run_id for check in found] == ["r-1"] * len(jobs)


@pytest.mark.parametrize(
    "lie",
    [
        *(
            "[" * 100_000,
            "[1]",
            '{"error": "x"}',
            '{"error": [1]}',
            '{"error": {"code": "usage"}}',
            "\udcff",
            "9" * 5_000,
        ),
        '{"report": {"run_id": "r-1", "at": 0, "verdict": "same", "message": "\\ud800"}}',
        '{"report": {"run_id": "r-1", "at": 0, "verdict": "same", "usd": [NaN, 1]}}',
        '{"report": {"run_id": "r-2", "at": 0, "verdict": "same"}}',
    ],
)
def test_what_is_no_report_is_a_fork_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    monkeypatch.setenv("FORK_TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("FORK_TEST_PORT", "1")
    monkeypatch.setenv("FORK_TEST_LIE", f"{lie}\n")
    (found,) = forks([ForkJob("r-1", dying_run("lie"), 0)], setup("tests.forks.hostile:app"))

    assert found.verdict == "raises"


def dying_run(how: str) -> Family:
    """A run that came to its end."""
    tame = App("hostile")

    @tame.agent
    async def dies(ctx: Context, how: str) -> str:
        """Lives."""
        return how

    return family_of(start(tame, "dies", how=how).finish())


def hostile_run() -> Family:
    """A run of an agent with this name that had other arguments."""
    tame = App("hostile")

    @tame.tool(effect="once")
    def act(what: str) -> str:
        """Acts."""
        return what

    @tame.agent
    async def hostile(ctx: Context) -> str:
        """Waits, and acts."""
        ctx.note("before", None)
        return await ctx.call(act, "y")

    return family_of(start(tame, "hostile").finish())
