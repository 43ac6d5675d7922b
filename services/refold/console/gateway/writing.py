"""Writes of the gateway: inputs of runs. Outcomes are read from the view, or from refusals."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress

from refold.client.operations.operation import Followed, OperationRow, Performed, follow_up, publish_input, refusals
from refold.client.operations.run import Settlement, settle_call
from refold.client.platform import Platform
from refold.client.reading.history import Run
from refold.console.gateway.reading import POLL_S, ReadSide
from refold.core.errors import NotFoundError, RefoldError, TimedOutError, UnreachableError
from refold.core.events import Cause
from refold.core.ids import RunId
from refold.core.topics import DEAD_LETTER, RUN_LOG
from refold.engine.adapters.kafka.reader import KafkaNews
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.ports.log import Place, Record
from refold.engine.runtime.outages import OUTAGES

LISTEN_AGAIN_S = 1.0
ASK_S = 5.0
"""Seconds between checks that Kafka answers."""
DEAF_S = 20.0
"""Seconds of silence after which the client counts as broken: an answer may take ten."""
LAG_S = 2.0
"""Seconds between reads of the log's end, to measure the view's lag."""
REMEMBERED_REFUSALS = 10_000
"""Refused inputs that are cached: a few MiB."""
REBUILD = "set REFOLD_VIEWS__URL to the views of this log, or rebuild them: `refold projection rebuild`"
_UNSEEN = object()


class Refusals:
    """The planner's dead letters from now on, read by a thread. `log`: identity of the log, once Kafka has answered."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._errors: OrderedDict[Cause, RefoldError] = OrderedDict()
        self._stop = threading.Event()
        self.log = ""
        # An hour of ends, with one each `LAG_S`.
        self.ends: deque[tuple[float, dict[Place, int]]] = deque(maxlen=1800)
        self.listens, self.heard_s = threading.Event(), time.monotonic()

    def open(self) -> None:
        threading.Thread(target=self._listen, name="refold-gateway-refusals", daemon=True).start()

    def of(self, position: Cause) -> RefoldError | None:
        return self._errors.get(position)

    def close(self) -> None:
        self._stop.set()

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                settings, partitions = self._platform.settings.kafka, self._platform.runs.partitions
                source = KafkaLogSource(settings)
                self.log = source.identity()
                with closing(KafkaNews(settings, (DEAD_LETTER,), partitions)) as news:
                    self.heard_s = time.monotonic()
                    self.listens.set()
                    while not self._stop.is_set():
                        self._remember(news.take(0.2))
                        if news.away:  # a request would find it out after its timeout
                            raise UnreachableError("no broker can be reached")
                        if not self.ends or time.monotonic() - self.ends[-1][0] > LAG_S:
                            bounds = source.bounds((RUN_LOG,)).items()
                            self.ends.append((time.monotonic(), {of: end for of, (_, end) in bounds}))
                        if time.monotonic() - self.heard_s > ASK_S:
                            self.log = source.identity()  # a broker that is silent has nothing new, or is not there
                            self.heard_s = time.monotonic()
            except RefoldError as error:
                self.listens.clear()
                if not self._stop.is_set():
                    OUTAGES.failed("gateway.refusals_unread", reason=error.message)
                self._stop.wait(LISTEN_AGAIN_S)

    def _remember(self, records: list[Record]) -> None:
        for position, error in refusals(records).items():
            self._errors[position] = error
            if len(self._errors) > REMEMBERED_REFUSALS:
                self._errors.popitem(last=False)


