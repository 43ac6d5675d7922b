"""Random asyncio and anyio programs are the same again in another process, with another hash seed, at every cut."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.sdk.programs.grammar import program
from tests.sdk.programs.parts import LEAVES, TREES
from tests.sdk.programs.plants import PLANTS


def play(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.sdk.programs", "--jobs", "1", *arguments]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.stdout, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    if not found["wrong"]:
        assert told.returncode == 0
    return found


def test_random_programs_do_the_same_again_in_another_process() -> None:
    found = play("--programs", "400")  # `make sim` plays 50,000

    assert found["wrong"] == []
    assert found["outcomes"] > 4_000


def test_every_prefix_of_some_programs_leads_to_the_same_place() -> None:
    found = play("--programs", "60", "--seed", "3000", "--cuts", "0")

    assert found["wrong"] == []
    assert found["cuts"] == found["outcomes"] + found["programs"] + len(found["wrong"])


@pytest.mark.parametrize("plant", PLANTS)
def test_programs_differ_without_a_rule_of_the_loop(plant: str) -> None:
    found = play("--programs", "100", "--plant", plant)

    assert found["wrong"] != []  # the first of 3 to 9, as the hash seeds of the two processes have it


def test_a_program_is_made_of_its_seed() -> None:
    assert str(program(7)) == str(program(7)) != str(program(8))


def test_every_construct_is_in_some_program() -> None:
    text = " ".join(str(program(seed)) for seed in range(300))

    assert [name for name in {**LEAVES, **TREES} if name not in text] == []
