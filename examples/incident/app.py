"""An incident: a service answers with errors, agents find out why, and people decide on the change.

    refold dev examples/incident/app.py
    refold run start incident --input '{"service": "shop"}'
    refold approval list

`incident` has two other agents work, each in a run of its own: `analyst` reads the log, `coder` reads files and
proposes an edit. Nothing is written without a person on call: `edit_file` is declared with approval="required", so no
executor runs it without a decision for exactly that edit. The shop's files are copied to `.refold/incident` (or
$INCIDENT_FOLDER), and one of them is changed there in the end, once, whatever is killed.

The models' answers are recorded in `script/`, so all of it runs offline. $INCIDENT_MODEL and $INCIDENT_BASE_URL ask a
real one instead (`python examples/incident --model openai:gpt-5 --base-url http://localhost:11434/v1`).
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models import Model

from refold import DID_NOT_HAPPEN, App, Context, TerminalError
from refold.contrib.pydantic_ai import ScriptedModel, app_tools

app = App("incident")
HERE = Path(__file__).parent


def model(agent: str) -> Model | str:
    """What an agent thinks with: the script of its answers, or the model that is named."""
    name, url = os.environ.get("INCIDENT_MODEL", ""), os.environ.get("INCIDENT_BASE_URL", "")
    if not url:
        return name or ScriptedModel(HERE / "script" / f"{agent}.jsonl")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    key = os.environ.get("OPENAI_API_KEY", "none")  # a server of one's own asks for none
    provider = OpenAIProvider(base_url=url, api_key=key)
    return OpenAIChatModel(name.removeprefix("openai:") or "default", provider=provider)


class LogCount(BaseModel):
    """What the log says: answers by status, and the errors by what they say."""

    statuses: dict[str, int]
    errors: dict[str, int]


class Finding(BaseModel):
    """Why the service answers with errors, and what in the log says so."""

    cause: str
    evidence: str


class Change(BaseModel):
    """Which file was changed, and why; no path where nobody agreed to a change."""

    path: str
    reason: str


class Report(BaseModel):
    """How the incident ended, for the record and in words."""

    service: str
    cause: str
    changed: str
    summary: str


@app.tool(effect="pure", tags=("read",))
def query_log(service: str) -> LogCount:
    """Counts the answers of a service and what went wrong in them."""
    statuses: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for line in (folder() / "requests.log").read_text().splitlines():
        _, status, _, _, _, *error = line.split(" ", 5)
        statuses[status] += 1
        if error:
            errors[error[0].partition(":")[0]] += 1
    return LogCount(statuses=dict(sorted(statuses.items())), errors=dict(sorted(errors.items())))


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


analyst = Agent(
    model("analyst"),
    name="analyst",
    output_type=Finding,
    instructions="Find out from its log why a service answers with errors. Name one cause.",
    toolsets=[app_tools(app, "query_log")],
)
coder = Agent(
    model("coder"),
    name="coder",
    output_type=Change,
    instructions="Read settings.toml and orders.py, then remove the cause with one small edit. When people say no, "
    "propose what heeds their reason, once.",
    toolsets=[app_tools(app, "read_file", "edit_file")],
)
writer = Agent(model("writer"), name="writer", instructions="Tell in one sentence how the incident ended.")
for each in (analyst, coder, writer):
    app.agent(each)


@app.agent
async def incident(ctx: Context, service: str) -> Report:
    """Has the cause found, then the change made, each by an agent in a run of its own, and has it told."""
    finding = await ctx.run("analyst", {"prompt": f"The service {service} answers with errors."})
    ctx.note("finding", finding)
    change = await ctx.run("coder", {"prompt": f"{service}: {finding['cause']}. {finding['evidence']}"})
    told = await writer.run(f"{service}: {finding['cause']}; changed: {change['path'] or 'nothing'}")
    return Report(service=service, cause=finding["cause"], changed=change["path"], summary=told.output)


def folder() -> Path:
    """Where the shop's files are: a copy, made when it is first looked at."""
    found = Path(os.environ.get("INCIDENT_FOLDER", ".refold/incident"))
    if not found.exists():
        draft = found.with_name(f".{found.name}-{secrets.token_hex(4)}")
        shutil.copytree(HERE / "shop", draft)
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
