"""Node outside: `make contract` starts a run with Confluent's registry client, folds it, and follows it by eventsource.

The packages are installed at run time, at these versions; none of their scripts runs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from tests.cli.terminal import served
from tests.tidy.repository import ROOT
from tests.waiting import eventually

PACKAGES = ("@confluentinc/schemaregistry@1.10.1", "@noble/hashes@1.8.0", "eventsource@4.1.1", "kafkajs@2.2.4")
PROGRAM = ROOT / "examples" / "outside" / "node" / "contract.mjs"
APP = ROOT / "examples" / "hello.py"
TOLD = {"REFOLD_VIEWS__RUN_VIEW": "true"}
OLDEST = 20


def missing(node: str | None, npm: str | None) -> str:
    """Return why the program cannot run here, or nothing."""
    if node is None or npm is None:
        return f"contract: no node and npm on the PATH: install Node {OLDEST} or newer"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    number = version.removeprefix("v").partition(".")[0]
    return "" if number.isdecimal() and int(number) >= OLDEST else f"contract: Node {OLDEST} or newer, not {version}"


def install(npm: str, folder: Path) -> None:
    """Install the packages into a folder, unless they are there."""
    there = folder / "installed.json"
    if there.exists() and json.loads(there.read_text()) == list(PACKAGES):
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    flags = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
    subprocess.run([npm, "install", *flags, *PACKAGES], cwd=folder, check=True, timeout=600)
    there.write_text(json.dumps(PACKAGES))


def ready(gateway: str) -> bool:
    """Return whether the gateway answers."""
    try:
        return httpx.get(f"{gateway}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def main(node: str | None = shutil.which("node"), npm: str | None = shutil.which("npm")) -> int:
    """Run the program against a `refold dev`. 0: it folded and followed the run to its end; 2: there is no Node."""
    if why := missing(node, npm):
        sys.stderr.write(f"{why}\n")
        return 2
    assert node is not None
    assert npm is not None
    folder = ROOT / ".venvs" / "node"
    install(npm, folder)
    program = folder / PROGRAM.name  # packages are looked up from where a program lies
    shutil.copyfile(PROGRAM, program)
    with tempfile.TemporaryDirectory() as data, served(APP, Path(data), **TOLD) as dev:
        kafka, gateway = dev.state["kafka"], dev.state["gateway"]
        eventually(lambda: ready(gateway), within=60, what="the gateway")
        words = [node, str(program), kafka, gateway, "node-1", "hello", '{"name":"Ada"}']
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    if done.returncode:
        return 1
    found = json.loads(done.stdout.splitlines()[-1])
    sys.stdout.write(
        f"contract: {len(found['events'])} events folded and followed, {found['end']} {found['result']}, "
        f"{found['compared']} columns of run-view equal to those of the gateway\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
