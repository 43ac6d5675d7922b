"""The kinds of lies, and by what a service says that it has refused one: its own alarms, never a liar's word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_ANOTHER = "the decision is for another "
_VOTE = "a vote behind the decision is void: "
_SEALED = "ledger.unreadable: no executor of this pool has written it"

KINDS: Mapping[str, tuple[str, ...]] = {
    # Questions
    "a false question": ("request.void: the request has another ",),
    "a second question": ("question.second: ",),
    "a question in another's place": (
        "request.void: the request has another question",
        "request.void: the request has another name",
    ),
    "a made-up doubt": ("the decision answers a question about something else",),
    "a false doubt": ("request.void: the request has another doubt", "request.void: the request has another subject"),
    # Orders, and the decisions that come with them
    "no decision": ("the call needs a decision and came without",),
    "a flag": ("the token has not three parts",),
    "unsigned": ("the signature has not N bytes",),
    "a stranger's key": ("no key stranger-N is known",),
    "a forged key": ("the key approval-N did not sign this",),
    "tampered": ("the key approval-N did not sign this",),
    "another's decision": (f"{_ANOTHER}call", f"{_ANOTHER}run"),
    "other arguments": (f"{_ANOTHER}arguments",),
    "other arguments, old key": (f"{_ANOTHER}arguments",),
    "spaced arguments": (f"{_ANOTHER}arguments' text",),
    "another run": (f"{_ANOTHER}run",),
    "another call": (f"{_ANOTHER}call",),
    "a twin": (f"{_ANOTHER}call",),
    "another step": (f"{_ANOTHER}step",),
    "another tool": (f"{_ANOTHER}tool",),
    "an unknown tool": ("there is no tool wipe_all here",),
    "another class": (f"{_ANOTHER}effect class", f"{_ANOTHER}class"),
    "another key": (f"{_ANOTHER}key",),
    "another policy": (f"{_ANOTHER}policy",),
    "a higher attempt": ("the decision is for attempts N to N, not N",),
    "a lower attempt": ("the decision is for attempts N to N, not N",),
    "another partition": ("the call is not at home in this partition",),
    "an order to another pool": (
        "wipe_push is a tool of pool ",
        "wipe_book is a tool of pool ",
        "wipe_pay is a tool of ",
    ),
    # What is sent once, sent again
    "a second attempt": ("in doubt",),
    "a second attempt, by a permission": ("the decision answers a question about something else",),
    "a second attempt, by the word on another call": (f"{_ANOTHER}call", f"{_ANOTHER}run"),
    "a second attempt, by a word of before": ("the decision is about what came before attempt N",),
    # Votes, and decisions that the approval service's own host has made of them
    "an accomplice's key": ("N of N people stand behind the decision",),
    "a vote on another question": ("vote.void: wrong_question", f"{_VOTE}the vote answers another question"),
    "a vote of the future": ("vote.void: future", f"{_VOTE}the vote is dated N s ahead"),
    "a vote of long ago": ("vote.void: outlived", f"{_VOTE}the vote is too old by now"),
    "a vote in another's name": (
        "unauthorised: the key ada-N does not speak for ",
        "a vote does not hold: the key ada-N does not speak for ",
    ),
    "a vote that remembers too much": (
        "vote.void: not_remembered",
        f"{_VOTE}its rule lets an approval be remembered",
    ),
    "a decision of one vote, twice": ("N of N people stand behind the decision",),
    "a decision of others' votes": (f"{_VOTE}the vote answers another question",),
    # What is around
    "a letter": ("a letter, ",),
    "a result of another pool": ("input.dead: wrong_pool",),
    "a lease, made up": (_SEALED,),
    "a lease, copied": ("ledger.unreadable: it is of another call",),
    "a result in Redis, made up": (_SEALED,),
    "a result in Redis, copied": ("ledger.unreadable: it is the result of another attempt",),
    "an outcome in Redis, made up": (_SEALED,),
    "an outcome in Redis, copied": ("ledger.unreadable: it is the result of another call",),
    "an entry, unsigned": ("catalog.void: the token has not three parts",),
    "an entry, by another root": ("catalog.void: no key root-N is known",),
    "an entry, by a forged root": ("catalog.void: the key root-N did not sign this",),
    "an entry, tampered": ("catalog.void: the signature is of another entry",),
    "an entry of before": ("catalog.void: the counter goes back from N to N",),
    "a tombstone in the catalog": ("catalog.void: a tombstone takes nothing back",),
}
"""By what is told, how what services say of it begins. Two lies may be refused by one rule."""

ENOUGH = 2_000
"""Sieges after which a kind of lie that nobody has refused has not been tried."""


class Told(NamedTuple):
    """How often a kind of lie was told, and how often what refuses it was said."""

    times: int
    refused: int


def tally(counts: Mapping[str, int]) -> dict[str, Told]:
    """Every kind of lie by what was counted in sieges."""
    said = {name.removeprefix("refused: "): times for name, times in counts.items() if name.startswith("refused: ")}
    return {
        kind: Told(counts.get(f"lie: {kind}", 0), sum(times for text, times in said.items() if text.startswith(begins)))
        for kind, begins in KINDS.items()
    }
