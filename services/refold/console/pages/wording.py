"""A step in a few words, conversations in lines, and the difference of two texts."""

import difflib
import json
import re
from collections.abc import Iterator
from difflib import Match
from itertools import islice
from typing import Any, NamedTuple

from refold.client.reading.approval import readable
from refold.client.reading.model import json_text, split_args
from refold.client.reading.steps import RunStep
from refold.client.reading.words import tool_name
from refold.console.pages.chart import step_kind

BRIEF_CHARS = 90
MOST_NESTED = 6
"""Depth of parts in a message."""
BEFORE_AFTER = (("before", "after"), ("old", "new"), ("old_text", "new_text"), ("old_string", "new_string"))
MOST_COMPARED = 400_000
"""Comparisons that a diff may take, some 0.1 s: the worst texts take the square of their length."""
MOST_DIFF_LINES = 2_000
MOST_INDENTED = 50_000
"""Characters of JSON shown in lines: 64 levels indent each line by as many spaces."""
DECIDED = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "approved with other arguments",
    "amend": "edited the arguments of",
    "answer": "answered in its place",
    "expire": "decided in time",
}
RECORDED = ("note", "event", "signal", "answer")
"""Kinds of steps whose request is their result."""
_WORDS = re.compile(r"\w+|\W")


def name_of(step: RunStep) -> str:
    return called_name(step.name)


def called_name(name: str) -> str:
    agent, is_model, _ = name.partition("__model.")
    return f"{agent}: model" if is_model else tool_name(name)


def brief(step: RunStep) -> str:
    """Summarise a step: its label, the text of a model, or the shortest arguments."""
    if step.label:
        return step.label
    if step_kind(step) == "model":
        return _answer_in_brief(json_text(step.result))
    args = json_text(step.args or (step.result if step.kind in RECORDED else ""))
    if not isinstance(args, dict):
        return "" if args is None else str(args)[:BRIEF_CHARS]
    texts = (str(value) for value in split_args(args)[0].values() if isinstance(value, str | int | float))
    lines = [text for text in texts if text and "\n" not in text]
    return ", ".join(sorted(lines, key=len)[:3])[: 2 * BRIEF_CHARS]


class SaidLine(NamedTuple):
    """A message in a conversation. `kind`: note, user, model, call, tool or people; `note`: why it is not proven."""

    who: str
    kind: str
    text: str
    step: int = 0
    seq: int = 0
    agent: str = ""
    note: str = ""


PARTS = {
    "system-prompt": ("instructions", "note"),
    "user-prompt": ("user", "user"),
    "text": ("the model", "model"),
    "thinking": ("the model thinks", "note"),
    "tool-call": ("the model asks for", "call"),
    "tool-return": ("answer of", "tool"),
    "retry-prompt": ("error of", "tool"),
}
"""Speaker and kind of each part of a message."""


def said_lines(message: Any, depth: int = 0) -> list[SaidLine]:
    """Return the lines of a model's message or answer: pydantic-ai's format, or one with role and content."""
    if not isinstance(message, dict) or depth > MOST_NESTED:
        return [SaidLine("the model", "model", json_lines(message))] if depth == 0 else []
    if isinstance(message.get("part_kind"), str) or isinstance(message.get("role"), str):
        return [_line_of(message)]
    instructions = message.get("instructions")
    lines = [SaidLine("instructions", "note", instructions)] if isinstance(instructions, str) and instructions else []
    parts = message.get("parts", message.get("response")) or []
    for part in parts if isinstance(parts, list) else [parts]:
        lines += said_lines(part, depth + 1)
    return lines or ([SaidLine("the model", "model", json_lines(message))] if depth == 0 else [])


def _line_of(part: dict[str, Any]) -> SaidLine:
    if not isinstance(part.get("part_kind"), str):
        kind = {"user": "user", "assistant": "model", "tool": "tool"}.get(part["role"], "note")
        return SaidLine(part["role"], kind, json_lines(part.get("content")))
    who, kind = PARTS.get(part["part_kind"], (part["part_kind"], "note"))
    tool = tool_name(str(part.get("tool_name") or ""))
    return SaidLine(f"{who} {tool}".strip(), kind, json_lines(part.get("args" if kind == "call" else "content")))


def json_lines(value: Any) -> str:
    """Return a text unchanged, or JSON data in lines; large data has one line."""
    if isinstance(value, str):
        return value
    try:
        indent = 1 if len(json.dumps(value)) <= MOST_INDENTED else None
        # Short fields first: a megabyte must not hide them.
        return json.dumps(_short_first(value), ensure_ascii=False, indent=indent)
    except RecursionError:
        return "it is nested too deep to be shown"


