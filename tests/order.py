"""In which order files begin, and which stay together.

The longest begin first, so that no worker is left with one when the others are through. Files that share a server that
is slow to start go to few workers, one file after the other: each worker starts its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

TESTS = Path(__file__).parent
SHARED = {"dev: Dev": 2, "secured_cluster: SecuredCluster": 1}
"""How a test asks for a server that takes ten seconds to start, and how many of it there are, each for one worker.

Tests of a `refold dev` wait most of the time, so two workers end in half the time. Each test has runs of its own.
"""

LONGEST = (
    "tidy/test_linters.py",
    "docs/test_live.py",
    "kafka/test_services.py",
    "security/test_open_to_everybody.py",
    "cli/test_live.py",
    "cli/test_client_live.py",
    "golden/test_seen.py",
    "cli/test_init.py",
    "docs/test_site.py",
    "recovery/test_hostile_code.py",
    "sim/test_faults.py",
    "sdk/test_programs.py",
    "sim/test_bugs.py",
    "sim/test_regressions.py",
    "planner/test_family.py",
    "benchmarks/test_bench.py",
    "chaos/test_rolling.py",
    "chaos/test_slice.py",
    "security/test_hijacked_planner.py",
    "security/test_vote_floods.py",
    "recovery/test_leaderless.py",
    "recovery/test_restored.py",
    "incident/test_killed.py",
    "fuzz/test_forgeries.py",
    "sim/test_byzantine.py",
    "kafka/test_pools_missing.py",
    "planner/test_patience.py",
    "planner/test_halting.py",
    "planner/test_snapshots.py",
    "planner/test_copies.py",
    "sim/test_programs.py",
    "sim/test_minds.py",
    "embedded/test_secured.py",
    "embedded/test_cluster.py",
    "cli/test_demo.py",
    "cli/test_memory_live.py",
    "cli/test_first_steps.py",
    "approval/test_killed.py",
    "recovery/test_stalled.py",
    "security/test_floods.py",
    "packaging/test_installed.py",
    "archive/test_canaries.py",
    "kafka/test_compaction.py",
    "kafka/test_mirrored.py",
    "kafka/test_acl_matrix.py",
    "embedded/test_kafka.py",
    "planner/test_pausing_families.py",
    "fuzz/test_input_path.py",
    "planner/test_admission.py",
    "sim/test_determinism.py",
    "sim/test_shrinking.py",
    "model/test_killed.py",
)
"""Files of more than 15 s, here or in `make test-long`, the longest first. What `pytest --durations` says matters more
than the exact order."""


SERVERS = ("secured_cluster", "dev", "kafka")
"""Fixtures whose users begin first, one after the other: so each of these servers is started once a worker and ends
early, and what waits for servers runs beside what computes."""


def longest_first(items: list[pytest.Item], users: Mapping[str, set[Path]]) -> None:
    """Sorts tests by the servers and by the weight of their file; xdist keeps to that with `--no-loadscope-reorder`."""
    ranks = {TESTS / name: number for number, name in enumerate(LONGEST)}

    def rank(item: pytest.Item) -> tuple[int, int]:
        served = (number for number, name in enumerate(SERVERS) if item.path in users.get(name, ()))
        return next(served, len(SERVERS)), ranks.get(item.path, len(ranks))

    items.sort(key=rank)


class Together(LoadFileScheduling):  # type: ignore[misc]
    """Gives a worker a file at a time, or all files that share one server."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(super()._split_scope(nodeid))


@cache
def _scope(file: str) -> str:
    for shared, servers in SHARED.items():
        files = _fairness(shared)
        if file in files:
            return f"{shared}, {files.index(file) % servers}"
    return file


@cache
def _fairness(shared: str) -> list[str]:
    """The files that ask for a shared server and bring none of their own, the longest first."""
    ranks = {name: number for number, name in enumerate(LONGEST)}
    fixture = f"def {shared.partition(':')[0]}("
    names = [
        str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py") if _asks(path.read_text(), shared, fixture)
    ]
    return [f"tests/{name}" for name in sorted(names, key=lambda name: (ranks.get(name, len(ranks)), name))]


def _asks(text: str, shared: str, fixture: str) -> bool:
    return shared in text and fixture not in text
