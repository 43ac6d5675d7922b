"""Archived runs on the command line: without Kafka once they are archived, and the way there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.engine.archive.collecting import runs_of_log, whole_runs
from tests.archive.world import World
from tests.cli.terminal import Dev, refold
from tests.waiting import eventually

APP = Path(__file__).with_name("app.py")
RUNS = ("first", "second", "third")


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """Give the address of an archive with three runs."""
    world = World(tmp_path / "archive")
    for run in RUNS:
        world.run(run, agent="audit" if run == "second" else "deploy")
    for number in range(4):
        world.archive_store.keep(
            whole_runs(world.chronicle.reader, number, runs_of_log(world.chronicle.reader, number).ended)
        )
    return world.folder.as_uri()


def read(*words: str, code: int = 0) -> Any:
    """What a command says with --json, of nobody who listens."""
    result = refold(*words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_archived_runs_are_listed_by_agent_status_and_number(archive: str) -> None:
    def listed(*words: str) -> list[str]:
        return sorted(row["run_id"] for row in read("archive", "list", "--archive", archive, *words))

    assert listed() == sorted(RUNS)
    assert listed("--agent", "audit") == ["second"]
    assert listed("--status", "failed") == listed("--since", "2030-01-01T00:00Z") == []
    assert len(listed("--limit", "2")) == 2
    assert "second" in refold("archive", "list", "--archive", archive).stdout


def test_an_archive_verifies_without_kafka_and_a_changed_one_does_not(archive: str) -> None:
    assert read("archive", "verify", "--archive", archive) == {"ok": True, "runs": 3, "problems": []}
    assert read("archive", "verify", "second", "--archive", archive)["runs"] == 1
    [index, *_] = Path(archive.removeprefix("file://")).rglob("*.json")
    index.write_text(index.read_text().replace('"digest": "', '"digest": "0'))

    unreadable_result = read("archive", "verify", "--archive", archive, code=1)

    assert not unreadable_result["ok"]
    assert "index" in unreadable_result["problems"][0]["problem"]


def test_a_cut_file_is_a_problem_and_the_others_are_read(archive: str) -> None:
    [file, *_] = Path(archive.removeprefix("file://")).rglob("*.avro")
    file.write_bytes(file.read_bytes()[:-30])

    unreadable_result = read("archive", "verify", "--archive", archive, code=1)

    assert len(unreadable_result["problems"]) == 1
    assert unreadable_result["runs"] >= 1


def test_an_archived_run_is_shown_as_if_it_lay_in_the_log(archive: str) -> None:
    shown = read("run", "show", "first", "--archive", archive)
    events = refold("run", "events", "first", "--archive", archive).stdout

    assert (shown["status"], shown["result"], shown["void_records"]) == ("completed", "done", 0)
    assert "RunRequested" in events
    assert "RunCompleted" in events
    assert "no run nobody" in refold("run", "show", "nobody", "--archive", archive).stderr


def test_a_restored_run_is_files_that_need_no_refold(archive: str, tmp_path: Path) -> None:
    folder = tmp_path / "restored"

    read("archive", "restore", "first", "--to", str(folder), "--archive", archive)

    assert json.loads((folder / "run.json").read_text())["run_id"] == "first"
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert (events[0]["type"], events[-1]["type"]) == ("RunRequested", "RunCompleted")
    assert records[0]["key"].startswith("first/0000000001/")
    again = refold("archive", "restore", "first", "--to", str(folder), "--archive", archive)
    assert again.exit_code == 4


def test_without_an_address_no_archive_is_guessed() -> None:
    assert "REFOLD_ARCHIVE__URL" in refold("archive", "list").stderr


def test_a_run_is_erased_at_once_and_read_from_its_copy(
    dev: Dev, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "kept").as_uri()
    dev.read("run", "start", "marks", "--id", "gone-1", "--wait")
    before = dev.read("run", "show", "gone-1")
    assert "could be erased" in dev.refold("run", "erase", "gone-1", "--archive", url, "--dry-run").stdout
    assert "nothing was erased" in dev.refold("run", "erase", "gone-1", "--archive", url, given="n\n", code=1).stdout
    assert "--no-archive" in dev.refold("run", "erase", "gone-1", code=2).stderr

    erased = dev.read("run", "erase", "gone-1", "--archive", url, "--yes")

    assert list(erased["archived"]) == ["gone-1"]
    assert read("run", "show", "gone-1", "--archive", url)["timeline"] == before["timeline"]
    assert read("archive", "verify", "--archive", url)["ok"]
    # Other tests may have spoilt other runs of this platform on purpose.
    verified = json.loads(refold("verify", "--settle", "5", "--json", "--data", str(dev.data)).stdout)
    assert "gone-1" not in {violation["run_id"] for violation in verified["violations"]}
    assert verified["erased"] >= before["entries"]
    assert "gone-1" not in verified["digests"]
    assert "gone-1 was erased at 20" in dev.refold("run", "show", "gone-1", code=3).stderr
    assert "gone-1" not in {row["run_id"] for row in dev.read("run", "list")}
    assert dev.read("run", "erase", "gone-1", "--no-archive", "--yes")["erasing"] == 1
    monkeypatch.setenv("REFOLD_ARCHIVE__URL", url)
    assert dev.read("run", "show", "gone-1")["timeline"] == before["timeline"]
    assert "from the archive" in dev.refold("run", "events", "gone-1").stderr
    assert "gone-1 was erased at 20" in dev.refold("run", "show", "gone-1", "--from-log", code=3).stderr
    assert "no run gone-2" in dev.refold("run", "show", "gone-2", code=3).stderr


@pytest.mark.long
def test_a_run_that_was_erased_without_a_copy_is_not_read_from_an_older_one(
    dev: Dev, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "older")
    world.run("bare-1")
    for number in range(4):
        world.archive_store.keep(
            whole_runs(world.chronicle.reader, number, runs_of_log(world.chronicle.reader, number).ended)
        )
    monkeypatch.setenv("REFOLD_ARCHIVE__URL", world.folder.as_uri())
    dev.read("run", "start", "marks", "--id", "bare-1", "--wait")

    dev.read("run", "erase", "bare-1", "--no-archive", "--yes")

    assert "no copy of it was kept" in dev.refold("run", "show", "bare-1", code=3).stderr


@pytest.mark.long
def test_what_the_archivist_would_do_is_shown_and_not_done(
    dev: Dev, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "kept").as_uri()
    dev.read("run", "start", "marks", "--id", "due-1", "--wait")
    command = ["archive", "list", "--pending", "--app", str(APP), "--archive", url]

    now = dev.read(*command)
    monkeypatch.setenv("REFOLD_ARCHIVE__RETENTION_MS", "0")

    def listed() -> dict[str, Any]:
        return {row["run_id"]: row for row in dev.read(*command)}

    later = eventually(lambda: (rows := listed())["due-1"]["status"] == "due" and rows, what="its row")
    assert now == []
    assert later["due-1"] == {"run_id": "due-1", "status": "due", "reason": ""}
    assert dev.read("run", "show", "due-1")["status"] == "completed"
    assert list(tmp_path.rglob("*.avro")) == []


def test_a_run_that_lives_is_not_erased(dev: Dev) -> None:
    hold = dev.data / "hold-keeps-1"
    hold.touch()
    dev.read("run", "start", "risky", "--id", "keeps-1")
    eventually(lambda: dev.effects("keeps-1"))

    refused = dev.refold("run", "erase", "keeps-1", "--no-archive", "--yes", code=4)

    assert "refold run cancel keeps-1" in refused.stderr
    hold.unlink()
    assert "no run never-1" in dev.refold("run", "erase", "never-1", "--no-archive", "--yes", code=3).stderr


def archivist(dev: Dev, *words: str) -> subprocess.CompletedProcess[str]:
    """A pass of the archivist over a platform."""
    command = [
        sys.executable,
        "-m",
        "refold",
        "serve",
        "archivist",
        "--once",
        "--app",
        str(APP),
        "--data",
        str(dev.data),
    ]
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=120)


def test_an_archivist_erases_without_a_copy_only_if_it_is_told_to_and_says_so(dev: Dev) -> None:
    asked, told = archivist(dev), archivist(dev, "--no-archive")

    assert (asked.returncode, told.returncode) == (2, 0)
    assert "REFOLD_ARCHIVE__URL" in asked.stderr
    assert "--no-archive" in asked.stderr
    assert "archivist.no_archive" in told.stdout + told.stderr
    assert "archivist.swept" in told.stdout + told.stderr
