"""The client for programs that use agents and need none of their code: its methods wait.

One per process is enough: all threads may use it, and however many runs are waited for, they cost one consumer and one
thread. It is to be made after a fork, not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

from refold.client.redrive import Changes
from refold.client.shared import WAIT, Action, Came, ClientBase, State, action_for, said_with, seconds, too_late
from refold.client.streams import LivePart
from refold.core.events import DOUBT
from refold.core.planning.pausing import PAUSE, RESUME
from refold.sdk.budget import Budget
from refold.views.approval import Question
from refold.views.outcome import Said, Started, Told, Voted
from refold.views.run import Ended, RunEvent, RunInfo

_T = TypeVar("_T")


class Client(ClientBase):
    """Starts runs and waits for them, tells them things and decides what they ask, from any program.

    A context manager. **Raises** UnreachableError wherever Kafka does not answer, UsageError for settings and arguments
    that cannot be, TimedOutError when a wait is over: nothing is lost then, ask again.

    **Units**: timeouts are timedeltas; None waits for ever.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what waits, with UsageError, and closes the consumer."""
        self._desk.close()

    def start(
        self,
        agent: str,
        input: object = None,
        *,
        id: str = "",
        labels: Mapping[str, str] | None = None,
        sessions: Sequence[str] = (),
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        budget: Budget | None = None,
        timeout: timedelta | None = WAIT,
    ) -> Started:
        """Asks for a run of an agent, and waits until a planner has taken it.

        `input` is JSON data: the agent's arguments by name. The same `id` with the same agent and input is one run,
        however often and by whomever it is asked for; without one it gets a fresh one. A `budget` makes that of the
        agent smaller, never larger.

        **Raises** ConflictError when the run exists with another agent or input; UsageError, MalformedError for a
        request that nobody could take.
        """
        asked = self._desk.start(
            agent,
            input,
            run=id,
            labels=labels or {},
            sessions=sessions,
            not_before=not_before,
            deadline=deadline,
            budget=budget,
        )
        return _of(asked, timeout, f"no planner has taken the request for {id or agent}")

    def result(self, run: str, *, timeout: timedelta | None = None) -> Any:
        """Waits until a run is over; returns what the agent has returned, as JSON data.

        It need not have been asked for by now. **Raises** RunFailedError when it has failed or was cancelled.
        """
        ended = self.wait(run, timeout=timeout)
        ended.check()
        return ended.value

    def wait(self, run: str, *, timeout: timedelta | None = None) -> Ended:
        """Waits until a run is over, however it ends."""
        return self._desk.whole(_of(self._desk.ended(run), timeout, f"run {run} is not over"))

    def get(self, run: str) -> RunInfo:
        """A run as it is now. Large values stay what stands for them. **Raises** NotFoundError."""
        return self._desk.get(run)

    def events(self, run: str, *, after: int = 0, timeout: timedelta | None = None) -> Iterator[RunEvent]:
        """The events of a run behind the one with the number `after`, and on, until the run is over.

        **Shape**: in order, without gaps. `timeout` is for each of them.
        """
        told: SimpleQueue[RunEvent | None] = SimpleQueue()
        over = self._desk.events(run, after, told.put)
        over.add_done_callback(lambda _: told.put(None))
        try:
            while (event := _next(told, timeout, run)) is not None:
                yield event
            over.result()
        finally:
            over.cancel()

    def stream(self, run: str, *, timeout: timedelta | None = None) -> Iterator[LivePart]:
        """What calls of a run say while they run, as it comes: the tokens of a model. It ends after a `timeout`.

        Lossy, and kept for minutes; what counts is the result. Reading asks nobody for anything.
        """
        return (part for part in self._desk.stream(run, timeout) if part is not None)

    def signal(
        self,
        run: str,
        name: str,
        data: object = None,
        *,
        id: str = "",
        timeout: timedelta | None = WAIT,
    ) -> Told:
        """Tells a run what its `ctx.wait_for(name)` waits for, or will. Twice with one `id` is one signal.

        **Raises** NotFoundError, ConflictError when the run is over or keeps too many already.
        """
        return self._desk.signal(run, name, data, id, seconds(timeout))

    def complete(self, token: str, data: object = None, *, key: str = "", timeout: timedelta | None = WAIT) -> Told:
        """Gives the result of a callback, by the token that a run has made. The first answer counts.

        `key` is your own name for this answer: said again with it, it is the same answer.
        **Raises** NotFoundError, ConflictError when it was answered otherwise or is over, UsageError for a result that
        does not fit.
        """
        return self._desk.answer(token, data, "", key, seconds(timeout))

    def fail(self, token: str, message: str, *, key: str = "", timeout: timedelta | None = WAIT) -> Told:
        """Says that a callback will have no result: the agent sees a failure. **Raises** as `complete`."""
        return self._desk.answer(token, None, message, key, seconds(timeout))

    def cancel(self, run: str, *, reason: str = "", timeout: timedelta | None = WAIT) -> Said:
        """Cancels a run and what it has started; as an operator, where somebody else has asked for it.

        **Raises** NotFoundError, ConflictError when it is over otherwise.
        """
        return self._desk.cancel(run, reason, seconds(timeout))

    def pause(self, run: str, *, reason: str = "", timeout: timedelta | None = WAIT) -> Said:
        """Pauses a run and what it has started. **Raises** NotFoundError, ConflictError when it is over."""
        return self._desk.hold(run, PAUSE, reason, seconds(timeout))

    def resume(self, run: str, *, timeout: timedelta | None = WAIT) -> Said:
        """Lets a run go on. **Raises** NotFoundError, ConflictError when it is over or not paused."""
        return self._desk.hold(run, RESUME, "", seconds(timeout))

    def retry(self, run: str, *, reason: str = "", timeout: timedelta | None = WAIT) -> Said:
        """Has a failed run go on where it failed, or the code of a stalled one tried again, as an operator.

        **Raises** NotFoundError, ConflictError when it is neither.
        """
        return self._desk.retry(run, Changes(reason=reason), seconds(timeout))

    def approvals(self, state: State = "open") -> list[Question]:
        """What people are asked, the oldest first; what was closed long ago is in its run's history."""
        return self._desk.questions(state)

    def approval(self, name: str) -> Question:
        """A question by its id; by `RUN/SEQ` the open one about a call, by `RUN` that of a run and what it started.

        **Raises** NotFoundError; UsageError when there are several.
        """
        return self._desk.question(name)

    def decide(
        self,
        approval: str,
        action: Action,
        *,
        args: Mapping[str, object] | None = None,
        result: object = None,
        message: str = "",
        timeout: timedelta = WAIT,
    ) -> Voted:
        """Says of a question, by its whole id, that the call may go out or not, signed in the actor's name.

        `edit` takes all `args` that it goes out with instead; `answer` the `result` in the tool's place.
        **Raises** NotFoundError, ConflictError when it is decided already, UsageError for a vote that is void.
        """
        return self._desk.decide(approval, action, said_with(action, args, result, message), timeout.total_seconds())

    def resolve(
        self, approval: str, verdict: Came, *, result: object = None, message: str = "", timeout: timedelta = WAIT
    ) -> Voted:
        """Says what came of a call in doubt, by the whole id of that question, signed. **Raises** as `decide`."""
        action = action_for(verdict)
        said = said_with(action, None, result, message)
        return self._desk.decide(approval, action, said, timeout.total_seconds(), about=DOUBT)


def _of(answer: Future[_T], timeout: timedelta | None, what: str) -> _T:
    try:
        return answer.result(seconds(timeout))
    except TimeoutError:
        raise too_late(what, timeout) from None
    finally:
        answer.cancel()


def _next(told: SimpleQueue[_T], timeout: timedelta | None, run: str) -> _T:
    try:
        return told.get(timeout=seconds(timeout))
    except Empty:
        raise too_late(f"nothing new of run {run}", timeout) from None
