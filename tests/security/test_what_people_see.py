"""What a screen would hide or show as something else is spelt out before people agree to it."""

from __future__ import annotations

import json
import sys
from types import FunctionType
from typing import cast

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from refold.cli import output
from refold.core.approval.decision import Cast, build, refusal, shown_as_edit
from refold.core.messages import ToolRequest
from refold.engine.runtime.logging import configure
from refold.engine.runtime.text import visible
from refold.sdk.tool import ToolDef
from tests.approval.questions import NOW, request

BLANK = "\u3164\uffa0\u115f\u1160\u2800\u034f\ufe0f\U000e0100\U000e0041\u180b\u17b4\u2060\u00a0\u3000\u00ad"
TURNED = "\u202e\u2066\u200f\u061c"
ARGS = '{"after":"b","before":"a","path":"p"}'
CONTROLS = "\x1b\x7f\x9b\r\n\t\x00\u2028"


class Terminal:
    """A stream that says it is a screen."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("char", [*BLANK, *TURNED, *CONTROLS, "\ue000", "\ufff9"])
def test_what_has_no_shape_or_turns_the_text_is_spelt_out(char: str) -> None:
    assert visible(f"a{char}b") == f"a<U+{ord(char):04X}>b"


@pytest.mark.parametrize("char", ["\u0336", "\u0338", "\u20dd", "\u20e5"])
def test_a_mark_that_strikes_letters_out_is_spelt_out(char: str) -> None:
    assert visible(f"n{char}o{char}t") == f"n<U+{ord(char):04X}>o<U+{ord(char):04X}>t"


def test_a_pile_of_marks_is_counted_and_not_drawn() -> None:
    assert visible("x" + "\u0301" * 1_950) == "x" + "\u0301" * 2 + "<1948 times U+0301>"
    assert visible("e\u0301\u0323") == "e\u0301\u0323"


@pytest.mark.parametrize(("filler", "told"), [(" ", "<4000 spaces>"), ("\u3164", "<4000 times U+3164>")])
def test_no_run_of_blanks_pushes_the_end_off_the_screen(filler: str, told: str) -> None:
    assert visible("api" + filler * 4_000 + "&& rm -rf /") == f"api{told}&& rm -rf /"
    assert visible("    return 1") == "    return 1"


def test_letters_from_right_to_left_reorder_nothing_around_them() -> None:
    assert visible("a שלום 12 b") == "a \u2067שלום\u2069 12 b"  # noqa: RUF001
    assert visible("مُحَمَّد") == "\u2067مُحَمَّد\u2069"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("p\u0430ypal.com", "p\u0430ypal<Cyrillic and Latin letters>.com"),
        ("\u0440\u0430\u0443", "\u0440\u0430\u0443<Cyrillic letters>"),
        ("user_\u0456d", "user_\u0456d<Cyrillic and Latin letters>"),
        ("p\u0301\u0430\u0301y", "p\u0301\u0430\u0301y<Cyrillic and Latin letters>"),
        ("\uff41pi \U0001d41a \ufb01", "<U+FF41>pi <U+1D41A> <U+FB01>"),
    ],
)
def test_letters_that_are_taken_for_others_are_flagged(text: str, told: str) -> None:
    assert visible(text) == told


@pytest.mark.parametrize(
    "text",
    ["Zürich 東京 → ok", "日本語カタカナ", "한국어 漢字", "слово и hello", "tiếng Việt", "½ x² ™ … 😀", "Ἀθῆναι"],
)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@given(st.text())
def test_whatever_is_written_is_one_line_that_can_be_read(text: str) -> None:
    shown = visible(text)

    assert len(shown.splitlines()) <= 1
    assert shown.replace("\u2067", "").replace("\u2069", "").isprintable()


def test_json_on_a_terminal_is_ascii_and_for_a_program_what_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"text": f"ü{TURNED}{CONTROLS}"}
    output.emit(value)
    piped = capsys.readouterr().out
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)

    output.emit(value)

    assert "ü" in piped
    assert screen.text.isascii()
    assert screen.text.rstrip("\n").isprintable()
    assert json.loads(screen.text) == json.loads(piped) == value


def test_a_service_on_a_terminal_logs_nothing_that_turns_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    configure("planner")
    structlog.get_logger().warning("call.refused", reason="a\u202eb\u3164c", names=["\u202e"])
    try:
        raise ValueError("d\u202ee")
    except ValueError:
        structlog.get_logger().exception("lane.failed")

    assert not set(TURNED + "\u3164") & set(screen.text)
    assert "a<U+202E>b<U+3164>c" in screen.text
    assert "d<U+202E>e" in screen.text


def test_a_planner_cannot_say_that_a_tool_is_shown_as_an_edit() -> None:
    def change(path: str, before: str, after: str) -> str:
        return path + before + after

    plain, edit = ToolDef(cast(FunctionType, change)), ToolDef(cast(FunctionType, change), shown_as="edit")
    asked = request(tool="change", version=plain.version, schema=edit.facts.schema, args=ARGS)
    decision = build(asked, "approve", votes=(Cast("ada", "role:lead", "login", "v", 1),), issued_ms=NOW, nonce="n")

    order = ToolRequest(
        asked.call_id, asked.run_id, 1, 1, 7, "change", ARGS, asked.key, "once", timeout_ms=1_000, at_ms=NOW
    )

    found = [refusal(decision, order, tool.facts, environment="test", now_ms=NOW) for tool in (edit, plain)]

    assert shown_as_edit(asked)
    assert [each and each.code for each in found] == [None, "tool_changed"]
