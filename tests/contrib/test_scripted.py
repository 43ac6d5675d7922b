"""A model that answers from a file: by how far a conversation is and what was said last, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold import TerminalError, UsageError
from refold.contrib.pydantic_ai import ScriptedModel

LINES = """
{"turn": 1, "calls": [{"tool": "price", "args": {"item": "egg"}}]}
{"turn": 2, "when": "sold out", "text": "There are no eggs."}
{"turn": 2, "text": "An egg costs 3."}
"""


def script(folder: Path, text: str) -> Path:
    place = folder / "shop.jsonl"
    place.write_text(text)
    return place


def test_the_first_line_of_a_turn_counts_whose_words_were_said(tmp_path: Path) -> None:
    model = ScriptedModel(script(tmp_path, LINES))

    assert [call.tool for call in model.find(1, "an egg").calls] == ["price"]
    assert [model.find(2, said).text for said in ("sold out", "3", "sold out")] == [
        "There are no eggs.",
        "An egg costs 3.",
        "There are no eggs.",
    ]
    with pytest.raises(TerminalError, match="no answer in turn 3"):
        model.find(3, "and a goose?")


@pytest.mark.parametrize("line", ['{"turn": 0}', '{"turn": 1, "say": "x"}', "no JSON"])
def test_a_script_that_is_none_is_refused_when_it_is_read(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match="no answer of a model"):
        ScriptedModel(script(tmp_path, line))


def test_a_script_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        ScriptedModel(tmp_path / "other.jsonl")
