"""`refold keys ... --api`: keys are made, shown once, listed and revoked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.console.gateway.apikeys import ApiKeys
from tests.cli.terminal import refold


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "api.json"


def told(file: Path, *words: str) -> Any:
    result = refold("keys", *words, "--api", "--file", str(file), "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_key_is_shown_once_and_counts_until_it_is_revoked(file: Path) -> None:
    made = told(file, "new", "ada", "--role", "approver", "--role", "lead", "--expires", "90d")
    other = told(file, "new", "bot", "--role", "operator")
    keys = ApiKeys(str(file))

    assert [(row["prefix"], row["actor"], row["roles"], row["state"]) for row in told(file, "list")] == [
        (made["prefix"], "ada", ["approver", "lead"], "active"),
        (other["prefix"], "bot", ["operator"], "active"),
    ]
    assert made["key"] not in refold("keys", "list", "--api", "--file", str(file), "--json").stdout + file.read_text()
    found = keys.found(made["key"])
    assert found is not None
    assert found.expires_ms - found.made_ms == pytest.approx(90 * 86_400_000, abs=1_000)
    told(file, "revoke", made["prefix"])
    assert keys.found(made["key"]) is None
    assert keys.found(other["key"]) is not None
    assert refold("keys", "revoke", "--api", made["prefix"], "--file", str(file)).exit_code == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ada",), "nobody could use it for anything"),
        (("ada", "--role", "lead"), "nobody could use it for anything"),
        (("Ada", "--role", "viewer"), "is not the name of a person"),
        (("role:lead", "--role", "viewer"), "is not the name of a person"),
        (("a\x1bda", "--role", "viewer"), "is not the name of a person"),
        (("ada", "--role", "viewer", "--expires", "soon"), "--expires"),
    ],
)
def test_a_key_that_could_not_be_used_is_not_made(file: Path, words: tuple[str, ...], said: str) -> None:
    result = refold("keys", "new", "--api", *words, "--file", str(file))

    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not file.exists()


def test_a_file_has_to_be_named(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    assert refold("keys", "new", "--api", "ada", "--role", "viewer").exit_code == 2
    monkeypatch.setenv("REFOLD_GATEWAY__API_KEYS", str(file))
    assert refold("keys", "new", "--api", "ada", "--role", "viewer").exit_code == 0
    assert file.exists()
