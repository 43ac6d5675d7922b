"""What a deploy may cost: processes that are told to end, and nothing else that goes wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.simulator.app import TIMEOUT_MS
from tests.simulator.reading.history import History
from tests.simulator.reading.logged import LoggedCall
from tests.simulator.settings import WINDOWS, SimSettings
from tests.simulator.world.tools import Script


def charges(history: History, ran: Mapping[str, Sequence[Script]], settings: SimSettings) -> Iterator[str]:
    """No call pays for a drain: not by an attempt, not by a doubt, not by a wait until its planner asks again.

    `ran` is what the tools did by call. Of a `once` call whose tool outlasts the grace nobody knows what came of it.
    """
    for run in history.runs.values():
        for call in run.calls.values():
            # Of what was asked for anew the first time counts, too: an effect may be of then.
            same = [each.id for each in run.calls.values() if each.key == call.key]
            scripts = [script for each in same for script in ran.get(each, ())]
            own = sum(script.status != "completed" or script.lasts_ms >= TIMEOUT_MS for script in scripts)
            doubted = bool(call.said) or call.phase == "doubt"
            # What a budget has held says nothing of executors, and people do not either that let it go.
            if own or call.failure.startswith("budget_") or (call.failure and not doubted):
                continue
            cut = call.effect == "once" and any(script.lasts_ms >= settings.grace_ms for script in scripts)
            if call.tool in WINDOWS and run.pauses.spans:  # so long that the receiver may have forgotten its key
                continue
            if len(call.attempts) > 1 and not cut:
                yield f"charged: {call.id} ({call.effect}) was tried {len(call.attempts)} times, and no try has failed"
            elif doubted and not cut and len(same) == 1:  # what came of the first was told to a run that was over
                yield f"charged: {call.id} ({call.effect}) was in doubt, and its tool has said what came of it"
            elif _waited(call) and scripts and max(script.lasts_ms for script in scripts) < settings.grace_ms:
                yield from _slow(call, settings)


def _waited(call: LoggedCall) -> bool:
    return not call.said and call.phase in ("completed", "failed")


def _slow(call: LoggedCall, settings: SimSettings) -> Iterator[str]:
    if call.waited_ms >= settings.rules.redispatch_ms:
        yield f"charged: {call.id} ({call.effect}) took {call.waited_ms} ms, and its tool a moment"
