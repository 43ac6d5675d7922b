"""In which order files begin, and which stay together.

The longest begin first, so that no worker is left with one when the others are through. Files that share a server that
is slow to start go to one worker, one after the other: each worker would start its own.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent
SHARED = ("dev: Dev", "secured_cluster: SecuredCluster")
"""How a test asks for a server that takes ten seconds to start, and two processes or three while it lives."""

LONGEST = (
    "docs/test_live.py",
    "sdk/test_programs.py",
    "cli/test_live.py",
    "cli/test_client_live.py",
    "cli/test_init.py",
    "recovery/test_hostile_code.py",
    "security/test_open_to_everybody.py",
    "sim/test_faults.py",
    "sim/test_bugs.py",
    "planner/test_family.py",
    "benchmarks/test_bench.py",
    "chaos/test_rolling.py",
    "chaos/test_slice.py",
    "security/test_hijacked_planner.py",
    "security/test_vote_floods.py",
    "recovery/test_leaderless.py",
    "incident/test_killed.py",
    "fuzz/test_forgeries.py",
    "sim/test_byzantine.py",
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
"""Files of more than 15 s, the longest first. What `pytest --durations` says matters more than the exact order."""


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts tests by the weight of their file; xdist keeps to that with `--no-loadscope-reorder`."""
    ranks = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


class Together(LoadFileScheduling):
    """Gives a worker a file at a time, or all files that share a server."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(super()._split_scope(nodeid))


@cache
def _scope(file: str) -> str:
    text = (TESTS.parent / file).read_text()
    return next((shared for shared in SHARED if shared in text), file)
