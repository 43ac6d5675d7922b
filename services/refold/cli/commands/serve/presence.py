"""Report of this process's agents or tools on `member`, which no service reads (ADR 30)."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from refold.core.errors import RefoldError
from refold.core.ids import home
from refold.core.messages import Member, MemberAgent, MemberTool
from refold.core.topics import MEMBER
from refold.core.wire import canonical, codec
from refold.core.wire.headers import SLOTS_USED, cloud_event
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.outages import OUTAGES
from refold.engine.runtime.settings import Settings
from refold.sdk.app import App

# A service takes over its partitions first.
FIRST_S = 1.0
# The topic deletes records after eight days, so that killed members vanish.
EVERY_S = 86_400.0

SlotsUsed = Callable[[], int] | None
# Least interval of reports whose number of slots in use has changed: each repeats the schemas of all tools.
SLOTS_S = 30.0
# Longest pause after a failed report. The first is short: a busy machine may only be late.
AGAIN_S = 60.0
# Time for the tombstone of a leaving member: milliseconds, unless a broker is dead.
LAST_S = 1.0


def planner_member(name: str, app: App) -> Member:
    agents = [
        # Prices are loaded with the first partition, which takes a second: a start does not wait for that.
        MemberAgent(agent, version, {n: part for n, part in app.manifest(agent, version).items() if n != "prices"})
        for agent in sorted(app.agents)
        for version in sorted(app.versions(agent))
    ]
    return Member(name, "planner", app.name, clock_ms(), agents=agents)


def executor_member(name: str, app: App, pool: str, slots: int = 0) -> Member:
    tools = []
    for tool in sorted((tool for tool in app.tools.values() if tool.pool == pool), key=lambda tool: tool.name):
        facts = tool.facts
        own = (facts.effect, pool, sorted(facts.tags), facts.approval, canonical.dumps(tool.schema()))
        tools.append(MemberTool(tool.name, facts.version, *own))
    return Member(name, "executor", app.name, clock_ms(), pool=pool, tools=tools, slots=slots)


def fitted(member: Member, limit: int) -> Member:
    """Report of a member, cut to `limit` bytes: schemas of tools go first, then half of the agents and tools."""
    if len(codec.encode(member)) > limit:
        member = replace(member, tools=[replace(tool, schema="") for tool in member.tools], cut=True)
    while len(codec.encode(member)) > limit and (member.agents or member.tools):
        agents, tools = member.agents[: len(member.agents) // 2], member.tools[: len(member.tools) // 2]
        member = replace(member, agents=agents, tools=tools)
    return member


class Presence:
    """Writes a member's report from a thread of its own, and a tombstone at a regular end of the block."""

    def __init__(
        self, settings: Settings, member: Member, *, first_s: float = FIRST_S, slots_used: SlotsUsed = None
    ) -> None:
        self._settings, self._member, self._first_s = settings, fitted(member, settings.max_payload_bytes), first_s
        self._slots_used = slots_used
        self._over = threading.Event()
        # The service neither waits for the reports nor fails with them.
        self._thread = threading.Thread(target=self._report, name="presence", daemon=True)
        self._publisher: KafkaPublisher | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join(LAST_S)
        if kind is None and self._publisher is not None:
            with suppress(RefoldError):
                self._send(self._publisher, None, LAST_S)

    def _report(self) -> None:
        """Write reports until the block ends: daily, after failures, and up to 30 s after a change of slots in use."""
        wait_s, due_s, reported = self._first_s, 0.0, None
        while not self._over.wait(wait_s):
            used = self._slots_used() if self._slots_used else None
            if used == reported and time.monotonic() < due_s:
                continue
            try:
                if self._publisher is None:
                    kafka = self._settings.kafka
                    self._publisher = KafkaPublisher(kafka, partitions=kafka.partitions, source=self._member.name)
                self._send(self._publisher, codec.encode(self._member), LAST_S, used)
                wait_s, due_s, reported = SLOTS_S, time.monotonic() + EVERY_S, used
            except RefoldError as error:
                OUTAGES.failed("presence.unwritten", code=error.code, reason=str(error))
                wait_s = min(AGAIN_S, 2 * wait_s)

    def _send(self, publisher: KafkaPublisher, value: bytes | None, timeout_s: float, used: int | None = None) -> None:
        name, at_ms = self._member.name, clock_ms()
        place = home(name, self._settings.kafka.partitions)
        headers = cloud_event(MEMBER, name, id=f"{name}/{at_ms}", source=name, at_ms=at_ms)
        headers += [] if used is None else [(SLOTS_USED, str(used).encode())]
        publisher.send_raw(MEMBER, place, key=name.encode(), value=value, headers=headers, timeout_s=timeout_s)
