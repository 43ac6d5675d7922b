"""`make conformance` says so where there is no Node, and fails where a judge does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mcp import conformance


def judge(tmp_path: Path, says: str, code: int = 0) -> str:
    script = tmp_path / "npx"
    script.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    script.chmod(0o755)
    return str(script)


def test_without_node_nobody_judges(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main(None) == 0
    assert "no npx here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("says", "code", "ends"),
    [
        ("Passed: 2/2, 0 failed", 0, 0),
        ("Passed: 1/2, 1 failed", 1, 1),
        ("Passed: 0/0", 0, 1),
        ("no such package", 1, 1),
    ],
)
def test_one_scenario_that_fails_is_enough(tmp_path: Path, says: str, code: int, ends: int) -> None:
    assert conformance.main(judge(tmp_path, says, code)) == ends
