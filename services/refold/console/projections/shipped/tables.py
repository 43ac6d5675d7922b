"""Declarations of the shipped tables. `docs/guides/views.md` describes each column."""

from dataclasses import replace
from typing import Any

from refold.sdk.projection import key, sums, table

TEXT_CHARS = 200
"""Characters of free text in a row at most."""

HOLD_CHARS = 10_000
"""Characters of the message and stack of a hold: the remedy is at the end."""

ENTRIES = table(
    "entries",
    key(run_id=str, seq=int),
    indexes=(("cause_topic", "cause_partition", "cause_offset"), ("partition", "since_offset")),
    last_seq=int,
    at_ms=int,
    logged_ms=int,
    partition=int,
    offset=int,
    since_offset=int,
    actor=str,
    cause_topic=str,
    cause_partition=int,
    cause_offset=int,
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
    agent=str,
    root=str,
    parent=str,
    requester=str,
    policy=str,
    version=str,
    app=str,
    partition=int,
    requested_ms=int,
    started_ms=int,
    ended_ms=int,
    at_ms=int,
    seq=int,
    head=str,
    steps=int,
    open=int,
    busy=int,
    waiting=int,
    paused=int,
    says=str,
    failure_code=str,
    failure_message=str,
    retries=int,
    price_table=str,
    # Columns that the row of its family sums, side by side: see `Shipped`.
    status=str,
    waiting_for_people=int,
    doubt=int,
    on_hold=int,
    tokens=int,
    nano_usd=int,
    forked_from=str,
    forked_at=int,
)

RUN_LABELS = table("run_labels", key(run_id=str, name=str), indexes=(("name", "value"),), value=str)
RUN_SESSIONS = table(
    "run_sessions",
    key(run_id=str, session=str),
    indexes=(("session", "requested_ms"), ("requested_ms",)),
    number=int,
    requested_ms=int,
)

STEPS = table(
    "steps",
    key(run_id=str, step=int),
    indexes=(("name", "started_ms"), ("status",)),
    kind=str,
    name=str,
    label=str,
    status=str,
    phase=str,
    effect=str,
    rule=str,
    call_id=str,
    seq=int,
    started_ms=int,
    sent_ms=int,
    ended_ms=int,
    attempt=int,
    attempts=int,
    dispatches=int,
    doubts=int,
    failure_code=str,
    failure_message=str,
    args_digest=str,
    metered=int,
    tokens=int,
    nano_usd=int,
    approvals=int,
    approval_id=str,
)

APPROVALS = table(
    "approvals",
    key(approval_id=str),
    indexes=(("run_id", "step"), ("open", "asked_ms")),
    run_id=str,
    step=int,
    tool=str,
    rule=str,
    approvers=str,
    quorum=int,
    asked_ms=int,
    expires_ms=int,
    ended_ms=int,
    verdict=str,
    actors=str,
    about=str,
    escalated=int,
    open=int,
)

# Rows that records beside the run log make: see `beside`.

VOTES = table(
    "votes",
    key(run_id=str, approval_id=str, vote_id=str),
    indexes=(("actor", "issued_ms"), ("partition", "offset")),
    actor=str,
    action=str,
    message=str,
    issued_ms=int,
    counts=int,
    partition=int,
    offset=int,
    logged_ms=int,
)

DEAD_LETTER_ROWS = replace(
    table(
        "dead_letters",
        key(run_id=str, topic=str, partition=int, offset=int),
        indexes=(("at_ms",), ("code", "at_ms"), ("from_topic", "from_partition", "from_offset")),
        letter=str,
        from_topic=str,
        from_partition=int,
        from_offset=int,
        code=str,
        reason=str,
        key=str,
        service=str,
        at_ms=int,
        logged_ms=int,
    ),
    fading=("topic", "partition", "offset"),
)

HOLDS = table(
    "holds",
    key(run_id=str),
    kind=str,
    reason=str,
    message=str,
    detail=str,
    needs=str,
    code=str,
    member=str,
    at_ms=int,
    retry_ms=int,
    tries=int,
)

LIMIT_ROWS = table(
    "limits",
    key(run_id=str, lane=int, teller=str),
    indexes=(("period",),),
    period=str,
    agent=str,
    label=str,
    value=str,
    log=int,
    tokens=int,
    nano_usd=int,
    calls=int,
    limit_tokens=int,
    limit_nano_usd=int,
    limit_calls=int,
    soft_percent=int,
    beyond=str,
    logged_ms=int,
)

OPERATOR_ACTIONS = table(
    "operator_actions",
    key(run_id=str, seq=int),
    indexes=(("at_ms",), ("actor", "at_ms")),
    at_ms=int,
    actor=str,
    action=str,
    detail=str,
    step=int,
    reason=str,
)

REPEATED_CALLS = table(
    "repeated_calls",
    key(run_id=str, args_digest=str),
    indexes=(("times",),),
    tool=str,
    times=int,
    first_step=int,
    last_step=int,
)

FAMILIES = sums(
    "families",
    key(root=str),
    forgets=True,
    live=int,
    waiting_for_people=int,
    in_doubt=int,
    on_hold=int,
    stalled=int,
    completed=int,
    failed=int,
    cancelled=int,
    tokens=int,
    nano_usd=int,
)

BUCKETS = 24
"""Columns of the histogram of durations: column n counts calls of less than 2^n ms, the last one all others."""

_HISTOGRAM: Any = {f"b{number}": int for number in range(BUCKETS)}

DAILY = sums(
    "daily",
    key(day=str, agent=str, tool=str, model=str),
    calls=int,
    completed=int,
    failed=int,
    attempts=int,
    retries=int,
    doubts=int,
    rejections=int,
    effects_avoided=int,
    tokens=int,
    nano_usd=int,
    runs_requested=int,
    runs_completed=int,
    runs_failed=int,
    runs_cancelled=int,
    **_HISTOGRAM,
)

DAILY_FAILURES = sums("daily_failures", key(day=str, agent=str, tool=str, code=str), n=int)


# Places of columns: rows are lists that are changed in place, as stores read and write them.
# As classes: a namespace takes 0.03 us more for each attribute, of which an event reads some 20.
RunAt: Any = type("RunAt", (), dict(RUNS.places))
StepAt: Any = type("StepAt", (), dict(STEPS.places))
DayAt: Any = type("DayAt", (), {name: place - DAILY.keys for name, place in DAILY.places.items()})
NO_RUN, NO_STEP = ([kind() for kind in table.columns.values()] for table in (RUNS, STEPS))
"""Rows with empty texts and zeros."""
