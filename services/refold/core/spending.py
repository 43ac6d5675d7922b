"""What happens to the budget of a run: it is reserved from, billed, reached. And what all runs of a window took."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass

from refold.core.parts import Spendable, Used


@dataclass(frozen=True, slots=True)
class CallReserved:
    """An attempt of a call may take so much, and counts as if it had until it is billed.

    Of attempt 0, which goes out to nobody, it says what those that follow may take each. `cheap`: the call is the
    cheaper way already. **Units**: billionths of a dollar.
    """

    step: int
    attempt: int
    tokens: int
    nano_usd: int
    cheap: bool = False


@dataclass(frozen=True, slots=True)
class CallBilled:
    """An attempt has taken so much. `call` is the seq in the call's id, as what was asked for anew is another call.

    `twice`: somebody else may have made it as well, so what was reserved for it counts beside that. Where there are
    limits of windows it says what it takes the place of: `for_tokens` and `for_nano_usd`, reserved at `since_ms`.
    """

    step: int
    call: int
    attempt: int
    tokens: int
    nano_usd: int
    twice: bool = False
    for_tokens: int = 0
    for_nano_usd: int = 0
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class ChildBilled:
    """A run below this one has taken so much, and is over; nobody waits for it any more."""

    run_id: str
    used: Used


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """The budget of this run, or of one above it, is used up so far that something follows: its soft threshold.

    `what` is `tokens`, `usd` (billionths), `calls` or `seconds` (milliseconds): `taken` with what is asked for now, of
    `limit`.
    """

    budget: str
    what: str
    taken: int
    limit: int
    then: str


@dataclass(frozen=True, slots=True)
class CallRepeated:
    """The code asks for a call that it has made so many times, with equal arguments. It is not made, and fails."""

    step: int
    times: int


OfBudget = CallReserved | CallBilled | ChildBilled | BudgetReached | CallRepeated


@dataclass(frozen=True, slots=True)
class WindowSpent:
    """Topic `budget-spent`, key window/subject/lane/teller: what the runs of one lane took in a window, so far.

    `window` is a day (`2026-11-23`) or a month (`2026-11`) of UTC; it counts runs of the `agent`, if there is one, that
    have the value of a `label` of which `value` is the digest, if there is one, or none of those that are told one by
    one (`rest`). Counted is what the lane's partition of `run-log` has below the offset `log`, of which `held_tokens`
    and `held_nano_usd` are reserved and not billed; -1: from a version that does not say it, and has `value` in clear.
    `limits` are those by which it decides. **Units**: billionths of a dollar.
    """

    window: str
    agent: str
    label: str
    value: str
    lane: int
    log: int
    tokens: int
    nano_usd: int
    calls: int
    limits: Spendable
    member: str = ""
    held_tokens: int = -1
    held_nano_usd: int = -1
