"""An incident: a service answers with errors, an agent finds out why, and people decide on the change.

    refold dev examples/incident/app.py
    refold run start incident --input '{"service": "shop"}'
    refold approval list

The agent reads what it wants and writes nothing without a person on call: `edit_file` is declared with
approval="required", so no executor runs it without a decision for exactly that edit. The shop's files are copied to
`.refold/incident` (or $INCIDENT_FOLDER), and one of them is changed there in the end, once, whatever is killed.

Here the agent is plain code; what it does would be the same with a model behind it.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from refold import DID_NOT_HAPPEN, App, CallFailed, Context, TerminalError

app = App("incident")
SOURCE = Path(__file__).parent / "shop"
SIZES = (50, 20)
"""What the agent would set the pool to: first generously, then as somebody does who was told no."""


class Findings(BaseModel):
    """What the log says: answers by status, and the errors by what they say."""

    statuses: dict[str, int]
    errors: dict[str, int]


class Summary(BaseModel):
    """How the incident ended."""

    service: str
    cause: str
    changed: str
    proposals: int
    pool_size: int


@app.tool(effect="pure", tags=("read",))
def query_log(service: str) -> Findings:
    """Counts the answers of a service and what went wrong in them."""
    statuses: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for line in (folder() / "requests.log").read_text().splitlines():
        _, status, _, _, _, *error = line.split(" ", 5)
        statuses[status] += 1
        if error:
            errors[error[0].partition(":")[0]] += 1
    return Findings(statuses=dict(sorted(statuses.items())), errors=dict(sorted(errors.items())))


@app.tool(effect="pure", tags=("read",))
def read_file(path: str) -> str:
    """The text of a file of the service."""
    return inside(path).read_text()


def edit_happened(path: str, before: str, after: str) -> object:
    """The file itself says whether it was changed: it has the new text, or still the old one."""
    found = inside(path).read_text()
    if found not in (before, after):
        raise RuntimeError(f"somebody else has changed {path}: nobody can say whether this edit was there before")
    return path if found == after else DID_NOT_HAPPEN


@app.tool(
    effect="probed",
    probe=edit_happened,
    approval="required",
    tags=("write",),
    shown_as="edit",
    timeout=timedelta(seconds=30),
)
def edit_file(path: str, before: str, after: str) -> str:
    """Replaces the whole text of a file, if it is still the one that was looked at."""
    file = inside(path)
    if file.read_text() != before:
        raise TerminalError(f"{path} is not what it was when the edit was proposed", hint="read it again")
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(after)
    draft.replace(file)
    with (folder() / "changes.log").open("a") as log:
        log.write(f"{path}\n")
    return path


@app.agent
async def incident(ctx: Context, service: str) -> Summary:
    """Looks into the log, reads what the errors point at, and proposes a change until somebody agrees to one."""
    findings = await ctx.call(query_log, service=service)
    cause = max(findings.errors, key=lambda name: findings.errors[name])
    ctx.note("finding", f"{findings.errors[cause]} of {sum(findings.statuses.values())} answers are {cause}")
    settings, _ = await asyncio.gather(ctx.call(read_file, path="settings.toml"), ctx.call(read_file, path="orders.py"))
    for number, size in enumerate(SIZES, 1):
        after = re.sub(r"pool_size = \d+", f"pool_size = {size}", settings)
        try:
            changed = await ctx.call(edit_file, path="settings.toml", before=settings, after=after)
        except CallFailed as failure:
            if failure.fields["code"] != "rejected":
                raise
            ctx.note("rejected", failure.fields["message"])
            continue
        found = re.search(r"pool_size = (\d+)", await ctx.call(read_file, path="settings.toml"))
        pool_size = int(found[1]) if found else 0
        return Summary(service=service, cause=cause, changed=changed, proposals=number, pool_size=pool_size)
    return Summary(service=service, cause=cause, changed="", proposals=len(SIZES), pool_size=0)


def folder() -> Path:
    """Where the shop's files are: a copy, made when it is first looked at."""
    found = Path(os.environ.get("INCIDENT_FOLDER", ".refold/incident"))
    if not found.exists():
        draft = found.with_name(f".{found.name}-{secrets.token_hex(4)}")
        shutil.copytree(SOURCE, draft)
        with suppress(OSError):  # another call was faster
            draft.rename(found)  # whole or not at all: a process that is killed halfway leaves no half of a shop
        shutil.rmtree(draft, ignore_errors=True)
    return found


def inside(path: str) -> Path:
    """A file of the service. **Raises** TerminalError for any other."""
    root = folder().resolve()
    file = (root / path).resolve()
    if not file.is_relative_to(root) or not file.is_file():
        raise TerminalError(f"{path} is no file of the service", hint="name one of its files")
    return file
