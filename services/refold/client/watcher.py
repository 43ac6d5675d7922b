"""Watcher of many runs at once, with one consumer and one thread.

**Consumes** `run-log` and `dead-letter`; earlier records by one pass over the runs' homes. **Fails** every wait; a new
one restarts it. A broker's restart is waited out.
"""

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, suppress
from typing import Generic, TypeVar

from refold.client.operations.operation import refusals
from refold.client.operations.runs import run_named
from refold.client.reading.history import Run, feed
from refold.core.errors import RefoldError, UsageError
from refold.core.events import Cause
from refold.core.ids import RunId, home
from refold.core.run.log import LogFold
from refold.core.topics import DEAD_LETTER, RUN_LOG
from refold.engine.adapters.kafka.reader import KafkaLogReader, KafkaNews
from refold.engine.ports.log import Record
from refold.engine.runtime.settings import KafkaSettings

MOMENT_S = 0.2
"""Seconds of one poll, which delay a due pass over history."""
UNUSED_S = 60.0
"""Seconds that the consumer stays open without waits."""
REMEMBERED = 10_000
"""Beginnings of runs, and refused inputs, that are cached: a few MiB."""

_T = TypeVar("_T")


class Watch(Generic[_T]):
    """A client's wait for an answer about a run, fed with its log records. Only `answer` is thread-safe."""

    def __init__(self, run: RunId, judge: Callable[[Run], _T | None], *, look_back_at: float, fresh: bool) -> None:
        self.run, self.answer, self.look_back_at = run, Future[_T](), look_back_at
        self._judge, self.whole = judge, fresh
        self._buffered: list[Record] = []
        self._reset_fold()

    def hear(self, record: Record) -> None:
        """Fold a new record of the run if no earlier ones are missing; buffer it while `catch_up` is still to come."""
        if self.look_back_at:
            self._buffered.append(record)
        if self.whole:
            self.current.take(feed(self._fold, record), self._fold)

    def catch_up(self, history: list[Record], end: int) -> None:
        """Fold the run again, from its `history` up to offset `end` and the records buffered since."""
        later, self._buffered = [record for record in self._buffered if record.offset >= end], []
        self.look_back_at, self.whole = 0.0, True
        self._reset_fold()
        for record in [*history, *later]:
            self.hear(record)

    def judge(self) -> None:
        """Resolve the wait if its judge has an answer, or raises an error, for the run as folded so far."""
        if not self.whole or self.answer.done():
            return
        try:
            result = self._judge(self.current)
        except RefoldError as error:
            self.refuse(error)
            return
        if result is not None:
            with suppress(InvalidStateError):  # its waiter gives up just now
                self.answer.set_result(result)

    def refuse(self, error: RefoldError) -> None:
        with suppress(InvalidStateError):
            self.answer.set_exception(error)

    def _reset_fold(self) -> None:
        self.current, self._fold = Run.empty(self.run), LogFold()