def _short_first(value: Any) -> Any:
    if isinstance(value, dict):
        long = {name for name, item in value.items() if isinstance(item, str) and len(item) > BRIEF_CHARS}
        # Names that begin with $ are the framework's own, of which people look for none.
        sizes = {name: len(name) + len(json.dumps(item)) for name, item in value.items()}
        names = sorted(value, key=lambda name: (name[:1] == "$", name in long, sizes[name]))
        return {name: _short_first(value[name]) for name in names}
    return [_short_first(item) for item in value] if isinstance(value, list) else value


def _answer_in_brief(result: Any) -> str:
    lines = said_lines(result, 1)
    texts = [line.text for line in lines if line.kind == "model"]
    calls = [line.who.rpartition(" ")[2] for line in lines if line.kind == "call"]
    return " ".join(texts) or (f"asks for {', '.join(calls)}" if calls else "")


class DiffLine(NamedTuple):
    """A line of a diff. `change`: `add`, `del` or empty; `parts`: pieces of its text, with True for changed ones."""

    change: str
    old: int
    new: int
    parts: list[tuple[bool, str]]


class TextDiff(NamedTuple):
    """A text before and after. `sides`: both whole, in place of lines that take too long."""

    title: str
    lines: list[DiffLine]
    added: int
    removed: int
    sides: tuple[str, str] | None = None


def change_in(change: Any) -> TextDiff | None:
    if not isinstance(change, dict):
        return None
    for old, new in BEFORE_AFTER:
        before, after = change.get(old), change.get(new)
        if isinstance(before, str) and isinstance(after, str):
            rest = {name: item for name, item in change.items() if name not in (old, new) and name[:1] != "$"}
            texts = (item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in rest.values())
            return text_diff(", ".join(sorted(texts, key=len)), before, after)
    return None


def changed_args(before: str, after: str) -> TextDiff:
    return _diff_of("arguments", readable(before), readable(after))


def text_diff(title: str, before: str, after: str) -> TextDiff:
    return _diff_of(title, before.split("\n"), after.split("\n"))


def shown_outcome(step: RunStep) -> str:
    failure = step.failure and f"{step.failure.code}: {step.failure.message}"
    return f"{step.status}\n{failure or json_lines(json_text(step.result))}"


class _Matcher(difflib.SequenceMatcher[str]):
    """Sequence matcher with a budget of comparisons, `left`, shared within a diff."""

    def __init__(self, before: list[str], after: list[str], left: list[int]) -> None:
        # What is there often, as brackets are in code, is looked for in short texts alone.
        super().__init__(None, before, after, autojunk=len(before) * len(after) > MOST_COMPARED)
        self._before, self._places, self._left = before, vars(self)["b2j"], left

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        """Subtract the comparisons of this search from the budget, and search. **Raises** OverflowError beyond it."""
        # It looks at all equal items of the other side for each item, however small the part of that side is.
        self._left[0] -= sum(1 + len(self._places.get(item, ())) for item in self._before[alo:ahi])
        if self._left[0] < 0:
            raise OverflowError
        return super().find_longest_match(alo, ahi, blo, bhi)


def _diff_of(title: str, before: list[str], after: list[str]) -> TextDiff:
    left = [MOST_COMPARED]
    try:
        lines = list(islice(_diff_lines(before, after, left), MOST_DIFF_LINES + 1))
    except OverflowError:
        lines = []
    if (not lines and before != after) or len(lines) > MOST_DIFF_LINES:
        return TextDiff(title, [], len(after), len(before), ("\n".join(before), "\n".join(after)))
    added, removed = (sum(line.change == change for line in lines) for change in ("add", "del"))
    return TextDiff(title, lines, added, removed)


def _diff_lines(before: list[str], after: list[str], left: list[int]) -> Iterator[DiffLine]:
    for group in _Matcher(before, after, left).get_grouped_opcodes(3):
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from (DiffLine("", a + n + 1, c + n + 1, [(False, before[a + n])]) for n in range(b - a))
                continue
            if tag == "replace" and b - a == d - c <= MOST_DIFF_LINES:
                pairs = [_changed_pieces(before[a + n], after[c + n], left) for n in range(b - a)]
                removed, added = [old for old, _ in pairs], [new for _, new in pairs]
            else:
                removed, added = ([[(False, line)] for line in lines] for lines in (before[a:b], after[c:d]))
            yield from (DiffLine("del", n, 0, parts) for n, parts in enumerate(removed, a + 1))
            yield from (DiffLine("add", 0, n, parts) for n, parts in enumerate(added, c + 1))


def _changed_pieces(before: str, after: str, left: list[int]) -> tuple[list[tuple[bool, str]], list[tuple[bool, str]]]:
    """Split both lines into pieces, with True for those that the other lacks."""
    tokens = _WORDS.findall(before), _WORDS.findall(after)
    sides: tuple[list[tuple[bool, str]], list[tuple[bool, str]]] = [], []
    for tag, a, b, c, d in _Matcher(*tokens, left).get_opcodes():
        for side, (first, last) in enumerate(((a, b), (c, d))):
            if first < last:
                sides[side].append((tag != "equal", "".join(tokens[side][first:last])))
    return sides
