"""What events and messages have in common: a failure as data, where an input lies, what a policy asks for."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something did not work, as data. `code` is stable and for programs, `message` is for people."""

    code: str
    message: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """The position of the input that an entry answers."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is tried and how long it waits in between: `base * 2^(n-1)`, capped, with jitter.

    Failures of other codes than `retry_if` are not tried again, if that has any. `then` is what follows on the last
    try: `raise` in the agent, or `hold` for an operator.
    """

    attempts: int = 1
    base_ms: int = 500
    cap_ms: int = 60_000
    retry_if: list[str] = field(default_factory=list)
    then: str = "raise"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a policy asks of a decision.

    **Shape**: `approvers` are names of people, `role:NAME` for everybody of a role, or `*` for anybody.
    `on_expiry`: `reject`, `escalate` or `fail`. **Units**: milliseconds; 0 means never, but for `valid_ms`, which is
    how long a decision may be used. An approval may be remembered for `remember_ms` and so many uses at most.
    """

    approvers: list[str]
    quorum: int = 1
    not_requester: bool = True
    expires_ms: int = 0
    on_expiry: str = "reject"
    escalate_ms: int = 0
    escalate_to: list[str] = field(default_factory=list)
    valid_ms: int = 3_600_000
    message: str = ""
    remember_ms: int = 0
    remember_uses: int = 0


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was before people are asked about a call: an attempt that failed, a doubt, or what somebody said of it.

    `what`: `failed`, `unknown` (it may have happened), `doubt`, or the verdict of `by` on a doubt (`happened`,
    `did_not_happen`, `give_up`). `words` are cut.
    """

    attempt: int
    what: str
    words: str = ""
    by: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Spendable:
    """What a run and all that it starts may take; 0: any amount.

    **Units**: billionths of a dollar, milliseconds. Beyond `soft_percent` of a limit follows what `then` says: `warn`,
    `ask` or `degrade`. Of calls with equal arguments `same` may be made. `root` is the first run of the family that
    this one counts for, where it is not the first itself.
    """

    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0
    ms: int = 0
    soft_percent: int = 80
    then: str = "warn"
    same: int = 0
    root: str = ""


@dataclass(frozen=True, slots=True)
class Used:
    """What a run and all that it has started have taken. **Units**: billionths of a dollar.

    Of that the `lost` ones may be paid: nobody has said what came of the calls.
    """

    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0
    lost_tokens: int = 0
    lost_nano_usd: int = 0


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A call of the same run that has a result, both as the run log has them. A large result is what stands for it."""

    step: int
    args: str
    result: str
