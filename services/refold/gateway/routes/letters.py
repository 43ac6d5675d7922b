"""Inputs that no service could use, and what was spent of limits."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from refold.client.letters import find_letter, replayed
from refold.gateway.site import AfterHeader, Site
from refold.views.api import InputReplayed, LetterFilter
from refold.views.budget import LimitInUse
from refold.views.letter import Letter, WholeLetter, whole_letter

LetterPlace = Annotated[str, Path(description="`[SERVICE/]PARTITION/OFFSET`, as lists have it")]


def add(site: APIRouter) -> None:
    """Add the routes."""

    @site.get("/api/dead-letters", summary="List dead letters")
    def list_letters(shared: Site, wanted: Annotated[LetterFilter, Query()], after: AfterHeader = "") -> list[Letter]:
        """Inputs that no service could use, and why, the latest first."""
        with shared.view(after) as view:
            return shared.reading.letters(view, wanted)

    @site.post("/api/dead-letters/{place:path}/replay", summary="Send a refused input again")
    def replay_letter(
        shared: Site, place: LetterPlace, dry_run: Annotated[bool, Query(description="send nothing")] = False
    ) -> InputReplayed:
        """Write the input of a dead letter again, as it still lies in its topic, to the partition where it belongs."""
        found, at = replayed(shared.platform.runs.reader, place)
        if dry_run:
            return InputReplayed(sent=False, topic=found.topic, partition=at)
        sent = shared.platform.publisher.send_raw(
            found.topic, at, key=found.key or b"", value=found.value or b"", headers=found.read_headers() or ()
        )
        return InputReplayed(sent=True, topic=found.topic, partition=sent[0], offset=sent[1])

    @site.get("/api/dead-letters/{place:path}", summary="Show a dead letter")
    def show_letter(shared: Site, place: LetterPlace) -> WholeLetter:
        """A dead letter by the place that lists name, with its input. It is read from Kafka, which keeps it 14 days."""
        return whole_letter(place, find_letter(shared.platform.runs.reader, place))

    @site.get("/api/limits", summary="List limits per day and month")
    def list_limits(shared: Site, after: AfterHeader = "") -> list[LimitInUse]:
        """What was spent of limits per day and month, the newest windows first."""
        with shared.view(after) as view:
            return shared.reading.limits(view)
