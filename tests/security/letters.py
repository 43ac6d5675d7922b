"""Attacks by way of an operator who clears the dead letters: a planner may have written what a letter says."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count

from refold.core.ids import home
from refold.core.messages import CatalogEntry, DeadLetter, RunRequest
from refold.core.wire import canonical, codec
from tests.kafka.secured import PARTITIONS
from tests.security.hijack import Hijack, Outcome, ask_for
from tests.security.plays import Play
from tests.security.swapped import Desk
from tests.security.unsigned import OWN, forged


def plays() -> Iterator[Play]:
    """The attacks."""
    yield Play("a letter from the catalog makes a key of one's own", key_by_letter)
    yield Play("a letter from the catalog makes other roles", roles_by_letter)
    yield Play("a letter tells of an input that nobody sent", made_up_input)
    yield Play("a letter tells of an input in other words", other_words)
    yield Play("a letter says that a good vote is void", good_vote_called_void)
    for topic in ("dead-letter-approval", "dead-letter-executor", "run-stream.default"):
        yield Play(f"a planner writes into {topic}", partial(Hijack.forbidden, topic=topic, key="r", value=b"{}"))


def key_by_letter(hijack: Hijack) -> Outcome:
    """And, if the operator sends it, use it: by a run that lives where a letter with such a key goes."""
    partition = home("key", PARTITIONS)
    names = (f"{hijack.label}-key-{number}" for number in count())
    call = hijack.call(run=next(name for name in names if home(name, PARTITIONS) == partition))
    entry = CatalogEntry(f"key/{OWN.kid}", "key", canonical.dumps(OWN.public().content()))
    outcome = replayed(hijack, letter("catalog", partition, key=entry.name, value=codec.encode(entry)))
    used = hijack.refused(call, forged(call, OWN))
    return outcome if used.stopped else used


def roles_by_letter(hijack: Hijack) -> Outcome:
    entry = CatalogEntry("roles", "roles", '{"roles":{"lead":["eve"]},"revoked":[]}')
    return replayed(hijack, letter("catalog", 0, key="roles", value=codec.encode(entry)))


def made_up_input(hijack: Hijack) -> Outcome:
    """Nothing lies at the place that it names."""
    request = RunRequest(hijack.call().run, "archived_values", "null", requester="ada")
    return replayed(hijack, letter("run-requested", 0, key=request.run_id, value=codec.encode(request), offset=1 << 40))


def other_words(hijack: Hijack) -> Outcome:
    """Something lies there, and it says something else."""
    request = RunRequest(hijack.call().run, "archived_values", "null", requester="eve")
    place = hijack.write("run-requested", 0, key=request.run_id, value=codec.encode(request))
    said = codec.encode(RunRequest(request.run_id, "archived_values", "null", requester="ada"))
    return replayed(hijack, letter("run-requested", 0, key=request.run_id, value=said, offset=place))


def letter(topic: str, partition: int, *, key: str, value: bytes, offset: int = 41) -> DeadLetter:
    """What an operator would want to send again."""
    reason = "a newer schema: send it again after the upgrade"
    return DeadLetter(topic, partition, offset, "malformed", reason, key.encode(), value, "planner-1", 0)


def replayed(hijack: Hijack, content: DeadLetter) -> Outcome:
    """Lays a letter where the operator finds it, who sends it again."""
    offset = hijack.write("dead-letter", 0, key=content.key.decode(), value=codec.encode(content))
    done = hijack.stage.operate("deadletter", "replay", f"0/{offset}", "--yes")
    return Outcome(done.returncode != 0, f"operator: {' '.join((done.stderr or done.stdout).split())}")


def good_vote_called_void(hijack: Hijack) -> Outcome:
    """One of two people has agreed; her vote is good, whatever a planner says of it."""
    request = ask_for(hijack.call(how="two"), rule="two")
    hijack.ask(request)
    vote = secrets.token_hex(8)
    partition, offset = hijack.stage.cast(request, hijack.stage.ballot(request, "ada", vote=vote), vote=vote)
    said = letter("approval-voted", partition, key=request.approval_id, value=b"", offset=offset)
    value = codec.encode(replace(said, code="too_many", service="approval"))
    hijack.write("dead-letter", partition, key=request.approval_id, value=value)
    found = Desk(hijack).approvals.get(request.approval_id)
    return Outcome([found.fate(vote) for vote in found.said] == ["counts"], f"client: void {found.count.void}")
