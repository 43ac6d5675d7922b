"""The words of every page: plain English, no names of the code, and only commands and options that there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from refold.cli.commands import COMMANDS
from refold.cli.groups import Later
from refold.console.gateway.app import routed
from refold.console.gateway.guard import is_page
from refold.console.pages import rendering
from refold.console.pages.fork_pages import fork_parts
from refold.console.pages.screen import SCREEN
from refold.core.ids import RunId, hold_key, home
from refold.core.messages import Hold
from refold.core.topics import RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.adapters.kafka import source
from refold.engine.adapters.kafka.source import TOPICS
from refold.lab.forks.report import ForkedCall, ForkReport
from tests.docs.blocks import ROOT
from tests.gateway.test_reading import Bench
from tests.gateway.test_roles import routes_of
from tests.golden import everything
from tests.golden.seen import DecideLoop, Recorded, asked
from tests.pages.test_screens import SCREENS, emptied
from tests.roots import TRUST

TREE = dict(COMMANDS.walk())
STATES = ("running", "doubt", "waiting_for_people", "on_hold", "stalled", "waiting", "suspended", "paused", "failed")
SHOWN = (
    *("done-1", "failed-1", "cancelled-1", "pending-1", "sleeping-1", "waiting-1", "paused-1", "stalled-1"),
    *("quarantined-1", "doubt-1", "held-1", "asked-1", "parent-1", "forked-1", "budget-1"),
)
ALLOWED = {"JavaScript", "ValueError", "RuntimeError", "PascalCase"}
"""Product names, and classes of errors that the recorded agents raise."""
GIVEN = {"waiting_for_people", "on_hold", "ledger"}
"""Names of states in addresses, and words of the recorded people."""
CAMEL = re.compile(r"\b(?:[A-Z][a-z0-9]+){2,}\b|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b")
NO_WORDS = """lane lanes fold folds folded outbox relay snapshot seq nano undefined True False ledger
    CurrentAttempt RunFailed Retry-After Idempotency-Key"""
OF_CODE = re.compile(
    rf"\b(?:{'|'.join(NO_WORDS.split())}|Refold-[A-Z]\w+|X-[A-Z]\w+)\b|Said so far:?\s*Nobody|End: failed"
    r"|\b0 tokens|tokens, \$0\b|\bHalf took\b"
)
SNAKE = re.compile(r"\b[a-z]+_[a-z_]+\b")
SPOKEN_COMMAND = re.compile(r"\brefold ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


OF_VALUES = ("code", "pre", "textarea", "style", "script", "option")


class Words(HTMLParser):
    """Text of a page: what people read, and beside it what stands in elements for code and for values."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.prose, self.code, self._open = "", "", list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        if tag in OF_VALUES or "mono" in str(of.get("class")):
            self._open.append(tag)
        for name in ("title", "aria-label", "placeholder"):
            self.prose += f" {of.get(name) or ''} "
        if tag in ("p", "div", "dd", "dt", "li", "td", "th", "h1", "h2", "span", "a", "label", "button"):
            self.prose += " "

    def handle_endtag(self, tag: str) -> None:
        self.code += "\n"
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.code += data
        else:
            self.prose += data


class Everything(Recorded):
    """The recorded platform, for a gateway that serves it."""

    copied = everything.build()
    hand = DecideLoop(copied)
    trust = TRUST


@pytest.fixture(scope="module")
def site() -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "REQUEST_TIMEOUT_S", 0.1)  # there is no Kafka
        bench = Bench(platform=Everything)
        broker = Everything.copied.broker
        for topic in TOPICS:
            for number in range(broker.partitions if topic in broker.topics else 0):
                for record in broker.log(topic, number).records:
                    bench.log.append(topic, number % 2, record.key or b"", record.value)
        hold = Hold(RunId("pending-1"), "stalled", "unknown_agent", "no planner has an agent batch")
        bench.log.append(RUN_SNAPSHOT, home(hold.run_id, 2), hold_key(hold.run_id), codec.encode(hold))
        bench.catch_up()
        with bench.http:
            yield bench
        bench.http.close()


def pages_of(site: Bench) -> Iterator[tuple[str, int, str]]:
    """Each page in each state: its path, status and HTML."""
    for path in paths_of():
        answer = site.http.get(path)
        yield path, answer.status_code, answer.text
    report = ForkReport(
        run_id="failed-1", at=0, verdict="other", status=("failed", "completed"), result=(None, {"n": 1}),
        calls=[ForkedCall(change="changed", run_id="failed-1", tool="look", before=1, after=1, args={}, were={})],
    )  # fmt: skip
    for verdict in ("same", "other", "stopped", "raises", "disagrees"):
        told = report.model_copy(update={"verdict": verdict})
        page = rendering.html_page(SCREEN, title="Fork", place="/", parts=[*fork_parts([], told)])
        yield f"a fork that is {verdict}", 200, bytes(page.body).decode()


