"""Plays a hijacked planner against a real secured cluster, and prints what became of every attack.

    python -m tests.security.hijacked_planner

Exit code 1: an effect that nobody allowed, an attack that nobody stopped, or an allowed effect that did not happen.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.embedded.secured import SecuredKafka
from tests.kafka.secured import USERS, SecuredCluster
from tests.security import (
    claimed,
    controls,
    doubts,
    edits,
    functions,
    grants,
    halted,
    letters,
    mistaken,
    outdated,
    replays,
    slips,
    softened,
    swapped,
    unsigned,
)
from tests.security.hijack import Hijack, Outcome
from tests.security.plays import Play, Row
from tests.security.stage import Stage


def plays() -> Iterator[Play]:
    """Everything that is tried, in this order: the last of it changes what is in force."""
    for each in (
        unsigned,
        letters,
        controls,
        claimed,
        softened,
        swapped,
        edits,
        functions,
        grants,
        mistaken,
        doubts,
        replays,
        slips,
        halted,
        outdated,
    ):
        yield from each.plays()


def play(stage: Stage) -> list[Row]:
    """Tries everything on a stage; the effects are counted when all is over, so that late ones count too."""
    hijack = Hijack(stage)
    tried: list[tuple[str, Play, Outcome]] = []
    try:
        for number, each in enumerate(plays(), 1):
            hijack.label = f"try{number:03}"
            tried.append((hijack.label, each, _try(each, hijack)))
    finally:
        hijack.close()
    effects = stage.effects()
    return [Row(each, outcome, effects[label]) for label, each, outcome in tried]


def _try(each: Play, hijack: Hijack) -> Outcome:
    """What waits in vain is a finding like any other."""
    try:
        return each.run(hijack)
    except AssertionError as error:
        return Outcome(each.kind == "limit", f"no answer: {error}")


def main() -> int:
    """Starts a cluster of its own; returns the exit code."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SecuredKafka(folder / "kafka", USERS) as kafka:
            with Stage(SecuredCluster(kafka), folder) as stage:
                rows, falls = play(stage), list(stage.falls)
            kafka.kill()
    for row in rows:
        mark = "WRONG" if row.wrong else row.play.kind
        print(f"{mark:8} {row.play.what:62} effects {row.effects}/{row.play.allowed}  {row.outcome.where}")  # noqa: T201
    wrong = sum(row.wrong for row in rows)
    took = time.monotonic() - begun
    print(f"{len(rows)} tried, {wrong} wrong, {len(falls)} services fell, {took:.0f} s")  # noqa: T201
    return 1 if wrong or falls else 0


if __name__ == "__main__":
    sys.exit(main())
