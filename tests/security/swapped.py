"""Attacks between the look and the word: a person is shown one question, and their word is to be one on another.

Ada looks and approves by the client that the command line and every gateway use, with an approver's credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from refold.client.operations.approvals import Approvals
from refold.core.errors import RefoldError
from refold.core.ids import home
from refold.core.messages import ApprovalRequest
from refold.core.wire import canonical
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from tests.kafka.secured import PARTITIONS
from tests.roots import TRUST
from tests.security.hijack import Call, Hijack, Outcome, ask_for, asks
from tests.security.plays import Play
from tests.waiting import eventually


def plays() -> Iterator[Play]:
    """The attacks, and that an honest approver gets through."""
    yield Play("the question is swapped after ada has looked, and she approves", swapped)
    yield Play("the same, said to be escalated", lambda h: swapped(h, level=1))
    yield Play("the same, after a tombstone for the first", lambda h: swapped(h, closed=True))
    yield Play("she names the call alone while two questions are open", two)
    yield Play("a first question that the service puts away, to be shown alone", unsound)
    yield Play("another question in a record of the first one's name", lambda h: renamed(h, harmless(h), ask_for))
    yield Play("the first one again without its expiry, for an old vote", reread)
    yield Play("what she approved is what happens", honest, "control", allowed=1)


class Desk:
    """Ada's terminal: she sees what the client shows, and her word names what she has seen."""

    def __init__(self, hijack: Hijack) -> None:
        self._hijack, settings = hijack, hijack.stage.settings("approver")
        self.approvals = Approvals(KafkaLogReader(settings), TRUST, partitions=PARTITIONS)
        self._publisher = KafkaPublisher(settings, partitions=PARTITIONS)

    def look(self, name: str) -> ApprovalRequest:
        """What she is shown under a name."""
        return self.approvals.get(self.approvals.named(name)).request

    def approve(self, shown: ApprovalRequest) -> None:
        """She approves of what she was shown."""
        vote = self.approvals.vote(shown.approval_id, "approve", question=shown.question, actor="ada")
        self.approvals.send(vote, self._hijack.stage.gateway, self._publisher)


def harmless(hijack: Hijack) -> Call:
    """What ada would let out."""
    return hijack.call(how="plain")


def malicious(call: Call) -> Call:
    """The same call, and what she would not."""
    return replace(call, args=canonical.dumps({"how": "worse", "label": canonical.parse(call.args)["label"]}))


def swapped(hijack: Hijack, *, level: int = 0, closed: bool = False) -> Outcome:
    call, desk = harmless(hijack), Desk(hijack)
    first, second = ask_for(call), ask_for(malicious(call), level=level)
    hijack.ask(first)
    shown = desk.look(call.id)
    hijack.ask(second)
    if closed:
        hijack.write("approval-requested", home(call.run, PARTITIONS), key=first.approval_id, value=None)
        return _refuses(hijack, lambda: desk.approve(shown), second)
    desk.approve(shown)
    outcome = hijack.refused(malicious(call), hijack.token(first.approval_id))
    alarm = hijack.stage.put_away(second.approval_id).get("second", "")
    if not (outcome.stopped and alarm and hijack.undecided(second)):
        return Outcome(False, f"{outcome.where}; the alarm: {alarm or 'none'}")
    return Outcome(True, f"{outcome.where}, approval: {alarm}")


def two(hijack: Hijack) -> Outcome:
    call, desk = harmless(hijack), Desk(hijack)
    second = ask_for(malicious(call))
    hijack.ask(ask_for(call))
    hijack.ask(second)
    return _refuses(hijack, lambda: desk.approve(desk.look(call.id)), second)


def unsound(hijack: Hijack) -> Outcome:
    """All is right of it but its key, which nobody looks at: the client must not show what the service refuses."""
    call, desk = harmless(hijack), Desk(hijack)
    hijack.ask(ask_for(call, key="0" * 64))
    second = ask_for(malicious(call))
    return _refuses(hijack, lambda: desk.approve(desk.look(call.id)), second)


def renamed(hijack: Hijack, call: Call, asking: Callable[..., ApprovalRequest]) -> Outcome:
    """Compaction would keep the later record of one key."""
    desk, first, second = Desk(hijack), asking(call), asking(malicious(call))
    hijack.ask(first)
    shown = desk.look(call.id)
    hijack.ask(replace(second, approval_id=first.approval_id))
    desk.approve(shown)
    outcome = hijack.refused(malicious(call), hijack.token(first.approval_id))
    put_away = eventually(lambda: hijack.stage.put_away(first.approval_id).get("malformed"), what="a dead letter")
    return outcome if put_away else Outcome(False, "the other question was not put away")


def reread(hijack: Hijack) -> Outcome:
    """Ada has said yes to a question of two that ended; bob says it later to what looks the same and never ends."""
    call = hijack.call(how="two")
    brief = replace(asks("two"), expires_ms=60_000)
    first = ask_for(call, rule="two", requirement=brief)
    hijack.ask(first)
    token = hijack.stage.vote(first, "ada")
    hijack.write("approval-requested", home(call.run, PARTITIONS), key=first.approval_id, value=None)
    again = ask_for(call, rule="two")
    hijack.ask(again)
    hijack.stage.cast(again, token, vote="old-word")
    hijack.stage.vote(again, "bob")
    return hijack.use(call, again, by="wrong_question")


def honest(hijack: Hijack) -> Outcome:
    call, desk = harmless(hijack), Desk(hijack)
    hijack.ask(ask_for(call))
    shown = desk.look(call.id)
    desk.approve(shown)
    found = hijack.order(call, hijack.token(shown.approval_id))
    return Outcome(found.status == "completed", f"executor: {found.status}")


def _refuses(hijack: Hijack, act: Callable[[], Any], second: ApprovalRequest) -> Outcome:
    """Ada's own client says no, and nothing comes of the second question."""
    try:
        act()
    except RefoldError as error:
        hijack.ask(second)
        return Outcome(hijack.undecided(second), f"client: {error.message}")
    return Outcome(False, "the client let ada vote")
