"""What happens to the budget of a run: it is reserved from, billed, reached."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass

from refold.core.parts import Used


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

    `twice`: somebody else may have made it as well, so what was reserved for it counts beside that.
    """

    step: int
    call: int
    attempt: int
    tokens: int
    nano_usd: int
    twice: bool = False


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
