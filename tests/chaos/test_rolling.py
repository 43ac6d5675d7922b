"""A deploy of everything under load: what it costs, which is nothing. The pause has no bound here, see the campaign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.rolling import Deploy, deploy


@pytest.mark.timeout(300)
def test_a_deploy_loses_nothing_doubles_nothing_and_charges_no_attempt(tmp_path: Path) -> None:
    found = deploy(Deploy(in_flight=12, dwell_s=3.0, apart_s=0.2, steady_s=0.0), tmp_path)

    assert found.verdict.problems() == {}, json.dumps(found.as_json(), indent=2)
    assert found.charged == []
    assert found.waiting == []
    assert found.restarts == 6
    assert found.steps > 100
