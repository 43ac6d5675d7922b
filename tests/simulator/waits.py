"""What may never be of signals and callbacks, when a case is over."""

from __future__ import annotations

import json
from collections.abc import Iterator

from refold.core.errors import MalformedError
from refold.core.ids import parse_callback_token
from refold.core.topics import DEAD_LETTER, RUN_OPERATED, RUN_SIGNALLED
from tests.simulator.generations import generations_of, latest
from tests.simulator.reading.logged import LoggedRun
from tests.simulator.reading.values import Datum, read_value
from tests.simulator.workload.inputs import Scenario
from tests.simulator.world.world import World

_TAKING = ("waiter", "pair", "late")


def objections(world: World, scenario: Scenario, *, at_rest: bool) -> Iterator[str]:
    """Everything that is wrong with what runs were told."""
    for run in world.witness.history.runs.values():
        if run.mail.most > (room := world.settings.rules.signal_bytes):
            yield f"crowded: run {run.id} has kept signals of {run.mail.most} characters, and has room for {room} bytes"
        if run.status == "completed" and run.end:
            yield from _seen(run, run.end["result"])
    # What lost its end has lost words, too, and of two records of one key cleaning leaves the last.
    if at_rest and not world.hit("truncate", "clean", "mirror"):
        yield from _lost(world, scenario)


def _seen(run: LoggedRun, told: str) -> Iterator[str]:
    """The agent has what its waits took, each signal once, and what the first answer said."""
    result = json.loads(told) if run.request[0] in (*_TAKING, "caller") else None
    if run.request[0] in _TAKING and isinstance(result, list):
        found = sorted(each for each in result if each)
        if found != sorted(run.mail.taken.values()):
            yield f"seen: run {run.id} took {sorted(run.mail.taken.values())}, and its agent has seen {found}"
    elif run.request[0] == "caller":
        said = [answer.get("result") or json.dumps(answer["failure"]["message"]) for answer in run.mail.said.values()]
        if [json.dumps(result)] != (said or ["null"]):
            yield f"seen: run {run.id} was answered {said}, and its agent has seen {result!r}"


def _lost(world: World, scenario: Scenario) -> Iterator[str]:
    letters = {read_value(record.value)["key"] for record in world.witness.written.get(DEAD_LETTER, ()) if record.value}
    for given in scenario.inputs:
        name, _, signal = (given.key or b"").decode().partition("/")
        run = latest(world, name)
        if given.kind not in ("word", "note") or run is None or given.key in letters:
            continue
        if "RunRetried" in run.order:
            continue  # it may have been over when that was said
        if run.over and ("RunStarted" not in run.order or len(run.heads) == 1):
            continue  # by another topic than its request, or the cancel that was taken with that: its life is one entry
        traces = [_left_trace(world, each, signal) for each in generations_of(world, name)]
        if not any(traces) and run.at_ms > world.settings.epoch_ms + given.at_ms:
            yield f"lost: signal {signal} of run {run.id} has left no trace"


def _left_trace(world: World, run: LoggedRun, signal: str) -> bool:
    return (
        signal in run.mail.came or signal in run.notes or signal in run.mail.dropped or bool(run.ends and world.struck)
    )


def said_in_vain(world: World, letter: Datum) -> bool:
    """Whether what a dead letter has was rightly refused: it came too late, again and otherwise, or does not fit."""
    said = _json(letter["value"])
    if letter["topic"] == RUN_OPERATED:
        return said.get("kind") == "annotate" and _closed(world, said, letter)
    if letter["topic"] != RUN_SIGNALLED:
        return False
    if said.get("kind") == "signal":
        run = latest(world, said["run_id"])
        if letter["code"] == "no_room":
            return bool(run is not None and run.mail.dropped)
        return _closed(world, said, letter)
    if said.get("kind") != "callback":
        return False
    try:
        run = world.witness.history.runs.get(parse_callback_token(said["callback"]))
    except MalformedError:
        return bool(letter["code"] == "malformed")
    if run is None:
        return bool(world.hit("truncate"))
    answered = bool(run.mail.said or run.ends)
    # It may have been sent home when its time was over, or have come so: a timer that nobody wrote is none, either.
    closed = bool(run.mail.closed or run.ends) or not answered
    fitting: dict[str, bool] = {
        "conflict": answered,
        "closed": closed,
        "unfit": not isinstance(said.get("data"), int),
        "unknown_callback": world.hit("truncate"),
    }
    return bool(fitting.get(letter["code"], False))


def _closed(world: World, said: Datum, letter: Datum) -> bool:
    run = latest(world, said["run_id"])
    return bool(run is not None and run.ends and letter["code"] == "closed")


def _json(value: bytes) -> Datum:
    try:
        found = json.loads(value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
