"""The tables of insights, and the records of their rows: figures of a minute, and alerts."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from refold.console.projections.shipped.steps import digest_of_args, summable
from refold.console.projections.shipped.turn import PriceOf, cut
from refold.core import events
from refold.core.messages import RunInsight
from refold.core.run.account import tokens_of, usage_of
from refold.core.tables import ViewRow, ViewTable
from refold.core.wire import codec
from refold.engine.ports.tables import Query, ViewChanges, ViewStore, Where
from refold.sdk.projection import Projection, Recorded, View, key, sums, table

MINUTE_MS = 60_000
LOOP_CALLS = 5
"""Equal calls of a run that are a loop."""
FAILING_CALLS = 5
"""Failures of a tool in a minute that are an alert, if they are at least half of all outcomes."""
_OF_RUNS: Mapping[type, str] = {
    events.RunRequested: "requested",
    events.CallProposed: "calls",
    events.RunCompleted: "completed",
    events.RunFailed: "failed",
    events.RunCancelled: "cancelled",
}
_OF_TOOLS: Mapping[type, str] = {
    events.CallCompleted: "completed",
    events.CallFailed: "failed",
    events.AttemptFailed: "retried",
    events.CallDoubted: "doubted",
}
_COUNTED = (events.CallReserved, events.CallBilled, *_OF_RUNS, *_OF_TOOLS)


class Insights(Projection):
    """Rates and spend by minute and agent, outcomes by minute and tool, equal calls of runs."""

    name = "insights"
    runs = table("insight_runs", key(run_id=str), agent=str, minute=int, tool=str, equal_calls=int)
    calls = table("insight_calls", key(run_id=str, args_digest=str), times=int)
    reserved = table("insight_reserved", key(run_id=str, step=int))
    agents = sums(
        "insight_agents", key(minute=int, agent=str), forgets=True,
        requested=int, completed=int, failed=int, cancelled=int, calls=int, tokens=int, nano_usd=int,
    )  # fmt: skip
    tools = sums(
        "insight_tools", key(minute=int, tool=str), forgets=True, completed=int, failed=int, retried=int, doubted=int
    )
    events = _COUNTED

    def __init__(self, price: PriceOf, price_table: str = "") -> None:
        self._price, self.inputs = price, price_table

    def apply(self, view: View, recorded: Recorded) -> None:
        event, minute = recorded.event, recorded.at_ms // MINUTE_MS
        if isinstance(event, events.RunRequested):
            view.put(self.runs, agent=cut(event.agent), minute=0, tool="", equal_calls=0)
        elif isinstance(event, events.CallProposed):
            self._count_equal_call(view, event, minute)
        elif isinstance(event, events.CallReserved):
            view.put(self.reserved, step=event.step)
        if (outcome := _OF_TOOLS.get(type(event))) and recorded.called:
            view.add(self.tools, minute=minute, tool=cut(recorded.called.tool), **{outcome: 1})
        spent = self._spent(view, recorded)
        if (run := view.get(self.runs)) and ((counted := _OF_RUNS.get(type(event))) or any(spent)):
            tokens, nano_usd = map(summable, spent)
            amounts = {counted: 1} if counted else {}
            view.add(self.agents, minute=minute, agent=run["agent"], tokens=tokens, nano_usd=nano_usd, **amounts)

    def _spent(self, view: View, recorded: Recorded) -> tuple[int, int]:
        event = recorded.event
        if isinstance(event, events.CallBilled):
            return event.tokens, event.nano_usd
        if not isinstance(event, events.CallCompleted) or view.get(self.reserved, step=event.step) is not None:
            return 0, 0
        usage = usage_of(event.result)
        return (tokens_of(usage) or 0, self._price(usage, recorded.at_ms)) if usage else (0, 0)

    def _count_equal_call(self, view: View, event: Any, minute: int) -> None:
        digest = digest_of_args(event)
        times = int((view.get(self.calls, args_digest=digest) or {"times": 0})["times"]) + 1
        view.put(self.calls, args_digest=digest, times=times)
        if times >= LOOP_CALLS and (run := view.get(self.runs)) and times > int(run["equal_calls"]):
            view.change(self.runs, minute=minute, tool=cut(event.tool), equal_calls=times)


def changed_records(store: ViewStore, changes: ViewChanges) -> dict[str, bytes | None]:
    """Return the records of `run-insight` by key for the rows that a batch has changed, None for a tombstone."""
    records: dict[str, bytes | None] = {f"loop/{run}": None for run in changes.runs}
    for of in (Insights.agents, Insights.tools, Insights.runs):
        keys = {*changes.rows.get(of, ()), *changes.sums.get(of, ())}
        rows = store.rows(of, keys)
        for row_key in keys:
            records.update(_records_of_row(of, rows.get(row_key, row_key)))
    return records


def recent(store: ViewStore, since_minute: int) -> Iterator[dict[str, bytes | None]]:
    """Yield the records of all rows since a minute, a page at a time: a start writes them again."""
    for of in (Insights.agents, Insights.tools, Insights.runs):
        query = Query(of, (Where("minute", ">=", since_minute),))
        while page := store.query(query):
            yield dict(record for row in page for record in _records_of_row(of, row))
            query = Query(of, query.where, after=query.place(page[-1]))


def _records_of_row(of: ViewTable, row: ViewRow) -> list[tuple[str, bytes | None]]:
    if of is Insights.runs:
        run, minute, tool, times = str(row[0]), *(row[2:] or (0, "", 0))
        loop = {"equal_calls": int(times)} if int(times) >= LOOP_CALLS else {}
        return [(f"loop/{run}", _encoded_insight("loop", minute, tool, loop, run))]
    minute, name = cast(tuple[int, str], row[:2])
    figures = dict(zip(of.names[of.keys :], map(int, row[of.keys :]), strict=False))
    if of is Insights.agents:
        return [(f"agent/{minute}/{name}", _encoded_insight("agent", minute, name, figures))]
    bad = (total := sum(figures.values())) - figures.get("completed", 0)
    alert = figures if bad >= FAILING_CALLS and bad * 2 >= total else {}
    return [
        (f"tool/{minute}/{name}", _encoded_insight("tool", minute, name, figures)),
        (f"failing/{minute}/{name}", _encoded_insight("failing", minute, name, alert)),
    ]


def _encoded_insight(kind: str, minute: Any, name: Any, figures: dict[str, int], run: str = "") -> bytes | None:
    return codec.encode(RunInsight(kind, minute * MINUTE_MS, name, run, **figures)) if figures else None
