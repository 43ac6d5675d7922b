"""Topic names without the prefix, with their keys, writers and readers. `infra/topics.yaml` has settings and rights."""

RUN_REQUESTED = "run-requested"
"""Requests to run an agent. Key: run id. Written by users and, for strays, the planner; read by the planner."""

RUN_SIGNALLED = "run-signalled"
"""Requests of users about runs that exist. Key: run id/signal id. Written by users; read by the planner."""

RUN_OPERATED = "run-operated"
"""Requests of operators about any run. Key: run id/signal id. Written by stewards; read by the planner."""

RUN_LOG = "run-log"
"""Source of truth. Key: run id/seq/entry id, unique. Written by the planner; read by all services."""

TOOL_REQUESTED = "tool-requested"
"""Open calls, a topic per pool. Key: call id. Written by the planner; read by the pool's executors."""

TOOL_CLAIMED = "tool-claimed"
"""The claim chains, a topic per pool. Key: idempotency key/claim id, unique. Written and read by its executors."""

TOOL_COMPLETED = "tool-completed"
"""Results of attempts, a topic per pool. Key: call id. Written by the pool's relays; read by the planner."""

POOLED = (TOOL_REQUESTED, TOOL_CLAIMED, TOOL_COMPLETED)
"""Topics that exist once per pool, so that no pool can read or write for another."""

APPROVAL_REQUESTED = "approval-requested"
"""Open questions to people. Key: approval id. Written by the planner; read by the approval service."""

APPROVAL_VOTED = "approval-voted"
"""Votes. Key: approval id/vote id. Written by the CLI and gateways; read by the approval service."""

APPROVAL_DECIDED = "approval-decided"
"""Signed decisions. Key: approval id. Written by the approval service; read by it and the planner."""

RUN_COMPLETED = "run-completed"
"""Finished runs. Key: run id. Written by the planner; read by users."""

RUN_VIEW = "run-view"
"""View row of each run. Key: run id. Written by the viewer; read by other programs."""

RUN_INSIGHT = "run-insight"
"""Live figures and alerts. Key: kind/... Written by insights, if it runs; read by other programs."""

RUN_SNAPSHOT = "run-snapshot"
"""Planner's snapshot of the log, held runs, and erased runs. Written by the planner and (erased runs) the archivist;
read by the planner and other folds of the log."""

RUN_STREAM = "run-stream"
"""Live output of calls, a topic per pool: lossy, and never folded. Key: call id. Written by its executors."""

BUDGET_SPENT = "budget-spent"
"""Usage of each lane under windowed limits. Key: window/subject/lane/teller, in every partition. Written by planners;
read by planners, in full, and by operators."""

MEMBER = "member"
"""Reports of each planner and executor, for display. Key: name of the member. Written by both; read by no service."""

CATALOG = "catalog"
"""Policies, roles and public keys. Key: name. Written by operators; read by all services."""

DEAD_LETTER = "dead-letter"
"""Inputs that the planner could not use. Key: that of the input. Written by the planner; read by clients, operators."""

DEAD_LETTER_APPROVAL = "dead-letter-approval"
"""Questions and votes that the approval service could not use. Written by it; read by approvers and operators."""

DEAD_LETTER_EXECUTOR = "dead-letter-executor"
"""Orders that executors could not use. Written by the executors of all pools; read by operators."""

DEAD_LETTER_SOURCE = "dead-letter-source"
"""Records of sources that map to no input. Written by sources; read by operators."""

DEAD_LETTERS = (DEAD_LETTER, DEAD_LETTER_APPROVAL, DEAD_LETTER_EXECUTOR, DEAD_LETTER_SOURCE)
"""A topic per service: a dead letter counts only from the service that reads the input."""


def tool_requested(pool: str) -> str:
    return f"{TOOL_REQUESTED}.{pool}"


def tool_claimed(pool: str) -> str:
    return f"{TOOL_CLAIMED}.{pool}"


def tool_completed(pool: str) -> str:
    return f"{TOOL_COMPLETED}.{pool}"


def run_stream(pool: str) -> str:
    return f"{RUN_STREAM}.{pool}"


def kind_of(topic: str) -> str:
    """Name of a topic without its pool."""
    return topic.partition(".")[0]


def pool_of(topic: str) -> str:
    """Pool of a topic; empty for a topic that is not per pool."""
    return topic.partition(".")[2]


PLANNERS = "refold-planner"
"""Group of the planners."""


def executors(pool: str) -> str:
    return f"refold-executor-{pool}"
