"""The stack of one developer: real servers, stand-in services, and a dev.json that is always true."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from redis import Redis, RedisError

from refold.core.errors import ConflictError, RefoldError, UnreachableError
from refold.dev.stack import DevStack, Listeners, Servers, ServiceProcess
from tests.embedded.cluster import LONG_SESSION
from tests.embedded.processes import SLEEPER, gone, lives
from tests.embedded.wiping import wipe_valkey
from tests.waiting import eventually

SERVICES = (
    ServiceProcess("planner", SLEEPER),
    ServiceProcess("executor", SLEEPER),
    ServiceProcess("executor", SLEEPER),
)
KAFKA, REDIS = "127.0.0.1:9", "redis://127.0.0.1:9/0"  # nobody listens there
FOREGROUND = """
import sys
from pathlib import Path
from refold.dev.stack import DevStack, Servers, ServiceProcess
sleeper = ServiceProcess("planner", tuple(sys.argv[2:]))
with DevStack(Path(sys.argv[1]), [sleeper], servers=Servers(kafka="127.0.0.1:9")) as stack:
    stack.run_until_stopped(lambda: print("ready", flush=True))
"""
SERVES = """
import time
time.sleep(%r)
open(%r, "a").write("%s\\n")
print('{"event": "lane.live"}')
time.sleep(600)
"""


def create_topic(bootstrap: str) -> None:
    """Create one topic, as the owner of the topic settings does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        admin.create_topics([NewTopic("made-by-prepare", 3, 1)])["made-by-prepare"].result()
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise


def dev(folder: Path) -> dict[str, Any]:
    """Read dev.json, empty when it is not there."""
    path = folder / "dev.json"
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def processes(folder: Path) -> dict[str, list[int]]:
    """Return the pids that dev.json tells."""
    found: dict[str, list[int]] = dev(folder)["processes"]
    return found


def answers(redis: str) -> bool:
    """Tell whether Valkey is reached."""
    try:
        return bool(Redis.from_url(redis).ping())
    except RedisError:
        return False


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevStack]:
    """Give a whole stack with stand-in services, whose processes may be killed."""
    folder = tmp_path_factory.mktemp("dev")
    with DevStack(folder, SERVICES, prepare=create_topic, servers=Servers(properties=LONG_SESSION)) as running:
        yield running


def test_dev_json_names_addresses_and_living_processes(stack: DevStack) -> None:
    content = dev(stack.data_dir)

    assert content["kafka"] == stack.kafka
    assert content["redis"] == stack.redis
    counts = {name: len(pids) for name, pids in content["processes"].items()}
    assert counts == {"broker": 1, "valkey": 1, "planner": 1, "executor": 2}
    assert all(lives(pid) for pids in content["processes"].values() for pid in pids)


def test_dev_json_has_no_password_and_nobody_else_may_look_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    redis = "redis://app:hunter2@127.0.0.1:9/0"

    with DevStack(tmp_path / "data", SERVICES, servers=Servers(KAFKA, redis)) as running:
        told = running.dev_json.read_text()
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (running.data_dir, running.dev_json)]

    assert "hunter2" not in told
    assert json.loads(told)["redis"] == REDIS
    assert modes == [0o700, 0o600]


def test_prepare_has_run_and_services_know_the_addresses(stack: DevStack) -> None:
    environ = Path(f"/proc/{processes(stack.data_dir)['planner'][0]}/environ")
    admin = AdminClient({"bootstrap.servers": stack.kafka})

    assert len(admin.list_topics(timeout=60).topics["made-by-prepare"].partitions) == 3
    if environ.exists():
        told = environ.read_text().split("\0")
        assert f"REFOLD_KAFKA__BOOTSTRAP={stack.kafka}" in told
        assert f"REFOLD_REDIS__URL={stack.redis}" in told


@pytest.mark.parametrize("name", ["planner", "valkey", "broker"])
def test_dev_json_follows_a_process_that_was_killed(stack: DevStack, name: str) -> None:
    addresses = stack.kafka, stack.redis
    (first,) = processes(stack.data_dir)[name]

    os.kill(first, signal.SIGKILL)
    (second,) = eventually(lambda: set(processes(stack.data_dir)[name]) - {first})

    assert lives(second)
    assert (dev(stack.data_dir)["kafka"], dev(stack.data_dir)["redis"]) == addresses
    eventually(lambda: answers(stack.redis))
    admin = AdminClient({"bootstrap.servers": stack.kafka, "log_level": 0})
    eventually(lambda: "made-by-prepare" in admin.list_topics(timeout=60).topics)


def test_a_killed_broker_takes_writes_before_its_session_is_over(stack: DevStack) -> None:
    (first,) = processes(stack.data_dir)["broker"]

    os.kill(first, signal.SIGKILL)

    reports: list[object] = []
    producer = Producer({"bootstrap.servers": stack.kafka, "acks": "all", "log_level": 0})
    producer.produce("made-by-prepare", b"after", on_delivery=lambda error, record: reports.append(error))
    producer.flush(120)
    assert reports == [None]


