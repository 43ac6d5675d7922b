"""What somebody new tries first, and the answers that help them on."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
import structlog

from refold.cli import output
from refold.cli.commands import policy as policies
from refold.cli.commands.dev import dev_services
from refold.cli.commands.provision import Provision
from refold.cli.commands.run import _is_known
from refold.cli.commands.serve.process import served
from refold.cli.errors import report
from refold.cli.views import approvals
from refold.cli.views import watching as records
from refold.client.operations.runs import Runs
from refold.client.platform import listens
from refold.client.reading.approval import question_row
from refold.client.reading.run import events_of
from refold.core.errors import ConflictError, UnreachableError
from refold.core.events import RunRequested, RunStarted
from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.core.planning.family import request_digest
from refold.core.wire import canonical
from refold.dev.files import write_atomic
from refold.dev.stack import DevStack, Listeners, Servers, ServiceProcess
from refold.engine.runtime.addresses import addresses
from tests.approval.driving import World, request
from tests.cli.chronicle import Chronicle, requested
from tests.cli.desk import Desk
from tests.cli.terminal import Dev, refold
from tests.waiting import eventually

SLEEPING = (sys.executable, "-c", "import time; time.sleep(600)")


def test_the_version_is_an_option() -> None:
    assert refold("--version").stdout == f"{metadata.version('refold')}\n"


def test_where_no_dev_runs_nobody_is_asked_who_merely_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = refold("run", "list", "--data", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".refold").mkdir()
    stopped = refold("run", "list")

    assert (wrong.exit_code, stopped.exit_code) == (5, 5)
    assert f"no `refold dev` runs on {tmp_path / 'nowhere'}" in wrong.stderr
    assert "no `refold dev` runs on .refold" in stopped.stderr
    assert refold("dev", "status").exit_code == refold("dev", "kill", "planner").exit_code == 3


def test_the_pids_of_a_dev_that_has_died_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "dev.json").write_text(json.dumps({"kafka": "", "redis": "", "processes": {"planner": [os.getpid()]}}))

    assert refold("dev", "kill", "planner", "--data", str(tmp_path)).exit_code == 3


def test_a_service_is_served_beside_a_dev_under_a_name_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="no `refold dev` runs on"):
        served("planner", "", str(tmp_path))
    (tmp_path / "dev.json").write_text('{"kafka": "127.0.0.1:3", "redis": "redis://127.0.0.1:4"}')

    found = served("executor", "", str(tmp_path), role="executor-default")
    structlog.reset_defaults()

    assert found.where.settings.kafka.bootstrap == "127.0.0.1:3"
    assert found.where.settings.redis.url == "redis://127.0.0.1:4"
    assert found.member.endswith(f"-{os.getpid()}")
    assert not addresses(kafka="127.0.0.1:5", data=str(tmp_path)).dev


def test_an_app_that_cannot_be_imported_is_told_by_its_cause(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import os\nimport no_such_module\n")

    result = refold("dev", str(tmp_path / "broken.py"), "--data", str(tmp_path / "data"))

    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert "broken.py cannot be loaded: ModuleNotFoundError: No module named 'no_such_module' (" in first
    assert first.endswith("broken.py, line 2: import no_such_module)")
    assert "REFOLD_DEBUG=1" in second


def test_what_takes_long_is_told_with_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    show, early = output.progress(after_s=0), output.progress()

    show("warming up", 0, 1)
    show("warming up", 1, 1)
    early("read the run log", 0, 4)
    early("read the run log", 4, 4)

    assert capsys.readouterr().err.splitlines() == ["warming up: 0/1", "warming up: 1/1 after 0 s"]


def test_a_port_that_somebody_has_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "valkey").mkdir()
        (tmp_path / "valkey" / "ports.json").write_text(json.dumps({"port": port}))

        with pytest.raises(ConflictError, match=f"port {port} of 127.0.0.1") as refused:
            DevStack(tmp_path, [], servers=Servers(kafka="127.0.0.1:9")).start()

    assert "ports.json" in str(refused.value.hint)


def test_a_full_disk_is_said_with_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f".x.json.{os.getpid()}").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left") as full:
        write_atomic(tmp_path / "x.json", "{}")

    assert report(full.value) == 1
    assert f"error: no space left on {tmp_path / 'x.json'}" in capsys.readouterr().err
    assert report(OSError(errno.EACCES, "denied")) is None


def fill(path: Path) -> bool:
    """Puts a full disk where a file is to be written, unless one is being written."""
    with suppress(FileExistsError):
        path.symlink_to("/dev/full")
        return True
    return False


def test_a_full_disk_ends_no_supervisor(tmp_path: Path) -> None:
    services = [ServiceProcess("planner", SLEEPING)]
    told: list[str] = []
    addresses = Servers(kafka="127.0.0.1:9", redis="redis://127.0.0.1:9")
    with DevStack(tmp_path, services, servers=addresses, listeners=Listeners(on_trouble=told.append)) as stack:
        eventually(lambda: fill(tmp_path / f".dev.json.{os.getpid()}"))
        before = stack.supervisor.pids()["planner"][0]

        os.kill(before, 9)
        eventually(lambda: stack.supervisor.pids()["planner"] not in ([], [before]))

        assert stack.supervisor.active
        assert "dev.json is not up to date: No space left on device" in eventually(lambda: told)[0]


def test_a_list_of_approvals_tells_the_open_ones_apart(
    world: World, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, table in (("run-1", "users"), ("run-2", "x" * 100)):
        world.ask(request(f"{run}/5", args=canonical.dumps({"table": table})))

    approvals.print_approvals([question_row(approval) for approval in desk.approvals.read().all()])

    told = capsys.readouterr().out
    head, *rows = [line.split() for line in told.splitlines() if line.strip() and "─" not in line]
    assert {"call", "arguments", "age"} <= set(head)
    assert '{"table":"users"}' in rows[0]
    assert "Kafka's clock" in told
    assert "are cut: `refold approval show CALL`" in told


def test_a_cut_value_is_told_and_there_is_a_way_to_see_all_of_it() -> None:
    chronicle = Chronicle()
    chronicle.add("r", requested(given=json.dumps("x" * 200)), [], emit=False)

    row, *_ = events_of(Runs(chronicle.reader).get("r"))

    assert records.is_cut(row)
    assert "…" in records.event_line(row)
    assert "x" * 200 in records.event_line(row, limit=0)
    assert "cause=" in records.event_line(row).replace("[/]", "")


def test_a_draft_that_asks_otherwise_says_in_what(capsys: pytest.CaptureFixture[str]) -> None:
    needed = {"approvers": ["role:ops"], "quorum": 1, "expires_ms": 0, "not_requester": True, "on_expiry": "reject"}
    needed |= {"escalate_ms": 0, "escalate_to": [], "valid_ms": 3_600_000, "message": ""}
    needed |= {"remember_ms": 0, "remember_uses": 0}
    before = {"outcome": "require", "rule": "r", "message": "", "requirement": needed}
    after = {**before, "requirement": {**needed, "quorum": 2, "expires_ms": 3_600_000}}
    row = {"call_id": "r/3", "tool": "write", "args": {"text": "x" * 2_000}, "kind": "require -> require"}

    policies.print_differences([{**row, "recorded": before, "now": after}] * 2)

    told = capsys.readouterr().out
    assert "2  require -> require: quorum 1 -> 2, expires never -> 1h" in told
    assert max(map(len, told.splitlines())) < 200
    assert "--json has all of them" in told


def test_a_repeated_start_is_known_though_the_input_has_drawn_values_since() -> None:
    chronicle, again = Chronicle(), RunRequest(RunId("r"), "deploy", "{}")
    began = RunRequested("deploy", "{}", request_digest(again), "seed")
    chronicle.add("r", [began, RunStarted("1", input='{"at":1700000000000}')], emit=False)

    assert _is_known(Runs(chronicle.reader), again)
    with pytest.raises(ConflictError, match="exists with other input"):
        _is_known(Runs(chronicle.reader), RunRequest(RunId("r"), "deploy", '{"a":1}'))


def test_another_start_of_a_run_is_refused_without_waiting(dev: Dev) -> None:
    dev.read("run", "start", "marks", "--id", "fs-1", "--input", '{"count": 1}', "--wait")

    again = dev.refold("run", "start", "marks", "--id", "fs-1", "--input", '{"count": 1}')
    other = dev.refold("run", "start", "marks", "--id", "fs-1", "--input", '{"count": 2}', code=4)

    assert "is known already" in again.stdout
    assert "run fs-1 exists with other input" in other.stderr


def test_events_are_lines_the_last_ones_alone_or_those_since(dev: Dev) -> None:
    dev.read("run", "start", "marks", "--id", "fs-2", "--input", '{"count": 1}', "--wait")

    every = dev.lines("run", "events", "fs-2")

    assert dev.lines("run", "events", "fs-2", "--tail", "2") == every[-2:]
    assert dev.lines("run", "events", "fs-2", "--since", "1h") == every
    assert dev.lines("run", "events", "fs-2", "--since", "2100-01-01T00:00Z") == []
    text = dev.refold("run", "events", "fs-2", "--full").stdout
    assert all(str(row["event"].get("key", "")) in text for row in every)
    assert f"cause={every[0]['cause']['topic']}/" in text


def test_status_and_kill_know_the_processes_of_a_dev(dev: Dev) -> None:
    before = dev.read("dev", "status")
    (killed,) = dev.read("dev", "kill", "executor")
    assert 0 < killed["gap_ms"] < 15_000
    eventually(lambda: dev.state["processes"]["executor"] not in ([], [killed["pid"]]))
    after = dev.read("dev", "status")

    roles = {"broker", "valkey", "planner", "approval", "executor", "gateway"}
    assert {row["role"] for row in before["processes"]} == roles
    assert all(row["state"] == "running" and row["pid"] for row in before["processes"])
    assert all(address["answers"] for address in before["addresses"])
    was, now = ({row["role"]: row for row in status["processes"]}["executor"] for status in (before, after))
    assert killed["pid"] == was["pid"] != now["pid"]
    assert {row["pid"] for row in after["processes"] if row["role"] in ("planner", "executor")} == {now["pid"]}
    assert now["restarts"] == was["restarts"] + 1
    assert dev.refold("dev", "kill", "executor", "7", code=3)
    assert dev.refold("dev", "kill", "cook", code=2)


def test_the_process_of_planner_and_executors_counts_as_each(dev: Dev) -> None:
    pid = dev.pid("planner")

    said = dev.refold("dev", "kill", "planner").stdout

    assert f"killed planner and executor {pid} (SIGKILL); its successor served after" in said
    assert eventually(lambda: dev.pid("executor") not in (pid, 0))


def test_services_of_a_dev_share_a_process_or_run_apart() -> None:
    needs = Provision(
        ("default", "mail"), Path("/unused"), own={"trust": Path("/t"), "decision": Path("/d"), "ledger": Path("/l")}
    )

    def names(**how: bool) -> list[str]:
        services = dev_services("app.py", needs, **how)
        return [service.name for service in services if service.name not in ("projections", "gateway")]

    assert names(together=True) == ["all", "approval"]
    assert names() == ["planner", "approval", "executor", "executor"]


@pytest.mark.long
def test_a_vote_waits_for_kafka_to_come_back(dev: Dev) -> None:
    (killed,) = dev.read("dev", "kill", "broker")
    eventually(lambda: not listens(dev.state["kafka"]))

    result = dev.refold("approval", "approve", "fs-1/3", code=3)

    assert killed["role"] == "broker"
    assert "waiting for Kafka" in result.stderr
    assert "there is no approval fs-1/3" in result.stderr
