"""The command line against a real platform, with planner and executor killed under it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.cli.policing import APP
from tests.cli.terminal import Dev
from tests.waiting import eventually

OUTSIDE = Path(__file__).parents[2] / "examples" / "outside"


def outside(dev: Dev, program: str, *words: str) -> dict[str, object]:
    """Runs a program that knows no Refold."""
    command = [sys.executable, str(OUTSIDE / program), "--kafka", dev.state["kafka"], *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_nobody_but_its_owner_reads_what_dev_writes(dev: Dev) -> None:
    made = [dev.data / name for name in ("kafka", "valkey", "logs", "keys", "dev.json", "lock")]
    files = [each for path in made for each in (path, *path.rglob("*")) if each.exists()]

    assert len(files) > 50
    assert [str(path) for path in files if path.stat().st_mode & 0o077] == []


def test_a_run_survives_the_kill_of_both_services(dev: Dev) -> None:
    asked = ("run", "start", "marks", "--id", "m-1", "--input", '{"count": 150}', "--label", "team=a")
    dev.read(*asked)
    eventually(lambda: dev.effects("m-1"))
    dev.kill("executor")
    dev.kill("planner")

    ended = dev.read(*asked, "--wait")

    assert (ended["status"], ended["result"]) == ("completed", 150)
    assert len(dev.effects("m-1")) == 150
    assert [line.split()[1] for line in dev.effects("m-1")] == [str(n) for n in range(150)]
    shown = dev.read("run", "show", "m-1")
    assert (shown["labels"], len(shown["timeline"])) == ({"team": "a"}, 150)
    assert shown["head"]["seq"] == dev.lines("run", "events", "m-1")[-1]["seq"]


def in_doubt(dev: Dev, run: str) -> tuple[str, str]:
    """A run whose executor was killed in the middle of a call that cannot be repeated: the call, and the question."""
    hold = dev.data / f"hold-{run}"
    hold.touch()
    dev.read("run", "start", "risky", "--id", run)
    eventually(lambda: dev.effects(run))
    dev.kill("executor")
    hold.unlink()

    def listed() -> dict[str, Any] | None:
        return next((row for row in dev.read("run", "list", "--status", "doubt") if row["run_id"] == run), None)

    row: dict[str, Any] = eventually(listed, what="a call in doubt")
    [call], [question] = row["in_doubt"], row["approvals"]
    eventually(lambda: question in [each["approval"] for each in dev.read("approval", "list")], what="the question")
    return call, question


def letters(dev: Dev) -> list[str]:
    """The keys of what became a dead letter."""
    listed = dev.read("deadletter", "list")
    return [dev.read("deadletter", "show", row["letter"])["key"] for row in listed]


def test_a_call_in_doubt_is_settled_by_those_who_are_asked_what_came_of_it(dev: Dev) -> None:
    call, question = in_doubt(dev, "d-1")
    assert f"refold run resolve {question} --give-up" in dev.refold("run", "show", "d-1").stdout
    assert "find out what has happened" in dev.refold("approval", "show", call).stdout

    said = dev.refold("approval", "approve", question, code=2).stderr
    assert f"refold run resolve {question}" in said
    assert "does not name the question you have seen" in dev.refold("run", "resolve", call, "--give-up", code=2).stderr
    wrong = dev.refold("run", "resolve", question, "--happened", "7", "--actor", "ann", code=2).stderr
    assert "void (edit_not_possible)" in wrong
    early = dev.refold("run", "resolve", question, "--happened", "7", "--app", str(APP), code=2).stderr
    assert "string" in early
    assert "void" not in early
    resolved = dev.read("run", "resolve", question, "--happened", '"seen"', "--actor", "ann", "--comment", "looked")

    assert (resolved["what"], resolved["verdict"], resolved["call_id"]) == ("decided", "happened", call)
    ended = eventually(lambda: found if (found := dev.read("run", "show", "d-1"))["status"] == "completed" else None)
    assert (ended["result"], ended["timeline"][0]["resolved"]["actor"]) == ("seen", "ann")
    assert "settled as happened by ann: looked" in dev.refold("run", "show", "d-1").stdout
    assert "decided already: happened by ann" in dev.refold("run", "resolve", question, "--give-up", code=4).stderr
    assert "neither in doubt nor held" in dev.refold("run", "resolve", call, "--give-up", code=4).stderr
    assert dev.effects("d-1") == ["d-1 fired"]


def test_a_call_that_did_not_happen_goes_out_once_more(dev: Dev) -> None:
    _, question = in_doubt(dev, "d-2")

    dev.read("run", "resolve", question, "--did-not-happen", "--actor", "ann")

    ended = eventually(lambda: found if (found := dev.read("run", "show", "d-2"))["status"] == "completed" else None)
    [step] = ended["timeline"]
    assert (ended["result"], len(step["attempts"]), step["resolved"]["verdict"]) == ("fired", 2, "did_not_happen")
    assert dev.effects("d-2") == ["d-2 fired", "d-2 fired"]


def test_a_call_that_is_given_up_fails_and_nobody_else_s_word_counts(dev: Dev) -> None:
    call, question = in_doubt(dev, "d-3")
    data = {"step": 1, "attempt": 1, "verdict": "did_not_happen"}
    forged = {"run_id": "d-3", "signal_id": "s", "kind": "resolve", "data": data, "actor": "ann"}
    partition = int(dev.read("run", "show", "d-3")["head"]["partition"])
    producer = Producer({"bootstrap.servers": dev.state["kafka"]})
    producer.produce("refold.run-signalled", json.dumps(forged), "d-3/s", partition)
    assert producer.flush(60) == 0

    eventually(lambda: "d-3/s" in letters(dev), what="a dead letter")
    assert dev.read("run", "show", "d-3")["in_doubt"] == [call]
    dev.read("run", "resolve", question, "--give-up", "--actor", "ann")

    ended = eventually(lambda: found if (found := dev.read("run", "show", "d-3"))["status"] == "failed" else None)
    assert ended["failure"]["code"] == "given_up"
    assert dev.effects("d-3") == ["d-3 fired"]


def test_a_run_that_fails_says_why(dev: Dev) -> None:
    ended = dev.read("run", "start", "doomed", "--id", "f-1", "--wait", code=1)

    assert ended["status"] == "failed"
    assert "not today" in ended["failure"]["message"]
    (step,) = dev.read("run", "show", "f-1")["timeline"]
    assert [attempt["status"] for attempt in step["attempts"]] == ["failed", "failed"]
    assert "attempt 2" in dev.refold("run", "show", "f-1").stdout


def test_a_run_is_cancelled_once(dev: Dev) -> None:
    assert (
        "is running, not over"
        not in dev.refold("run", "start", "sleeper", "--id", "s-1", "--timeout", "2", code=6).stdout
    )

    cancelled = dev.read("run", "cancel", "s-1", "--reason", "enough", "--actor", "ann")

    assert (cancelled["outcome"], cancelled["status"]) == ("accepted", "cancelled")
    assert dev.read("run", "show", "s-1")["reason"] == "enough"
    assert dev.read("run", "cancel", "s-1")["outcome"] == "known"
    assert dev.refold("run", "events", "s-1", "--follow").stdout.count("RunCancelled") == 1
    watched = dev.refold("run", "watch", "s-1", code=1).stdout
    assert "cancelled enough" in watched
    assert "cause=" not in watched


def test_another_start_of_a_run_is_a_conflict_and_a_dead_letter(dev: Dev) -> None:
    dev.read("run", "start", "marks", "--id", "c-1", "--input", '{"count": 1}', "--wait")

    assert (
        "exists with other input"
        in dev.refold("run", "start", "marks", "--id", "c-1", "--input", '{"count": 2}', "--wait", code=4).stderr
    )

    def conflicts() -> list[dict[str, Any]]:
        listed = dev.read("deadletter", "list", "--code", "conflict")
        return [each for each in listed if each["topic"] == "run-requested"]

    (letter,) = eventually(conflicts)
    shown = dev.read("deadletter", "show", letter["letter"])
    assert (shown["topic"], shown["code"], shown["key"]) == ("run-requested", "conflict", "c-1")
    would = dev.read("deadletter", "replay", letter["letter"], "--dry-run")
    assert would == {"sent": False, "topic": "run-requested", "partition": letter["partition"]}
    assert "nothing was sent" in dev.refold("deadletter", "replay", letter["letter"], code=1, given="n\n").stdout
    sent = dev.read("deadletter", "replay", letter["letter"], "--yes")
    assert sent["offset"] > letter["offset"]
    eventually(lambda: len(conflicts()) == 2)
    dev.refold("deadletter", "show", "0/99999", code=3)
    dev.refold("deadletter", "show", "here", code=2)


def test_what_is_halted_waits_and_goes_on(dev: Dev) -> None:
    dev.read("halt", "--tool", "mark", "--reason", "look first")
    dev.read("run", "start", "marks", "--id", "h-1", "--input", '{"count": 2}')
    eventually(lambda: dev.read("run", "show", "h-1")["halted"] == ["tool mark is halted: look first"])
    assert "look first" in dev.refold("run", "show", "h-1").stderr
    assert dev.effects("h-1") == []
    dev.read("run", "start", "foreman", "--id", "h-2")
    eventually(lambda: dev.read("run", "show", "h-2")["halted"] == ["h-2.1: tool mark is halted: look first"])

    dev.read("halt", "--lift", "--tool", "mark")

    eventually(lambda: dev.read("run", "show", "h-1")["status"] == "completed")
    assert len(dev.effects("h-1")) == 2


def test_what_is_not_there_is_not_found(dev: Dev) -> None:
    for words in ("run show nobody", "run events nobody", "verify --run nobody", "run cancel nobody"):
        assert "there is no run nobody" in dev.refold(*words.split(), code=3).stderr


def test_a_client_without_refold_starts_awaits_and_folds(dev: Dev) -> None:
    requested = outside(dev, "start_run.py", "--id", "o-1", "--agent", "marks", "--input", '{"count": 2}')
    outcome = outside(dev, "await_completion.py", "o-1")
    folded = outside(dev, "fold_log.py", "o-1")

    assert (outcome["status"], outcome["result"]) == ("completed", 2)
    assert outcome["request"] == dev.read("run", "show", "o-1")["request"]
    assert requested["request"] == {**dev.read("run", "show", "o-1")["request"], "topic": "refold.run-requested"}
    calls = folded["runs"]["o-1"]["calls"].values()  # type: ignore[index]
    assert [(call["tool"], call["status"], call["result"]) for call in calls] == [
        ("mark", "completed", 0),
        ("mark", "completed", 1),
    ]


def test_raw_records_show_what_does_not_count(dev: Dev) -> None:
    dev.read("run", "start", "marks", "--id", "v-1", "--input", '{"count": 1}', "--wait")
    (first, *_) = dev.lines("run", "events", "v-1", "--raw")
    producer = Producer({"bootstrap.servers": dev.state["kafka"]})
    producer.produce("refold.run-log", b"not an entry", first["key"].encode(), first["partition"])
    assert producer.flush(60) == 0

    rows = dev.lines("run", "events", "v-1", "--raw")

    assert [row["void"] for row in rows].count("hash") == 1
    assert rows[-1]["void"] == "hash"
    verified = dev.read("verify", "--run", "v-1", code=1)
    assert [violation["kind"] for violation in verified["violations"]] == ["hash"]


def test_everything_else_that_the_tests_left_behind_agrees(dev: Dev) -> None:
    verified = dev.read("verify", code=1)

    assert {violation["run_id"] for violation in verified["violations"]} == {"v-1"}
    assert verified["open"] == verified["overdue"] == verified["in_doubt"] == []
    listed = dev.read("run", "list")
    assert {row["run_id"] for row in listed} == verified["digests"].keys()
    assert len(dev.read("run", "list", "--agent", "marks", "--limit", "1")) == 1


def test_topics_and_doctor_find_nothing_wrong(dev: Dev) -> None:
    assert dev.read("topics", "apply", "--check") == []
    assert dev.read("topics", "apply") == []
    assert {row["partitions"] for row in dev.read("topics", "list")} == {1}
    assert dev.read("doctor")["ok"]


def test_the_doctor_names_what_mends_another_number_of_partitions(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_KAFKA__PARTITIONS", "7")

    problems = [each for each in dev.read("doctor", code=1)["findings"] if "partitions is" in each["what"]]

    assert problems
    assert all("set REFOLD_KAFKA__PARTITIONS" in each["what"] for each in problems)
    assert not any("topics apply" in each["what"] for each in problems)


def test_the_name_of_an_agent_that_is_not_there_is_reported_at_once_with_those_that_are(dev: Dev) -> None:
    # It waits a second for that; a busy machine takes longer, and the same start once more says the same.
    started = eventually(
        lambda: "no agent" in (said := dev.refold("run", "start", "mraks", "--id", "typo-1").stderr) and said
    )
    waited = dev.refold("run", "start", "mraks", "--id", "typo-2", "--wait", code=3)

    assert "there is no agent mraks" in started
    assert "marks" in started
    assert "refold run cancel typo-2" in waited.stderr
    for run in ("typo-1", "typo-2"):
        dev.read("run", "cancel", run)


def test_a_list_that_nothing_matches_still_counts_the_runs(dev: Dev) -> None:
    dev.read("run", "start", "marks", "--id", "counted-1", "--input", '{"count": 1}', "--wait")

    listed = dev.refold("run", "list", "--agent", "nobody").stdout

    assert "no run matches (" in listed
    assert "refold run start" not in listed