class WriteSide:
    """Performs operations on runs. Thread-safe. **Raises** UnreachableError while Kafka is away."""

    def __init__(
        self, platform: Platform, reading: ReadSide, refusals: Refusals, broken: Callable[[], str] = str
    ) -> None:
        self._platform, self._reading, self._refusals, self._broken = platform, reading, refusals, broken

    @property
    def listens(self) -> bool:
        """True if Kafka has answered lately."""
        return self._refusals.listens.is_set() and time.monotonic() - self._refusals.heard_s < DEAF_S

    @property
    def deaf(self) -> bool:
        """True if Kafka has answered once, and not lately."""
        return bool(self._refusals.log) and not self.listens

    @property
    def away(self) -> str:
        """Reason why nothing can be written now, which passes by itself; empty if writes work."""
        if not self.listens:
            return "Kafka does not answer the gateway"
        broken = self._platform.broken or self._broken()
        return f"the gateway's Kafka client is replaced: {broken}" if broken else ""

    def check(self) -> None:
        """Check that Kafka takes writes; right after a start, wait for it first. **Raises** UnreachableError."""
        self._refusals.listens.wait(LISTEN_AGAIN_S)
        if away := self.away:
            raise UnreachableError(away, hint="ask again in a moment")

    @property
    def lag_s(self) -> int:
        """Seconds since Kafka last answered, 0 if it does."""
        return 0 if self.listens else round(time.monotonic() - self._refusals.heard_s) + 1

    @property
    def behind_s(self) -> int:
        """Seconds by which the view is behind the log."""
        positions, ends = self._reading.store().positions(), self._refusals.ends
        while ends and all(positions.get(place, 0) >= end for place, end in ends[0][1].items()):
            ends.popleft()
        return int(time.monotonic() - ends[0][0]) if ends else 0

    def stands_still(self, notes: Mapping[str, str]) -> str:
        """Return the reason why a view shows nothing new, or empty."""
        if stopped := notes.get("stopped"):
            return f"the views stand still: {stopped.partition(chr(10))[0]}"
        viewed, written = notes.get("log", ""), self._refusals.log
        return f"the views are of the log {viewed}, and Kafka has {written}" if written and viewed != written else ""

    def perform(self, operation: OperationRow, wait_s: float) -> Performed | Cause:
        """Publish an input and wait for its outcome; return its position if there is none in time. **Raises** as the
        operation's `judge`, and the error of its dead letter."""
        self.check()
        if reason := self.stands_still(self._reading.store().notes()):
            raise UnreachableError(reason, hint=REBUILD)
        position = publish_input(self._platform.publisher, operation.message)
        self._reading.note_sent(operation.message.run_id, position)
        deadline = time.monotonic() + wait_s
        last: object = _UNSEEN
        while True:
            # The input lies in Kafka: an outcome that cannot be read is none so far.
            with suppress(UnreachableError):
                head = self._reading.head(operation.message.run_id)
                # A history of thousands of events is not folded again for each look.
                if head != last:
                    history = self._reading.find(operation.message.run_id)
                    outcome = operation.judge(Followed(history, position)) if history is not None else None
                    if history is not None and outcome is not None:
                        return Performed(outcome, history, position)
                    last = head
            if (refused := self._refusals.of(position)) is not None:
                raise refused
            if time.monotonic() > deadline:
                return position
            time.sleep(POLL_S)

    def perform_by_log(self, run: str, build: Callable[[Run], OperationRow], wait_s: float) -> Performed | Cause:
        """Perform an operation on a stalled run or disordered records. **Raises** as `perform`; NotFoundError."""
        self._platform.knock()
        runs = self._platform.runs
        try:
            operation = build(runs.get(run))
        except NotFoundError:
            self.get(run)  # it may be erased
            raise
        position = publish_input(self._platform.publisher, operation.message)
        try:
            return follow_up(runs, operation, position, wait_s)
        except TimedOutError:
            return position

    def settle(self, call: str, settled: Settlement, actor: str, wait_s: float) -> Performed | Cause:
        """Settle a call in doubt or on hold. **Raises** as `perform`."""
        return self.perform(settle_call(self.get, call, settled, actor), wait_s)

    def get(self, run: str) -> Run:
        with self._reading.still() as view:
            return self._reading.run(view, RunId(run))
