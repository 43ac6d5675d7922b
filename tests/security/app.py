"""Dangerous tools, one of each class, and an agent of pydantic-ai that has some, whose only effect is a line in a file:
what the outside world counts.

`how`: `hold` does not end after its effect, `slow` takes a moment, `drops` loses the answer (`drops once` but the first
time), `refuses once` does nothing the first time and says so; all else is for policies to look at.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent, RunContext
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from refold import DID_NOT_HAPPEN, App, NotDone
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable

app = App("archived_values")
VERSION = os.environ.get("TOOL_VERSION", "1")
POOL = os.environ.get("TOOL_POOL", "default")
TIMEOUT = timedelta(seconds=30)


@app.tool(effect="once", approval="required", version=VERSION, pool=POOL, timeout=TIMEOUT)
def wipe(label: str, how: str = "plain") -> str:
    """Cannot be asked, and must not happen twice."""
    leave("wipe", label)
    return linger(label, how)


@app.tool(effect="keyed", approval="required", version=VERSION, pool=POOL, timeout=TIMEOUT)
def refund(label: str, how: str = "plain", *, idempotency_key: str) -> str:
    """The receiver applies a key once, and keeps a line of everything that reaches it."""
    leave("refund", label, file="received")
    try:
        (folder() / idempotency_key).touch(exist_ok=False)
    except FileExistsError:
        return label
    leave("refund", label)
    return linger(label, how)


def deployed(label: str, *, idempotency_key: str) -> object:
    """Whether the line of this key is there."""
    lines = effects().read_text().splitlines() if effects().exists() else []
    return label if f"deploy {label} {idempotency_key}" in lines else DID_NOT_HAPPEN


@app.tool(effect="probed", probe=deployed, approval="required", version=VERSION, pool=POOL, timeout=TIMEOUT)
def deploy(label: str, how: str = "plain", *, idempotency_key: str) -> str:
    """Can be asked whether it happened."""
    leave("deploy", label, idempotency_key)
    return linger(label, how)


@app.tool(effect="pure", approval="required", version=VERSION, pool=POOL, timeout=TIMEOUT)
def secret(label: str, how: str = "plain") -> str:
    """Tells a secret: it may be told again, but nobody may hear it without a decision."""
    leave("secret", label)
    return label


@app.tool(effect="once", version=VERSION, pool=POOL, timeout=TIMEOUT)
def note(label: str, how: str = "plain") -> str:
    """Left to the policy alone: an executor runs it without a decision."""
    if how == "refuses once" and _first(label, how):
        raise NotDone("busy")
    leave("note", label)
    return linger(label, how)


def owed() -> FunctionToolset[Any]:
    """Tools of which people decide on each, whoever asks for them."""
    tools = FunctionToolset[Any](id="owed")

    @tools.tool_plain
    def bonus(label: str) -> str:
        leave("bonus", label)
        return label

    return tools


desk = Agent(TestModel(), name="desk", deps_type=dict[str, str], toolsets=[owed().approval_required()])


@desk.tool_plain(metadata={"refold": CallOptions(effect="pure")})
def price(label: str) -> str:
    """Looks something up, for anybody."""
    return label


@desk.tool(requires_approval=True)
def payout(ctx: RunContext[dict[str, str]], label: str, how: str = "plain") -> str:
    """Pays to the account of the run's deps, once."""
    leave("payout", label, ctx.deps["account"])
    return linger(label, how)


@desk.toolset(id="late")
def late(ctx: RunContext[dict[str, str]]) -> FunctionToolset[Any]:
    """Tools that are known when a model is asked, and not before."""
    tools = FunctionToolset[Any]()

    @tools.tool_plain(requires_approval=True)
    def gift(label: str) -> str:
        leave("gift", label)
        return label

    @tools.tool_plain(requires_approval=True)
    def estate(label: str) -> str:
        leave("estate", label)
        return label

    @tools.tool_plain
    def hint(label: str) -> str:
        leave("hint", label)
        return label

    return tools


FAR = [str(Path(__file__).with_name("far.py"))]
SERVER = StdioTransport(sys.executable, FAR, env={"EFFECTS": os.environ.get("EFFECTS", "")}, keep_alive=False)
vault = Agent(TestModel(), name="vault", toolsets=[MCPToolset(SERVER, id="far")])


usual = CallOptions(version=VERSION, pool=POOL, timeout=TIMEOUT)
durable(app, desk, RefoldDurability(tools=usual))
durable(app, vault, RefoldDurability(tools=usual, toolsets={"far": CallOptions(approval="required")}))

DANGEROUS = ("wipe", "refund", "deploy", "secret")


def folder() -> Path:
    """Where the receiver keeps what it knows."""
    return Path(os.environ["EFFECTS"])


def effects() -> Path:
    """The file that the outside world counts in."""
    return folder() / "effects"


def leave(*words: str, file: str = "effects") -> None:
    """Appends a line, whole."""
    with (folder() / file).open("a") as lines:
        lines.write(" ".join(words) + "\n")


def linger(label: str, how: str) -> str:
    """What comes after an effect; nobody sets the event."""
    if how == "drops" or (how == "drops once" and _first(label, how)):
        raise ConnectionError("the answer is lost")
    if how in ("hold", "slow"):
        threading.Event().wait(20.0 if how == "hold" else 0.3)
    return label


def _first(label: str, how: str) -> bool:
    """Whether nobody has asked before."""
    try:
        (folder() / f"{label} {how}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
