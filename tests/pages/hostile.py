"""Text that models, tools and people may write, and a run with it in every field."""

from __future__ import annotations

import json

from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallCompleted,
    CallDispatched,
    CallFailed,
    CallProposed,
    Event,
    Failure,
    NoteRecorded,
    Requirement,
    RetryPolicy,
    RunFailed,
    RunRequested,
    RunStarted,
    StatusSet,
)
from tests.projections.histories import NOW, Pair, entries

CORPUS = (
    "<script>window.ran=1</script>",
    "<img src=x onerror=window.ran=1>",
    "</script><svg onload=window.ran=1>",
    "\"><body onload='window.ran=1'>",
    "' autofocus onfocus=window.ran=1 x='",
    "javascript:window.ran=1",
    "{{ 7 * 7 }}{% raw %}${7*7}#{7*7}",
    "\u202egnp.exe\u202c \u2066 \u200b \u00ad zero\u200dwidth",
    "p\u0430ypal.com",  # a Cyrillic letter
    "\x1b[31mred\x1b[0m \x07 \x00 \r\n next",
    "--><!-- ]]> &lt; &amp;",
    "x" * 3_000,
    "\ud800 alone",
    "👩‍👩‍👧‍👦 ﷽ Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!",
)


def hostile(run: str, text: str, *, over: bool = False) -> list[Pair]:
    """A run of which every text that somebody else may write is this one. While it is not over it asks people."""
    args = json.dumps({"path": text, "before": f"a\n{text}\nb", "after": f"a\n{text}{text[:9]}\nb", text[:40]: [text]})
    said = json.dumps({"parts": [{"part_kind": "text", "content": text}]})
    model = CallProposed(1, "coder__model.request", args, "k1", "model", "pure", 1_000, RetryPolicy())
    edit = CallProposed(2, "edit", args, "k2", "default", "once", 1_000, RetryPolicy(), rule=text, label=text)
    pay = CallProposed(4, text[:60], args, "k4", "default", "once", 1_000, RetryPolicy())
    question = ApprovalRequested(
        4, 1, 1, "p", text, Requirement(["ada", text], message=text), "dev", "1", "s", f"{4:032x}"
    )
    failure = Failure("declined", text, text)
    request = RunRequested("shop", json.dumps({"input": text}), "d", "s", text, labels={"team": text}, sessions=["s-1"])
    decided = ApprovalDecided(4, 1, "reject", actors=[text], message=text)
    ending: list[list[Event]] = [[decided, CallFailed(4, 0, failure), RunFailed(failure)]]
    return entries(
        run,
        [request, RunStarted("1", "app"), StatusSet(text), model, CallDispatched(1, 1, NOW)],
        [CallCompleted(1, 1, said), edit, CallDispatched(2, 1, NOW)],
        [CallFailed(2, 1, failure), NoteRecorded(3, text[:80], json.dumps(text)), pay, question],
        *ending[: int(over)],
    )
