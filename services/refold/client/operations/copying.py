"""Live forks: runs that begin with the history of another run."""

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from refold.client.operations.operation import Followed, OperationRow
from refold.client.operations.run import Done, left_behind, operated
from refold.client.reading.history import Run
from refold.core.errors import ConflictError, ReusedIdError, UnreachableError, UsageError
from refold.core.events import CallProposed, ChildCompleted, ChildStarted, Entry, Event
from refold.core.ids import RunId, child_id, home, run_id
from refold.core.planning.copying import FORK, fork_asked, fork_digest
from refold.core.run.fold import fold
from refold.core.run.handed import Pointed, pointers_in
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.engine.ports.blobs import Blobs


class KeptPrefix(NamedTuple):
    """Beginning of a run that a fork copies: its entries, and the state after them."""

    entries: list[Entry]
    state: RunState


def prefix_to(run: Run, at: int) -> KeptPrefix:
    """Beginning of a run up to event `at`. **Raises** UsageError without an entry; ConflictError if it had ended."""
    name = run.state.run_id
    # Of records that came before their predecessor the first judgement says "orphan", although they count now.
    counted = ((record.id, record.entry) for record in run.records if record.entry is not None)
    entries = [(head, entry) for head, entry in counted if entry.last_seq <= at]
    if not entries:
        hint = "refold run start begins a run anew"
        raise UsageError(f"no entry of run {name} ends at event {at} or before", hint=hint)
    state = fold(entries, name)
    if state.over or state.retried.at:
        raise ConflictError(f"run {name} had ended by event {at}", hint="fork it before its end: a smaller --at")
    return KeptPrefix([entry for _, entry in entries], state)


def fork_id(source: RunId, partitions: int, requested: str = "") -> RunId:
    """Id for a fork, in the partition of its source. **Raises** UsageError, MalformedError."""
    place, name = home(source, partitions), run_id(requested or f"{source.replace('.', '-')[:100]}-fork")
    if requested and "." in requested:
        raise UsageError(f"{requested} is the id of a child", hint="a fork is a run of its own: leave the dot out")
    if requested and home(name, partitions) == place:
        return name
    # The id is hashed to a partition: try suffixes until it is the one of the source.
    near = (RunId(f"{name}-{secrets.token_hex(3)}") for _ in iter(int, 1))
    unused = next(candidate for candidate in near if home(candidate, partitions) == place)
    if requested:
        refused = f"a fork of {source} has to lie in partition {place}, and {requested} does not"
        raise UsageError(refused, hint=f"--as {unused}")
    return unused


def repeats(prefix: RunState, whole: RunState) -> list[Done]:
    """Effects that a fork may repeat: calls and children of its source that are open at the cut, or follow it."""
    first = len(prefix.steps) + 1
    under_way = [Done(step, prefix.call(step).tool, prefix.call(step).effect) for step in prefix.open_calls()]
    children = ((step, prefix.steps[step - 1]) for step in sorted(prefix.open))
    begun = [Done(step, event.agent, "child") for step, event in children if isinstance(event, ChildStarted)]
    calls = [done for done in under_way if done.effect != "pure"]
    later = [(step, event) for step, event in enumerate(whole.steps[first - 1 :], first)]
    runs = [Done(step, event.agent, "child") for step, event in later if isinstance(event, ChildStarted)]
    return [*calls, *begun, *left_behind(whole, first), *runs]


def copy_values(prefix: KeptPrefix, fork: RunId, store: Callable[[], Blobs | None]) -> None:
    """Copy large values of a kept history to a fork, in the blob store. **Raises** BlobError, UnreachableError."""
    source = prefix.state.run_id
    for (owner, pointer), step in _large_values(source, (event for entry in prefix.entries for event in entry.events)):
        if (blobs := store()) is None:
            raise UnreachableError(f"run {source} has large values, and no blob store is set", hint="REFOLD_BLOBS__URL")
        # Values belong to a run: erasing the source would erase them for the fork.
        blobs.put(child_id(fork, step) if step else fork, blobs.get(owner, pointer))


def _large_values(run: RunId, events: Iterable[Event]) -> Iterator[tuple[Pointed, int]]:
    for event in events:
        step = event.step if isinstance(event, ChildStarted | ChildCompleted) else 0
        for pointer in pointers_in(event):
            yield (child_id(run, step) if step else run, pointer), step


def fork_live(
    prefix: KeptPrefix, name: RunId, actor: str, *, edit: tuple[str, str] | None = None, reason: str = ""
) -> OperationRow:
    """Build the start of a fork from a kept history; `known` if the fork exists already."""
    source, head = prefix.state.run_id, prefix.state.head
    content: dict[str, Any] = {"source": source, "at": head.seq, "head": head.id.hex(), "reason": reason}
    if edit:
        content |= {"tool": edit[0], "edit": canonical.parse(edit[1])}

    operation = operated(name, FORK, content, actor)
    digest = fork_digest(fork_asked(operation))

    def judge(look: Followed) -> str | None:
        if (request := look.run.state.request) is None:
            return None
        if request.forked is None or request.request_digest != digest:
            raise ReusedIdError(f"run {name} exists, and is another", hint=f"`refold run show {name}` shows it")
        if look.run.state.copying:
            return None
        return "accepted" if look.run.state.position == look.position else "known"

    return OperationRow(operation, judge)


def edit_of(prefix: KeptPrefix, whole: RunState, edits: dict[int, str]) -> tuple[str, str] | None:
    """Tool and new arguments of the first step after the cut, if any. **Raises** UsageError for other steps."""
    first = len(prefix.state.steps) + 1
    if not edits:
        return None
    if (step := min(edits)) < first:
        hint = f"fork at {whole.seqs[step - 1] - 1} or before"
        raise UsageError(f"step {step} was asked for before the cut", hint=hint)
    call = whole.steps[first - 1] if first <= len(whole.steps) else None
    if isinstance(call, CallProposed) and edits.keys() == {first}:
        return call.tool, edits[first]
    kind = f"a call of {call.tool}" if isinstance(call, CallProposed) else "no call"
    refused = f"--live takes other arguments for the next step alone: the next step, {first}, is {kind}"
    raise UsageError(refused, hint="fork it elsewhere")
