"""The example of a projection, by the kit."""

from __future__ import annotations

import pytest
from examples.refunds import app

from refold import App, UsageError
from refold.testing import AgentRun, project, run


def test_refunds_are_listed_by_customer_and_added_up_by_day() -> None:
    first = AgentRun(app, "support", {"customer": "ada", "cents": 1_250}, name="r-1").finish()
    second = AgentRun(app, "support", {"customer": "bob", "cents": 50}, name="r-2").finish()

    tables = project(app, first, second)

    assert [(row["run_id"], row["customer"], row["cents"]) for row in tables["refunds"]] == [
        ("r-1", "ada", 1_250),
        ("r-2", "bob", 50),
    ]
    assert [(row["n"], row["cents"]) for row in tables["refunds_by_day"]] == [(2, 1_300)]


def test_two_runs_of_one_id_are_not_taken_for_one() -> None:
    once = run(app, "support", customer="ada", cents=1)

    with pytest.raises(UsageError, match="two runs have the id r-1"):
        project(app, once, once)


def test_an_app_without_projections_says_so() -> None:
    with pytest.raises(UsageError, match="has no projection"):
        project(App("bare"))
