"""Those who decide on dangerous calls: each in their own way, some late, some twice, and some who may not."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from refold.core.approval import signature
from refold.core.approval.ballot import Remember, Vote
from refold.core.approval.signature import SigningKey
from refold.core.ids import home
from refold.core.messages import ApprovalVote
from refold.core.wire import canonical, codec
from refold.engine.runtime import keys
from refold.engine.runtime.settings import KafkaSettings
from tests.chaos import raw
from tests.chaos.actor import Actor, producer
from tests.chaos.raw import Fields, Raw
from tests.chaos.rules import ONCALL, REQUESTER, STRANGER

EDITED, ANSWERED = 7, -424_242
"""The amount that people agree to when they edit, and the result that they give when they answer."""

VOTED = "approval-voted"
_MOODS = {"approve": 60, "edit": 16, "reject": 14, "answer": 10}


@dataclass(frozen=True, slots=True)
class Said:
    """A vote as it was meant. `void` is why it may never count, empty for one that may.

    `uses` is how often the same call may pass again, until `until_ms`; 0 for a vote on this one alone.
    """

    approval: str
    actor: str
    action: str
    void: str = ""
    uses: int = 0
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Word:
    """Somebody's intention: what they will say, after so many seconds. `twice`: the same record a second time."""

    after_s: float
    actor: str
    action: str
    void: str = ""
    twice: bool = False
    remember: Remember | None = None


class People(Actor):
    """A thread that votes on every request it sees. Nobody leaves a question open that does not expire.

    `votes` are all that were meant, by id, `asked` what was read: its topic is cleaned after ten minutes. `gone` tells
    who may not decide at the moment: others do, but now and then they try.
    """

    def __init__(self, settings: KafkaSettings, key: SigningKey, *, seed: int, gone: Callable[[], str]) -> None:
        super().__init__(f"people-{settings.prefix}")
        self._settings, self._key, self._random, self._gone = settings, key, random.Random(seed), gone
        self._forger = keys.new("vote", "forger")
        self.votes: dict[str, Said] = {}
        self.asked: list[Raw] = []
        self.counts: Counter[str] = Counter()
        self._seen: set[tuple[str, int]] = set()
        self._due: list[tuple[float, int, Fields, _Word]] = []
        self._number = 0

    def know(self, approval: str) -> bool:
        """Whether they are asked this: a run asks it in its log first."""
        return (approval, 0) in self._seen

    def _work(self) -> None:
        sender = producer(self._settings.bootstrap)
        for record in raw.tail(self._settings.bootstrap, f"{self._settings.prefix}approval-requested"):
            if record is not None:
                self.asked.append(record)
                if record.value is not None:
                    self._consider(raw.decode(record.value))
                continue
            if self._stopped.is_set():
                sender.flush(10)
                return
            while self._due and self._due[0][0] <= time.monotonic():
                _, _, ask, word = heapq.heappop(self._due)
                self._say(sender, ask, word)
            sender.poll(0)

    def _consider(self, ask: Fields) -> None:
        """Make up all minds about a request. It comes again after a planner's death, and with every escalation.

        What came of a call the operator knows.
        """
        name = ask["approval_id"], ask["level"]
        if name in self._seen:
            return
        self._seen.add(name)
        if ask["about"] == "doubt":
            return
        for word in [*self._noise(), *self._words(ask)]:
            self._number += 1
            heapq.heappush(self._due, (time.monotonic() + word.after_s, self._number, ask, word))

    def _noise(self) -> list[_Word]:
        """What is said and must not count."""
        chance = self._random.random
        noise = [_Word(0, STRANGER, "approve", "unentitled")] if chance() < 0.1 else []
        noise += [_Word(0, REQUESTER, "approve", "requester")] if chance() < 0.1 else []
        noise += [_Word(0, "ada", "approve", "unauthorised")] if chance() < 0.1 else []
        return noise + ([_Word(0, "ada", "comment")] if chance() < 0.1 else [])

    def _words(self, ask: Fields) -> list[_Word]:
        """What is said by those who may: enough of them for a decision, at last."""
        rule, chance = ask["rule"], self._random.random
        mood = self._random.choices(list(_MOODS), list(_MOODS.values()))[0]
        # Nobody edits twice: whoever has edited may not decide, and too few would be left.
        if (mood in ("edit", "answer") and ask["attempt"] > 1) or (mood == "edit" and ask["writers"]):
            mood = "approve"
        begin = 0.0
        if rule == "short":
            if chance() < 0.15:
                return []
            begin = 3.0 if chance() < 0.3 else 0.0
        if rule == "later" and not ask["level"] and chance() < 0.7:
            return []
        people = ["cleo"] if rule == "later" and ask["level"] else ["ada"] if rule == "later" else list(ONCALL)
        people = [name for name in people if name not in ask["writers"]]
        self._random.shuffle(people)
        words: list[_Word] = []
        if (gone := self._gone()) in people:
            words = [_Word(0, gone, "approve")] if chance() < 0.3 else []
            people.remove(gone)
        words += [self._word(begin, actor, mood) for actor in people[: ask["requirement"]["quorum"]]]
        if rule == "two" and len(people) > 2 and chance() < 0.3:
            early = people[0], self._random.choice(("withdraw", "edit" if ask["attempt"] == 1 else "comment"))
            words = [_Word(0, people[0], "approve"), _Word(0.2, *early), *self._agreed(people[1:], mood)]
        return words

    def _agreed(self, people: list[str], mood: str) -> list[_Word]:
        return [self._word(0.4, actor, mood) for actor in people]

    def _word(self, begin: float, actor: str, mood: str) -> _Word:
        late, chance = 4.0 if self._random.random() < 0.08 else 0.6, self._random.random
        remember = None
        if mood == "approve" and chance() < 0.6:
            remember = Remember(self._random.randrange(5_000, 40_000), self._random.randint(1, 2))
        return _Word(begin + self._random.uniform(0, late), actor, mood, twice=chance() < 0.2, remember=remember)

    def _say(self, sender: Producer, ask: Fields, word: _Word) -> None:
        self._number += 1
        name = f"v{self._number}"
        args = dict(canonical.parse(ask["args"]), amount=EDITED)
        vote = Vote(
            approval=ask["approval_id"],
            vote=name,
            question=ask["question"],
            environment=ask["environment"],
            actor=word.actor,
            action=word.action,
            issued=time.time_ns() // 1_000_000,
            args=canonical.dumps(args) if word.action == "edit" else "",
            result=str(ANSWERED) if word.action == "answer" else "",
            remember=word.remember,
        )
        for_ms, uses = word.remember or (0, 0)
        self.votes[name] = Said(vote.approval, word.actor, word.action, word.void, uses, vote.issued + for_ms)
        self.counts[f"votes.{word.void or word.action}"] += 1
        token = signature.sign(vote.payload(), self._forger if word.void == "unauthorised" else self._key)
        for _ in range(1 + word.twice):
            self._send(sender, ApprovalVote(vote.approval, name, ask["run_id"], token))

    def _send(self, sender: Producer, message: ApprovalVote) -> None:
        topic, number = f"{self._settings.prefix}{VOTED}", home(message.run_id, self._settings.partitions)
        key: Any = f"{message.approval_id}/{message.vote_id}"
        sender.produce(topic, codec.encode(message), key, number)