class Watcher:
    """Consumer of the run log that resolves clients' waits for answers about runs. Thread-safe."""

    def __init__(self, settings: KafkaSettings, partitions: int) -> None:
        self._settings, self._partitions = settings, partitions
        # Reentrant: an answer that is set under the lock calls `_forget` in the same thread.
        self._lock = threading.RLock()
        self._watches: dict[bytes, list[Watch[object]]] = defaultdict(list)
        self._sent: dict[Cause, Watch[object]] = {}
        self._refused: OrderedDict[Cause, RefoldError] = OrderedDict()
        self._first: OrderedDict[RunId, int] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._listening: Future[None] = Future()
        self._reads_past = self._closed = False
        self._used = 0.0

    def listen(self, run: RunId, judge: Callable[[Run], _T | None], *, give_up_s: float | None = None) -> Watch[_T]:
        """Returns a wait for an answer of `judge`, called at each record of the run. Its past is read at once, or after
        `give_up_s` without an answer: a run that is probably new has none. **Raises** UnreachableError, UsageError."""
        fresh = give_up_s is not None
        watch = Watch(run, judge, look_back_at=time.monotonic() + (give_up_s or 0.0), fresh=fresh)
        with self._lock:
            if self._closed:
                raise UsageError("the client is closed", hint="make another one")
            self._watches[run.encode()].append(watch)  # type: ignore[arg-type]
            if self._thread is None:
                self._listening = Future()
                self._thread = threading.Thread(target=self._consume, name="refold-client", daemon=True)
                self._thread.start()
            listening = self._listening
        watch.answer.add_done_callback(lambda _: self._forget(watch))  # type: ignore[arg-type]
        # Outside the lock: a thread that cannot reach Kafka takes it before it reports the failure here.
        listening.result()
        return watch

    def sent(self, watch: Watch[_T], position: Cause) -> None:
        """Link a wait to the position of its input, so that the input's dead letter, read or to come, refuses it."""
        with self._lock:
            # The letter may be read before the acknowledgement of its input.
            if position in self._refused:
                watch.refuse(self._refused[position])
                return
            self._sent[position] = watch  # type: ignore[assignment]
            watch.answer.add_done_callback(lambda _: self._sent.pop(position, None))
            watch.judge()

    def close(self) -> None:
        with self._lock:
            self._closed, thread = True, self._thread
            self._refuse_all(UsageError("the client was closed", hint="nothing is lost: ask with another one"))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _forget(self, watch: Watch[object]) -> None:
        with self._lock:
            left = self._watches.get(watch.run.encode(), [])
            if watch in left:
                left.remove(watch)
            if not left:
                self._watches.pop(watch.run.encode(), None)

    def _all(self) -> list[Watch[object]]:
        return [watch for watches in self._watches.values() for watch in watches]

    def _refuse_all(self, error: RefoldError) -> None:
        for watch in self._all():
            watch.refuse(error)

    def _consume(self) -> None:
        listening, why = self._listening, RefoldError("the client has stopped listening", hint="ask again")
        try:
            news = KafkaNews(self._settings, (RUN_LOG, DEAD_LETTER), self._partitions)
            self._used = time.monotonic()
            listening.set_result(None)
            with closing(news):
                while self._is_used():
                    records = news.take(MOMENT_S)
                    with self._lock:
                        self._dispatch(records)
                        self._start_due_reads()
        except RefoldError as error:
            why = error
        finally:
            with self._lock:
                # A thread that ended for want of listeners has been forgotten already, and another may run.
                if self._thread is threading.current_thread():
                    self._thread = None
                    self._refuse_all(why)
            if not listening.done():
                listening.set_exception(why)

    def _is_used(self) -> bool:
        with self._lock:
            now = time.monotonic()
            self._used = now if self._watches else self._used
            if self._closed or now - self._used > UNUSED_S:
                self._thread = None
            return self._thread is not None

    def _dispatch(self, records: list[Record]) -> None:
        touched: dict[int, Watch[object]] = {}
        for record in records:
            if record.topic == DEAD_LETTER:
                self._refuse_by_letter(record)
                continue
            for watch in self._watches.get(run_named(record), ()):
                watch.hear(record)
                touched[id(watch)] = watch
        for watch in touched.values():
            self._note_beginning(watch)
            watch.judge()

    def _refuse_by_letter(self, record: Record) -> None:
        for position, refused in refusals([record]).items():
            self._refused[position] = refused
            if len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)
            if (watch := self._sent.get(position)) is not None:
                watch.refuse(refused)

    def _note_beginning(self, watch: Watch[object]) -> None:
        """Cache the offset of a run's first entry, so that later reads of its past begin there."""
        if watch.whole and watch.current.records and watch.run not in self._first:
            # Void records before it do not change which later ones count.
            self._first[watch.run] = min(judged.record.offset for judged in watch.current.records)
            if len(self._first) > REMEMBERED:
                self._first.popitem(last=False)

    def _start_due_reads(self) -> None:
        due = [watch for watch in self._all() if watch.look_back_at and watch.look_back_at <= time.monotonic()]
        if due and not self._reads_past:
            self._reads_past = True
            threading.Thread(target=self._read_past, args=[due], name="refold-client-past", daemon=True).start()

    def _read_past(self, due: list[Watch[object]]) -> None:
        starts: dict[int, int] = {}
        for watch in due:
            number = home(watch.run, self._partitions)
            starts[number] = min(starts.get(number, 1 << 62), self._first.get(watch.run, 0))
        history: dict[bytes, list[Record]] = {watch.run.encode(): [] for watch in due}
        try:
            reading = KafkaLogReader(self._settings).since(RUN_LOG, starts)
            for record in reading.to_the_end():
                if (own := history.get(run_named(record))) is not None:
                    own.append(record)
        except RefoldError as error:
            with self._lock:
                self._reads_past = False
                for watch in due:
                    watch.refuse(error)
            return
        with self._lock:
            self._reads_past = False
            for watch in due:
                watch.catch_up(history[watch.run.encode()], reading.ends[home(watch.run, self._partitions)])
                self._note_beginning(watch)
                watch.judge()
