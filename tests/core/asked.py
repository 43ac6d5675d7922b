"""Runs that ask people, and what happened in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refold.core.approval.decision import Verdict
from refold.core.events import Event
from refold.core.planning.commands import commands
from tests.core import approvals
from tests.core.approvals import decided
from tests.core.histories import RULES, Log


def events(log: Log, number: int = -1) -> list[Event]:
    return log.entries[number][1].events


def kinds(log: Log, number: int = -1) -> list[type[Event]]:
    return [type(event) for event in events(log, number)]


def ordered(log: Log) -> list[Any]:
    _, entry = log.entries[-1]
    return [order.message or order.key for order in commands(log.live, entry, 70)]


def judged_by(content: dict[str, Any]) -> Any:
    return replace(RULES, authority=approvals.authority(content))


def asks(**requirement: Any) -> dict[str, Any]:
    return {"rules": [{"name": "asks", "when": "true", "require": {"approvers": ["*"], **requirement}}]}


def decide_on(log: Log, verdict: Verdict = "approve", **more: Any) -> Any:
    return log.feed(decided(log.live, 1, verdict, now=log.now, **more))
