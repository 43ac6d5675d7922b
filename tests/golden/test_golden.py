"""Records of the past are read for ever, and what is written today is what was written then."""

from __future__ import annotations

import pytest

from refold.core.errors import NonDeterminismError
from refold.core.events import Entry
from refold.core.run import chain
from refold.core.wire import codec, schemas
from refold.sdk.rehearsal import rehearse
from tests.core.histories import read_fold
from tests.golden.agents import app
from tests.golden.recording import golden, kept
from tests.golden.samples import EVENTS, KINDS, covers, facts, framed, histories, recorded, sample, unframed


def test_every_event_and_message_has_a_golden_sample() -> None:
    assert set(recorded()) >= set(KINDS), "run `python -m tests.golden.samples`"


def test_no_golden_sample_outlives_its_class() -> None:
    assert set(recorded()) <= set(KINDS)


@pytest.mark.parametrize("name", recorded())
def test_a_golden_sample_is_read_as_it_was_written(name: str) -> None:
    assert unframed(name, recorded()[name]) == sample(KINDS[name])


def current() -> list[str]:
    """The samples whose schema is still the newest of its subject: the others are read, and written no more."""
    newest = schemas.registered()[1]
    subjects = {name: codec.SUBJECTS[Entry if name in EVENTS else KINDS[name]] for name in recorded()}
    return [name for name, value in recorded().items() if int.from_bytes(value[1:5]) == newest[subjects[name]][0]]


@pytest.mark.parametrize("name", current())
def test_the_same_schema_writes_the_same_bytes(name: str) -> None:
    assert framed(name) == recorded()[name]


@pytest.mark.parametrize("name", histories())
def test_a_golden_history_folds_to_what_it_folded_to(name: str) -> None:
    history = histories()[name]
    records = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in history["records"]]

    assert all(isinstance(chain.read(key, value), chain.LogRecord) for key, value in records)
    assert covers(facts(read_fold(records)), history["facts"])


def test_a_fact_that_differs_or_is_missing_is_seen() -> None:
    (history, *_) = histories().values()
    changed = {**history["facts"], "status": "suspended"}
    lacking = {name: fact for name, fact in history["facts"].items() if name != "head"}

    assert not covers(changed, history["facts"])
    assert not covers(lacking, history["facts"])


@pytest.mark.parametrize("run", kept())
def test_a_golden_run_replays_from_each_of_its_entries(run: str) -> None:
    for state in golden(run):
        stands = rehearse(app, app.agents[run], state)

        assert stands.steps == len(state.steps)
        assert stands.over is state.over


def test_golden_runs_have_what_asyncio_makes_of_a_history() -> None:
    given_up = {run: len(golden(run)[-1].given_up) for run in kept()}

    assert given_up == {"gathers": 0, "groups": 2, "hurries": 2, "waits": 0}
    assert sorted(golden("hurries")[-1].patches) == ["sleeps"]


def test_every_golden_agent_has_a_golden_run() -> None:
    assert set(kept()) == set(app.agents), "run `python -m tests.golden.recording`"


@pytest.mark.parametrize("run", ["gathers", "groups", "hurries"])
def test_a_golden_run_does_not_replay_with_code_that_differs(run: str) -> None:
    with pytest.raises(NonDeterminismError):
        rehearse(app, app.agents["waits"], golden(run)[-1])
