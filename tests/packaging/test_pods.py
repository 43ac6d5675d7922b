"""Pods of the chart as a node runs them: without root, on a file system that is read-only, with Secrets as files."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.terminal import refold
from tests.packaging.manifests import rendered
from tests.packaging.test_chart import CHART, pods, variables
from tests.tidy.repository import ROOT
from tests.waiting import eventually

from refold.dev.kafka import EmbeddedKafka
from refold.dev.ports import free_port
from refold.dev.valkey import EmbeddedValkey

APP = "examples/deploy.py"
OTHERS = ("executor-default", "gateway", "projections")
NODE = """
mount --make-rprivate /
cp -a /etc "$1/etc" && cp -a "$1/secrets" "$1/etc/refold" && mount --bind "$1/etc" /etc
mount --bind / / && mount -o remount,ro,bind / && mount -t tmpfs tmpfs /tmp
cd "$2" && shift 2
exec setpriv --reuid 10001 --regid 10001 --groups 10001 --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
"""
"""What kubelet and container runtime do for a pod: folder of the node, working directory, then the command."""


def alone(*command: str) -> bool:
    """True if a command runs as the user of the pods."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
        return False
    words = ("setpriv", "--reuid", "10001", "--regid", "10001", "--clear-groups", *command)
    return subprocess.run(words, capture_output=True, cwd=ROOT, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not alone(sys.executable, "-c", "import refold"), reason="it makes mounts as root, and runs Python as another user"
)


@pytest.fixture(scope="module")
def node(kafka: EmbeddedKafka, valkey: EmbeddedValkey) -> Iterator[dict[str, Any]]:
    """Give the pods of the chart on a platform of this machine, and the folder of their node."""
    prefix = f"pods{secrets.token_hex(4)}."
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        Path(folder).chmod(0o755)
        root, keys = Path(folder, "root.json"), Path(folder, "secrets")
        own = {"KAFKA__BOOTSTRAP": kafka.bootstrap, "KAFKA__PREFIX": prefix, "KAFKA__PARTITIONS": "1"}
        for name, value in {**own, "ENVIRONMENT": "staging", "TRUST": f"@{root.with_suffix('.pub')}"}.items():
            patch.setenv(f"REFOLD_{name}", value)
        made: list[tuple[str, ...]] = [("topics", "apply", "--app", APP), ("keys", "init", "--root", str(root))]
        for use, more in (("decision", ()), ("vote", ("--anybody",))):
            out = str(keys / use / f"{use}.json")
            made.append(("keys", "new", use, "--use", use, *more, "--out", out, "--root", str(root)))
        made.append(("keys", "new", "--api", "ada", "--role", "operator", "--file", str(keys / "logins" / "keys.json")))
        for words in made:
            done = refold(*words)
            assert done.exit_code == 0, done.output
        for path in keys.rglob("*"):  # as the kubelet makes the files of a Secret
            os.chown(path, 0, 10_001)
            path.chmod(0o755 if path.is_dir() else 0o440)
        keys.chmod(0o755)
        values: dict[str, Any] = yaml.safe_load((CHART / "ci" / "small-values.yaml").read_text())
        values |= {"app": APP, "trust": root.with_suffix(".pub").read_text().splitlines()[0]}
        values["settings"]["REDIS__PREFIX"] = prefix
        values["kafka"] |= {"bootstrap": kafka.bootstrap, "prefix": prefix}
        values["gateway"] = {"hosts": ["refold.example"], "apiKeysSecret": "refold-logins"}
        values["telemetry"] = {"enabled": True, "settings": {"TELEMETRY__ENDPOINT": "http://127.0.0.1:9/v1/traces"}}
        values["insights"] = {"enabled": True}
        values["archivist"] = {"enabled": True, "settings": {"ARCHIVE__URL": "file:///tmp/archive"}}
        file = Path(folder, "values.yaml")
        file.write_text(yaml.safe_dump(values))
        yield {"folder": folder, "pods": pods(rendered(CHART, file)), "redis": valkey.url}


@contextmanager
def running(node: dict[str, Any], name: str) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """The process of a pod, the port of its metrics, and its log."""
    pod, port = node["pods"][name], free_port()
    (container,) = pod["containers"]
    own = {key: value for key, value in os.environ.items() if not key.startswith("REFOLD_")}
    own |= variables(pod) | {"REFOLD_METRICS__ADDRESS": str(port), "REFOLD_MEMBER": f"refold-{name}-0"}
    for setting, value in {"REDIS__URL": node["redis"], "VIEWS__URL": "sqlite:////tmp/views.db"}.items():
        if f"REFOLD_{setting}" in own:
            own[f"REFOLD_{setting}"] = value
    args = [own["REFOLD_VIEWS__URL"] if arg == "$(REFOLD_VIEWS__URL)" else arg for arg in container["args"]]
    if name == "gateway":
        args[args.index("--port") + 1] = str(free_port())
    at = container.get("workingDir", str(ROOT))
    with tempfile.TemporaryDirectory(dir=node["folder"]) as folder:
        shutil.copytree(Path(node["folder"], "secrets"), Path(folder, "secrets"), copy_function=kept)
        log = Path(node["folder"], f"{name}.log")
        command = ["unshare", "--mount", "sh", "-ec", NODE, "node", folder, at, sys.executable, "-m", "refold", *args]
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=own, stdout=file, stderr=file)
        try:
            yield process, port, log
        finally:
            process.kill()
            process.wait(30)


def kept(source: str, target: str) -> None:
    """Copy a file with its owner and mode."""
    shutil.copy2(source, target)
    os.chown(target, 0, 10_001)


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.parametrize(
    "name", ["approval", *(pytest.param(name, marks=pytest.mark.long) for name in ("planner", *OTHERS))]
)
def test_a_pod_becomes_ready_and_ends_before_it_is_killed(node: dict[str, Any], name: str) -> None:
    with running(node, name) as (process, port, log):
        probes = node["pods"][name]["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = probes[probe]["httpGet"]["path"]

            def answered(path: str = path) -> bool:
                assert process.poll() is None, log.read_text()
                return status(port, path) == 200

            eventually(answered, every=0.2, what=f"{path} of {name}: {log}")
        process.send_signal(signal.SIGTERM)
        code = process.wait(node["pods"][name]["terminationGracePeriodSeconds"])

    assert code in ((0, -signal.SIGTERM) if name == "gateway" else (0,)), log.read_text()  # uvicorn's, after its end


@pytest.mark.long
@pytest.mark.parametrize("name", ["insights", "telemetry"])
def test_a_service_of_figures_or_traces_writes_only_where_it_may(node: dict[str, Any], name: str) -> None:
    with running(node, name) as (process, _, log):
        eventually(lambda: "service.started" in log.read_text() or process.poll() is not None, every=0.2)
        with pytest.raises(subprocess.TimeoutExpired):  # what a library makes beside its work comes after that line
            process.wait(5)


def test_the_archivist_makes_its_pass_and_ends(node: dict[str, Any]) -> None:
    with running(node, "archivist") as (process, _, log):
        assert process.wait(120) == 0, log.read_text()
        assert "archivist.swept" in log.read_text()


@pytest.mark.long
def test_insights_elsewhere_than_in_their_folder_end(node: dict[str, Any]) -> None:
    pod = node["pods"]["insights"]["containers"][0]
    folder = pod.pop("workingDir")
    try:
        with running(node, "insights") as (process, _, log):
            assert process.wait(120) > 0, log.read_text()
    finally:
        pod["workingDir"] = folder
