"""`make contract` names what is missing where there is no Node, and fails where the program does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract import outside_node


def node_of(tmp_path: Path, version: str) -> str:
    script = tmp_path / "node"
    script.write_text(f"#!/bin/sh\necho {version}\n")
    script.chmod(0o755)
    return str(script)


def test_without_node_it_fails_and_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert outside_node.main(None, "npm") == 2
    assert outside_node.main("node", None) == 2
    assert "install Node 20 or newer" in capsys.readouterr().err


@pytest.mark.parametrize(("version", "reason"), [("v18.1.0", "not v18.1.0"), ("what", "not what"), ("v22.0.0", "")])
def test_an_old_node_is_named(tmp_path: Path, version: str, reason: str) -> None:
    assert outside_node.missing(node_of(tmp_path, version), "npm").endswith(reason)


def test_packages_have_their_versions_and_no_lock_file_is_kept() -> None:
    assert all(each.rpartition("@")[2].count(".") == 2 for each in outside_node.PACKAGES)
    assert {each.name for each in outside_node.PROGRAM.parent.iterdir()} == {outside_node.PROGRAM.name}