def test_services_that_a_run_needs_serve_before_the_others_start(tmp_path: Path) -> None:
    order = tmp_path / "order"
    first = SERVES % (1.0, str(order), "first")
    rest = SERVES % (0.0, str(order), "rest")

    services = (
        ServiceProcess("gateway", (sys.executable, "-c", rest)),
        ServiceProcess("planner", (sys.executable, "-u", "-c", first), serves="lane.live"),
    )
    with DevStack(tmp_path, services, servers=Servers(KAFKA, REDIS)):
        eventually(lambda: order.exists() and len(order.read_text().split()) == 2)

    assert order.read_text().split() == ["first", "rest"]


def test_a_wiped_valkey_is_empty_and_served_again(stack: DevStack) -> None:
    Redis.from_url(stack.redis).set("effect", "done")

    wipe_valkey(stack)

    assert Redis.from_url(stack.redis).dbsize() == 0


def test_a_second_stack_on_the_folder_is_refused(stack: DevStack) -> None:
    second = DevStack(stack.data_dir, SERVICES)

    with pytest.raises(ConflictError, match=f"process {os.getpid()} already runs on"):
        second.start()

    assert len(processes(stack.data_dir)["planner"]) == 1


def test_a_second_start_finds_everything_again(stack: DevStack) -> None:
    addresses, pids = (stack.kafka, stack.redis), [p for ps in processes(stack.data_dir).values() for p in ps]
    Redis.from_url(stack.redis).set("effect", "done")

    stack.stop()
    assert gone(*pids)()
    assert dev(stack.data_dir) == {}
    stack.start()

    assert (stack.kafka, stack.redis) == addresses
    assert Redis.from_url(stack.redis).get("effect") == b"done"
    assert "made-by-prepare" in AdminClient({"bootstrap.servers": stack.kafka}).list_topics(timeout=60).topics


def test_fresh_forgets_the_servers_data_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with DevStack(tmp_path, (), servers=Servers(kafka=KAFKA)) as first:
        Redis.from_url(first.redis).set("effect", "done")

    with DevStack(tmp_path, (), servers=Servers(kafka=KAFKA), fresh=True) as second:
        assert Redis.from_url(second.redis).dbsize() == 0

    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_outside_addresses_replace_the_embedded_servers(tmp_path: Path) -> None:
    with DevStack(tmp_path, (ServiceProcess("planner", SLEEPER),), servers=Servers(KAFKA, REDIS)):
        content = dev(tmp_path)

        assert (content["kafka"], content["redis"]) == (KAFKA, REDIS)
        assert content["processes"]["broker"] == content["processes"]["valkey"] == []


def test_a_failed_prepare_leaves_nothing_running_and_the_folder_free(tmp_path: Path) -> None:
    def refuse(bootstrap: str) -> None:
        raise RefoldError(f"cannot create topics on {bootstrap}")

    with pytest.raises(RefoldError, match="cannot create topics on 127.0.0.1:9"):
        DevStack(tmp_path, SERVICES, servers=Servers(kafka=KAFKA), prepare=refuse).start()

    assert dev(tmp_path) == {}
    with DevStack(tmp_path, (), servers=Servers(KAFKA, REDIS)):
        assert dev(tmp_path) != {}


def test_a_busy_broker_of_ours_is_waited_for_and_its_address_is_not_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, told = list[str](), list[str]()
    busy = 2

    def prepare(bootstrap: str) -> None:
        tries.append(bootstrap)
        if len(tries) <= busy:
            raise UnreachableError("cannot read: Not leader", hint="is REFOLD_KAFKA__BOOTSTRAP right?")

    def start(kafka: str | None = None) -> None:
        listeners = Listeners(progress=lambda *each: told.append(each[0]))
        with DevStack(tmp_path, (), servers=Servers(kafka, REDIS), prepare=prepare, listeners=listeners):
            pass

    start()
    assert len(tries) == 3
    assert told.count("waiting for the broker (cannot read: Not leader)") == 2

    busy = 1_000
    monkeypatch.setattr("refold.dev.stack._BUSY_S", 0.0)
    with pytest.raises(UnreachableError, match="too busy for the broker") as ours:
        start()
    with pytest.raises(UnreachableError) as theirs:
        start(kafka=KAFKA)
    assert "BOOTSTRAP" not in ours.value.hint
    assert "BOOTSTRAP" in theirs.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_stack_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, str(tmp_path), *SLEEPER], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    pids = processes(tmp_path)["planner"] + processes(tmp_path)["valkey"]

    parent.send_signal(number)
    parent.communicate(timeout=60)

    eventually(gone(*pids))
    assert parent.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 0)


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "replaced"])
def test_a_stack_whose_folder_is_deleted_ends_with_all_its_processes(tmp_path: Path, again: bool) -> None:
    folder = tmp_path / "data"
    argv, pipe = [sys.executable, "-c", FOREGROUND, str(folder), *SLEEPER], subprocess.PIPE
    parent = subprocess.Popen(argv, text=True, stdout=pipe, stderr=pipe)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    pids = processes(folder)["planner"] + processes(folder)["valkey"]

    folder.rename(tmp_path / "gone")
    if again:
        folder.mkdir()
        (folder / "dev.json").write_text("of another")
    _, stderr = parent.communicate(timeout=60)

    eventually(gone(*pids))
    assert parent.returncode == 1
    assert f"the data folder {folder} was deleted while the platform ran on it" in stderr
    assert not again or (folder / "dev.json").read_text() == "of another"
