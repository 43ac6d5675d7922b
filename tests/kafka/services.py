"""Every service as a process of its own, with its own principal, Redis user and keys, as the guide gives them."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from refold.dev.ports import free_port
from refold.dev.valkey import EmbeddedValkey
from tests.cli.terminal import refold
from tests.embedded.secured import ADMIN
from tests.kafka.secured import PARTITIONS, POOLS, SecuredCluster
from tests.telemetry.receiver import Receiver
from tests.tidy.repository import ROOT
from tests.waiting import eventually

APP = Path(__file__).with_name("pools_app.py")
GUIDE = ROOT / "docs/guides/keys-and-acls.md"
EXECUTORS = tuple(f"executor.{pool}" for pool in POOLS)
SERVICES = ("planner", *EXECUTORS, "approval", "projections", "gateway", "telemetry", "insights", "archivist")
PATIENT = {"fetch.wait.max.ms": "500"}
"""Most time that an idle fetch waits at a broker: with the 100 ms of production, three brokers that have nothing to do
answer 400 fetches a second."""
PRINCIPALS = {"projections": "viewer"}
"""Roles of services that have another name; telemetry reads views and logs in nowhere."""


@dataclass
class Services:
    """A secured platform under a prefix, and the processes that serve it."""

    cluster: SecuredCluster
    valkey: EmbeddedValkey
    folder: Path
    prefix: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.receiver = Receiver()
        self._users: list[str] = []
        self._redis: Any = redis.Redis.from_url(self.valkey.url)
        self._redis_prefix = f"t{uuid4().hex}"
        self.folder.mkdir(exist_ok=True)
        self._own: dict[str, dict[str, str]] = {name: {} for name in SERVICES}

    # How the guide sets a platform up

    def furnish(self, pools: tuple[str, ...] = POOLS) -> None:
        """Make topics, rights, users and keys, each as the role that the guide names."""
        self.refold(ADMIN, "topics", "acls", "--app", str(APP), "--apply")
        self.cluster.furnish(self.prefix, pools)
        root = self.folder / "root.json"
        self.refold("authority", "keys", "init", "--root", str(root))
        self._trust = f"@{root.with_suffix('.pub')}"
        for name, words in (("decision", ()), ("vote", ("--anybody", "--strength", "sso"))):
            out = str(self.folder / f"{name}.json")
            self.refold("authority", "keys", "new", name, "--use", name, *words, "--out", out, "--root", str(root))
        policy = str(ROOT / "infra/default-policy.yaml")
        self.refold("authority", "policy", "publish", policy, "--root", str(root))
        keys = self.folder / "api.json"
        roles = ("--role", "operator", "--role", "approver")
        made = self.refold("client", "keys", "new", "--api", "ada", *roles, "--file", str(keys), "--json")
        self.key = json.loads(made)["key"]
        views = {"REFOLD_VIEWS__URL": f"sqlite:///{self.folder}/views.db"}
        for pool in POOLS:
            self._own[f"executor.{pool}"] = {
                "REFOLD_REDIS__URL": self._redis_user(pool),
                "REFOLD_REDIS__PREFIX": self._redis_prefix,
                "REFOLD_EXECUTOR__LEDGER_KEY": secrets.token_hex(32),
            }
        self._own["approval"] = {"REFOLD_APPROVAL__KEY": str(self.folder / "decision.json")}
        self._own["projections"] = views
        self._own["gateway"] = views | {
            "REFOLD_GATEWAY__API_KEYS": str(keys),
            "REFOLD_GATEWAY__VOTE_KEY": str(self.folder / "vote.json"),
        }
        spans = f"http://127.0.0.1:{self.receiver.port}/v1/traces"
        self._own["telemetry"] = views | {"REFOLD_TELEMETRY__ENDPOINT": spans}
        self._own["archivist"] = {
            "REFOLD_ARCHIVE__URL": f"file://{self.folder}/archive",
            "REFOLD_ARCHIVE__RETENTION_MS": "3600000",
            "REFOLD_ARCHIVE__EVERY_MS": "1000",
        }

    def _redis_user(self, pool: str) -> str:
        """A user for the pool, by the words of the guide; return its address."""
        user = f"executor-{pool}-{uuid4().hex[:8]}"
        found = re.search(r"ACL SETUSER \S+ ([^`]*)", GUIDE.read_text())
        assert found, "the guide has a user of Redis"
        words = found[1].replace("PASSWORD", "secret").replace("refold:payments:", f"{self._redis_prefix}:{pool}:")
        self._redis.execute_command("ACL", "SETUSER", user, *words.split())
        self._users.append(user)
        return self.valkey.url.replace("redis://", f"redis://{user}:secret@")

    def environment(self, role: str) -> dict[str, str]:
        """Settings of a process that logs in as a role."""
        kafka = self.cluster.settings(role, self.prefix)
        ours = {name: text for name, text in os.environ.items() if not name.startswith("REFOLD_")}
        return ours | {
            "REFOLD_KAFKA__BOOTSTRAP": kafka.bootstrap,
            "REFOLD_KAFKA__PREFIX": self.prefix,
            "REFOLD_KAFKA__PARTITIONS": str(PARTITIONS),
            "REFOLD_KAFKA__OPTIONS": json.dumps(kafka.options),
            "REFOLD_DATA": str(self.folder / "data"),
            "REFOLD_TRUST": getattr(self, "_trust", ""),
        }

    def refold(self, role: str, *words: str, code: int = 0) -> str:
        """A command as a role, which must end with this code; return what it printed."""
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("REFOLD_")]:
                patch.delenv(name)
            for name, text in self.environment(role).items():
                patch.setenv(name, text)
            done = refold(*words)
        assert done.exit_code == code, (words, done.output[-2000:])
        return done.stdout

    # Processes

    def start(self, *names: str) -> None:
        for name in names or SERVICES:
            service, _, pool = name.partition(".")
            words = [service, *(["--pool", pool] if pool else [])]
            if service in ("planner", "executor", "approval", "archivist"):
                words += ["--app", str(APP)]
            if service == "insights":
                words += ["--state", f"sqlite:///{self.folder}/insights.db"]
            own = self.environment(PRINCIPALS.get(name, "outsider" if name == "telemetry" else name))
            self.ports[name] = free_port()
            own |= {"REFOLD_METRICS__ADDRESS": str(self.ports[name]), **self._own[name]}
            own["REFOLD_KAFKA__OPTIONS"] = json.dumps(json.loads(own["REFOLD_KAFKA__OPTIONS"]) | PATIENT)
            if service == "gateway":
                self.ports["api"] = free_port()
                words += ["--port", str(self.ports["api"])]
            with self.log(name).open("ab") as log:
                command = [sys.executable, "-m", "refold", "serve", *words]
                self.running[name] = subprocess.Popen(command, env=own, cwd=ROOT, stdout=log, stderr=log)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    @property
    def ended(self) -> dict[str, str]:
        """Services that have ended, with the last lines of their logs."""
        over = [name for name, process in self.running.items() if process.poll() is not None]
        return {name: self.log(name).read_text()[-1500:] for name in over}

    @property
    def unready(self) -> list[str]:
        """Services that are not ready, by their own address. Insights have none: the group has its member, or not."""
        assert not self.ended, self.ended
        shown = [name for name in self.running if name != "insights"]
        found = [name for name in shown if self._status(self.ports[name], "/readyz") != 200]
        if "gateway" in self.running and self._status(self.ports["api"], "/readyz") != 200:
            found.append("api")
        return found

    def await_ready(self) -> None:
        eventually(lambda: not self.unready or None, every=0.5, what=f"services: {self.running.keys()}")

    @staticmethod
    def _status(port: int, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def api(self, path: str, body: Any = None) -> Any:
        """What the gateway answers to ada."""
        head = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:{self.ports['api']}{path}", data, head)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    def run(self, word: str, *, ask: bool = False) -> str:
        """Start a run of the agent that calls both pools; return its id."""
        started = self.api("/api/runs", {"agent": "both", "input": {"word": word, "ask": ask}})
        return str(started["run_id"])

    def complaints(self, pattern: str) -> dict[str, list[str]]:
        """Lines of the services' logs in which something is said."""
        found = {name: re.findall(f".*(?:{pattern}).*", self.log(name).read_text()) for name in self.running}
        return {name: lines[:5] for name, lines in found.items() if lines}

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
        for user in self._users:
            self._redis.execute_command("ACL", "DELUSER", user)
