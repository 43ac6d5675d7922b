"""On a real platform: spans reach a collector whatever is killed, and every metric that a panel queries is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest

from refold.dev.ports import free_port
from tests.cli.terminal import Dev, refold, served
from tests.telemetry.queries import queried
from tests.telemetry.receiver import Receiver, Told
from tests.telemetry.test_metrics import ask, samples
from tests.tidy.repository import ROOT
from tests.waiting import eventually

APP = Path(__file__).with_name("app.py")
KILLS = 6
PORT = free_port()
"""Of the collector that the app itself knows."""


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Give a running platform of this file alone."""
    data = tmp_path_factory.mktemp("observed")
    more = {"REFOLD_KAFKA__PARTITIONS": "4"}  # so that a second member of each kind has some to serve
    with served(APP, data, SPANS=f"http://127.0.0.1:{PORT}/v1/traces", **more) as running:
        yield running


@contextmanager
def beside(dev: Dev, *words: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A further service of the platform."""
    command = [sys.executable, "-m", "refold", "serve", *words, "--data", str(dev.data)]
    env = {**os.environ, "REFOLD_VIEWS__URL": dev.state["views"], **more}
    with (dev.data / f"beside-{words[0]}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def start(dev: Dev, agent: str, run: str, given: Mapping[str, Any] | None = None) -> None:
    dev.refold("run", "start", agent, "--id", run, "--input", json.dumps(given or {}))


def ended(dev: Dev, *runs: str) -> None:
    for run in runs:
        eventually(partial(is_over, dev, run), within=60, what=f"{run} is over")


def is_over(dev: Dev, run: str) -> bool:
    shown = refold("run", "show", run, "--json", "--data", str(dev.data))
    return shown.exit_code == 0 and json.loads(shown.stdout)["status"] in ("completed", "failed")


def test_spans_reach_the_collector_once_each_though_their_service_is_killed(dev: Dev) -> None:
    rng, runs = Random(7), [f"naps-{number}" for number in range(6)]
    with Receiver() as receiver:
        to = {"REFOLD_TELEMETRY__ENDPOINT": receiver.url, "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
        for number, run in enumerate(runs):
            start(dev, "naps", run, {"count": 10 + number})
        for _ in range(KILLS):
            with beside(dev, "telemetry", "--from-start", **to) as process:
                eventually(partial(more, receiver, len(receiver.spans)), what="more spans")
                sleep(rng.random() * 0.3)
                process.kill()
                process.wait(10)
            if len(receiver.distinct) >= sum(2 * (10 + number) for number in range(6)):
                break
        ended(dev, *runs)
        start(dev, "places", "places-1")
        start(dev, "talker", "talker-1", {"prompt": "hi"})
        ended(dev, "places-1", "talker-1")
        with beside(dev, "telemetry", "--from-start", **to):
            eventually(lambda: any(span.name == "chat echo" for span in receiver.spans), within=30)
            wanted = sum(2 * (10 + number) for number in range(6)) + 3
            eventually(lambda: sum(bool(span.parent) for span in receiver.distinct.values()) >= wanted, within=30)

    whole = receiver.distinct
    assert sum(bool(span.parent) for span in whole.values()) == wanted
    assert {span.bytes for span in receiver.spans} == {span.bytes for span in whole.values()}, (
        "no span comes in two ways"
    )
    told = dev.read("run", "show", "places-1")["result"]
    for trace, span in told:
        assert whole[trace, span].said["refold.run.id"] == "places-1", "what the tool saw is the span of its attempt"
    chat = next(span for span in whole.values() if span.name == "chat echo")
    assert chat.said["gen_ai.operation.name"] == "chat"


def test_a_model_request_is_counted_once_whoever_tells_of_it(dev: Dev) -> None:
    with Receiver(PORT) as receiver:
        to = {"REFOLD_TELEMETRY__ENDPOINT": receiver.url, "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
        start(dev, "counted", "counted-1", {"prompt": "hi"})
        ended(dev, "counted-1")
        with beside(dev, "telemetry", "--from-start", **to):
            ours = eventually(
                lambda: [s for s in receiver.spans if s.said.get("refold.run.id") == "counted-1"], within=60
            )
            theirs = [span for span in receiver.spans if span.name.startswith("chat") and span not in ours]

    assert [span.said.get("gen_ai.operation.name") for span in theirs] == ["chat"]
    assert [span.name for span in ours] == ["counted__model.request", "invoke_agent counted"]
    assert not [name for name in ours[0].said if name.startswith("gen_ai.")]


def test_every_metric_that_a_panel_or_a_rule_asks_for_is_there_after_all_kinds_of_trouble(dev: Dev) -> None:
    with Receiver() as receiver, ExitStack() as running:
        ports = {}
        for words in (
            ("planner", "--app", str(APP)),
            ("executor", "--app", str(APP)),
            ("executor", "--app", str(APP), "--pool", "model"),
            ("approval", "--app", str(APP), "--key", str(dev.data / "keys" / "decision.json")),
            ("archivist", "--app", str(APP), "--no-archive"),
            ("telemetry",),
        ):
            port = ports[words] = free_port()
            running.enter_context(
                beside(dev, *words, REFOLD_METRICS__ADDRESS=str(port), REFOLD_TELEMETRY__ENDPOINT=receiver.url)
            )
        for agent in ("loses", "holds", "asks", "raises", "places"):
            start(dev, agent, f"trouble-{agent}")
        gateway = int(dev.state["metrics"].rpartition(":")[2])
        for port in (*ports.values(), gateway):
            eventually(partial(ready, port), within=90, what=f"{port} is ready")
        views = eventually(lambda: troubled(samples(ask(gateway, "/metrics")[1])), within=60)
        found = eventually(lambda: serving([samples(ask(port, "/metrics")[1]) for port in ports.values()]), within=60)

    assert views["refold_approvals_pending{}"] >= 1
    assert views["refold_approval_oldest_seconds{}"] > 0
    names = {name.partition("{")[0] for each in (views, *found) for name in each}
    assert queried() - names == set()
    assert sum(each["refold_turn_seconds_count{}"] for each in found) > 0


def serving(found: list[dict[str, float]]) -> list[dict[str, float]] | None:
    """Return the samples once every process is ready and the first four serve partitions, as a rebalance gives them."""
    ready = all(each["refold_ready{}"] == 1 for each in found)
    return found if ready and all(each["refold_lanes{}"] for each in found[:4]) else None


def of_run(receiver: Receiver, run: str) -> list[Told]:
    return [span for span in receiver.spans if span.said.get("refold.run.id") == run]


def more(receiver: Receiver, than: int) -> bool:
    return len(receiver.spans) > than


def ready(port: int) -> bool:
    try:
        return ask(port, "/readyz")[0] == 200 and ask(port, "/livez")[0] == 200
    except OSError:
        return False


def troubled(views: dict[str, float]) -> dict[str, float]:
    wanted = (
        "refold_calls_in_doubt{}",
        "refold_calls_on_hold{}",
        "refold_approvals_pending{}",
        'refold_runs{"status": "failed"}',
    )
    return views if all(views.get(name) for name in wanted) else {}
