"""The topics, by name without the prefix: their keys, writers and readers. One writer per topic makes the broker's
rights meaningful; `infra/topics.yaml` has settings and rights."""

from __future__ import annotations

RUN_REQUESTED = "run-requested"
"""Please run this agent. Key: run id. Written by users and, for strays, the planner; read by the planner."""

RUN_SIGNALLED = "run-signalled"
"""Requests of users about runs that exist. Key: run id/signal id. Written by users; read by the planner."""

RUN_OPERATED = "run-operated"
"""Requests of operators about anybody's runs. Key: run id/signal id. Written by stewards; read by the planner."""

RUN_LOG = "run-log"
"""The truth. Key: run id/seq/entry id, unique. Written by the planner; read by everybody."""

TOOL_REQUESTED = "tool-requested"
"""Calls that are open, a topic per pool. Key: call id. Written by the planner; read by the pool's executors."""

TOOL_CLAIMED = "tool-claimed"
"""The claim chains, a topic per pool. Key: idempotency key/claim id, unique. Written and read by its executors."""

TOOL_COMPLETED = "tool-completed"
"""How attempts ended, a topic per pool. Key: call id. Written by the pool's relays; read by the planner."""

POOLED = (TOOL_REQUESTED, TOOL_CLAIMED, TOOL_COMPLETED)
"""What there is once per pool, so that no pool sees or says anything for another."""

APPROVAL_REQUESTED = "approval-requested"
"""Questions to people that are open. Key: approval id. Written by the planner; read by the approval service."""

APPROVAL_VOTED = "approval-voted"
"""Votes. Key: approval id/vote id. Written by the CLI and gateways; read by the approval service."""

APPROVAL_DECIDED = "approval-decided"
"""Signed decisions. Key: approval id. Written by the approval service; read by it and the planner."""

RUN_COMPLETED = "run-completed"
"""Runs that are over. Key: run id. Written by the planner; read by users."""

RUN_VIEW = "run-view"
"""The row of each run as views have it. Key: run id. Written by whoever keeps views; read by programs of others."""

RUN_INSIGHT = "run-insight"
"""Live figures and alerts. Key: kind/... Written by insights, where it runs; read by programs of others."""

RUN_SNAPSHOT = "run-snapshot"
"""What a planner has made of the log, which runs it holds, and which were erased. Written by the planner, and of erased
runs the archivist; read by the planner and whoever folds the log."""

RUN_STREAM = "run-stream"
"""Live output of calls, a topic per pool: lossy, and never folded. Key: call id. Written by its executors."""

BUDGET_SPENT = "budget-spent"
"""What each lane has let out under the limits of a window. Key: window/subject/lane/teller, in every partition. Written
by planners, and read by those, whole, and by operators."""

MEMBER = "member"
"""Reports of each planner and executor, for display. Key: name of the member. Written by both; read by no service."""

CATALOG = "catalog"
"""Policies, roles and public keys. Key: name. Written by operators; read by all services."""

DEAD_LETTER = "dead-letter"
"""Inputs that the planner could not use. Key: that of the input. Written by the planner; read by clients, operators."""

DEAD_LETTER_APPROVAL = "dead-letter-approval"
"""Questions and votes that the approval service could not use. Written by it; read by approvers and operators."""

DEAD_LETTER_EXECUTOR = "dead-letter-executor"
"""Orders that executors could not use. Written by those of all pools, so nothing but a list for operators."""

DEAD_LETTERS = (DEAD_LETTER, DEAD_LETTER_APPROVAL, DEAD_LETTER_EXECUTOR)
"""A topic per service: what is said of an input counts only from the service that reads it."""


def tool_requested(pool: str) -> str:
    return f"{TOOL_REQUESTED}.{pool}"


def tool_claimed(pool: str) -> str:
    return f"{TOOL_CLAIMED}.{pool}"


def tool_completed(pool: str) -> str:
    return f"{TOOL_COMPLETED}.{pool}"


def run_stream(pool: str) -> str:
    """Topic of the live output of one pool's calls."""
    return f"{RUN_STREAM}.{pool}"


def kind_of(topic: str) -> str:
    """The name of a topic without its pool."""
    return topic.partition(".")[0]


def pool_of(topic: str) -> str:
    """The pool of a topic, empty unless there is a topic per pool."""
    return topic.partition(".")[2]


def executors(pool: str) -> str:
    return f"refold-executor-{pool}"
