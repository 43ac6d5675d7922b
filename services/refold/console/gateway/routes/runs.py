"""Routes of runs: lists, a run now and earlier, its history, and the causes of its events with their proof."""

from collections.abc import Generator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse

from refold.client.operations.runs import RunQuery
from refold.client.reading.api import LARGEST_NUMBER, RunFilter, RunPage
from refold.client.reading.diff import RunDiff, run_diff
from refold.client.reading.messages import ModelMessages, messages_of, turns_of
from refold.client.reading.run import RunEvent, RunInfo, RunRow, info_of, row_of
from refold.client.reading.steps import RunStep
from refold.client.reading.why import AuditLine, Why, audit_of, why
from refold.client.values import texts_of
from refold.console.gateway.reading import events_after
from refold.console.gateway.site import AfterHeader, Gateway, SentFile, Seq, SeqOption, Site
from refold.console.projections.runs import ViewedRuns, entry_of
from refold.console.projections.shipped.tables import ENTRIES
from refold.core.errors import BlobError, MalformedError, NotFoundError, UnreachableError
from refold.core.ids import RunId, run_id
from refold.core.run.handed import own_pointers
from refold.core.wire.blobs import MARK, size_of
from refold.engine.ports.tables import MOST_PAGE, ViewReader
from refold.lab.evidence.gathering import bundle_of, claims_of, linked_runs
from refold.lab.evidence.redaction import rules_of

_FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/jsonl": {"schema": {"type": "string"}}}}}


