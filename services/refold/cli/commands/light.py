"""`refold dev --light`: a platform in one process, whose topics and ledger are one file."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import structlog

from refold.cli import output
from refold.cli.apps import load_app
from refold.cli.commands.provision import Provision
from refold.cli.commands.schedule import apply_in_background
from refold.cli.commands.serve.process import ALL, Served, served
from refold.dev.files import FolderLock, write_atomic
from refold.dev.ports import HOST, remembered_ports
from refold.dev.process import log_bytes, logged
from refold.engine.adapters.kafka.topics import expected_topics
from refold.engine.adapters.memory.lasting import LastingBroker
from refold.engine.adapters.memory.serving import BrokerSocket
from refold.engine.runtime.addresses import data_dir
from refold.engine.runtime.handover import Handover
from refold.engine.runtime.settings import LIGHT, PARTITIONS, load

_LOOK_S = 0.02


def run_light(app: str, data: str, needs: Provision, env: Mapping[str, str], *, fresh: bool) -> None:
    """Run all services until a stop signal. `env`: settings of the services."""
    folder, lock, began = data_dir(data).resolve(), FolderLock(data_dir(data) / "lock"), time.monotonic()
    lock.acquire()
    (folder / "dev.json").unlink(missing_ok=True)  # of a process that was killed
    folder.chmod(0o700)  # the file has the arguments of tools, in clear
    own = folder / "light"  # a `refold dev` with servers has other runs in this folder
    if fresh:
        shutil.rmtree(own, ignore_errors=True)
    for place in (own / "blobs", folder / "logs"):
        place.mkdir(parents=True, exist_ok=True)
    port = remembered_ports(own / "ports.json", "gateway")["gateway"]
    at = {"kafka": f"{LIGHT}{own / 'socket'}", "redis": "", "gateway": f"http://{HOST}:{port}"}
    at |= {"views": f"sqlite:///{own / 'views.db'}", "blobs": f"file://{own / 'blobs'}"}
    os.environ.update({"REFOLD_KAFKA__BOOTSTRAP": at["kafka"], PARTITIONS: "1", "REFOLD_GATEWAY__PORT": str(port)})
    os.environ.update({"REFOLD_VIEWS__URL": at["views"], "REFOLD_BLOBS__URL": at["blobs"]})
    loaded, log = load_app(app), own / "log"
    topics = expected_topics(loaded.pools, payload_bytes=load().max_payload_bytes)
    most = max(int(topic.config["max.message.bytes"]) for topic in topics)
    broker = LastingBroker([topic.name for topic in topics], own / "records", max_bytes=most)
    BrokerSocket(broker, own / "socket")
    needs.prepare(at["kafka"])
    os.environ.update(env)  # it names keys that are made now
    structlog.reset_defaults()  # commands are quiet
    with redirect_stderr(log.open("a")):  # for the logger, until the process ends
        process, handover = replace(served(ALL, "", data), broker=broker), Handover()
    content = {**at, "partitions": 1, "processes": {"light": [os.getpid()]}, "metrics": ""}

    def announce() -> None:
        while not logged(log, "lane.live", since):
            time.sleep(_LOOK_S)
        output.say(f"[dim]ready after {time.monotonic() - began:.1f} s; Ctrl-C stops it[/]")
        if loaded.schedules:
            apply_in_background(app, folder)
        if find_spec("fastapi"):
            _serve_pages(process, app, data)

    # By name, as the catalogue loads them: they are commands of their own.
    planner_part, executor_part, approval_part = (
        getattr(import_module(f"refold.cli.commands.serve.{name}"), f"{name}_part")
        for name in ("planner", "executor", "approval")
    )
    since = log_bytes(log)
    with planner_part(process.part("planner", "planner"), loaded, handover) as planner:
        executors = [
            executor_part(process.part("executor", f"executor-{pool}"), loaded, pool, data, handover)
            for pool in loaded.pools
        ]
        approval = approval_part(process.part("approval", "approval"), loaded, str(needs.file("decision")), handover)
        _print_start(app, own, at)
        threading.Thread(target=announce, name="pages", daemon=True).start()
        process.run(planner, approval, *executors, beside=_shown_in(folder / "dev.json", content))


@contextmanager
def _shown_in(path: Path, content: Mapping[str, object]) -> Iterator[None]:
    """Context in which the file has the addresses of this platform."""
    write_atomic(path, json.dumps(content, indent=2) + "\n", mode=0o600)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _serve_pages(process: Served, app: str, data: str) -> None:
    try:
        # Late: the first run would otherwise wait for these imports.
        gateway = import_module("refold.cli.commands.serve.gateway")
        gateway.serve_gateway(process.part("gateway", "gateway"), app, data, dev=True)
    except BaseException:
        os.kill(os.getpid(), signal.SIGTERM)  # its end would go unnoticed
        raise


def _print_start(app: str, folder: Path, at: Mapping[str, str]) -> None:
    output.warn("one process and one file, to try things out: nothing restarts it; `refold dev` has servers")
    output.say(f"app       {output.escape(app)}")
    output.say(f"file      {output.escape(str(folder / 'records'))}")
    output.say(f"log       {output.escape(str(folder / 'log'))}")
    output.say(f"pages     [bold]{at['gateway']}/[/]")
