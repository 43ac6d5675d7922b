"""Text that models, tools and people may write, and a run with it in every field."""

from __future__ import annotations

import json
from typing import Any

from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    CallFailed,
    CallProposed,
    ChildCompleted,
    ChildStarted,
    Event,
    Failure,
    NoteRecorded,
    Requirement,
    RetryPolicy,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunStarted,
    StatusSet,
)
from refold.core.wire.conversation import chained, json_digest, whole_digest
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
HEAVY = {
    "unbroken": json.dumps("x" * 2**20),
    **{f"list-{deep}": "[" * deep + "]" * deep for deep in (500, 10_000)},
    **{f"object-{deep}": '{"a":' * deep + "1" + "}" * deep for deep in (65, 500, 10_000)},
}
"""JSON texts that are large or deep, by name: each is a value of a run of its own, see `nested`."""


def hostile(run: str, text: str, *, over: bool = False) -> list[Pair]:
    """A run of which every text that somebody else may write is this one. While it is not over it asks people."""
    asked = {"messages": [{"instructions": text, "parts": [{"part_kind": text}, text, {"part_kind": "tool-call"}]}]}
    args = json.dumps(
        {**asked, "path": text, "before": f"a\n{text}\nb", "after": f"a\n{text}{text[:9]}\nb", text[:40]: [text]}
    )
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


def nested(run: str, value: str) -> list[Pair]:
    """A run that is over, with this JSON text in the place of every value. No service of ours writes one so deep."""
    asked = f'{{"messages":[{{"parts":[{{"part_kind":"user-prompt","content":{value}}}]}}],"$run":{{}},"digest":"0"}}'
    model = CallProposed(1, "coder__model.request", asked, "k1", "model", "pure", 1_000, RetryPolicy())
    edit = CallProposed(2, "edit", value, "k2", "default", "once", 1_000, RetryPolicy())
    question = ApprovalRequested(2, 1, 1, "p", "rule", Requirement(["ada"]), "dev", "1", "s", f"{2:032x}")
    decided = ApprovalDecided(2, 1, "edit", actors=["ada"], args=value)
    return entries(
        run,
        [RunRequested("shop", value, "d", "s", "ann"), RunStarted("1", "app"), model, CallDispatched(1, 1, NOW)],
        [CallCompleted(1, 1, f'{{"response":{value}}}'), edit, question, NoteRecorded(3, "n", value)],
        [decided, ChildStarted(4, "shop", value), CallDispatched(2, 1, NOW)],
        [CallCompleted(2, 1, value), RunCompleted(value)],
    )


def talk(run: str, digest: str = "") -> list[Pair]:
    """A run in which a model is asked twice and a person agrees to a call; a `digest` stands in place of the second."""
    first = {"instructions": "You are calm.", "parts": [{"part_kind": "user-prompt", "content": "What is up?"}]}
    said = {"kind": "response", "parts": [{"part_kind": "text", "content": "Let me look."}]}
    gave = {"parts": [{"part_kind": "tool-return", "tool_name": "look", "content": "All is well."}]}
    named = {"parts": [{"part_kind": "tool-return", "tool_name": "look", "$result": 2}]}

    def asked(messages: list[dict[str, Any]], whole: list[dict[str, Any]], **more: Any) -> str:
        so_far = b""
        for message in whole:
            so_far = chained(so_far, json_digest(message))
        found = whole_digest(so_far, "m", {}, None, json_digest(None))
        base: dict[str, Any] = {"model": "m", "settings": None, "parameters": None, "$run": {}, "messages": messages}
        return json.dumps({**base, "digest": found, **more})

    def model(step: int, args: str) -> CallProposed:
        about = "coder__model.request", args, f"k{step}", "model", "pure", 1_000, RetryPolicy()
        return CallProposed(step, *about, builds_on=list(range(1, step)))

    again = {"instructions": "You are calm.", **gave}
    second = asked(
        [{"$said": 1}, {"$instructions": True, **named}],
        [first, said, again],
        on=1,
        **({"digest": digest} if digest else {}),
    )
    look = CallProposed(2, "look", "{}", "k2", "default", "pure", 1_000, RetryPolicy())
    question = ApprovalRequested(2, 1, 1, "p", "rule", Requirement(["ada"]), "dev", "1", "s", f"{2:032x}")
    decided = ApprovalDecided(2, 1, "approve", actors=["ada"], message="Good.")
    bye = {"response": {"kind": "response", "parts": [{"part_kind": "text", "content": "Bye."}]}}
    return entries(
        run,
        [RunRequested("coder", "{}", "d", "s", "ann"), RunStarted("1", "app"), model(1, asked([first], [first]))],
        [CallCompleted(1, 1, json.dumps({"response": said})), look, question],
        [decided, CallCompleted(2, 1, '"All is well."'), model(3, second)],
        [CallCompleted(3, 1, json.dumps(bye)), RunCompleted("1")],
    )


def reads(run: str) -> list[Pair]:
    """A run that reads, fails to, tries again, and reads."""

    def read(step: int, tool: str = "look") -> list[Event]:
        retry = RetryPolicy()
        return [
            CallProposed(step, tool, "{}", f"k{step}", "default", "pure", 1_000, retry),
            CallDispatched(step, 1, NOW),
        ]

    begun: list[Event] = [RunRequested("shop", "{}", "d", "s", "ann"), RunStarted("1", "app")]
    batches: list[list[Event]] = [[*begun, *read(1)]]
    for step in range(1, 17):
        tool = "coder__model.request" if step == 12 else "look"
        batches.append([CallCompleted(step, 1, "1"), *read(step + 1, tool)])
        if step == 8:
            batches[-1][0] = CallFailed(step, 1, Failure("declined", "no"))
        if step == 9:
            again: list[Event] = [AttemptFailed(step, 1, Failure("lost", "?"), True, NOW), CallDispatched(step, 2, NOW)]
            batches.insert(-1, again)
            batches[-1][0] = CallCompleted(step, 2, "1")
    return entries(run, *batches)


def parent(run: str, *, below: bool) -> list[Pair]:
    """A run that has started another, or that pays."""
    begun: list[Event] = [RunRequested("shop", "{}", "d", "s", "ann"), RunStarted("1", "app")]
    batches: list[list[Event]]
    if below:
        batches = [[*begun, ChildStarted(1, "shop", "{}")], [ChildCompleted(1, "completed", "1")]]
    else:
        pay = CallProposed(1, "pay", "{}", "k1", "default", "once", 1_000, RetryPolicy())
        batches = [[*begun, pay, CallDispatched(1, 1, NOW)], [CallCompleted(1, 1, "1")]]
    return entries(run, *batches, [RunCompleted("1")])
