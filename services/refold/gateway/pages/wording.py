"""A step in a few words, and the difference of two texts."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from refold.gateway.pages.chart import step_kind
from refold.views.approval import readable
from refold.views.model import json_text
from refold.views.steps import RunStep
from refold.views.words import tool_name

BRIEF_CHARS = 90
MOST_NESTED = 6
"""Of parts in a message."""
BEFORE_AFTER = (("before", "after"), ("old", "new"), ("old_text", "new_text"), ("old_string", "new_string"))
MOST_DIFFED = 200_000
"""Characters of texts that are compared; larger ones are shown as they are."""
DECIDED = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "approved with other arguments",
    "answer": "answered in its place",
    "expire": "decided in time",
}
_WORDS = re.compile(r"\w+|\W")


def name_of(step: RunStep) -> str:
    """Return the name of a step as people call it."""
    return called_name(step.name)


def called_name(name: str) -> str:
    """Return the name of a tool or model as people call it."""
    agent, is_model, _ = name.partition("__model.")
    return f"{agent}: model" if is_model else tool_name(name)


def brief(step: RunStep) -> str:
    """Return what a step is about: its label, what a model said, or the arguments that say most."""
    if step.label:
        return step.label
    if step_kind(step) == "model":
        return _said(json_text(step.result))
    args = json_text(step.args if step.args else step.result if step.kind in ("note", "event", "signal") else "")
    if not isinstance(args, dict):
        return "" if args is None else str(args)[:BRIEF_CHARS]
    told = [
        str(value) for key, value in args.items() if not key.startswith("$") and isinstance(value, str | int | float)
    ]
    return ", ".join(sorted((text for text in told if text and "\n" not in text), key=len)[:3])[: 2 * BRIEF_CHARS]


class SaidLine(NamedTuple):
    """A thing that somebody has said. `kind`: note, user, model, call, tool or people; `note`: why it is not proven."""

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
"""Who speaks in a part of a message, and in which way."""


def said_lines(message: Any, depth: int = 0) -> list[SaidLine]:
    """Return what a message or an answer of a model contains, in order: of pydantic-ai, or with a role and content."""
    if not isinstance(message, dict) or depth > MOST_NESTED:
        return [SaidLine("the model", "model", json_lines(message))] if depth == 0 else []
    if isinstance(message.get("part_kind"), str):
        who, kind = PARTS.get(message["part_kind"], (message["part_kind"], "note"))
        tool = tool_name(str(message.get("tool_name") or ""))
        return [
            SaidLine(f"{who} {tool}".strip(), kind, json_lines(message.get("args" if kind == "call" else "content")))
        ]
    if isinstance(message.get("role"), str):
        kind = {"user": "user", "assistant": "model", "tool": "tool"}.get(message["role"], "note")
        return [SaidLine(message["role"], kind, json_lines(message.get("content")))]
    told = message.get("instructions")
    found = [SaidLine("instructions", "note", told)] if isinstance(told, str) and told else []
    parts = message.get("parts", message.get("response"))
    for part in parts if isinstance(parts, list) else [parts] if parts else []:
        found += said_lines(part, depth + 1)
    return found or ([SaidLine("the model", "model", json_lines(message))] if depth == 0 else [])


def json_lines(value: Any) -> str:
    """Return a text as it is, and JSON data in lines."""
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    except RecursionError:
        return "it is nested too deep to be shown"


def _said(result: Any) -> str:
    """The words of a model's answer, or the calls that it asks for."""
    lines = said_lines(result, 1)
    texts = [line.text for line in lines if line.kind == "model"]
    calls = [line.who.rpartition(" ")[2] for line in lines if line.kind == "call"]
    return " ".join(texts) or (f"asks for {', '.join(calls)}" if calls else "")


class DiffLine(NamedTuple):
    """A line of a diff. `change`: `add`, `del` or nothing; `parts` are pieces of its text, with those that changed."""

    change: str
    old: int
    new: int
    parts: list[tuple[bool, str]]


class TextDiff(NamedTuple):
    """Two arguments that are a text before and after."""

    title: str
    lines: list[DiffLine]
    added: int
    removed: int


def diff_of(args: str) -> TextDiff | None:
    """Return the change that arguments describe; None where they describe none."""
    return change_in(json_text(args))


def change_in(found: Any) -> TextDiff | None:
    """Return the change that arguments describe, as data; None where they describe none."""
    if not isinstance(found, dict):
        return None
    for old, new in BEFORE_AFTER:
        before, after = found.get(old), found.get(new)
        if isinstance(before, str) and isinstance(after, str) and len(before) + len(after) <= MOST_DIFFED:
            rest = [
                str(value)
                for key, value in found.items()
                if key not in (old, new) and not key.startswith("$") and isinstance(value, str | int)
            ]
            return text_diff(", ".join(rest)[:200], before, after)
    return None


def changed_args(before: str, after: str) -> TextDiff:
    """Return the change of arguments by somebody, a line for each argument and for each line of a text."""
    return _counted("arguments", list(_diffed(readable(before), readable(after))))


def text_diff(title: str, before: str, after: str) -> TextDiff:
    """Return the change from one text to another."""
    return _counted(title, list(_diffed(before.split("\n"), after.split("\n"))))


def _counted(title: str, lines: list[DiffLine]) -> TextDiff:
    added, removed = (sum(line.change == change for line in lines) for change in ("add", "del"))
    return TextDiff(title, lines, added, removed)


def _diffed(before: list[str], after: list[str]) -> Iterator[DiffLine]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(3):
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from (DiffLine("", a + n + 1, c + n + 1, [(False, before[a + n])]) for n in range(b - a))
                continue
            one_to_one = tag == "replace" and b - a == d - c
            for n in range(a, b):
                yield DiffLine(
                    "del", n + 1, 0, _parts(before[n], after[c + n - a], 0) if one_to_one else [(False, before[n])]
                )
            for n in range(c, d):
                yield DiffLine(
                    "add", 0, n + 1, _parts(before[a + n - c], after[n], 1) if one_to_one else [(False, after[n])]
                )


def _parts(before: str, after: str, side: int) -> list[tuple[bool, str]]:
    """A line in pieces, each with True if it is not on the other side."""
    words = _WORDS.findall(before), _WORDS.findall(after)
    found: list[tuple[bool, str]] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        first, last = ((a, b), (c, d))[side]
        if first < last:
            found.append((tag != "equal", "".join(words[side][first:last])))
    return found
