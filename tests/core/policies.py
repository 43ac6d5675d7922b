"""A call to be judged, and policies to judge it by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from refold.core.approval.policy import Policy
from refold.core.errors import UsageError

CALL: Mapping[str, Any] = {
    "tool.name": "write_file",
    "tool.version": "1",
    "tool.effect": "once",
    "tool.tags": ["files"],
    "args": {"path": "sandbox/a", "size": 3},
    "agent": "fixer",
    "run.id": "r",
    "run.input": {"ticket": 7},
    "run.session": "s",
    "run.labels": {"team": "a"},
    "run.depth": 0,
    "run.calls": 2,
    "run.cost": 0.5,
    "actor": "ann",
    "environment": "prod",
}


TEAM = {"approvers": ["role:oncall"], "expires": "2h"}


ASKS = {"approvers": ["role:lead"]}


def rule(when: str, name: str = "", **outcome: Any) -> dict[str, Any]:
    """A rule that allows unless told otherwise."""
    return {"name": name or when, "when": when, **(outcome or {"allow": True})}


def policy(*rules: dict[str, Any], **more: Any) -> Policy:
    """A policy of these rules."""
    return Policy.parse({"rules": list(rules), **more})


def call(**changes: Any) -> dict[str, Any]:
    """A call with other values; `tool_name` stands for `tool.name`."""
    return {**CALL, **{name.replace("_", ".", 1): value for name, value in changes.items()}}


def refused(content: Any) -> UsageError:
    """What parsing says of a content that is no policy."""
    with pytest.raises(UsageError) as error:
        Policy.parse(content)
    return error.value
