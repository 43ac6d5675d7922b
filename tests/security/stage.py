"""The honest side: a secured cluster, services that run as processes with their own credentials, and people who vote.

No honest planner runs: whoever plays the attacker is the planner.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import TopicPartition

from refold.core.approval import signature
from refold.core.approval.ballot import Vote
from refold.core.approval.policy import Policy
from refold.core.approval.signature import SigningKey
from refold.core.messages import ApprovalRequest, ApprovalVote, CatalogEntry, DeadLetter
from refold.core.topics import DEAD_LETTERS
from refold.core.wire import codec
from refold.dev.supervisor import Child, Exit, Supervisor
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.runtime import keys
from refold.engine.runtime.settings import KafkaSettings
from tests.kafka.secured import PARTITIONS, SecuredCluster
from tests.roots import PINNED, entry, spread

PREFIX = "hijacked."
ENVIRONMENT = "prod"
LEASE_MS = 3_000
"""Of guarded calls: half of it is the time in which an effect may begin, and a second claimant waits all of it."""

BRIEF_MS = 1_500
OPEN = {"approvers": ["*"], "not_requester": False}
LEAD = {"approvers": ["role:lead"], "remember": {"for": "1h", "uses": 5}}
LATE = {**LEAD, "escalate": {"after": "1h", "to": ["role:chief"]}}
RULES = [
    {"name": "never", "when": "args.how == 'never'", "deny": "not even with two"},
    {"name": "brief", "when": "args.how == 'brief'", "require": {**LEAD, "valid": f"{BRIEF_MS}ms"}},
    {"name": "two", "when": "[args.how].exists(how, how == 'two')", "require": {**LEAD, "quorum": 2}},
    {"name": "late", "when": "args.how == 'late'", "require": LATE},
    {"name": "open", "when": "tool.name == 'note'", "require": OPEN},
    {"name": "one", "when": "true", "require": LEAD},
]
DOUBT = {"approvers": ["role:lead"], "quorum": 2}
POLICY = Policy.parse({"doubt": DOUBT, "rules": RULES})
STRICT = Policy.parse({"recheck": True, "doubt": DOUBT, "rules": RULES})
"""The same rules, and they want to see every call again."""

OLD = Policy.parse({"rules": [{"name": "one", "when": "true", "require": OPEN}]})
"""What was in force before: anybody may say yes. It is still in the catalog."""

ROLES = {"roles": {"lead": ["ada", "bob"], "chief": ["cleo"]}, "revoked": []}
"""Eve can log in, and has no role."""

ASKER = keys.new("request", "rita")
"""What rita signs her requests with."""

EXECUTORS = {
    "default": {},
    "model": {},
    "elsewhere": {"REFOLD_ENVIRONMENT": "staging", "TOOL_POOL": "elsewhere"},
    "newer": {"TOOL_VERSION": "2", "TOOL_POOL": "newer"},
}
"""By pool, what is different there; the tools are of pool `default`, unless it says so. All share one Valkey."""


class Stage:
    """See the module. Enter it to start everything; `falls` are services that died though nobody had killed them."""

    def __init__(self, cluster: SecuredCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.falls: list[Exit] = []
        self._known: list[DeadLetter] = []
        self.service = keys.new("decision", "approval")
        self.gateway = keys.new("vote", "gateway")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        (self.folder / "world").mkdir()
        self.valkey = self._stack.enter_context(EmbeddedValkey(self.folder / "valkey"))
        self.cluster.furnish(PREFIX, tuple(EXECUTORS))
        self._authority = KafkaPublisher(self.settings("authority"), partitions=PARTITIONS)
        self._dead = clients.consumer(self.settings("operator"), "refold-reader")
        self._stack.callback(self._dead.close)
        places = [TopicPartition(f"{PREFIX}{topic}", n, 0) for topic in DEAD_LETTERS for n in range(PARTITIONS)]
        self._dead.assign(places)
        self._approver = KafkaPublisher(self.settings("approver"), partitions=PARTITIONS)
        keys.save(self.service, self.folder / "decision.json")
        self.publish("roles", "roles", ROLES)
        self.put_in_force(OLD)
        self.put_in_force(POLICY)
        for key in (self.service, self.gateway):
            self.publish(f"key/{key.kid}", "key", key.public().content())
        self.publish(f"key/{ASKER.kid}", "key", ASKER.public(actors=("rita",)).content())
        self.supervisor = Supervisor(on_exit=self.falls.append)
        self._stack.callback(self.supervisor.stop)
        self._serve("approval", "approval", REFOLD_APPROVAL__KEY=str(self.folder / "decision.json"))
        for pool, more in EXECUTORS.items():
            self._serve(f"executor.{pool}", f"executor-{pool}", "--pool", pool, **more)

    def settings(self, role: str) -> KafkaSettings:
        """How a role reaches the topics of this play."""
        return self.cluster.settings(role, PREFIX)

    def _environment(self, role: str, **more: str) -> dict[str, str]:
        kafka = self.settings(role)
        return {
            **os.environ,
            "EFFECTS": str(self.folder / "world"),
            "REFOLD_ENVIRONMENT": ENVIRONMENT,
            "REFOLD_KAFKA__BOOTSTRAP": kafka.bootstrap,
            "REFOLD_KAFKA__PREFIX": kafka.prefix,
            "REFOLD_KAFKA__PARTITIONS": str(kafka.partitions),
            "REFOLD_KAFKA__OPTIONS": json.dumps(kafka.options),
            "REFOLD_REDIS__URL": self.valkey.url,
            "REFOLD_EXECUTOR__CHAINED_LEASE_MS": str(LEASE_MS),
            "REFOLD_TRUST": PINNED,
            **more,
        }

    def _serve(self, role: str, name: str, *words: str, **more: str) -> None:
        environment, service = self._environment(role, **more), role.partition(".")[0]
        served = (service, "--app", "tests.security.app:app", "--member", name)
        command = (sys.executable, "-m", "refold", "serve", *served)
        self.supervisor.add(Child(name, (*command, *words), self.folder / f"{name}.log", environment))

    # Authority and operator

    def publish(self, name: str, kind: str, content: Any) -> None:
        """Puts an entry into the catalog, signed, with the authority's credentials."""
        spread(self._authority, PARTITIONS, entry(name, kind, content))

    def slip(self, said: CatalogEntry) -> None:
        """Writes an entry into the catalog as it is, with rights to the topic and without the root key."""
        spread(self._authority, PARTITIONS, said)

    def slip_tombstone(self, name: str) -> None:
        """Takes an entry of the catalog out of every partition, as far as the broker is concerned."""
        for number in range(PARTITIONS):
            self._authority.send_raw("catalog", number, key=name.encode(), value=None, headers=[])

    def put_in_force(self, policy: Policy) -> None:
        """Publishes a policy and makes it the current one."""
        self.publish(f"policy/{policy.digest}", "policy", policy.content)
        self.publish("current", "current", policy.digest)

    def retire(self, policy: Policy) -> None:
        """Takes a policy out of the catalog."""
        self.publish(f"policy/{policy.digest}", "policy", None)

    def revoke(self, key: SigningKey) -> None:
        """Publishes that nothing holds any more that a key has signed."""
        self.publish(f"key/{key.kid}", "key", key.public(revoked=True).content())

    def operate(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command with the operator's credentials; whether it worked is for the caller to see."""
        command = [sys.executable, "-m", "refold", *words]
        environment = self._environment("operator")
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    # People

    def vote(self, request: ApprovalRequest, actor: str, action: str = "approve", **more: Any) -> str:
        """Somebody says something of a request, through a gateway with its credentials; returns the token."""
        vote = secrets.token_hex(8)
        token = self.ballot(request, actor, action, vote=vote, **more)
        self.cast(request, token, vote=vote)
        return token

    def ballot(
        self,
        request: ApprovalRequest,
        actor: str,
        action: str = "approve",
        *,
        key: SigningKey | None = None,
        **more: Any,
    ) -> str:
        """The signed vote of somebody; the gateway signs it."""
        said = Vote(
            approval=request.approval_id,
            question=request.question,
            environment=request.environment,
            actor=actor,
            action=action,
            issued=time.time_ns() // 1_000_000,
            **{"vote": secrets.token_hex(8), **more},
        )
        return signature.sign(said.payload(), key or self.gateway)

    def cast(self, request: ApprovalRequest, token: str, *, vote: str) -> tuple[int, int]:
        """A gateway hands on what is said to be a vote on a request; returns where it lies."""
        return self._approver.send(ApprovalVote(request.approval_id, vote, request.run_id, token))

    # What fails

    def crash(self, service: str) -> None:
        """Kills a service; it is started again."""
        with self.supervisor.down(service):
            pass

    # The outside world

    def effects(self) -> Counter[str]:
        """How many lines there are, by label."""
        return Counter(line.split()[1] for line in self.lines("effects"))

    def effects_of(self, label: str, *, file: str = "effects") -> Counter[str]:
        """How many lines of a label there are, by tool; in `received` are all that reached a receiver."""
        return Counter(line.split()[0] for line in self.lines(file) if line.split()[1] == label)

    def lines(self, name: str) -> list[str]:
        """The lines of a file of the outside world."""
        file = self.folder / "world" / name
        return file.read_text().splitlines() if file.exists() else []

    def said(self, service: str) -> list[dict[str, Any]]:
        """The log lines of a service."""
        lines = (self.folder / f"{service}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def void(self, service: str, name: str) -> list[str]:
        """Why entries of a name are void, as a service has told."""
        told = [line for line in self.said(service) if line["event"] == "catalog.void"]
        return [str(line["reason"]) for line in told if line["name"] == name]

    def ended_grants(self) -> set[str]:
        """The grants that the approval service has ended."""
        return {line["grant"] for line in self.said("approval") if line["event"] == "grant.revoked"}

    def put_away(self, approval: str) -> dict[str, str]:
        """Why the approval service could not use what came for an approval, by code; `held` is what it waits for.

        `second` is the alarm that another question about its call is open.
        """
        found = {}
        for line in self.said("approval"):
            if line["event"] == "approval.held" and line["approval_id"] == approval:
                found["held"] = line["reason"]
            if line["event"] == "question.second" and line["approval_id"] == approval:
                found["second"] = f"a second question beside {', '.join(line['others'])}"
        for letter in self._letters():
            key = letter.key.decode()
            if letter.service == "approval" and (key == approval or key.startswith(f"{approval}/")):
                found[letter.code] = letter.reason
        return found

    def _letters(self) -> list[DeadLetter]:
        """The dead letters, as an operator reads them."""
        for message in self._dead.consume(500, 0):
            if message.error() is None:
                self._known.append(codec.decode(DeadLetter, message.value() or b""))
        return self._known