def run_routes(site: APIRouter) -> None:
    get = site.get

    @get("/api/runs", summary="List runs")
    def list_runs(shared: Site, filters: Annotated[RunFilter, Query()], after: AfterHeader = "") -> RunPage:
        """Return runs, the newest first."""
        with shared.view(after) as view:
            return shared.reading.runs(view, query_of(filters), filters.cursor)

    @get("/api/runs/{run}", summary="Show a run")
    def show_run(
        shared: Site,
        run: str,
        at_seq: Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="as it was after this event; 0: now")] = 0,
        at_ms: Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="as it was at this time; 0: now")] = 0,
        after: AfterHeader = "",
    ) -> RunInfo:
        """Return a run with its steps, questions and input, now or at a point of its history."""
        with shared.view_of(run, after) as view:
            seqs = [at_seq] if at_seq else []
            seqs += [shared.reading.seq_at(view, run, at_ms)] if at_ms else []
            reading = shared.reading
            history = reading.runs_at(view, run, [min(seqs)])[0] if seqs else reading.run(view, run)
        if not seqs:
            history.mark(shared.platform.idle_pools)
        texts = texts_of(history.state.run_id, shared.blobs)
        return info_of(history, turns_of(history.state, texts) if seqs else ())

    @get("/api/runs/{run}/diff/{left}/{right}", summary="Compare two points of a run")
    def diff_run(shared: Site, run: str, left: Seq, right: Seq, after: AfterHeader = "") -> RunDiff:
        """Return the differences of a run between two events: status, steps, outcomes, budget, signals."""
        with shared.view_of(run, after) as view:
            before, then = shared.reading.runs_at(view, run, (left, right))
        return run_diff(before, then)

    @get("/api/runs/{run}/audit", summary="Show the audit trail of a run")
    def audit_run(shared: Site, run: str, after: AfterHeader = "") -> list[AuditLine]:
        """Return each event of the run with its actors, reason and input."""
        with shared.view_of(run, after) as view:
            return audit_of(shared.reading.run(view, run))

    @get("/api/runs/{run}/steps", summary="List the steps of a run")
    def list_steps(shared: Site, run: str, after: AfterHeader = "") -> list[RunStep]:
        """Return the steps in order of their numbers."""
        with shared.view_of(run, after) as view:
            return shared.reading.run(view, run).timeline.steps

    @get("/api/runs/{run}/steps/{step}/messages", summary="Show the messages of a request to a model")
    def show_messages(
        shared: Site,
        run: str,
        step: Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="number of a step that asked a model")],
        after: AfterHeader = "",
    ) -> ModelMessages:
        """Return the messages of a request to a model, rebuilt from the log, with a check against their digest."""
        with shared.view_of(run, after) as view:
            history = shared.reading.run(view, run)
        return messages_of(history.state, step, texts_of(history.state.run_id, shared.blobs))

    @get("/api/runs/{run}/events", summary="List the events of a run")
    def list_events(
        shared: Site,
        run: str,
        after_seq: SeqOption = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_PAGE, description="entries")] = MOST_PAGE,
        after: AfterHeader = "",
    ) -> list[RunEvent]:
        """Return the events after a number, in order, without gaps, from at most `limit` entries."""
        with shared.view_of(run, after) as view:
            return events_after(view, shared.reading.check(view, run)["run_id"], after_seq, limit)

    @get("/api/runs/{run}/values", summary="List the exposed values of a run")
    def list_values(shared: Site, run: str, after: AfterHeader = "") -> dict[str, Any]:
        """Return the last values that the agent has exposed, by name. No worker is needed for them."""
        with shared.view_of(run, after) as view:
            return shared.reading.values(view, run)

    @get("/api/runs/{run}/family", summary="List the runs that a run has started")
    def list_family(shared: Site, run: str, after: AfterHeader = "") -> list[RunRow]:
        """Return the descendants of a run, each after the run that started it."""
        with shared.view_of(run, after) as view:
            return [row_of(member) for member in ViewedRuns(view).family(shared.reading.run(view, run))]

    octets: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    }

    @site.get("/api/blobs/{digest}", summary="Read a large value", responses=octets, response_class=StreamingResponse)
    def read_blob(
        shared: Site,
        digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="the SHA-256 that the log has of it")],
        run: Annotated[str, Query(description="the run whose value it is")],
        after: AfterHeader = "",
    ) -> StreamingResponse:
        """Return a value from the blob store that an entry of this run refers to. A child's values belong to the child.

        The value is checked against its digest while it is sent; an altered value breaks off before its end.
        """
        with shared.view_of(run, after) as view:
            shared.reading.check(view, run)
            pointer = _pointer_of_blob(view, run_id(run), digest)
        sent, length = _blob_parts(shared, run_id(run), pointer), str(size_of(pointer))
        try:
            return SentFile(sent, "application/octet-stream", content_length=length, content_disposition="attachment")
        except BlobError as error:
            raise NotFoundError(error.message, hint=error.hint) from None

    @site.get("/api/runs/{run}/why/{seq}", summary="Show why something happened")
    def show_why(shared: Site, run: str, seq: Seq, after: AfterHeader = "") -> Why:
        """Return the causes of an event back to the request, with their positions in Kafka and the claims of a call."""
        with shared.view_of(run, after) as view:
            history, find = shared.reading.run(view, run), ViewedRuns(view).find
            because = why(history, seq, find)
            if not (call := because.chained) or shared.archived:
                return because
            with shared.log() as runs:
                return why(history, seq, find, claims=claims_of(runs.reader, [history], call))

    @site.get("/api/runs/{run}/bundle", summary="Download evidence", responses=_FILE, response_class=StreamingResponse)
    def download_bundle(
        shared: Site,
        run: str,
        seq: SeqOption = 0,
        redact: Annotated[str, Query(max_length=40, description="args, results or both: only their digests")] = "",
        after: AfterHeader = "",
    ) -> SentFile:
        """Return a file for `refold verify`: the run and all its descendants, or with `seq` the causes of an event."""
        about, rules = f"{run}/{seq}" if seq else run, rules_of(redact)

        def lines() -> Generator[bytes]:
            with shared.place("bundles"):
                with shared.view_of(run, after) as view:
                    history, runs_read = shared.reading.run(view, run), ViewedRuns(view)
                    if seq:
                        runs = linked_runs(why(history, seq, runs_read.find), runs_read.find)
                    else:
                        runs = {member.state.run_id: (member, 0) for member in (history, *runs_read.family(history))}
                with shared.log():
                    bundle = bundle_of(about, runs, shared.platform, rules)
                yield from bundle.lines()

        name = f'attachment; filename="{about.replace("/", "-")}.jsonl"'
        return SentFile(lines(), "application/jsonl", content_disposition=name)


def query_of(filters: RunFilter) -> RunQuery:
    labels = tuple(label_of(text) for text in filters.label)
    return RunQuery(**filters.model_dump(exclude={"label", "cursor"}), labels=labels)


def label_of(text: str) -> tuple[str, str]:
    """Parse a label, `NAME=VALUE`. **Raises** MalformedError."""
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise MalformedError(f"label={text[:80]!r} is no label", hint="write label=team=pay")
    return name, value


def _pointer_of_blob(view: ViewReader, run: RunId, digest: str) -> str:
    prefix = f"{MARK}{digest}:"
    for row in view.rows_of(ENTRIES, run):
        if prefix.encode() in row[ENTRIES.places["value"]]:  # type: ignore[operator]
            for pointer in own_pointers(entry_of(row)[1].events):
                if pointer.startswith(prefix):
                    return pointer
    raise NotFoundError(f"run {run} has no value {digest}", hint="a value of a child lies with the child")


def _blob_parts(shared: Gateway, run: RunId, pointer: str) -> Generator[bytes]:
    if (store := shared.blobs()) is None:
        raise UnreachableError("the gateway has no blob store", hint="set REFOLD_BLOBS__URL to that of the services")
    with shared.place("large values"):
        yield from store.stream(run, pointer)
