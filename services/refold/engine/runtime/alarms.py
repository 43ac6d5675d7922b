"""Alarms by name, with severity, cause and action: the source of docs, metrics and alerts."""

from typing import NamedTuple


class Alarm(NamedTuple):
    """`severity`: `critical` needs an operator now, `warning` one today, `info` the author or the sender."""

    severity: str
    cause: str
    action: str


_SECURITY = "**security**: [what to do](../security.md#when-something-is-wrong)"
_TOPICS = "`refold topics apply`; check the broker's disk and ACLs"
_DOUBT = "[calls in doubt](#calls-in-doubt)"
_MIRROR = "[mirrors](#mirroring-and-restoring-topics)"
_REPAIR = "[repair](#mirroring-and-restoring-topics)"
ALARMS = {
    "call.unauthorised": Alarm("critical", "an order without a decision that holds", _SECURITY),
    "unauthorised": Alarm("critical", "a vote or a decision without a permission", _SECURITY),
    "catalog.void": Alarm("critical", "a catalog entry that no root key has signed", _SECURITY),
    "question.second": Alarm("critical", "two questions about one call", _SECURITY),
    "request.void": Alarm("critical", "a question that does not match its call", _SECURITY),
    "catalog.lost": Alarm("critical", "the catalog begins later than it should", _SECURITY),
    "log.shrunk": Alarm(
        "critical", "Kafka lost acknowledged records", "check the brokers; the partition is folded again"
    ),
    "record.copied": Alarm("critical", "a tool repeats records", _MIRROR),
    "marks.foreign": Alarm("critical", "the snapshot belongs to another log", _MIRROR),
    "run.frozen": Alarm("critical", "a record of a newer version", "finish the upgrade"),
    "publish.refused": Alarm("critical", "a topic refuses a record for good", _TOPICS),
    "snapshot.refused": Alarm("critical", "a topic refuses a snapshot for good", _TOPICS),
    "spent.refused": Alarm("critical", "a topic refuses the sums of a limit", _TOPICS),
    "ledger.full": Alarm("critical", "Redis is nearly full, so executors claim nothing", "give it more memory"),
    "ledger.unreadable": Alarm(
        "critical",
        "entries in Redis that no executor wrote",
        "a newer version, or another writer: they are in `{prefix}:{pool}:{N}:quarantine`",
    ),
    "pool.missing": Alarm("critical", "a pool without topics: its calls wait", "`refold topics apply --app APP`"),
    "transaction.open": Alarm(
        "critical",
        "another producer's [transaction](../limits.md#lost-logs-copies-and-mirrors) keeps records back",
        "abort it",
    ),
    "tool.missing": Alarm("critical", "no executor of the pool has the tool", "deploy executors that have it"),
    "approval.held": Alarm("critical", "the key of the approval service is not in force", "start it with the new key"),
    "run.stalled": Alarm("critical", "code does not agree with the history", f"[deploying](deploying.md), {_REPAIR}"),
    "run.unserved": Alarm(
        "info", "a run of an agent that no planner has", "check its name, or deploy planners that have it"
    ),
    "agent.raised": Alarm("info", "the code of an agent raised", "its author reads the stack"),
    "call.doubted": Alarm("warning", "a call may or may not have happened", _DOUBT),
    "call.held": Alarm("warning", "a call has no attempts left", _DOUBT),
    "call.late": Alarm("warning", "a result came after the call was settled", _DOUBT),
    "input.dead": Alarm("info", "an input that no service can use", "[dead letters](#dead-letters)"),
    "request.stale": Alarm("warning", "a call is older than what the ledger remembers", _DOUBT),
    "marks.missing": Alarm("info", "no usable snapshot", "nothing: one longer take-over"),
    "snapshot.broken": Alarm("info", "no usable snapshot", "nothing: one longer take-over"),
    "snapshot.crowded": Alarm("warning", "more than 2,000 runs of a partition have two histories", f"{_REPAIR} them"),
    "spent.void": Alarm("warning", "a sum of a limit that cannot be read", "look for another writer of `budget-spent`"),
}
"""Events that are logged as warnings and counted in `refold_alarms_total`."""
