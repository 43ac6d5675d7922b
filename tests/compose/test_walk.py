"""The compose file on a real engine: from nothing to a run, a person's decision, containers killed, another app."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from refold.client import Client, Ended
from refold.dev.ports import free_port
from tests.docs.blocks import everywhere
from tests.waiting import GIVE_UP_S, eventually

pytestmark = pytest.mark.compose

ROOT = Path(__file__).parents[2]
NAME, OWN = "refold-walk", "refold-walk-own"
SERVING = ("kafka", "valkey", "planner", "approval", "executor", "gateway", "cloud")
UP_S = 1_200.0
"""The time in which a busy machine builds the image and starts all of it. An idle one needs two minutes."""


def docker(*words: str, env: Mapping[str, str] | None = None, check: bool = True, within: float = 300.0) -> str:
    """Run a command of Docker; return what it prints. It fails with both outputs."""
    done = subprocess.run(
        ["docker", *words], cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=within
    )
    assert not check or not done.returncode, f"docker {' '.join(words)}\n{done.stdout[-4_000:]}\n{done.stderr[-4_000:]}"
    return done.stdout


@dataclass
class Composed:
    """A platform of containers, beside any other: it has a name and ports of its own."""

    env: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def site(self) -> str:
        return f"http://127.0.0.1:{self.env['PORT']}"

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self.env['KAFKA_PORT']}"

    def compose(self, *words: str, check: bool = True, within: float = 300.0) -> str:
        return docker("compose", *words, env=self.env, check=check, within=within)

    def up(self, step: str, *words: str, **env: str) -> None:
        """Start what is not there, and wait until all of it is healthy."""
        begun = time.monotonic()
        self.env |= env
        try:
            self.compose("up", "--wait", "--detach", *words, within=UP_S)
        except AssertionError as error:
            states = self.compose("ps", "--all", check=False)
            logs = self.compose("logs", "--tail", "30", check=False)
            raise AssertionError(f"{error}\n{states}\n{logs[-12_000:]}") from None
        self.seconds[step] = time.monotonic() - begun

    def refold(self, *words: str) -> Any:
        """Run a command in the container of the planner; return what it prints as JSON."""
        return json.loads(self.compose("exec", "-T", "planner", "refold", *words, "--json"))

    def ends(self, run: str) -> Ended:
        """Wait, from the host, until a run is over."""
        with Client(kafka=self.kafka) as client:
            return client.wait(run, timeout=timedelta(seconds=GIVE_UP_S))

    def world(self, order: str) -> int:
        """Count the effects of an order."""
        return len(self.compose("exec", "-T", "executor", "ls", f"/app/world/{order}").split())


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """Give the platform of the default app, built and started from nothing."""
    for words in (("compose", "version"), ("version",)):
        try:
            subprocess.run(["docker", *words], capture_output=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.fail(f"`docker {' '.join(words)}` does not work here: make compose needs Docker ({error})")
    apps = tmp_path_factory.mktemp("apps")
    apps.chmod(0o755)
    apps.parent.chmod(0o755)
    apps.parent.parent.chmod(0o755)
    shutil.copy(Path(__file__).with_name("agents.py"), apps / "agents.py")
    names = ("KAFKA_PORT", "REDIS_PORT", "PORT")
    ports = {name: str(free_port()) for name in names}
    there = Composed({"COMPOSE_PROJECT_NAME": NAME, "IMAGE": NAME, **ports, "OUTSIDE": str(apps), "ACTOR": "ada"})
    down = ("--profile", "*", "down", "--volumes", "--remove-orphans")  # those of a profile hold the volumes, too
    there.compose(*down, within=UP_S)
    try:
        there.up("from nothing until all is healthy", "--build")
        yield there
        for step, seconds in there.seconds.items():
            sys.stderr.write(f"{step}: {seconds:.1f} s\n")
    finally:
        there.compose(*down, check=False, within=UP_S)
        docker("image", "rm", NAME, OWN, check=False)


@pytest.fixture
def own(platform: Composed) -> Composed:
    """Give the platform with an app from a folder outside of the examples."""
    if platform.env.get("APP") != "apps/agents.py":
        platform.up("another app", APPS=platform.env["OUTSIDE"], APP="apps/agents.py")
    return platform


def decide(there: Composed, run: str, **fields: str) -> None:
    """Decide as a person in the page, on the question of a run or its child: the form, sent as a browser does."""
    question = eventually(lambda: there.refold("approval", "list", "--run", run), what=f"the question of {run}")[0]
    with httpx.Client(base_url=there.site, timeout=60, headers={"Origin": there.site}) as http:

        def form() -> re.Match[str] | None:
            page = http.get(f"/runs/{question['run_id']}")
            return re.search(r'<form method="post" action="(/approvals/[^"]+/vote)">(.*?)</form>', page.text, re.DOTALL)

        found = eventually(form, what=f"the question of {run} in its page")
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', found[2]))
        answer = http.post(html.unescape(found[1]), data={**hidden, **fields}, follow_redirects=True)
        assert answer.is_success, answer.text


def test_the_default_app_completes_a_run(platform: Composed) -> None:
    begun = time.monotonic()

    ended = platform.refold("run", "start", "deploy", "--input", '{"service": "shop", "version": "1"}', "--wait")
    platform.seconds["the first run, with its command"] = time.monotonic() - begun

    assert ended["status"] == "completed", ended
    assert httpx.get(f"{platform.site}/readyz", timeout=60).json()["ready"]
    assert "deploy" in httpx.get(f"{platform.site}/", timeout=60, follow_redirects=True).text


def test_people_get_keys_from_the_service_that_has_the_root_key(platform: Composed) -> None:
    made = platform.compose("run", "--rm", "-T", "admin", "keys", "new", "bob", "--use", "vote", "--actor", "bob")

    assert "signs votes" in made
    assert {key["use"] for key in platform.refold("keys", "list")} == {"decision", "vote"}
    seen = ("-name", "__pycache__", "-prune", "-o", "(", "-name", "*.json", "-o", "-name", "*.key", ")", "-print")
    keys = platform.compose("exec", "-T", "gateway", "find", "/app", *seen)  # the host's caches may be closed to it
    assert keys.split() == ["/app/votes/vote.json"]


def test_a_person_decides_in_the_page_about_an_app_that_lies_elsewhere(own: Composed) -> None:
    run = own.refold("run", "start", "gift", "--input", '{"order": "g-1"}')["run_id"]

    decide(own, run, action="approve", message="yes")

    assert own.ends(run).status == "completed"
    assert own.world("g-1") == 1
    (question,) = own.refold("approval", "list", "--run", run, "--state", "all")
    assert '"actor": "ada"' in json.dumps(own.refold("approval", "show", question["approval"])["said"])


@pytest.mark.parametrize("service", SERVING)
@pytest.mark.parametrize("how", ["container", "process"])
def test_a_run_goes_on_when_a_container_is_killed(own: Composed, service: str, how: str) -> None:
    order = f"{service}-{how}"
    with Client(kafka=own.kafka) as client:
        run = client.start("ship", {"order": order}).run_id
    begun = time.monotonic()

    (container,) = own.compose("ps", "--quiet", service).split()
    if how == "container":
        docker("kill", container)
        docker("start", container)
    else:  # as the kernel does without memory: the restart policy starts it again
        before = docker("inspect", "--format", "{{.State.StartedAt}}", container)
        pid = docker("inspect", "--format", "{{.State.Pid}}", container).strip()
        kill = ("--entrypoint", "bash", NAME, "-c", f"kill -9 {pid}")
        docker("run", "--rm", "--pid", "host", "--user", "0", *kill)
        eventually(lambda: docker("inspect", "--format", "{{.State.StartedAt}}", container) != before)
    health = ("inspect", "--format", "{{.State.Health.Status}}", container)
    eventually(lambda: docker(*health).strip() == "healthy", within=2 * GIVE_UP_S)
    own.seconds[f"{service} healthy after its {how} was killed"] = time.monotonic() - begun

    ended = own.ends(run)
    own.seconds[f"run beside {service} whose {how} was killed"] = time.monotonic() - begun
    assert (ended.status, ended.result) == ("completed", 3), ended
    assert own.world(order) == 3


def test_all_is_there_after_down_and_up(own: Composed) -> None:
    before = {each["run_id"]: each["status"] for each in own.refold("run", "list", "--limit", "1000")}
    keys, policy = own.refold("keys", "list"), own.refold("policy", "show")
    waiting = own.refold("run", "start", "gift", "--input", '{"order": "g-2"}')["run_id"]

    own.compose("down", within=UP_S)
    own.up("up with volumes kept")

    after = {each["run_id"]: each["status"] for each in own.refold("run", "list", "--limit", "1000")}
    assert before.items() <= after.items()
    assert (own.refold("keys", "list"), own.refold("policy", "show")) == (keys, policy)
    decide(own, waiting, action="approve")
    assert own.ends(waiting).status == "completed"
    later = own.refold("run", "start", "ship", "--input", '{"order": "later"}')["run_id"]
    assert own.ends(later).status == "completed"
    assert (own.world("g-2"), own.world("later"), own.world("g-1")) == (1, 3, 1)


def test_an_app_with_extras_is_built_and_its_person_on_call_decides(platform: Composed) -> None:
    incident = {"APPS": "./examples", "APP": "apps/incident/app.py", "EXTRAS": "pydantic-ai"}
    platform.up("an app with an extra", "--build", COMPOSE_PROFILES="model", **incident)
    run = platform.refold("run", "start", "incident", "--input", '{"service": "shop"}')["run_id"]

    decide(platform, run, action="approve")

    assert platform.ends(run).status == "completed"


def test_a_new_project_runs_from_an_image_of_its_own(platform: Composed, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "refold", "init", "shop"], cwd=tmp_path, check=True, timeout=120)
    wheel = "from hatchling import build; build.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", wheel], cwd=tmp_path / "shop", check=True, timeout=120)
    (block,) = everywhere("dockerfile")
    (tmp_path / "shop" / "Dockerfile").write_text(block.text.replace("FROM refold", f"FROM {NAME}"))
    docker("build", "--tag", OWN, str(tmp_path / "shop"), within=UP_S)

    platform.up("an image of its own", IMAGE=OWN, APP="app:app", COMPOSE_PROFILES="")
    order = '{"order": "order-7", "cents": 9000}'
    run = platform.refold("run", "start", "goodwill", "--input", order)["run_id"]
    decide(platform, run, action="approve")

    assert platform.ends(run).status == "completed"


def test_no_service_has_left_a_traceback(platform: Composed) -> None:
    logs = platform.compose("logs", "--no-color", "--no-log-prefix")

    assert "service.started" in logs
    assert [line for line in logs.splitlines() if line.startswith("Traceback")] == []
