"""`refold halt`: what it says, and what a lane of every partition then knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refold.client.catalog import read
from refold.core.approval.signature import trusted
from refold.engine.adapters.kafka.reader import KafkaLogReader
from tests.cli.terminal import refold
from tests.cli.test_keys import Shop, folder, shop

__all__ = ["folder", "shop"]
CALL = {"agent": "coder", "tool": "edit_file", "pool": "files", "requester": "ada"}


def said(shop: Shop, *words: str, code: int = 0) -> Any:
    """What a command says with --json."""
    done = refold(*words, "--kafka", shop.settings.bootstrap, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if code == 0 else done.stderr


def why(shop: Shop) -> list[str]:
    """Why a call is halted, as each partition tells it."""
    trust = trusted((shop.folder / "keys" / "root.pub").read_text().strip())
    there = read(KafkaLogReader(shop.settings), trust)
    return [each.halts.why(**CALL) for each in there.partitions]


def test_what_is_halted_is_so_in_every_partition_until_it_goes_on(shop: Shop) -> None:
    said(shop, "halt", "--tool", "edit_file", "--agent", "coder", "--reason", "it writes elsewhere")
    assert all(each.endswith("is halted: it writes elsewhere") for each in why(shop))
    listed = said(shop, "halt", "--list")

    left = said(shop, "halt", "--lift", "--agent", "coder")["halts"]

    assert [row["what"] for row in listed] == ["agent coder", "tool edit_file"]
    assert [row["what"] for row in left] == ["tool edit_file"]
    assert set(why(shop)) == {"tool edit_file is halted: it writes elsewhere"}
    found = json.loads(refold("doctor", "--kafka", shop.settings.bootstrap, "--json").stdout)["findings"]
    assert [finding["verdict"] for finding in found if "edit_file is halted" in finding["what"]] == ["warning"]
    said(shop, "halt", "--lift", "--tool", "edit_file")
    assert set(why(shop)) == {""}


def test_something_is_halted_for_a_reason_and_something_has_to_be_named(shop: Shop) -> None:
    assert "for a reason" in said(shop, "halt", "--all", code=2)
    assert "say what is meant" in said(shop, "halt", "--reason", "x", code=2)
    assert "say what is meant" in said(shop, "halt", "--lift", code=2)
    assert set(why(shop)) == {""}


def test_an_operator_of_another_environment_publishes_nothing_here(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    said(shop, "halt", "--tool", "edit_file", "--reason", "it writes elsewhere")

    monkeypatch.setenv("REFOLD_ENVIRONMENT", "staging")
    refused = said(shop, "halt", "--pool", "files", "--reason", "meant for staging", code=2)

    assert f"this is the catalog of dev/{shop.settings.prefix}" in " ".join(refused.split())
    assert set(why(shop)) == {"tool edit_file is halted: it writes elsewhere"}
