"""In which order files begin: the longest first, so that no worker is left with one when the others are through."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONGEST = (
    "docs/test_live.py",
    "recovery/test_hostile_code.py",
    "benchmarks/test_bench.py",
    "recovery/test_leaderless.py",
    "security/test_hijacked_planner.py",
    "sim/test_faults.py",
    "sim/test_bugs.py",
    "security/test_floods.py",
    "packaging/test_installed.py",
    "cli/test_live.py",
    "archive/test_canaries.py",
    "incident/test_killed.py",
    "chaos/test_slice.py",
    "cli/test_demo.py",
    "embedded/test_secured.py",
    "kafka/test_compaction.py",
    "embedded/test_kafka.py",
    "kafka/test_mirrored.py",
    "kafka/test_acl_matrix.py",
    "approval/test_killed.py",
)
"""Files of more than 15 s, the longest first. What `pytest --durations` says matters more than the exact order."""


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts tests by the weight of their file; xdist keeps to that with `--no-loadscope-reorder`."""
    ranks = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
