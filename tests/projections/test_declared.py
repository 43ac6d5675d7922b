"""What users declare and write: a view that could not be rebuilt equal is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refold.console.projections.projector import CALLS, HEADS, ProjectionError
from refold.core import events
from refold.core.errors import FoldError, UsageError
from refold.core.tables import ViewTable
from refold.sdk import projection as declared
from refold.sdk.projection import Projection, Recorded, View, key, sums, table
from tests.projections.histories import begun, call, entries, log_of, long
from tests.projections.viewed import Viewed

PAID = table("paid", key(run_id=str, step=int), tool=str, amount=int)
SEEN = table("seen", key(customer=str), run_id=str)
TOOLS = sums("tools", key(tool=str), calls=int, done=int)


class Payments(Projection):
    """Calls and their outcomes."""

    events = (events.CallProposed, events.CallCompleted)
    paid = PAID
    tools = TOOLS

    def apply(self, view: View, recorded: Recorded) -> None:
        called = recorded.call
        if isinstance(recorded.event, events.CallProposed):
            view.add(self.tools, tool=called.tool, calls=1)
        else:
            view.put(self.paid, step=called.step, tool=called.tool, amount=len(str(recorded.result)))
            view.add(self.tools, tool=called.tool, done=1)


def made(name: str = "made", **attributes: Any) -> type[Projection]:
    """A class of a projection."""
    return type(name, (Projection,), attributes)


def does(apply: Callable[[View, Recorded], None], *tables: ViewTable, **more: Any) -> Projection:
    """A projection that does this with every event."""
    attributes = {f"t{number}": each for number, each in enumerate(tables)}
    return made("does", apply=lambda self, view, recorded: apply(view, recorded), **attributes, **more)()


def refusal(apply: Callable[[View, Recorded], None], *tables: ViewTable) -> str:
    """Why a projection stops at its first event."""
    with pytest.raises(ProjectionError) as stopped:
        Viewed.of(log_of(entries("r-1", begun())), projection=does(apply, *tables))
    assert "run r-1, seq 1" in stopped.value.message
    return stopped.value.message


def test_an_error_of_the_fold_in_code_of_a_user_stops_its_projection_as_any_other_does() -> None:
    def apply(view: View, recorded: Recorded) -> None:
        raise FoldError("run r-0 contradicts itself")

    assert "run r-0 contradicts itself" in refusal(apply, PAID)


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda: table("t", key(id=str), n=int), "has no column run_id=str"),
        (lambda: table("t", key(run_id=int), n=int), "has no column run_id=str"),
        (lambda: table("t", key(run_id=str), n=float), "neither str, int nor bytes"),  # type: ignore[arg-type]
        (lambda: table("t", key(run_id=str), n=bool), "neither str, int nor bytes"),
        (lambda: table("T", key(run_id=str), n=int), "is no name"),
        (lambda: table("t", {"run_id": str, "a b": int}, n=int), "is no name"),
        (lambda: table("t", key(run_id=str), n=int, indexes=(("m",),)), "columns that it has not: m"),
        (lambda: table("t", {}, run_id=str), "needs a key"),
        (lambda: table("calls", key(run_id=str), n=int), "reserved"),
        (lambda: table("heads", key(run_id=str), n=int), "reserved"),
        (lambda: table("t_by_run", key(run_id=str), n=int), "reserved"),
        (lambda: sums("s", key(day=str), n=str), "no int: n"),  # type: ignore[arg-type]
        (lambda: sums("s", key(run_id=str), n=int), "run_id in its key"),
        (lambda: sums("s", key(day=str)), "needs a key"),
        (lambda: sums("s", key(erased=int), n=int), "reserved"),
        (lambda: made(), "has no tables"),
        (lambda: made(paid=PAID, version=0), "the version of projection"),
        (lambda: made(paid=PAID, name="A-1"), "is no name of a projection"),
        (lambda: made(one=PAID, two=table("paid", key(run_id=str), n=int)), "two tables of one name"),
    ],
)
def test_a_declaration_that_could_not_be_rebuilt_is_refused(declare: Callable[[], object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        declare()


@pytest.mark.parametrize(
    ("apply", "why"),
    [
        (lambda view, it: view.put(PAID, step=1, tool="a"), "amount missing"),
        (lambda view, it: view.put(PAID, step=1, tool="a", amount=1, more=2), "more unknown"),
        (lambda view, it: view.put(PAID, step=1, tool="a", amount="1"), "paid.amount is a int, not str"),
        (lambda view, it: view.put(PAID, step=1, tool="a", amount=True), "paid.amount is a int, not bool"),
        (lambda view, it: view.put(PAID, step=1, tool="a", amount=1 << 63), "beyond 64 bits"),
        (lambda view, it: view.put(PAID, step=1, tool="a" * (1 << 21), amount=1), "is the most"),
        (lambda view, it: view.put(PAID, run_id="r-2", step=1, tool="a", amount=1), "in the name of run 'r-2'"),
        (lambda view, it: view.put(SEEN, customer="ann", run_id="r-2"), "in the name of run 'r-2'"),
        (lambda view, it: view.get(PAID, run_id="r-2", step=1), "in the name of run 'r-2'"),
        (lambda view, it: view.drop(PAID, run_id="r-2", step=1), "in the name of run 'r-2'"),
        (lambda view, it: view.get(PAID), "'step' is missing"),
        (lambda view, it: view.put(TOOLS, tool="a"), "has sums: use view.add"),
        (lambda view, it: view.get(TOOLS, tool="a"), "has sums: use view.add"),
        (lambda view, it: view.add(PAID, step=1, amount=1), "has rows: use view.put"),
        (lambda view, it: view.add(TOOLS, tool="a", calls="1"), "tools.calls is a int, not str"),
        (lambda view, it: view.add(TOOLS, tool="a", made=1), "no column made"),
        (lambda view, it: view.put(HEADS, entry=b""), "not this projection's"),
        (lambda view, it: it.call, "RunRequested is of no call"),
        (lambda view, it: it.result, "RunRequested has no result"),
        (lambda view, it: 1 // 0, "by zero"),
    ],
)
def test_what_a_projection_may_not_do_stops_it_and_names_the_event(
    apply: Callable[[View, Recorded], None], why: str
) -> None:
    assert why in refusal(apply, PAID, SEEN, TOOLS)


def test_a_row_is_not_given_to_another_run_by_a_change() -> None:
    def steal(view: View, recorded: Recorded) -> None:
        view.put(SEEN, customer="ann")
        view.change(SEEN, customer="ann", run_id="r-2")

    assert "in the name of run 'r-2'" in refusal(steal, SEEN)


@pytest.mark.parametrize("size", [1, 5_000])
def test_two_runs_do_not_share_a_row(size: int) -> None:
    log = log_of([*entries("r-1", begun()), *entries("r-2", begun())])

    with pytest.raises(ProjectionError, match="belongs to run 'r-1'"):
        Viewed.of(log, size, projection=does(lambda view, it: view.put(SEEN, customer="ann"), SEEN))


def test_nothing_of_a_batch_is_kept_in_which_a_projection_raises() -> None:
    def apply(view: View, recorded: Recorded) -> None:
        view.put(SEEN, customer=recorded.run_id)
        assert (recorded.run_id, recorded.seq) != ("r-2", 2)

    viewed = Viewed(log_of([*entries("r-1", begun()), *entries("r-2", begun())]), does(apply, SEEN))
    with pytest.raises(ProjectionError) as stopped:
        viewed.apply(viewed.log)

    assert (stopped.value.fields["run_id"], stopped.value.fields["seq"]) == ("r-2", 2)
    assert "traceback" in stopped.value.fields
    assert (viewed.everything(), viewed.store.positions()) == ([], {})


def test_a_projection_of_users_is_told_of_calls_by_their_outcomes_in_batches_of_any_size() -> None:
    log = log_of([*long("r-1"), *long("r-2", 7)])

    one, other = Viewed.of(log, 1, projection=Payments()), Viewed.of(log, projection=Payments())

    assert one.digests() == other.digests()
    assert one.rows(TOOLS) == [{"tool": "pay", "erased": 0, "calls": 15, "done": 11}]
    assert one.row(PAID, "r-1", 1)["tool"] == "pay"


def test_a_call_that_is_asked_for_anew_has_its_new_id() -> None:
    found: dict[int, str] = {}

    def apply(view: View, recorded: Recorded) -> None:
        if recorded.called is not None:
            found[recorded.seq] = recorded.called.call_id

    again: list[events.Event] = [events.CallRenewed(1), events.CallDispatched(1, 1, 0)]
    Viewed.of(log_of(entries("r-1", [*begun(), *call(1)], again)), projection=does(apply, SEEN))

    assert found == {3: "r-1/3", 4: "r-1/3", 5: "r-1/5", 6: "r-1/5"}


def test_a_column_may_have_any_name_of_a_parameter() -> None:
    odd = table("odd", key(run_id=str, name=str), by=str, of=str, into=str)

    viewed = Viewed.of(
        log_of(entries("r-1", begun())),
        projection=does(lambda view, it: view.put(odd, name="a", by="b", of="c", into="d"), odd),
    )

    assert viewed.rows(odd) == [{"run_id": "r-1", "name": "a", "by": "b", "of": "c", "into": "d"}]


def test_the_names_that_are_reserved_are_those_of_the_projector() -> None:
    assert {HEADS.name, CALLS.name} == declared.RESERVED_TABLES
