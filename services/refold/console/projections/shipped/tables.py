"""Declarations of the shipped tables. `docs/guides/views.md` describes each column."""

from dataclasses import replace
from typing import Any

from refold.sdk.projection import key, sums, table

TEXT_CHARS = 200
"""Characters of free text in a row at most."""

HOLD_CHARS = 10_000
"""Characters of the message and stack of a hold: the remedy is at the end."""


def _texts(names: str) -> dict[str, Any]:
    """Declare columns with texts."""
    return dict.fromkeys(names.split(), str)


def _numbers(names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), int)


ENTRIES = table(
    "entries",
    key(run_id=str, seq=int),
    indexes=(("cause_topic", "cause_partition", "cause_offset"), ("partition", "since_offset")),
    **_numbers("last_seq at_ms logged_ms partition offset since_offset"),
    **_texts("actor cause_topic"),
    **_numbers("cause_partition cause_offset"),
    id=bytes,
    value=bytes,
)

RUNS = table(
    "runs",
    key(run_id=str),
    indexes=(
        *(("requested_ms",), ("agent", "requested_ms"), ("status", "requested_ms"), ("root",)),
        ("ended_ms", "agent", "version", "run_id"),
    ),
    **_texts("agent root parent requester policy version app"),
    **_numbers("partition requested_ms started_ms ended_ms at_ms seq"),
    head=str,
    **_numbers("steps open busy waiting paused"),
    **_texts("says failure_code failure_message"),
    retries=int,
    price_table=str,
    # Columns that the row of its family sums, side by side: see `Shipped`.
    status=str,
    **_numbers("waiting_for_people doubt on_hold tokens nano_usd"),
    forked_from=str,
    forked_at=int,
)

RUN_LABELS = table("run_labels", key(run_id=str, name=str), indexes=(("name", "value"),), value=str)
RUN_SESSIONS = table(
    "run_sessions",
    key(run_id=str, session=str),
    indexes=(("session", "requested_ms"), ("requested_ms",)),
    **_numbers("number requested_ms"),
)

RUN_VALUES = table("run_values", key(run_id=str, name=str), value=str, **_numbers("seq at_ms"))

STEPS = table(
    "steps",
    key(run_id=str, step=int),
    indexes=(("name", "started_ms"), ("status",)),
    **_texts("kind name label status phase effect rule call_id"),
    **_numbers("seq started_ms sent_ms ended_ms attempt attempts dispatches doubts"),
    **_texts("failure_code failure_message args_digest"),
    **_numbers("metered tokens nano_usd approvals"),
    approval_id=str,
)

APPROVALS = table(
    "approvals",
    key(approval_id=str),
    indexes=(("run_id", "step"), ("open", "asked_ms")),
    run_id=str,
    step=int,
    **_texts("tool rule approvers"),
    **_numbers("quorum asked_ms expires_ms ended_ms"),
    **_texts("verdict actors about"),
    **_numbers("escalated open"),
)

# Rows that records beside the run log make: see `beside`.

VOTES = table(
    "votes",
    key(run_id=str, approval_id=str, vote_id=str),
    indexes=(("actor", "issued_ms"), ("partition", "offset")),
    **_texts("actor action message"),
    **_numbers("issued_ms counts partition offset logged_ms"),
)

DEAD_LETTER_ROWS = replace(
    table(
        "dead_letters",
        key(run_id=str, topic=str, partition=int, offset=int),
        indexes=(("at_ms",), ("code", "at_ms"), ("from_topic", "from_partition", "from_offset")),
        **_texts("letter from_topic"),
        **_numbers("from_partition from_offset"),
        **_texts("code reason key service"),
        **_numbers("at_ms logged_ms"),
    ),
    fading=("topic", "partition", "offset"),
)

HOLDS = table(
    "holds",
    key(run_id=str),
    **_texts("kind reason message detail needs code member"),
    **_numbers("at_ms retry_ms tries"),
)

LIMIT_ROWS = table(
    "limits",
    key(run_id=str, lane=int, teller=str),
    indexes=(("period",),),
    **_texts("period agent label value"),
    **_numbers("log tokens nano_usd calls limit_tokens limit_nano_usd limit_calls soft_percent"),
    beyond=str,
    logged_ms=int,
)

OPERATOR_ACTIONS = table(
    "operator_actions",
    key(run_id=str, seq=int),
    indexes=(("at_ms",), ("actor", "at_ms")),
    at_ms=int,
    **_texts("actor action detail"),
    step=int,
    reason=str,
)

REPEATED_CALLS = table(
    "repeated_calls",
    key(run_id=str, args_digest=str),
    indexes=(("times",),),
    tool=str,
    **_numbers("times first_step last_step"),
)

FAMILIES = sums(
    "families",
    key(root=str),
    forgets=True,
    **_numbers("live waiting_for_people in_doubt on_hold stalled completed failed cancelled tokens nano_usd"),
)

BUCKETS = 24
"""Columns of the histogram of durations: column n counts calls of less than 2^n ms, the last one all others."""

DAILY = sums(
    "daily",
    key(day=str, agent=str, tool=str, model=str),
    **_numbers("calls completed failed attempts retries doubts rejections effects_avoided tokens nano_usd"),
    **_numbers("runs_requested runs_completed runs_failed runs_cancelled"),
    **_numbers(" ".join(f"b{number}" for number in range(BUCKETS))),
)

DAILY_FAILURES = sums("daily_failures", key(day=str, agent=str, tool=str, code=str), n=int)


# Places of columns: rows are lists that are changed in place, as stores read and write them.
# As classes: a namespace takes 0.03 us more for each attribute, of which an event reads some 20.
RunAt: Any = type("RunAt", (), dict(RUNS.places))
StepAt: Any = type("StepAt", (), dict(STEPS.places))
DayAt: Any = type("DayAt", (), {name: place - DAILY.keys for name, place in DAILY.places.items()})
NO_RUN, NO_STEP = ([kind() for kind in table.columns.values()] for table in (RUNS, STEPS))
"""Rows with empty texts and zeros."""
