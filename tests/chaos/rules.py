"""Who has to agree to what: the policy, the roles and the keys of a campaign, as an operator publishes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refold.adapters.kafka.publisher import KafkaPublisher
from refold.client import catalog
from refold.core import canonical
from refold.core.capability import SigningKey
from refold.core.messages import CatalogEntry
from refold.core.policy import Policy
from refold.runtime import keys
from refold.runtime.settings import KafkaSettings

REQUESTER = "rita"
"""Asks for every run. She is on call too, and may never decide on her own."""

ONCALL = ("ada", "bob", "cleo")
STRANGER = "eve"
ROLES = {"roles": {"oncall": [*ONCALL, REQUESTER]}}

# The end of a call's label says which rule it meets; `short` and `later` run out of time, `brief` decisions do.
KINDS = ("any", "two", "short", "later", "brief")
_PEOPLE: dict[str, dict[str, Any]] = {
    "two": {"approvers": ["role:oncall"], "quorum": 2},
    "short": {"approvers": ["role:oncall"], "expires": "2500ms", "on_expiry": "reject"},
    "later": {"approvers": ["ada"], "expires": "4s", "on_expiry": "escalate", "escalate": {"to": ["cleo"]}},
    "brief": {"approvers": ["role:oncall"], "valid": "3s"},
    "any": {"approvers": ["role:oncall"]},
}
POLICY = Policy.parse(
    {
        "rules": [
            {"name": "harmless", "when": '!("risky" in tool.tags)', "allow": True},
            *(
                {"name": kind, "when": f'args.label.endsWith("-{kind}")', "require": needed}
                for kind, needed in _PEOPLE.items()
            ),
        ]
    }
)


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


def publish(settings: KafkaSettings, own: Keys) -> None:
    """Puts keys, roles and policy into the catalog of a set of topics."""
    publisher = KafkaPublisher(settings, partitions=settings.partitions, source="chaos")
    entries: list[tuple[str, str, Any]] = [
        (f"key/{key.kid}", "key", key.public().content()) for key in (own.decision, own.vote)
    ]
    entries += [("roles", "roles", ROLES), (f"policy/{POLICY.digest}", "policy", POLICY.content)]
    entries += [("current", "current", POLICY.digest)]
    for name, kind, content in entries:
        catalog.publish(publisher, settings.partitions, CatalogEntry(name, kind, canonical.dumps(content), "chaos"))
