"""Texts and JSON data of a megabyte, of the kinds that cost most to show: how long each holds a page, in CPU time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from refold.console.pages.rendering import data, lines, seen
from refold.console.pages.wording import MOST_DIFF_LINES, TextDiff, change_in, changed_args, said_lines, text_diff
from tests.waiting import under_load

MOST_S = 2.0
MB = 1_000_000
HALF = MB // 2

PAIRS = {
    "equal words": ("a " * (MB // 4), "a " * (MB // 4 - 1) + "b"),
    "words in another order": ("x y " * (MB // 8), "y x " * (MB // 8)),
    "blanks": (" " * HALF, " " * (HALF - 1) + "x"),
    "equal lines": ("a\n" * (MB // 4), "a\n" * (MB // 8) + "b\n" * (MB // 8)),
    "pairs of lines": ("a b\n" * (MB // 8), "a c\n" * (MB // 8)),
    "lines in another order": tuple("\n".join(map(str, order)) for order in (range(70_000), range(70_000, 0, -1))),
    "one line of many": ("x\n" * 100_000, "x\n" * 50_000 + "y\n" + "x\n" * 50_000),
    "as many short lines as are compared one by one": (
        "\n".join(["a b " * 150] * 600),
        "\n".join(["b a " * 150] * 600),
    ),
    "few lines that stand often": ("a\nb\n" * 150, "b\na\n" * 150),
    "letters of all scripts": ("aя漢א\u0301 " * (MB // 20), "яa漢א\u0301 " * (MB // 20)),
}
TEXTS = {
    "ascii": "a" * MB,
    "lines": "a\n" * HALF,
    "unseen": "\x01" * MB,
    "unseen in turn": "\x01\x02" * (MB // 4),
    "right to left": "א" * MB,
    "marks": "a\u0301" * HALF,
    "words of two scripts": "aя " * (MB // 3),
    "many letters": "".join(map(chr, range(0x4E00, 0x9FFF))) * (MB // 20_000),
}
VALUES = {
    "depth": [json.loads("[" * 60 + "]" * 60)] * 2_480,
    "wide and deep": json.loads("[" * 60 + "0," * HALF + "0" + "]" * 60),
    "keys": {f"k{number}": number for number in range(MB // 16)},
    "objects in objects": json.loads('{"a":' * 60 + "0" + "}" * 60),
    "numbers": [0] * HALF,
}


def took(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.parametrize("name", PAIRS)
def test_no_difference_of_two_texts_takes_long(name: str) -> None:
    before, after = PAIRS[name]
    found = list[TextDiff]()

    def shown() -> None:
        change = change_in({"before": before, "after": after})
        assert change is not None
        found.extend((change, text_diff("", before, after)))

    assert took(shown) < under_load(MOST_S)
    assert took(lambda: changed_args(*(json.dumps({"text": text}) for text in (before, after)))) < under_load(MOST_S)
    for change in found:
        assert change.sides == (before, after) or (change.lines and len(change.lines) <= MOST_DIFF_LINES)


def test_a_small_change_of_much_code_is_shown_line_by_line() -> None:
    before = [f"line {number}\n\n}}" for number in range(3_000)]
    after = [line.replace("line", "row") if number % 100 == 0 else line for number, line in enumerate(before)]
    change = text_diff("", "\n".join(before), "\n".join(after))

    assert (change.sides, change.added, change.removed) == (None, 30, 30)


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_takes_long_to_be_spelt_out(name: str) -> None:
    assert took(lambda: seen(TEXTS[name])) < under_load(MOST_S)
    assert took(lambda: lines(TEXTS[name], 2 * MB)) < under_load(MOST_S)


@pytest.mark.parametrize("name", VALUES)
def test_no_data_takes_long_to_be_shown_in_lines(name: str) -> None:
    text = ""

    def shown() -> None:
        nonlocal text
        text = data(VALUES[name], 10 * MB)

    assert took(shown) < under_load(MOST_S)
    assert len(text) < 2 * MB
    assert took(lambda: said_lines({"parts": [{"part_kind": "text", "content": VALUES[name]}]})) < under_load(MOST_S)


def test_a_short_field_stands_before_a_long_one_at_each_level() -> None:
    text = data({"a": "x" * 10_000, "in": {"a": "y" * 10_000, "path": "/etc/passwd"}, "to": "eve"}, MB)

    assert text.index('"to"') < text.index("/etc/passwd") < 200
