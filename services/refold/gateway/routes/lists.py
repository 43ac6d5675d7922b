"""Sums, and what operators did."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from refold.gateway.site import AfterHeader, Site
from refold.views.api import ActionFilter, DailyFilter, DailyRow, OperatorAction


def add(site: APIRouter) -> None:
    """Add the routes."""
    get = site.get

    @get("/api/daily", summary="List sums by day")
    def list_daily(shared: Site, wanted: Annotated[DailyFilter, Query()], after: AfterHeader = "") -> list[DailyRow]:
        """Calls, failures, effects avoided, tokens and cost by day, agent, tool and model, the latest first."""
        with shared.view(after) as view:
            return shared.reading.daily(view, wanted)

    @get("/api/operator-actions", summary="List what operators did")
    def list_operator_actions(
        shared: Site, wanted: Annotated[ActionFilter, Query()], after: AfterHeader = ""
    ) -> list[OperatorAction]:
        """Who cancelled, paused, resumed, retried, resolved or migrated which run, and why; the latest first."""
        with shared.view(after) as view:
            return shared.reading.actions(view, wanted)
