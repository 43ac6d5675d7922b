"""Forks of a run: alternative histories from one of its events on."""

from collections.abc import Mapping
from contextlib import suppress

from fastapi import APIRouter

from refold.client.reading.api import ForkBody
from refold.client.reading.history import Run
from refold.console.gateway.forks import MOST_FORKED
from refold.console.gateway.routes.lists import catalog_of
from refold.console.gateway.site import Gateway, Site
from refold.console.projections.runs import ViewedRuns
from refold.core.approval.policy import Policy
from refold.core.errors import UnreachableError
from refold.core.wire import canonical
from refold.engine.planner.settings import bounds_of
from refold.lab.forks.engine import ForkChanges
from refold.lab.forks.report import ForkReport
from refold.lab.forks.worker import ForkJob, ForkSetup
from refold.lab.processes import family_rows, family_values, verdict_of


def fork_routes(site: APIRouter) -> None:
    @site.post("/api/runs/{run}/fork", summary="Fork a run")
    def fork_run(shared: Site, run: str, body: ForkBody) -> ForkReport:
        """Continue a run from one of its events with today's code and changes, in a process without effects.

        Nothing is written. One fork runs at a time; another is refused with 429.
        """
        return fork_of(shared, run, body)[1]


def fork_of(shared: Gateway, run: str, body: ForkBody) -> tuple[list[Run], ForkReport]:
    """Return a run with its descendants, and its fork. **Raises** as `ForkRoom`; MalformedError, NotFoundError."""
    changes = ForkChanges(
        input=canonical.dumps(body.input) if body.input is not None else "",
        edits={step: canonical.dumps(args) for step, args in body.edits.items()},
        results={step: canonical.dumps(result) for step, result in body.results.items()},
        decisions=dict(verdict_of(*item) for item in body.decisions.items()),
        stubs={tool: canonical.dumps(result) for tool, result in body.stubs.items()},
    )
    if body.policy is not None:
        Policy.parse(body.policy)
    with shared.forks.free():
        with shared.view_of(run, "") as view:
            history = shared.reading.run(view, run)
            family = [history, *ViewedRuns(view).family(history)]
        settings, values = shared.platform.settings, family_values(family, shared.blobs(), MOST_FORKED)
        policies = [policy.content for policy in known_policies(shared).values()]
        setup = ForkSetup(shared.forks.app, settings.environment, policies, body.model, bounds_of(settings))
        rows, name = family_rows(family), history.state.run_id
        return family, shared.forks.fork(ForkJob(name, rows, body.at, changes, body.policy, values), setup)


def known_policies(shared: Gateway) -> Mapping[str, Policy]:
    """Return the policies of the catalog by digest; none while Kafka is away."""
    with suppress(UnreachableError):
        return catalog_of(shared).policies
    return {}
