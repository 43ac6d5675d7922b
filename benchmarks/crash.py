"""What a `kill -9` costs: the time until all runs in flight are done, and effects that happened twice.

`python -m benchmarks.crash` tells for each effect class how many tool bodies a killed executor made run a second
time, and how many of these the receiver recognised by their key. One JSON line a crash.
"""

from __future__ import annotations

import argparse
import json
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.approvals import ALLOW, put_in_force
from benchmarks.engine import TRUST, Engine
from benchmarks.peers.load import STEPS

from refold.client.operations.approvals import Approvals
from refold.client.operations.runs import Runs
from refold.core.approval.ballot import Vote
from refold.core.approval.policy import Policy
from refold.core.messages import ApprovalRequest
from refold.dev.kafka import EmbeddedKafka
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime import keys, logging

RUNS = 50
AGENTS = ("ten_keyed", "ten_probed", "ten_once")
POLICY = Policy.parse({"doubt": {"approvers": ["bench"], "not_requester": False}, "rules": [ALLOW]})


def crash(
    engine: Engine,
    victim: str,
    agent: str,
    *,
    restart: Callable[[], None] | None = None,
    people: People | None = None,
) -> dict[str, Any]:
    """Kills the victim when half of the effects of 50 runs have happened; the supervisor restarts it at once.

    `restart` kills and starts a victim that is not a service of the engine (the broker). `people` settle what is in
    doubt.
    """
    runs = engine.client.start(agent, RUNS)
    _wait_for_effects(engine, runs, RUNS * STEPS // 2)
    begun = time.perf_counter()
    if restart:
        restart()
    else:
        engine.kill(victim)
    doubts = people.settle(runs) if people else 0
    engine.client.finish(runs, timeout_s=60)
    recovered = time.perf_counter() - begun
    seen = [tuple(line.split()) for line in _lines(engine, runs)]
    bodies = Counter((run, step) for run, step, _, _ in seen)
    counts = Counter((run, step) for run, step, what, _ in seen if what == "effect")
    return {
        "victim": victim,
        "agent": agent,
        "all_done_s": round(recovered, 2),
        "effects": sum(counts.values()),
        "effects_expected": RUNS * STEPS,
        "effects_twice": sum(count - 1 for count in counts.values()),
        "bodies_run_again": sum(count - 1 for count in bodies.values()),
        "absorbed_by_key": sum(what == "again" for _, _, what, _ in seen),
        "in_doubt": doubts,
    }


class People:
    """One whom the policy names for doubts, with the approval service that counts their votes."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._log = engine, KafkaLogReader(engine.settings)
        self._key, decides = keys.new("vote", "bench"), keys.new("decision", "bench")
        file = engine.folder / f"{decides.kid}.json"
        keys.save(decides, file)
        put_in_force(engine.settings, POLICY, self._key, decides)
        engine.serve("approval", "--key", str(file))
        self._publisher = KafkaPublisher(engine.settings, partitions=engine.settings.partitions)

    def settle(self, runs: set[bytes]) -> int:
        """Answers every call in doubt until all runs are over, by looking into the receiver's file."""
        log, settings = Runs(self._log), self._engine.settings
        approvals = Approvals(self._log, TRUST, partitions=settings.partitions)
        settled: set[str] = set()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            mine = [run for run in log.all() if run.state.run_id.encode() in runs]
            if sum(run.state.over for run in mine) == len(runs):
                return len(settled)
            happened = {tuple(line.split()[:2]) for line in _lines(self._engine, runs)}
            register = approvals.read()
            for run in mine:
                for line in run.timeline.in_doubt:
                    asked = line.asked and register.find(line.asked.approval_id)
                    if asked and line.call_id not in settled:
                        i = str(line.step - 1)  # the agent does nothing but calls, so its first step is call 0
                        self._vote(approvals, asked.request, result=i if (run.state.run_id, i) in happened else "")
                        settled.add(line.call_id)
            time.sleep(0.2)
        raise TimeoutError("calls are in doubt after a minute")

    def _vote(self, approvals: Approvals, asked: ApprovalRequest, *, result: str) -> None:
        vote = Vote(
            approval=asked.approval_id,
            vote=secrets.token_hex(8),
            question=asked.question,
            environment=asked.environment,
            actor="bench",
            action="answer" if result else "approve",
            issued=time.time_ns() // 1_000_000,
            result=result,
        )
        approvals.send(vote, self._key, self._publisher)


def _lines(engine: Engine, runs: set[bytes]) -> list[str]:
    if not engine.effects.exists():
        return []
    lines = engine.effects.read_text().split("\n")
    return [line for line in lines if line and line.split()[0].encode() in runs]


def _wait_for_effects(engine: Engine, runs: set[bytes], count: int) -> None:
    deadline = time.monotonic() + 60
    while len(_lines(engine, runs)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} effects did not happen in a minute")
        time.sleep(0.002)


def main() -> None:
    """Kills the executor so often for each effect class, on a broker and a Valkey of its own."""
    parser = argparse.ArgumentParser(prog="benchmarks.crash", description=__doc__)
    parser.add_argument("--crashes", type=int, default=3, help="crashes per effect class")
    crashes = parser.parse_args().crashes
    logging.configure("bench")
    with tempfile.TemporaryDirectory(prefix="refold-crash-") as name:
        folder = Path(name)
        with EmbeddedKafka(folder / "kafka") as kafka, EmbeddedValkey(folder / "valkey") as valkey:
            engine = Engine(kafka.bootstrap, valkey.url, folder, sync=True)
            people = People(engine)
            for agent in AGENTS:
                for _ in range(crashes):
                    print(
                        json.dumps(crash(engine, "executor", agent, people=people if agent == "ten_once" else None)),
                        flush=True,
                    )
            engine.close()


if __name__ == "__main__":
    main()
