"""What approvals cost: a policy on every call, and runs that wait for people."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.engine import AUTHORITY, TRUST, Engine
from benchmarks.measure import memory_mib
from benchmarks.peers.load import STEPS

from refold.client import catalog
from refold.core.approval.policy import Policy
from refold.core.approval.signature import SigningKey
from refold.core.messages import CatalogEntry
from refold.core.wire import canonical
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.settings import KafkaSettings

IDLE_S = 5.0
ROUNDS = 8
DEADLINE_S = 300.0

DENIED = (
    'tool.name == "drop_table" && environment == "prod"',
    '"dangerous" in tool.tags',
    'environment == "staging" && tool.effect == "once"',
    'agent == "janitor" && run.calls > 100',
    'actor == "mallory"',
    "run.calls > 1000",
    'has(args.path) && !args.path.startsWith("sandbox/")',
    '"team" in run.labels && run.labels.team == "payments"',
    "has(args.i) && args.i > 1000000",
)
"""Rules of which none is about the workload: four look at the tool, the agent and the place, five at the call."""

ALLOW: dict[str, Any] = {"name": "all", "when": "true", "allow": True}
DENY = [{"name": f"never {number}", "when": when, "deny": "no"} for number, when in enumerate(DENIED)]
POLICIES = {
    "none": None,
    "allows all": Policy.parse({"rules": [ALLOW], "fallback": {"approvers": ["*"]}}),
    "ten rules": Policy.parse({"rules": [*DENY, ALLOW]}),
}
"""No policy, one that allows all, and ten rules of which the last does: every call has to pass the other nine."""


def policy_rates(engine: Engine, load: int) -> dict[str, Any]:
    """Steps/s at 100 in flight under each policy, and the shares of the rate without one: medians over rounds.

    The machine drifts by more than a policy costs, so rounds are short and many, and every second one is turned.
    """
    rates: dict[str, list[int]] = {name: [] for name in POLICIES}
    for number in range(ROUNDS):
        for name in list(POLICIES)[:: -1 if number % 2 else 1]:
            put_in_force(engine.settings, POLICIES[name])
            engine.client.drive("ten", min(50, load), in_flight=100)
            begun = time.perf_counter()
            engine.client.drive("ten", load, in_flight=100)
            rates[name].append(round(load * STEPS / (time.perf_counter() - begun)))
    put_in_force(engine.settings, None)
    shares = {
        name: round(statistics.median(on / off for off, on in zip(rates["none"], found, strict=True)), 3)
        for name, found in rates.items()
    }
    return {"steps_per_s": rates, "shares": shares}


def put_in_force(settings: KafkaSettings, policy: Policy | None, *known: SigningKey) -> None:
    """Publishes a policy that new runs get, or that they get none, and what people and services sign with."""
    publisher = KafkaPublisher(settings, partitions=settings.partitions, source="bench")
    entries = [CatalogEntry(f"key/{key.kid}", "key", canonical.dumps(key.public().content())) for key in known]
    entries += [CatalogEntry("current", "current", canonical.dumps(policy.digest if policy else ""))]
    if policy:
        entries.insert(-1, CatalogEntry(f"policy/{policy.digest}", "policy", canonical.dumps(policy.content)))
    catalog.publish(publisher, catalog.read(KafkaLogReader(settings), TRUST), entries, AUTHORITY)


def waiting(kafka: str, valkey: EmbeddedValkey, folder: Path, runs: int) -> dict[str, Any]:
    """What so many runs that wait for people cost a planner, over what it costs without them: memory and CPU."""
    engine = Engine(kafka, valkey.url, folder, sync=False)
    try:
        put_in_force(engine.settings, POLICIES["allows all"])
        pid = engine.pid("planner")
        idle, before = _share_at_rest(pid), memory_mib([pid])
        engine.client.start("asks", runs)
        _until_asked(engine.settings, runs)
        share, after = _share_at_rest(pid), memory_mib([pid])
        return {"runs": runs, "mib": round(after - before, 1), "cpu_share": round(max(0.0, share - idle), 4)}
    finally:
        engine.close()


def _until_asked(settings: KafkaSettings, runs: int) -> None:
    asked, deadline = 0, time.monotonic() + DEADLINE_S
    for record in KafkaLogReader(settings).tail("approval-requested"):
        asked += record is not None
        if asked >= runs:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{asked} of {runs} runs wait for people after {DEADLINE_S:g} s")


def _share_at_rest(pid: int) -> float:
    """The share of a core that a process uses once it has done what was to do, and given memory back."""
    share, deadline = 1.0, time.monotonic() + DEADLINE_S
    while (now := _share(pid)) < 0.8 * share and time.monotonic() < deadline:
        share = now
    return min(share, now)


def _share(pid: int) -> float:
    """The share of a core that a process uses while nothing happens."""
    used = _cpu_s(pid)
    time.sleep(IDLE_S)  # what is measured is a stretch of time
    return (_cpu_s(pid) - used) / IDLE_S


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
