"""Pages of policies: in force, drafts on recorded calls, and differences."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from refold.client.operations.runs import RunQuery
from refold.client.policies import load_text, problems_of
from refold.client.reading.api import ApiBody
from refold.client.reading.history import Run
from refold.client.reading.model import Data, plain
from refold.console.gateway.routes.lists import catalog_of
from refold.console.gateway.site import Gateway, Site
from refold.console.pages.rendering import form_of, html_page
from refold.console.pages.screen import SCREEN, AskField, AskForm, Cell, Grid, TextChange, url
from refold.console.pages.wording import called_name, text_diff
from refold.console.projections.runs import ViewedRuns
from refold.core.approval.catalog import Catalog
from refold.core.approval.policy import Policy
from refold.core.errors import MalformedError, NotFoundError
from refold.lab.back_test import BackTest, recorded, requirement_words, what_changes

PASTED = "the policy"
MOST_PASTED = 100_000
"""Characters of a draft: YAML is parsed at some 200 kB a second."""
MOST_JUDGED = 200
"""Newest runs that a draft is tried on."""
MOST_DIFFERENT = 200
ARGS_CHARS = 120
DRAFT = "rules:\n- name: read-only\n  when: tool.effect == 'pure'\n  allow: true\n"


class ShownPolicies(ApiBody):
    """Query of the policies page: digests of two to compare."""

    left: str = Field("", max_length=64)
    right: str = Field("", max_length=64)


def policy_pages(site: APIRouter) -> None:
    @site.get("/policies", response_class=HTMLResponse)
    def policies_page(shared: Site, filters: Annotated[ShownPolicies, Query()]) -> HTMLResponse:
        catalog = catalog_of(shared)
        parts: list[object] = []
        if filters.left and filters.right:
            left, right = (_yaml_of(catalog, digest) for digest in (filters.left, filters.right))
            title = f"From {filters.left[:12]} to {filters.right[:12]}"
            parts.append(TextChange("change", title, text_diff(title, left, right)))
        parts += [_rules_grid(catalog.policy), _catalog_grid(catalog), _roles_grid(catalog)]
        parts += [_draft_form(DRAFT, "")] if shared.may_use("try_policy_form") else []
        return _policies_screen(shared, parts)

    @site.post("/policies", response_class=HTMLResponse)
    async def try_policy_form(shared: Site, request: Request) -> HTMLResponse:
        """Judge recorded calls by a draft. Nothing is published."""
        fields = await form_of(request, shared)
        draft, agent = fields.get("policy", "").replace("\r\n", "\n"), fields.get("agent", "").strip()
        if len(draft) > MOST_PASTED:
            raise MalformedError(f"the draft has {len(draft):,} characters", hint=f"{MOST_PASTED:,} at most")
        parts = await run_in_threadpool(lambda: [*_draft_grids(shared, draft, agent)])
        return _policies_screen(shared, [*parts, _draft_form(draft, agent)])


def _policies_screen(shared: Gateway, parts: Sequence[object]) -> HTMLResponse:
    lead = "A policy is published with the root key alone: refold policy publish FILES. Nothing here changes one."
    return html_page(SCREEN, shared, place="/policies", title="Policies", lead=lead, parts=parts)


def _yaml_of(catalog: Catalog, digest: str) -> str:
    if (policy := catalog.policies.get(digest)) is None:
        raise NotFoundError(f"the catalog has no policy {digest}", hint="/policies has all")
    return yaml.safe_dump(policy.content, allow_unicode=True, width=100)


def _rules_grid(policy: Policy | None) -> Grid:
    rows = []
    if policy is not None:
        for rule in policy.rules:
            detail = requirement_words(plain(rule.requirement)) if rule.requirement else rule.message
            rows.append([Cell(rule.name), Cell(rule.when.source, "code"), Cell(rule.outcome, note=detail)])
        beside = (
            ("no rule holds, or one that allows fails", policy.fallback, "deny", "nobody decides"),
            ("the outcome of a call is unknown", policy.doubt, "operator", "an operator decides"),
        )
        for when, needed, outcome, otherwise in beside:
            then = Cell("require", note=requirement_words(plain(needed))) if needed else Cell(outcome, note=otherwise)
            rows.append([Cell("otherwise"), Cell(when), then])
    return Grid(
        "rules",
        "In force for new runs",
        ("Rule", "When", "Then"),
        rows,
        "No policy is in force: calls are allowed, and of tools that ask denied. One is published with",
        "refold policy publish FILES",
        note=policy.digest if policy else "",
    )


def _catalog_grid(catalog: Catalog) -> Grid:
    now = catalog.current
    rows = [
        [
            Cell(digest, "code"),
            Cell("in force" if digest == now else "judges runs that were begun under it"),
            Cell(len(policy.rules), "num"),
            Cell("what publishing the current one changed", href=f"{url('/policies', left=digest, right=now)}#change")
            if digest != now
            else Cell("none"),
        ]
        for digest, policy in sorted(catalog.policies.items(), key=lambda item: item[0] != now)
    ]
    heads = ("Digest", "State", "Rules", "Difference")
    return Grid("known", "Policies in the catalog", heads, rows, "The catalog has no policy.")


def _roles_grid(catalog: Catalog) -> Grid:
    rows = [[Cell(role), Cell(", ".join(sorted(has)))] for role, has in sorted(catalog.roles.by_role.items())]
    rows += [[Cell("revoked"), Cell(", ".join(sorted(catalog.roles.revoked)))]] * bool(catalog.roles.revoked)
    empty = "The catalog says of nobody which role they have:"
    return Grid("roles", "Roles", ("Role", "People"), rows, empty, "refold policy publish --roles FILE")


def _draft_form(draft: str, agent: str) -> AskForm:
    note = (
        f"What a draft would have said of the calls of the newest {MOST_JUDGED} runs, beside what was said. Nothing is "
        "published. refold policy check FILES --recorded compares all runs, and with --app knows tags and versions of "
        "tools."
    )
    fields = (
        AskField("policy", "Policy, as YAML or JSON", "area", draft),
        AskField("agent", "Only runs of this agent; empty: all", "text", agent),
    )
    return AskForm("draft", "Try a draft on recorded calls", "/policies#tried", fields, "Compare", note)


def _draft_grids(shared: Gateway, draft: str, agent: str) -> Iterator[Grid]:
    content = load_text(draft, PASTED, aliases=False)
    problems = problems_of({PASTED: content})
    if problems:
        weights = {True: "no policy", False: "warning"}
        rows = [[Cell(fault.rule or "all"), Cell(fault.reason), Cell(weights[fault.fatal])] for fault in problems]
        yield Grid("problems", "Problems of the draft", ("Rule", "Problem", "Weight"), rows, "")
    if not any(fault.fatal for fault in problems):
        yield _comparison_grid(shared, BackTest(Policy.parse(content), shared.platform.settings.environment), agent)


def _comparison_grid(shared: Gateway, back_test: BackTest, agent: str) -> Grid:
    runs = _newest_runs(shared, agent)
    calls = [call for run in runs for call in recorded(run)]
    rows = back_test.differences(calls)
    kinds = Counter(row["kind"].replace("->", "→") for row in rows)
    parts = [f"{number} {kind}" for kind, number in kinds.most_common()]
    if back_test.unknown:
        parts.append(f"rules about {' and '.join(sorted(back_test.unknown))} fail here, which is not in the log")
    return Grid(
        "tried",
        f"{len(rows)} of {len(calls)} calls judged otherwise" if rows else f"All {len(calls)} calls judged the same",
        ("Call", "Tool", "Arguments", "Was", "Would be"),
        [[*_difference_cells(row)] for row in rows[:MOST_DIFFERENT]],
        f"The draft judges the calls of {len(runs)} runs as they were judged. Calls of other runs may differ:",
        "refold policy check FILES --recorded",
        note="; ".join([*parts, f"policy {back_test.policy.digest[:12]}"]),
    )


def _newest_runs(shared: Gateway, agent: str) -> list[Run]:
    with shared.view("") as view:
        listed = shared.reading.runs(view, RunQuery(agent=agent, limit=MOST_JUDGED), "").runs
        return [run for listed_run in listed if (run := ViewedRuns(view).find(listed_run.run_id)) is not None]


def _difference_cells(row: Data) -> Iterator[Cell]:
    run, _, seq = str(row["call_id"]).rpartition("/")
    yield Cell(row["call_id"], "code", href=f"/runs/{run}?seq={seq}#event")
    yield Cell(called_name(row["tool"]))
    yield Cell(json.dumps(row["args"], ensure_ascii=False)[:ARGS_CHARS], "code")
    yield Cell(row["recorded"]["outcome"], note=_judgement_note(row["recorded"]))
    yield Cell(row["now"]["outcome"], note=what_changes(row) or _judgement_note(row["now"]))


def _judgement_note(judgement: Any) -> str:
    needed = requirement_words(judgement["requirement"]) if judgement["requirement"] else ""
    return ", ".join(filter(None, [judgement["rule"], needed, judgement["message"]]))
