"""The tools of the examples keep what their effect class promises, and tools that do not are found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from refold import DID_NOT_HAPPEN, App
from refold.testing.contracts import KeyedContract, ProbedContract, PureContract, ToolContract

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Give the folder that stands for the world of the examples."""
    for name in ("ORDERS", "BOOKINGS", "WORLD"):
        monkeypatch.setenv(name, str(tmp_path))
    if request.instance is not None:
        request.instance.folder = tmp_path
    return tmp_path


class Files:
    """Effects are files."""

    folder: Path

    def effects(self) -> int:
        return len(list(self.folder.iterdir()))


class TestReserve(Files, KeyedContract):
    app, tool, args = App.load(str(EXAMPLES / "order.py")), "reserve", {"item": "lamp"}


class TestAskForPayment(Files, KeyedContract):
    app, tool, args = App.load(str(EXAMPLES / "order.py")), "ask_for_payment", {"item": "lamp", "token": "cb_1"}


class TestBook(Files, KeyedContract):
    app, tool, args = App.load(str(EXAMPLES / "race.py")), "book", {"courier": "horse", "parcel": "p-1"}


class TestSwitch(Files, KeyedContract):
    app, tool, args = App.load(str(EXAMPLES / "family.py")), "switch", {"service": "shop", "image": "i-1"}


DONE: list[str] = []
broken = App("broken")


@broken.tool(effect="keyed")
def forgets(n: int, *, idempotency_key: str) -> str:
    DONE.append(idempotency_key)
    return "done"


@broken.tool(effect="keyed")
def knows_arguments(n: int, *, idempotency_key: str) -> str:
    if f"{n}" not in DONE:
        DONE.append(f"{n}")
    return "done"


@broken.tool(effect="keyed", keyed_by="arguments")
def sets(n: int) -> str:
    if f"{n}" not in DONE:
        DONE.append(f"{n}")
    return "done"


@broken.tool(effect="keyed", keyed_by="arguments")
def adds_up(n: int) -> str:
    DONE.append(f"{n}")
    return "done"


@broken.tool(effect="keyed")
def tells_otherwise(n: int, *, idempotency_key: str) -> str:
    if idempotency_key in DONE:
        return "done before"
    DONE.append(idempotency_key)
    return "done"


@broken.tool(effect="keyed")
async def looks_first(n: int, *, idempotency_key: str) -> str:
    known = idempotency_key in DONE
    await asyncio.sleep(0)  # the other attempt looks now
    if not known:
        DONE.append(idempotency_key)
    return "done"


@broken.tool(effect="keyed")
def refuses(n: int, *, idempotency_key: str) -> str:
    raise ValueError("no such account")


@broken.tool(effect="probed", probe=lambda *, idempotency_key: "done" if DONE else DID_NOT_HAPPEN)
def found_by_arguments(n: int, *, idempotency_key: str) -> str:
    DONE.append(idempotency_key)
    return "done"


@broken.tool(effect="probed", probe=lambda *, idempotency_key: DID_NOT_HAPPEN)
def never_found(n: int) -> str:
    DONE.append("1")
    return "done"


@broken.tool(effect="probed", probe=lambda *, idempotency_key: "x" if idempotency_key in DONE else DID_NOT_HAPPEN)
def found_otherwise(n: int, *, idempotency_key: str) -> str:
    DONE.append(idempotency_key)
    return "done"


@broken.tool(effect="probed", probe=lambda *, idempotency_key: DONE.append("probed") or DID_NOT_HAPPEN)  # type: ignore[call-overload]
def probe_acts(n: int) -> str:
    return "done"


@broken.tool(effect="pure")
def counts(n: int) -> int:
    DONE.append("1")
    return n


@broken.tool(effect="pure")
def adds(n: int) -> int:
    return n + 1


def wrong(suite: type[ToolContract], name: str) -> list[str]:
    """What the tests of a suite say of a tool."""

    class Held(suite):  # type: ignore[misc, valid-type]
        app, tool, args = broken, name, {"n": 1}

        def effects(self) -> int:
            return len(DONE)

    said = []
    for test in [each for each in dir(Held) if each.startswith("test_")]:
        DONE.clear()
        try:
            getattr(Held(), test)()
        except AssertionError as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize(
    ("suite", "tool", "said"),
    [
        (KeyedContract, "forgets", "forgets acted again with a key that it had acted with"),
        (KeyedContract, "knows_arguments", "acted 0 times with a fresh key, and 1 times with the first"),
        (KeyedContract, "adds_up", "adds_up acted again with equal arguments"),
        (KeyedContract, "tells_otherwise", 'gave "done before" for a key for which it had given "done"'),
        (KeyedContract, "looks_first", "looks_first acted 2 times where one attempt acts 1 times: two came at once"),
        (KeyedContract, "refuses", "refuses did not complete: ValueError, no such account"),
        (KeyedContract, "adds", "adds is declared pure, this suite is for keyed tools"),
        (ProbedContract, "found_by_arguments", "says happened , not did_not_happen"),
        (ProbedContract, "never_found", "says did_not_happen , not happened"),
        (ProbedContract, "found_otherwise", 'gives "x" for a call that gave "done"'),
        (ProbedContract, "probe_acts", "the probe of probe_acts acts: it is to look only"),
        (PureContract, "counts", "counts is declared pure and acted 2 times"),
    ],
)
def test_a_tool_that_breaks_a_promise_is_found_and_told_how(suite: type[ToolContract], tool: str, said: str) -> None:
    assert any(said in each for each in wrong(suite, tool)), wrong(suite, tool)


def test_a_receiver_that_recognises_arguments_needs_no_key() -> None:
    assert wrong(KeyedContract, "sets") == []


def test_a_tool_that_does_nothing_is_pure() -> None:
    assert wrong(PureContract, "adds") == []
