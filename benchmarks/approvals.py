"""What approvals cost: a policy on every call, and runs that wait for people."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.engine import Engine
from benchmarks.measure import STEPS, memory_mib
from benchmarks.policy import WHENS

from refold.adapters.kafka.publisher import KafkaPublisher
from refold.adapters.kafka.reader import KafkaLogReader
from refold.client import catalog
from refold.core import canonical
from refold.core.messages import CatalogEntry
from refold.core.policy import Policy
from refold.embedded.valkey import EmbeddedValkey
from refold.runtime.settings import KafkaSettings

IDLE_S = 5.0
DEADLINE_S = 300.0

ALLOWING = Policy.parse(
    {
        "rules": [
            *({"name": f"never {n}", "when": f"({when}) && false", "deny": "no"} for n, when in enumerate(WHENS[:-1])),
            {"name": "all", "when": "true", "allow": True},
        ]
    }
)
"""Ten rules of which the last lets everything out: every call pays for all of them."""


def policy_rates(engine: Engine, load: int, repeat: int) -> dict[str, Any]:
    """Steps/s at 100 in flight without a policy and with ten rules, in turns, because the machine drifts."""
    rates: dict[str, list[int]] = {"without": [], "with": []}
    put_in_force(engine.settings, ALLOWING, current=False)
    for _ in range(max(3, repeat)):
        for name, found in rates.items():
            put_in_force(engine.settings, ALLOWING, current=name == "with")
            engine.client.drive("ten", 100, in_flight=100)
            begun = time.perf_counter()
            engine.client.drive("ten", load, in_flight=100)
            found.append(round(load * STEPS / (time.perf_counter() - begun)))
    put_in_force(engine.settings, ALLOWING, current=False)
    share = [on / off for off, on in zip(rates["without"], rates["with"], strict=True)]
    return {**rates, "share": round(statistics.median(share), 3)}


def put_in_force(settings: KafkaSettings, policy: Policy, *, current: bool) -> None:
    """Publishes a policy, and whether new runs get it."""
    publisher = KafkaPublisher(settings, partitions=settings.partitions, source="bench")
    text, digest = canonical.dumps(policy.content), policy.digest if current else ""
    for entry in (
        CatalogEntry(f"policy/{policy.digest}", "policy", text),
        CatalogEntry("current", "current", canonical.dumps(digest)),
    ):
        catalog.publish(publisher, settings.partitions, entry)


def waiting(kafka: str, valkey: EmbeddedValkey, folder: Path, runs: int) -> dict[str, Any]:
    """What so many runs that wait for people cost a planner, over what it costs without them: memory and CPU."""
    engine = Engine(kafka, valkey.url, folder, sync=False)
    try:
        pid = engine.pid("planner")
        before, idle = memory_mib([pid]), _share(pid)
        engine.client.start("asks", runs)
        _until_asked(engine.settings, runs)
        after, share = memory_mib([pid]), _share(pid)
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


def _share(pid: int) -> float:
    """The share of a core that a process uses while nothing happens."""
    used = _cpu_s(pid)
    time.sleep(IDLE_S)  # what is measured is a stretch of time
    return (_cpu_s(pid) - used) / IDLE_S


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