def paths_of() -> Iterator[str]:
    yield from ("/", *(f"/?state={state}" for state in STATES), "/?text=nothing-is-named-so", "/start", "/login")
    yield from ("/inbox", *(f"/inbox?show={tab}" for tab in ("all", "doubt", "decided")))
    yield from ("/sessions", "/sessions?session=s-1", "/tools", "/tools?days=1", "/tools?agent=deploy&tool=look")
    yield from ("/limits", "/operators", "/operators?actor=ann", "/dead-letters", "/policies", "/versions")
    yield from ("/workers", "/health", "/schedules")
    yield from ("/dead-letters/0/0", "/dead-letters/0/0?whole=true", "/dead-letters/0/0?dry_run=true", "/runs/none")
    yield from ("/calls/none/settle", "/static/none.css", "/runs/done-1/records/99", "/approvals/none", "/?state=odd")
    yield from (f"/runs/{run}" for run in SHOWN)
    for run in ("done-1", "failed-1", "waiting-1", "granted-1"):
        yield from (f"/runs/{run}?seq=3&seq=1&with=2", f"/runs/{run}?show=conversation", f"/runs/{run}?at=2")
        yield from (f"/runs/{run}?show=events", f"/runs/{run}?open=all", f"/runs/{run}/fork")
    doing = {"retry": "failed-1", "pause": "waiting-1", "cancel": "waiting-1", "resume": "paused-1"}
    yield from (f"/runs/{run}?do={word}" for word, run in doing.items())
    yield from (f"/approvals/{each}" for each in asked()[::5])


def faults_in(words: Words, given: set[str]) -> Iterator[str]:
    """What no page may say. `given` are words of the recorded data."""
    for found in CAMEL.findall(words.prose):
        if found not in ALLOWED and found not in given:
            yield f"a name of the code: {found}"
    of_code = (found.group() for found in OF_CODE.finditer(words.prose))
    yield from (f"a word of the code: {found}" for found in of_code if found not in given)
    yield from (f"a name with underscores: {found}" for found in SNAKE.findall(words.prose) if found not in given)
    yield from commands_in(words.prose + words.code)


def commands_in(text: str) -> Iterator[str]:
    """The commands and options of a text that there are not."""
    for found in SPOKEN_COMMAND.finditer(text):
        path = command_of(found[1].split())
        line = text[found.end(1) :].split("\n")[0].split("`")[0]
        if path is None:
            yield f"no command: refold {found[1]}"
            continue
        wrong = {*OPTION.findall(line.split("refold ")[0])} - options_of(path)
        yield from (f"no option of refold {' '.join(path)}: {option}" for option in wrong)
    yield from (f"no option of any command: {option}" for option in {*OPTION.findall(text)} - every_option())


def command_of(words: list[str]) -> tuple[str, ...] | None:
    """The command that words begin with, or a group of them."""
    for length in range(min(4, len(words)), 0, -1):
        path = tuple(words[:length])
        if path in TREE or (length == len(words) and any(each[:length] == path for each in TREE)):
            return path
    return None


@cache
def options_of(path: tuple[str, ...]) -> set[str]:
    if path not in TREE:
        return every_option()
    params = Later(path[-1], TREE[path]).load().params
    return {name for each in params for name in (*each.opts, *each.secondary_opts)} | {"--help"}


@cache
def every_option() -> set[str]:
    return {"--version"}.union(*(options_of(path) for path in TREE))


def test_every_page_is_walked() -> None:
    pages = {route.path for route in routes_of(routed()) if isinstance(route, Route | APIRoute) and of_people(route)}
    walked = [path.partition("?")[0] for path in paths_of()]

    assert [each for each in pages if not any(re.fullmatch(shape(each), path) for path in walked)] == []


def of_people(route: Route | APIRoute) -> bool:
    return "GET" in (route.methods or ()) and is_page(re.sub(r"{[^}]*}", "x", route.path))


def shape(path: str) -> str:
    return re.sub(r"{\w+}", "[^/]+", re.sub(r"{\w+:path}", ".+", path))


def test_no_page_has_a_word_of_the_code_or_a_command_that_is_none(site: Bench) -> None:
    faults = list[str]()
    for path, status, page in pages_of(site):
        assert status in (200, 303, 404, 405, 422, 503), (path, page[:300])
        faults += [f"{path}: {fault}" for fault in faults_in(Words(page), GIVEN)]
    assert faults == []


def test_no_empty_page_has_either() -> None:
    bench = emptied()
    with bench.http:
        for path in (*SCREENS, "/inbox", "/start", "/policies", "/versions"):
            page = bench.http.get(path).text
            assert [*faults_in(Words(page), GIVEN)] == [], path


PACKAGE = ROOT / "services" / "refold"
IN_BACKTICKS = re.compile(r"`(refold [^`]+)`")


def texts_of(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, with X for each value in them; not its docstrings."""
    skipped = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    skipped |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def test_errors_and_hints_name_commands_and_options_that_there_are() -> None:
    faults, read = list[str](), 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for text in texts_of(ast.parse(path.read_text())):
            told = [text] if text.startswith("refold ") else IN_BACKTICKS.findall(text)
            read += len(told)
            faults += [f"{path.relative_to(PACKAGE)}: {fault}" for line in told for fault in commands_in(line)]

    assert read > 100
    assert faults == []


@pytest.mark.parametrize(
    "planted",
    [
        "CurrentAttempt again",
        "it is in lane 3",
        "pass on the header Refold-After",
        "Said so far Nobody has said anything",
        "this run_id is gone",
        "0 tokens, $0",
        "refold run lsit",
        "refold run list --state failed",
        "use --no-such-option",
    ],
)
def test_words_that_no_page_may_have_are_found(planted: str) -> None:
    assert [*faults_in(Words(f"<p>{planted}</p>"), set())]
    assert not [*faults_in(Words("<p>Ask again: <code>refold run list --status failed</code></p>"), set())]
