"""Who has to agree to what: the policies, the roles and the keys of a campaign, and how they change meanwhile."""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refold.core.approval.policy import Policy
from refold.core.approval.signature import SigningKey
from refold.core.errors import RefoldError
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.runtime import keys
from refold.engine.runtime.settings import KafkaSettings
from tests import roots
from tests.chaos.actor import Actor
from tests.chaos.app import KINDS as KINDS
from tests.roots import spread

REQUESTER = "rita"
"""Asks for every run. She is on call too, and may never decide on her own."""

ONCALL = ("ada", "bob", "cleo", "dan")
"""Four: where one has written arguments and another's right is taken away, two are left for a quorum of two."""
STRANGER = "eve"
SETTLER = "operator"
"""Says what came of calls that are in doubt."""

ROLES: dict[str, Any] = {"roles": {"oncall": [*ONCALL, REQUESTER]}}

GRACE_MS = 12_000
"""How long after a no, after a decree or after the end of its run an effect may still begin that was under way: a
process is held for up to 10 s, and what it had claimed before is past recall."""

_KEPT = {"for": "1m", "uses": 2}

# The end of a call's label says which rule it meets; `short` and `later` run out of time, `brief` decisions do.
_PEOPLE: dict[str, dict[str, Any]] = {
    "two": {"approvers": ["role:oncall"], "quorum": 2, "remember": _KEPT},
    "short": {"approvers": ["role:oncall"], "expires": "2500ms", "on_expiry": "reject", "remember": _KEPT},
    "later": {
        "approvers": ["ada"],
        "expires": "4s",
        "on_expiry": "escalate",
        "escalate": {"to": ["cleo"]},
        "remember": _KEPT,
    },
    "brief": {"approvers": ["role:oncall"], "valid": "3s", "remember": _KEPT},
    "any": {"approvers": ["role:oncall"], "remember": _KEPT},
}


def _policy(people: dict[str, dict[str, Any]], *, recheck: bool) -> Policy:
    rules = [{"name": "harmless", "when": '!("risky" in tool.tags)', "allow": True}]
    rules += [
        {"name": kind, "when": f'args.label.endsWith("-{kind}")', "require": needed} for kind, needed in people.items()
    ]
    return Policy.parse({"recheck": recheck, "doubt": {"approvers": [SETTLER]}, "rules": rules})


POLICY = _policy(_PEOPLE, recheck=False)
STRICT = _policy({**_PEOPLE, "any": _PEOPLE["two"]}, recheck=True)
"""Wants two people for `any`, and every call judged again that another policy has judged."""

_DECREES: dict[str, tuple[str, ...]] = {"roles": ONCALL, "current": (STRICT.digest,)}
_HEARD_S = 1.0
"""How long a service that is up may take to read what was published."""

_PAUSE_S = 2, 8
_BRIEF_S = 1, 4
_LONG_S = GRACE_MS / 1_000 + 10, GRACE_MS / 1_000 + 20
_LONG = 0.4
"""How many decrees last longer than the grace, so that what goes on against them shows. The others meet what is under
way when they come, and when they go."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The two private keys of a campaign; `file` is what the approval services read."""

    decision: SigningKey
    vote: SigningKey
    file: Path

    @staticmethod
    def new(folder: Path) -> Keys:
        """Fresh ones; only the decisions' key has to be a file."""
        made = Keys(keys.new("decision", "chaos"), keys.new("vote", "chaos"), folder / "decision.json")
        keys.save(made.decision, made.file)
        return made


@dataclass(slots=True)
class Decree:
    """A change of the entry `kind` of the catalog. `what` is who may not decide any more (of `roles`), or the policy
    that is to judge every call anew (of `current`); empty when all is as it was.

    **Units**: milliseconds since 1970, before it was published and when every partition had it.
    """

    kind: str
    what: str
    begun_ms: float
    done_ms: float = math.inf


class Ruler(Actor):
    """A thread that decrees something now and then, and takes it back."""

    def __init__(self, settings: KafkaSettings, kind: str, *, seed: int) -> None:
        super().__init__(f"ruler-{kind}")
        self._settings, self._kind, self._random = settings, kind, random.Random(seed)
        self.decrees: list[Decree] = []

    def decreed(self) -> str:
        """What is decreed, as far as the ruler is concerned."""
        return self.decrees[-1].what if self.decrees else ""

    def _work(self) -> None:
        self._publisher = _publisher(self._settings)
        while not self._stopped.wait(self._random.uniform(*_PAUSE_S)):
            what, long = self._random.choice(_DECREES[self._kind]), self._random.random() < _LONG
            self._decree(what, times=1 + long)
            self._stopped.wait(self._random.uniform(*(_LONG_S if long else _BRIEF_S)))
            self._decree("")

    def _decree(self, what: str, *, times: int = 1) -> None:
        """Publishes it; twice if it is to be judged by: a broker that dies after the first has told nobody of it."""
        content: Any = {**ROLES, "revoked": [what] if what else []} if self._kind == "roles" else what or POLICY.digest
        decree = Decree(self._kind, what, time.time() * 1_000)
        self.decrees.append(decree)
        while times:
            try:
                _put(self._publisher, self._settings, (self._kind, self._kind, content))
                times -= 1
            except RefoldError:  # the broker was killed; a producer that is broken for good by that stays so
                self._publisher = _publisher(self._settings)
            threading.Event().wait(_HEARD_S if times else 0)
        decree.done_ms = time.time() * 1_000


def publish(settings: KafkaSettings, own: Keys) -> None:
    """Puts keys, roles and policies into the catalog of a set of topics."""
    publisher = _publisher(settings)
    entries: list[tuple[str, str, Any]] = [
        (f"key/{key.kid}", "key", key.public().content()) for key in (own.decision, own.vote)
    ]
    entries += [(f"policy/{policy.digest}", "policy", policy.content) for policy in (POLICY, STRICT)]
    entries += [("roles", "roles", ROLES), ("current", "current", POLICY.digest)]
    for entry in entries:
        _put(publisher, settings, entry)


def _publisher(settings: KafkaSettings) -> KafkaPublisher:
    """One that does not complain of a broker that is being killed."""
    quiet = settings.model_copy(update={"options": {"log_level": "0"}})
    return KafkaPublisher(quiet, partitions=settings.partitions, source="chaos")


def _put(publisher: KafkaPublisher, settings: KafkaSettings, entry: tuple[str, str, Any]) -> None:
    name, kind, content = entry
    spread(publisher, settings.partitions, roots.entry(name, kind, content, actor="chaos"))
