"""A family of runs on the log in memory, by a real planner and a real approval service, with votes that are signed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from io import BytesIO
from typing import Any

from refold.core.approval.policy import Policy
from refold.core.approval.signature import SigningKey, sealed
from refold.core.events import Entry
from refold.core.ids import RunId, home, parse_log_key
from refold.core.messages import ApprovalRequest, CatalogEntry, RunRequest, ToolClaim, ToolRequest, ToolResult
from refold.core.wire import canonical, codec
from refold.engine.ports.log import Record
from refold.lab.evidence import redaction
from refold.lab.evidence.bundle import Bundle, BundledRun
from refold.sdk.app import App
from refold.sdk.context import Context
from tests.approval import planning
from tests.approval.driving import PARTITIONS, World
from tests.approval.planning import Planning
from tests.roots import ROOT

POLICY = Policy.parse(
    {
        "rules": [
            {"name": "reading is free", "when": "tool.effect == 'pure'", "allow": True},
            {"name": "two leads", "when": "true", "require": {"approvers": ["role:lead"], "quorum": 2}},
        ],
    }
)
CLAIMED = "tool-claimed.default"
RUN = RunId("run-1")
app = App("story")


@app.tool(effect="pure", version="1")
def look(place: str) -> str:
    """Look at a place."""
    return place


@app.tool(effect="once", version="1")
def save(text: str) -> str:
    """Save a text."""
    return text


@app.agent(name="boss")
async def boss(ctx: Context, n: int) -> str:
    """Looks, saves what people have allowed, and has a clerk save more."""
    seen = await ctx.call(look, "shelf")
    saved = await ctx.call(save, f"{seen} {n}")
    more = await ctx.run(clerk, {"text": saved})
    return f"{saved} and {more}"


@app.agent(name="clerk")
async def clerk(ctx: Context, text: str) -> str:
    """Saves one text."""
    return await ctx.call(save, text)


class Story:
    """The runs, played to their end. `actions` are what people vote, the last one for all further questions."""

    def __init__(
        self, actions: Sequence[dict[str, str]] = ({"action": "approve"},), *, run: RunId = RUN, n: int = 7
    ) -> None:
        self.run = run
        world = World((*planning.world().topics, CLAIMED), max_bytes=4 * planning.PAYLOAD_BYTES)
        world.publish(f"policy/{POLICY.digest}", "policy", POLICY.content)
        world.publish("current", "current", POLICY.digest)
        self.desk, self._done, self._asked = Planning(world, app), set[str](), set[str]()
        start = RunRequest(run, "boss", canonical.dumps({"n": n}), "eve")
        world.write("run-requested", home(run, PARTITIONS), run, codec.encode(start))
        for _ in range(20):
            self.desk.run()
            self._answer()
            self._vote(actions)
        assert self.desk.state(run)[0].over, "the story has an end"

    def _answer(self) -> None:
        for order in list(self._of("tool-requested.default", ToolRequest)):
            name = f"{order.call_id}/{order.attempt}"
            if name in self._done:
                continue
            self._done.add(name)
            if order.effect == "once":
                claim = ToolClaim(order.call_id, f"claim-{len(self._done)}", "", order.attempt, False, "e", order.key)
                place = home(order.run_id, PARTITIONS)
                self.desk.world.write(CLAIMED, place, f"{claim.chain}/{claim.claim_id}", codec.encode(claim))
            given = next(iter(canonical.parse(order.args).values()))
            told = ToolResult(
                order.call_id, order.run_id, order.step, order.attempt, "completed", canonical.dumps(given)
            )
            self.desk.world.write(
                "tool-completed.default", home(order.run_id, PARTITIONS), order.call_id, codec.encode(told)
            )

    def _vote(self, actions: Sequence[dict[str, str]]) -> None:
        asked = list(self._of("approval-requested", ApprovalRequest))
        for number, each in enumerate(asked):
            if each.approval_id in self._asked:
                continue
            self._asked.add(each.approval_id)
            edits = sum(bool(before.writers) for before in asked[:number])
            said = dict(actions[min(number - edits, len(actions) - 1)]) if not each.writers else {"action": "approve"}
            people = [name for name in ("ada", "bob", "cyd") if name not in each.writers]
            for person in people[:2] if said["action"] != "reject" else ("ada",):
                self.desk.world.vote(each, person, **said)

    def _of(self, topic: str, kind: type) -> Iterator:  # type: ignore[type-arg]
        for record in self.desk.world.records(topic):
            if record.value:
                yield codec.decode(kind, record.value)

    def log(self, topic: str) -> list[Record]:
        """What a topic has in the home of the runs, without tombstones."""
        return [each for each in self.desk.world.broker.log(topic, home(self.run, PARTITIONS)).records if each.value]

    def runs(self) -> list[BundledRun]:
        """The runs as they go into a bundle."""
        found: dict[RunId, list[Record]] = {}
        for record in self.log("run-log"):
            if parts := parse_log_key(record.key):
                found.setdefault(parts[0], []).append(record)
        claims: dict[RunId, list[Record]] = {}
        for record in self.log(CLAIMED):
            claim = codec.decode(ToolClaim, record.value or b"")
            claims.setdefault(RunId(claim.call_id.partition("/")[0]), []).append(record)
        return [BundledRun(run, records, claims.get(run, ())) for run, records in sorted(found.items())]

    def catalog(self) -> list[Record]:
        """The catalog, numbered from 1 as if nothing else had been signed by its root in this process."""
        return [renumbered(record, number) for number, record in enumerate(self.log("catalog"), 1)]

    def bundle(self, rules: Sequence[str] = ()) -> Bundle:
        """All of it."""
        runs, hidden = self.runs(), set[bytes]()
        for place, run in enumerate(runs):
            kept = [redaction.without_values(record, rules) for record in run.records]
            hidden |= {new.key or b"" for new, old in zip(kept, run.records, strict=True) if new is not old}
            runs[place] = BundledRun(run.run_id, kept, run.claims)
        return Bundle(self.run, runs, self.catalog(), [ROOT.kid], rules, redacted=frozenset(hidden))


def renumbered(record: Record, number: int) -> Record:
    """An entry of the catalog under another number, signed anew."""
    entry = codec.decode(CatalogEntry, record.value or b"")
    return record._replace(value=codec.encode(sealed(entry, ROOT, number)))


@cache
def told() -> Story:
    """The story in which everybody agrees."""
    return Story()


def file_of(bundle: Bundle) -> BytesIO:
    """The file of a bundle."""
    return BytesIO(b"".join(bundle.lines()))


OTHER_ROOT = SigningKey("root-other", "root", b"o" * 32)


def under_its_ids(bundle: Bundle, change: Callable[[Any], Any]) -> Bundle:
    """The bundle with other events in entries that keep their ids, as redacted ones do."""
    runs = []
    for run in bundle.runs:
        records = []
        for record in run.records:
            found = codec.decode(Entry, record.value or b"")
            records.append(record._replace(value=codec.encode(replace(found, events=[*map(change, found.events)]))))
        runs.append(replace(run, records=records))
    return replace(bundle, runs=runs)
