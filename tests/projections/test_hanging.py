"""An `apply` that does not end: its projection stops and names the record, and the others of its process go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.table_benches import running_postgres
from tests.lent import lend
from tests.waiting import under_load

KEEPS = """
import json, os, re, sys, time
from contextlib import suppress
from itertools import count
from threading import Event
from refold.console.sql.opening import open_views
from refold.core.events import CallCompleted
from refold.console.projections.batch import APPLIES
from refold.engine.runtime.watchdog import Watchdog
from refold.sdk.projection import Projection, key, table
from tests.projections.source import ListedLog, attentive
from tests.projections.test_service import Squares

class Mute(Exception):
    def __str__(self):
        raise LookupError

class Hangs(Projection):
    events = (CallCompleted,)
    seen = table("seen", key(run_id=str, name=str))

    def apply(self, view, recorded):
        if recorded.run_id == "run-3" and recorded.call.step == 2:
            exec(code, {**globals(), "self": self, "view": view})

def again():
    again()

for manner, code, url in json.loads(sys.argv[1]):
    database, log = open_views(url), ListedLog()
    log.finish(*(f"run-{number}" for number in range(6)))
    bad, good = (attentive(made(), database, log) for made in (Hangs, Squares))
    watchdog = Watchdog(APPLIES, hint="mend it", give_up=lambda *_: None, die=os._exit, warn_s=0.3, most_s=1.0)
    watchdog.start()
    for _ in range(30):
        bad.turn(0.0)
        good.turn(0.0)
    watchdog.stop()
    notes = database.store("hangs", 1).notes()["stopped"]
    print(f"{manner}: stopped", bad.stopped, "|", "in apply" in notes, len(notes) < 20_000)
    print(f"{manner}: goes on", len(list(database.store("squares", 1).scan(Squares.answers))), good.serves)
"""

MANNERS = {
    "works for ever": ("while True: pass", "it has held its process for too long"),
    "waits for ever": ("Event().wait()", "it has held its process for too long"),
    "sleeps": ("time.sleep(600)", "it has held its process for too long"),
    "matches": ("re.match('(a*)*b', 'a' * 40)", "it has held its process for too long"),
    "matches later": (
        "until = time.thread_time() + 0.4\nwhile time.thread_time() < until: pass\nre.match('(a*)*b', 'a' * 40)",
        "it has held its process for too long",
    ),
    "recurses": ("again()", "maximum recursion depth exceeded"),
    "exits": ("sys.exit(0)", "0"),
    "cannot be told": ("raise Mute", "(it cannot be told: its __str__ raises)"),
    "reads for ever": (
        "for n in count(): view.get(self.seen, name=str(n))",
        "it has held its process for too long",
    ),
}


def kept(*rows: tuple[str, str, str]) -> subprocess.CompletedProcess[str]:
    """A process that keeps two projections for each row, one of them with its code: its name, the code and a URL."""
    return subprocess.run(
        [sys.executable, "-c", KEEPS, json.dumps(rows)],
        capture_output=True,
        text=True,
        timeout=under_load(60),
        check=False,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Every manner in one process, which goes on behind each."""
    views = tmp_path_factory.mktemp("views")
    rows = enumerate(MANNERS.items())
    return kept(*((name, code, f"sqlite:///{views}/{number}.db") for number, (name, (code, _)) in rows))


@pytest.mark.parametrize("manner", MANNERS)
def test_a_projection_that_does_not_end_stops_alone_and_names_the_record(
    done: subprocess.CompletedProcess[str], manner: str
) -> None:
    reason = MANNERS[manner][1]

    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith(f"{manner}: stopped")] == [
        f"{manner}: stopped Hangs.apply, run run-3, seq 8: {reason} | True True"
    ], done.stderr
    assert f"{manner}: goes on 60 True" in lines


def test_a_database_connection_outlives_the_interruption_of_its_reader(request: pytest.FixtureRequest) -> None:
    url = lend(request, running_postgres)
    done = kept(("reads", MANNERS["reads for ever"][0], url))

    assert "reads: stopped Hangs.apply, run run-3" in done.stdout, done.stderr
    assert "reads: goes on 60 True" in done.stdout


def test_an_apply_that_catches_its_interruption_ends_the_process_and_is_named(tmp_path: Path) -> None:
    stubborn = "while True:\n    with suppress(BaseException): Event().wait()"
    done = kept(("stubborn", stubborn, f"sqlite:///{tmp_path}/views.db"))

    assert done.returncode == 75, done.stderr
    assert "code.hangs" in done.stdout
    assert "projection hangs, seq 8" in done.stdout
    assert "run_id=run-3" in done.stdout
