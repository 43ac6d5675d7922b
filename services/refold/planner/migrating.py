"""A run is handed to another version of its agent: where somebody says so, and its code goes with the history."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from refold.core.errors import MalformedError, text_of
from refold.core.events import RunMigrated
from refold.core.messages import RunOperation
from refold.core.planning.verdict import Ignore, Refuse, Ruling
from refold.core.run.handed import NO_VALUES, Values
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.sdk.app import App
from refold.sdk.rehearsal import rehearse
from refold.sdk.source import spoken

MIGRATE = "migrate"


def migrated(app: App, state: RunState, said: RunOperation, values: Values = NO_VALUES) -> Ruling:
    """What becomes of the order to go on with version `to`, given while the run was of version `from`.

    `seq`, where the order has one, is that of the event which had given the run this version.
    """
    try:
        data = canonical.parse(said.data)
    except MalformedError as error:
        return Refuse("malformed", str(error))
    data = data if isinstance(data, dict) else {}
    to, since = data.get("to"), data.get("from")
    if not isinstance(to, str) or not isinstance(since, str) or not to:
        return Refuse("malformed", "migrate needs from and to, the versions that the run has and is to have")
    if state.over:
        return Ignore("the run is over")
    if state.request is None or state.status == "pending":
        return Refuse("conflict", f"run {state.run_id} has not begun: it will with the newest version")
    name = state.request.agent
    agent = app.versions(name).get(to)
    if agent is not None and agent.version == state.version:
        return Ignore("the run is of this version")
    if refused := _overruled(state, data, to):
        return refused
    if agent is None:
        there = ", ".join(app.versions(name)) or "none"
        return Refuse("unknown_version", f"{app.name} has no version {to} of agent {name}; there is {there}")
    try:
        rehearse(app, agent, state, values)
    except BaseException as error:  # noqa: BLE001 - the boundary to agent code, which is only tried here
        return Refuse("conflict", f"version {to} does not go with run {state.run_id}: {text_of(error)}")
    return [RunMigrated(agent.version, said.actor, app.manifest(name, to))]


def _overruled(state: RunState, data: dict[str, Any], to: str) -> Ruling | None:
    """What becomes of an order that was said of another version than the run has; None: it was said of this one.

    It was said of what the run was then, and may come once more because positions were lost. Two versions may take
    turns: by their names alone an order would be taken again that a later one has overruled.
    """
    for (seq, _), (_, after) in pairwise(state.versions):
        if seq == data.get("seq"):
            done = spoken(after)[0] == to
            return Ignore("that is done") if done else Refuse("conflict", f"run {state.run_id} was handed to {after}")
    if data["from"] not in (state.version, spoken(state.version)[0]):
        return Refuse("conflict", f"run {state.run_id} is of version {state.version}, and not of {data['from']}")
    return None
