"""Forks of runs of a real platform: nothing comes into any topic, and nothing happens."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.cli.commands.forks import Forking
from refold.client.reading.history import Run
from refold.console.pages.fork_pages import fork_file
from refold.core.approval.signature import NOBODY
from refold.core.errors import NotFoundError
from refold.core.ids import RunId
from refold.core.topics import APPROVAL_REQUESTED, RUN_COMPLETED, RUN_LOG, RUN_REQUESTED, RUN_SIGNALLED, tool_requested
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.settings import KafkaSettings
from refold.lab.evidence.verify import VerifiedBundle, verify_bundle
from refold.lab.forks.report import ForkReport
from tests.cli.conftest import APP
from tests.cli.terminal import Dev
from tests.waiting import eventually

TOPICS = (RUN_LOG, RUN_REQUESTED, RUN_SIGNALLED, RUN_COMPLETED, APPROVAL_REQUESTED, tool_requested("default"))
OTHER = 7


def records(dev: Dev, run: str) -> Counter[str]:
    """How many records of a run and of those below it each topic has."""
    reader = KafkaLogReader(KafkaSettings(bootstrap=dev.state["kafka"]))
    found = Counter[str]()
    for topic in TOPICS:
        try:
            found[topic] = sum((record.key or b"").startswith(run.encode()) for record in reader.scan(topic))
        except NotFoundError:
            continue
    return found


@pytest.fixture(scope="module")
def forked(dev: Dev) -> str:
    """Give the id of a run that is over, with two children and a decision; there is another one beside it."""
    dev.refold("run", "start", "marks", "--id", "forkhome-2", "--input", '{"count": 2}', "--wait")
    dev.refold("run", "start", "household", "--id", "forkhome-1")
    (question,) = eventually_asked(dev, "forkhome-1")
    dev.refold("approval", "reject", question["approval"], "--message", "not today")
    dev.refold("run", "watch", "forkhome-1", code=1)
    return "forkhome-1"


def eventually_asked(dev: Dev, run: str) -> list[dict[str, str]]:
    """The open questions of a family, once there is one."""
    return eventually(lambda: [row for row in dev.read("approval", "list") if row["run_id"].startswith(run)])


def test_forks_write_nothing_and_act_on_nobody(dev: Dev, forked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTS", str(dev.data))
    before, effects = records(dev, forked), dev.effects(forked)
    child = f"{forked}.2"

    same = dev.read("fork", forked, "--app", str(APP))
    stopped = dev.read("fork", child, "--app", str(APP), "--decide", f"{child}/3=approve", code=4)
    other = dev.read("fork", child, "--app", str(APP), "--decide", f'{child}/3=answer:"by hand"', code=OTHER)
    cohort = dev.read("fork", "--app", str(APP), "--runs", "forkhome-*", "--jobs", "2")

    assert (same["verdict"], same["calls"]) == ("same", [])
    assert [(want["tool"], want["phase"]) for want in stopped["stopped"]] == [("wipe", "dispatched")]
    assert other["result"][1] == "by hand"
    assert (cohort["counts"], cohort["runs"]) == ({"same": 2}, 2)
    assert (records(dev, forked), dev.effects(forked)) == (before, effects)


def test_a_cohort_goes_on_where_it_was_stopped(dev: Dev, forked: str, tmp_path: Path) -> None:
    words = ("fork", "--app", str(APP), "--runs", "forkhome-*", "--to", str(tmp_path / "forks.jsonl"))
    whole = dev.read(*words)
    lines = (tmp_path / "forks.jsonl").read_text().splitlines()
    junk = b'\xff\n5\n[]\n{"key":[1],"run_id":[1]}\n' + b"[" * 9_000 + b"\n"
    (tmp_path / "forks.jsonl").write_bytes(junk + "\n".join([lines[0], lines[1][:40]]).encode())

    again, once_more = dev.read(*words), (tmp_path / "forks.jsonl").read_bytes()

    assert again == whole
    assert once_more.splitlines()[-1] == lines[1].encode()
    assert (dev.read(*words), (tmp_path / "forks.jsonl").read_bytes()) == (whole, once_more)


def test_the_page_of_a_cohort_shows_hostile_texts_as_what_they_are(dev: Dev, forked: str, tmp_path: Path) -> None:
    page, lines = tmp_path / "forks.html", tmp_path / "forks.jsonl"
    files = ("--page", str(page), "--to", str(lines))
    dev.refold("fork", "--app", str(APP), "--runs", "forkhome-*", *files)
    report = ForkReport.model_validate({**json.loads(lines.read_text().splitlines()[0]), "verdict": "other"})
    hostile = report.model_copy(update={"agent": "<script>alert(1)</script>", "message": "a\u202eb"})

    text = fork_file("forks", [hostile], [{"agent": hostile.agent}])

    assert f"<div>{forked}</div>" in page.read_text()
    assert "2 same" in page.read_text()
    assert "step by step" not in page.read_text()
    dev.refold("fork", forked, "--app", str(APP), "--page", str(page))
    assert f"{forked}, step by step" in page.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "a&lt;U+202E&gt;b" in text


def test_a_fork_is_a_bundle_whose_records_hold_and_whose_own_decisions_nobody_has_signed(
    dev: Dev, forked: str, tmp_path: Path
) -> None:
    file, child = tmp_path / "fork.jsonl", f"{forked}.2"

    dev.refold("fork", forked, "--app", str(APP), "--to", str(file))
    same = verified(file)
    decided = f"{child}/3=approve"
    dev.refold("fork", child, "--at", "5", "--app", str(APP), "--decide", decided, "--to", str(file), code=4)
    stopped = verified(file)

    assert (same.holes, same.fork["source"]) == ([], forked)
    assert [hole.kind for hole in stopped.holes] == ["signature"]


def test_a_fork_is_compared_with_its_run_and_says_that_it_is_one(dev: Dev, forked: str, tmp_path: Path) -> None:
    file, child = tmp_path / "fork.jsonl", f"{forked}.2"
    words = ("--at", "2", "--app", str(APP), "--decide", f'{child}/3=answer:"by hand"', "--to", str(file))
    dev.refold("fork", child, *words, code=OTHER)

    found = dev.read("run", "diff", child, "--bundle", str(file))
    points = dev.read("run", "diff", child, "2", "2", "--bundle", str(file))

    assert (found["left"]["forked"], found["right"]["forked"]) == (0, 1)
    assert {"name": "result", "left": None, "right": "by hand"} in found["fields"]
    assert [point["seq"] for point in (points["left"], points["right"])] == [2, 2]
    replay = ("replay", child, "--app", str(APP))
    for said in (replay, *(("run", verb, child) for verb in ("show", "events", "diff"))):
        assert f"a fork of {child}: its events from 1 on" in dev.refold(*said, "--bundle", str(file)).stderr
    assert "a fork, in no topic" in dev.refold("run", "show", child, "--bundle", str(file)).stdout
    assert "nothing to compare with" in dev.refold("run", "diff", child, code=2).stderr


def verified(file: Path) -> VerifiedBundle:
    """What a bundle proves to somebody who trusts no key."""
    with file.open("rb") as bundle:
        return verify_bundle(bundle, NOBODY)


@pytest.mark.parametrize(
    "words",
    [
        ("--allow-pure",),
        ("--budget", "calls=3"),
        ("--at", "99", "--input", "{}"),
        ("--at", "99", "--edit-call", "1={}"),
        ("--decide", "forkhome-1/3=maybe"),
        ("--to", "/nowhere/fork.jsonl"),
        ("--stub", "/nowhere/stubs.yaml"),
        ("--stub", str(Path(__file__).parent / "bomb.yaml")),
    ],
)
def test_what_cannot_be_is_refused(dev: Dev, forked: str, words: tuple[str, ...]) -> None:
    dev.refold("fork", forked, "--app", str(APP), *words, code=2)


class Crowd(Forking):
    """A log with a run that has started thousands of others."""

    def all_runs(self) -> Iterator[Run]:
        """The runs."""
        yield from (Run.empty(RunId(name)) for name in ("r.7.1", "q", "r", *(f"r.{step}" for step in range(1, 12_000))))


def test_families_of_thousands_are_put_together_in_one_pass() -> None:
    begun = time.process_time()
    found = {str(run.state.run_id): [each.state.run_id for each in below] for run, *below in Crowd().families()}

    assert time.process_time() - begun < 2
    assert (len(found), found["q"], found["r.7"], len(found["r"])) == (12_002, [], ["r.7.1"], 12_000)
