"""Routes of causes and of the records that prove them."""

from collections.abc import Generator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from refold.client.reading.why import Why, why
from refold.console.gateway.site import AfterHeader, SentFile, Seq, SeqOption, Site
from refold.console.projections.runs import ViewedRuns
from refold.lab.evidence.gathering import bundle_of, claims_of, linked_runs
from refold.lab.evidence.redaction import rules_of

_FILE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/jsonl": {"schema": {"type": "string"}}}}}


def evidence_routes(site: APIRouter) -> None:
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
