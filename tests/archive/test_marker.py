"""A planner and what is left of an erased run: with its marker it is nothing, whatever it looks like."""

from __future__ import annotations

from refold.core.events import NoteRecorded, RunCompleted, RunRequested, RunStarted
from refold.core.ids import RunId, home
from refold.core.messages import DeadLetter, RunErased, RunRequest, RunSignal, ToolResult
from refold.core.run.chain import anchor_name
from refold.core.run.erased import erased_key
from refold.core.run.log import NOTHING_LOST
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.planner.agents.stalls import LiveCode, LiveRoom
from refold.engine.planner.intake.inbox import Inbox, Pending, SentEntry
from refold.engine.planner.log.acceptance import Acceptance
from refold.engine.planner.log.windows import Windows
from refold.engine.planner.settings import Limits
from refold.engine.ports.log import Record
from refold.engine.runtime.lanes import Journal
from refold.engine.runtime.watchdog import Mark
from tests.approval.driving import PARTITIONS, POLICY, TOPICS, World
from tests.approval.planning import INPUTS, OUTPUTS, Planning, app
from tests.core.chains import chained
from tests.core.histories import Log

RUN = RunId("run-1")
BEGUN = chained(
    RUN, [[RunRequested("one", '{"n":1}', "digest", "seed"), RunStarted(app.agents["one"].version)]], held=True
)
ENDED = chained(
    RUN, [[RunRequested("one", '{"n":1}', "digest", "seed"), NoteRecorded(1, "k", "1")], [RunCompleted("1")]]
)
MARKER = erased_key(RUN), codec.encode(RunErased(RUN))


def planning(*log: tuple[bytes, bytes], marked: bool = True) -> Planning:
    """A planner that takes over a partition with this log, and perhaps a marker."""
    topics = tuple(dict.fromkeys((*TOPICS, *INPUTS, *OUTPUTS, "dead-letter")))
    world = World(topics)
    world.publish("current", "current", POLICY.digest)
    for key, value in log:
        write(world, "run-log", key, value)
    if marked:
        write(world, "run-snapshot", *MARKER)
    return Planning(world)


def write(world: World, topic: str, key: bytes, value: bytes) -> None:
    world.write(topic, home(RUN, PARTITIONS), key.decode(), value)


def said(found: Planning, topic: str) -> list[bytes]:
    """What lies in a topic. Without anchors, which are of no run."""
    records = found.world.records(topic)
    return [record.value for record in records if record.value and anchor_name(record.key) is None]


def letters(found: Planning) -> list[str]:
    return [codec.decode(DeadLetter, value).code for value in said(found, "dead-letter")]


def test_what_looks_like_a_beginning_is_not_driven() -> None:
    marked, unmarked = planning(*BEGUN), planning(*BEGUN, marked=False)

    marked.run()
    unmarked.run()

    assert len(said(marked, "run-log")) == 1
    assert said(marked, "approval-requested") == []
    assert len(said(unmarked, "run-log")) > 1


def test_a_request_with_the_id_of_an_erased_run_is_refused_and_starts_nothing() -> None:
    found = planning()
    write(found.world, "run-requested", b"run-1", codec.encode(RunRequest(RUN, "one", '{"n":1}')))
    write(found.world, "run-signalled", b"run-1/s", codec.encode(RunSignal(RUN, "s", "cancel")))

    found.run()

    assert (said(found, "run-log"), letters(found)) == ([], ["erased", "erased"])


def test_what_services_still_had_of_an_erased_run_is_ignored() -> None:
    found = planning(*BEGUN)
    result = ToolResult("run-1/3", RUN, 1, 1, "completed", '"late"')  # type: ignore[arg-type]
    write(found.world, "tool-completed.default", b"run-1/3", codec.encode(result))

    found.run()

    assert (len(said(found, "run-log")), letters(found)) == (1, [])


def test_a_marker_that_comes_later_closes_a_run_that_the_planner_knows() -> None:
    found = planning(*ENDED, marked=False)
    found.run()
    write(found.world, "run-snapshot", *MARKER)
    found.run()

    write(found.world, "run-requested", b"run-1", codec.encode(RunRequest(RUN, "one", '{"n":2}')))
    found.run()

    assert (len(said(found, "run-log")), letters(found)) == (2, ["erased"])


def test_a_marker_of_a_run_that_goes_on_closes_nothing() -> None:
    found = planning(*BEGUN, marked=False)
    found.run()
    before = len(said(found, "run-log"))
    write(found.world, "run-snapshot", *MARKER)
    write(found.world, "run-snapshot", MARKER[0], None)  # an archivist takes it back
    write(found.world, "run-signalled", b"run-1/s", codec.encode(RunSignal(RUN, "s", "signal", name="said")))
    found.run()

    assert (len(said(found, "run-log")) > before, letters(found)) == (True, [])


def test_tombstones_of_inputs_are_no_inputs() -> None:
    found = planning(*ENDED, marked=False)
    for topic in INPUTS:
        found.world.write(topic, home(RUN, PARTITIONS), "run-1", None)

    found.run()

    assert letters(found) == []


def test_a_marker_closes_what_was_read_before_it_and_hides_what_comes_after() -> None:
    """Two topics are read at once: either may be ahead."""
    rests = (BEGUN[0], ENDED[1])  # a beginning and an end, of which the one would be driven and the other stalled
    for first, second in [order for rest in rests for order in ((rest, MARKER), (MARKER, rest))]:
        log = acceptance()
        for key, value in (first, second):
            if (key, value) == MARKER:
                log.erase(Record("run-snapshot", 0, 0, key, value, list))
            else:
                list(log.follow(Record("run-log", 0, 0, key, value, list)))

        assert (log.latest(RUN), log.position, log.fold.settle()) == (None, 1, {})


def test_when_the_marker_is_gone_the_row_still_says_that_the_run_is_over() -> None:
    log = acceptance()
    for offset, (key, value) in enumerate(ENDED):
        list(log.follow(Record("run-log", 0, offset, key, value, list)))

    log.erase(Record("run-snapshot", 0, 0, *MARKER, list))
    log.erase(Record("run-snapshot", 0, 1, MARKER[0], None, list))

    state = log.latest(RUN)
    assert state
    assert (state.status, state.head.seq, state.steps, log.erased.runs) == ("completed", 3, [], {})  # type: ignore[comparison-overlap]


def test_a_marker_hides_a_beginning_of_its_own_planner_that_comes_late() -> None:
    """Whoever stood still while the run was begun by another, ended and erased reads the marker before its own."""
    log, item = acceptance(), Pending(RUN, None)
    log.go_live()
    (_, entry, (_, value)) = Log(RUN).write([RunRequested("one", '{"n":1}', "digest", "seed")])
    sent = SentEntry(codec.encode_entry(entry)[0], b"", entry, RunState(RUN), value, item)
    log.send(sent)

    log.erase(Record("run-snapshot", 0, 0, *MARKER, list))
    list(log.delivered(sent, 0))

    assert (log.latest(RUN), log.position) == (None, 1)


def acceptance() -> Acceptance:
    served = Inbox((), Limits()), LiveCode(LiveRoom(0), Mark()), Journal()
    windows = Windows(0, 1, (), actor="p", journal=served[-1], mirrored=False)
    return Acceptance(*served, windows=windows, member="p", lost=NOTHING_LOST)
