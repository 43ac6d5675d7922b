"""A second reading of what families spend: within the budgets of all that wait, but for what is on its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.simulator.reading.budgets import Sum, total
from tests.simulator.reading.logged import LoggedCall, LoggedRun

_STEPS = ("CallReserved", "CallRepeated")


def family_of(runs: Mapping[str, LoggedRun], run: LoggedRun) -> list[LoggedRun]:
    """A run and all below it, which count for its budget."""
    return [each for name, each in runs.items() if each is run or name.startswith(f"{run.id}.")]


def cost_of(runs: Mapping[str, LoggedRun], run: LoggedRun) -> int:
    """What a run knows of what it and those below have cost, in billionths of a dollar."""
    below = [runs[name] for name in run.purse.heard if name in runs]
    return run.purse.taken.nano_usd + sum(cost_of(runs, each) for each in below)


def follow_spending(runs: Mapping[str, LoggedRun], run: LoggedRun, name: str, event: dict[str, Any]) -> None:
    """Takes an event of `OF_BUDGETS`."""
    call = run.calls.get(event["step"]) if name in _STEPS else None
    run.purse.follow(name, event, call.id if call else "")
    if name == "CallRepeated":
        assert call is not None, "it is proposed before"
        times = run.purse.asked[call.tool, call.args]
        if not run.purse.same < event["times"] == times:
            run.purse.odd.append(
                f"repeated: {call.id} of run {run.id} is refused as the {event['times']}th, and is the {times}th"
            )


def let_out(runs: Mapping[str, LoggedRun], run: LoggedRun, call: LoggedCall, attempt: int) -> list[str]:
    """An attempt goes out: whether all who pay for it may.

    A family stays within its budget, but for what is on its way: two planners at once do not know what the other lets
    out. Beyond a soft threshold it says so, and does what was to follow.
    """
    run.purse.goes()
    if attempt == 1 and not call.attempts and run.purse.same and call.times > run.purse.same:
        run.purse.odd.append(
            f"repeated: {call.id} goes out, and {call.tool} was asked for {call.times} times like this"
        )
    wrong = []
    for payer in _payers(runs, run):
        family = family_of(runs, payer)
        taken = total(each.purse.taken for each in family)
        if over := taken.beyond(_limit_in_flight(payer.purse.limit, family)):
            wrong.append(f"overspent: {over} is taken by the family of run {payer.id}, with what is on its way")
        if over := taken.beyond(payer.purse.limit):
            run.purse.odd.append(f"overspent: {call.id} goes out, and the family of run {payer.id} takes {over}")
        run.purse.odd += _soft(payer, run, call, attempt, taken)
    return wrong


def _limit_in_flight(limit: Sum, family: list[LoggedRun]) -> Sum:
    """A limit, and what is on its way beside it. What has no limit has none with what is on its way."""
    flying = [each.purse.reserved[place] for each in family for place in each.purse.open if _flies(each, *place)]
    calls = sum(call.phase == "dispatched" for each in family for call in each.calls.values()) + 1
    most = total([limit, *flying])._replace(calls=limit.calls + calls)
    return Sum(*(much if limited else 0 for much, limited in zip(most, limit, strict=True)))


def _soft(payer: LoggedRun, run: LoggedRun, call: LoggedCall, attempt: int, taken: Sum) -> Iterator[str]:
    purse, place = run.purse, (call.id, attempt)
    near = taken.beyond(payer.purse.limit, payer.purse.soft)
    if not near or payer.purse.soft >= 100:
        return
    if payer.id not in purse.told:
        yield f"untold: {call.id} goes out, {near} is taken of the budget of run {payer.id}, and nobody was told"
    if payer.purse.then == "ask" and not purse.let_on:
        yield f"unasked: {call.id} goes out, {near} is taken of the budget of run {payer.id}, and nobody was asked"
    dear = taken._replace(calls=0).beyond(payer.purse.limit, payer.purse.soft)
    first = attempt == 1 or call.effect == "pure"
    if payer.purse.then == "degrade" and dear and first and place in purse.reserved and place not in purse.cheap:
        yield f"dear: {call.id} goes out as it is, and {near} is taken of the budget of run {payer.id}"


def _payers(runs: Mapping[str, LoggedRun], run: LoggedRun) -> Iterator[LoggedRun]:
    """The runs whose budget a call of this one counts for."""
    above: LoggedRun | None = run
    while above is not None:
        if any(above.purse.limit):
            yield above
        parent = above.id.rpartition(".")[0]
        above = runs.get(parent) if parent and not above.outlives else None


def in_flight(runs: Iterable[LoggedRun]) -> int:
    """What these runs have reserved for attempts that are under way, in billionths of a dollar."""
    return sum(
        each.purse.reserved[place].nano_usd for each in runs for place in each.purse.open if _flies(each, *place)
    )


def _flies(run: LoggedRun, name: str, attempt: int) -> bool:
    call = run.call(name)
    return call is not None and not call.settled and attempt == max(call.attempts, default=attempt)
