"""What must hold of the code: `make tidy` shows it as a table, `make test` fails where it does not.

A rule that some places still break has a list of them in `still.json`, with how much each may. Nothing may be added to
it. A figure has its limit there, which only falls. `python -m tests.tidy.house --tighten` lowers lists and limits to
what is left. The limit of production lines is raised by an ADR alone: one that names it.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import subprocess
import sys
import tokenize
import tomllib
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import typer
import yaml

from refold.cli.main import app
from refold.core.events import Event
from tests.tidy import weight
from tests.tidy.repository import ROOT, python, text, tracked

Code = Mapping[str, str]
"""The source of each module, by its path in the package: `engine/planner/lane.py`."""
Found = dict[str, int]
"""What breaks a rule, by place, and how much: lines beyond the wall, names, arrows."""

STILL = ROOT / "tests/tidy/still.json"
MOST_LATE_IMPORTS = 11
FLOORS = 5

SUBTLE = (
    *("core/planning/decide.py", "engine/planner/log/acceptance.py", "engine/planner/deciding/decide_loop.py"),
    *("engine/executor/claim_chain.py", "engine/executor/attempt.py", "core/run/chain.py"),
)
COMMENTS = 0.02
"""The part of the lines of a subtle module that are comments of their own, which say why."""

TWICE = {
    "T": "a type variable",
    "app": "a group of commands, as typer has it",
    "log": "the logger of a process",
    "CallFailed": "the event and what an agent catches: users know both by this name",
    "replay": "the drive along a history: of code in core, of a kept file in the kit, where users call it",
    "load": "a verb of its module, always called with its name: settings.load, keys.load, loading.load",
    "read": "a verb of its module: chain.read, inputs.read",
    "parse": "a verb of its module",
    "check": "a verb of its module: export.check, scan.check",
    "membership": "the same question to each service: which topics it takes part in",
    "idempotency_key": "what makes one, and what a tool of another framework asks for its own",
    "Lane": "each service has one; the corridor says what is one",
}
"""Names that may stand at the top of two modules, and why."""


@cache
def tree(source: str) -> ast.Module:
    """A module, parsed once."""
    return ast.parse(source)


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All nodes of a module, walked once for all rules."""
    return tuple(ast.walk(tree(source)))


@cache
def imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a module, at the top and in functions."""
    return [node for node in nodes(source) if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def functions(source: str) -> list[tuple[str, weight.Function]]:
    """The functions of a module with their names."""
    return list(weight.functions(tree(source)))


def floors(contracts: list[dict[str, object]]) -> Found:
    """Floors of core that `lint-imports` does not hold apart: each is a layer, and every room of core is on one."""
    held = [c for c in contracts if c.get("containers") == ["refold.core"] and c.get("exhaustive")]
    number = max((len(list(c["layers"])) for c in held), default=0)  # type: ignore[call-overload]
    return {"core": FLOORS - number} if number < FLOORS else {}


def name_of(path: str) -> str:
    """The dotted name of a module: `core.wire` for `core/wire/__init__.py`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(code: Code) -> dict[str, set[str]]:
    """Which module imports which, wherever the import stands: at the top, for types only, or in a function."""
    names = {name_of(path) for path in code}
    graph: dict[str, set[str]] = {}
    for path, source in code.items():
        found: set[str] = set()
        for node in imports(source):
            if isinstance(node, ast.Import):
                found |= {alias.name.removeprefix("refold.") for alias in node.names}
            elif node.module and node.module.startswith("refold"):
                room = node.module.removeprefix("refold").removeprefix(".")
                for alias in node.names:
                    inner = f"{room}.{alias.name}" if room else alias.name
                    found.add(inner if inner in names else room)
        graph[name_of(path)] = found & names - {name_of(path)}
    return graph


def circles(code: Code) -> Found:
    """Modules that import each other, directly or around a corner: as the size of each circle."""
    graph = imported(code)

    @cache
    def reached(name: str) -> frozenset[str]:
        seen: set[str] = set()
        ahead = [name]
        while ahead:
            new = graph[ahead.pop()] - seen
            seen |= new
            ahead += new
        return frozenset(seen)

    groups = {frozenset(other for other in reached(name) if name in reached(other)) for name in graph}
    return {" <-> ".join(sorted(group)): len(group) for group in groups if group}


def upward(code: Code, contracts: list[dict[str, object]]) -> Found:
    """Imports from a lower room to a higher one, by the layers that `lint-imports` has; those for types count too."""
    found: Counter[str] = Counter()
    graph = imported(code)
    for contract in contracts:
        if contract["type"] != "layers":
            continue
        [container] = contract["containers"]  # type: ignore[misc]
        prefix = container.removeprefix("refold").removeprefix(".")  # type: ignore[has-type]
        height = {
            room.strip(): number
            for number, layer in enumerate(reversed(list(contract["layers"])))  # type: ignore[call-overload]
            for room in re.split("[|:]", layer)
        }
        for name, others in graph.items():
            for other in others:
                own, theirs = (height.get(room_in(prefix, module), -1) for module in (name, other))
                if -1 < own < theirs:
                    found[f"{name} -> {other}"] += 1
    return dict(found)


def room_in(prefix: str, module: str) -> str:
    """The room of a container that a module belongs to, if it is in there."""
    inner = module.removeprefix(f"{prefix}.") if prefix else module
    return inner.partition(".")[0] if not prefix or inner != module else ""


def tops(source: str) -> Iterator[str]:
    """The names that a module defines at its top, but for private ones."""
    for node in tree(source).body:
        names: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        yield from (name for name in names if not name.startswith("_"))


def twice(code: Code) -> Found:
    """Names with two meanings. Not looked at: verbs of commands."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, source in code.items():
        if not path.startswith("cli/commands/"):
            for name in set(tops(source)) - TWICE.keys():
                places[name].append(path)
    return {f"{name} ({', '.join(sorted(paths))})": len(paths) - 1 for name, paths in places.items() if len(paths) > 1}


def strings(source: str) -> Iterator[str]:
    """The texts of a module that are not docstrings."""
    prose = {id(node.value) for node in nodes(source) if isinstance(node, ast.Expr)}
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def topic_names() -> frozenset[str]:
    """The names of all topics, by `infra/topics.yaml`; `catalog` is a word of its own, too."""
    content = yaml.safe_load((ROOT / "infra/topics.yaml").read_text())
    return frozenset(name.partition(".")[0] for name in content["topics"]) - {"catalog"}


def topics(code: Code) -> Found:
    """Topics that are written out, and not taken from `core/topics.py`."""
    names = topic_names()
    found: Counter[str] = Counter()
    for path, source in code.items():
        if path != "core/topics.py":
            found[path] += sum(text.partition(".")[0] in names for text in strings(source))
    return {path: number for path, number in found.items() if number}


def defaults(code: Code) -> Found:
    """Defaults that are written down twice: a number for fields or parameters whose names end in the same way."""
    places: dict[tuple[str, int], list[str]] = defaultdict(list)
    for path, source in code.items():
        for name, value in numbers(source):
            places["_".join(name.lower().split("_")[-2:]), value].append(path)
    return {
        f"{name} = {value:,} ({', '.join(sorted(paths))})": len(paths) - 1
        for (name, value), paths in places.items()
        if len(paths) > 1 and value > 1
    }


def numbers(source: str) -> Iterator[tuple[str, int]]:
    """The numbers that stand as constants, as defaults of annotated fields, and as those of parameters."""
    for node in nodes(source):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(name.id, node.value) for name in node.targets if isinstance(name, ast.Name) and name.id.isupper()]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "Field" and node.value.args
            pairs = [(node.target.id, field[0] if field else node.value)]
        elif isinstance(node, ast.arguments):
            last = reversed([*node.posonlyargs, *node.args])
            pairs = [(argument.arg, value) for argument, value in zip(last, reversed(node.defaults), strict=False)]
            pairs += [(a.arg, value) for a, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        for name, value in pairs:
            if value is not None and isinstance(number := evaluated(value), int):
                yield name, number


def evaluated(node: ast.expr) -> object:
    """A number, also one that is written as a sum or product."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        numeric = all(isinstance(n, ast.Constant | ast.BinOp | ast.operator) for n in ast.walk(node))
        return eval(ast.unparse(node)) if numeric else None


def late(code: Code) -> Found:
    """Imports inside functions, by module: each is a rule that somebody has to know of."""
    found: Counter[str] = Counter()
    for path, source in code.items():
        for node in nodes(source):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[path] += sum(isinstance(inner, ast.Import | ast.ImportFrom) for inner in weight.own(node))
    return {path: number for path, number in found.items() if number}


def heavy(code: Code, count: Callable[[weight.Function], int], most: int) -> Found:
    """Functions with more than `most` of something, and how much of it each has."""
    found: Found = {}
    for path, source in code.items():
        for name, function in functions(source):
            if (number := count(function)) > most:
                found[f"{name} ({path})"] = number
    return found


def decisions(code: Code) -> Found:
    """Functions that decide too much."""
    return heavy(code, weight.decisions, weight.MOST_DECISIONS)


def parameters(code: Code) -> Found:
    """Functions that are given too much."""
    return heavy(code, weight.parameters, weight.MOST_PARAMETERS)


def foreign(code: Code) -> Found:
    """Attributes that a module sets of objects which are not its own."""
    found = {path: sum(1 for _ in weight.set_from_outside(tree(source))) for path, source in code.items()}
    return {path: number for path, number in found.items() if number}


EVENT_HOMES = ("core/", "engine/planner/")
"""Rooms in which events are at home: core defines, decides and folds them, the planner writes them."""


def events_abroad(code: Code) -> Found:
    """Modules outside the homes of events that name an event, by event: each of them has to follow its changes."""
    found: Counter[str] = Counter()
    for path, source in code.items():
        if not path.startswith(EVENT_HOMES):
            found.update(event_names() & set(of_events(source)))
    return dict(found)


def of_events(source: str) -> Iterator[str]:
    """Names that a module takes from `core.events`: imported one by one, or as attributes of the module."""
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and node.module == "refold.core.events":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "events":
            yield node.attr


@cache
def event_names() -> frozenset[str]:
    """Names of all events of a run."""
    return frozenset(kind.__name__ for kind in get_args(Event))


def silent(code: Code) -> Found:
    """Comments that are missing where a rule is subtle, by module."""
    found: Found = {}
    for path in SUBTLE:
        source = code.get(path, "").splitlines()
        comments = sum(line.lstrip().startswith("#") for line in source)
        if (missing := math.ceil(len(source) * COMMENTS) - comments) > 0 or not source:
            found[path] = max(missing, 1)  # a module that was renamed is to be named anew up there
    return found


@dataclass(frozen=True)
class Rule:
    """A row of the table. `most`: how much of it there may be in all."""

    name: str
    key: str
    find: Callable[[Code], Found]
    most: int = 0


@cache
def contracts() -> list[dict[str, object]]:
    """What `lint-imports` holds."""
    found: list[dict[str, object]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    return found


RULES = (
    Rule(f"floors of core, of {FLOORS}, that nothing holds", "floors", lambda code: floors(contracts())),
    Rule("circles of imports, types and functions too", "circles", circles),
    Rule("imports upwards", "upward", lambda code: upward(code, contracts())),
    Rule("names at the top of two modules", "twice", twice),
    Rule("topics written out", "topics", topics),
    Rule("defaults written twice", "defaults", defaults),
    Rule("imports inside functions", "late", late, MOST_LATE_IMPORTS),
    Rule(f"functions with more than {weight.MOST_DECISIONS} decisions", "decisions", decisions),
    Rule(f"functions with more than {weight.MOST_PARAMETERS} parameters", "parameters", parameters),
    Rule("attributes set of another object", "foreign", foreign),
    Rule("modules outside core and planner that name an event", "events", events_abroad),
    Rule(f"comments missing (of {COMMENTS:.0%}) where rules are subtle", "silent", silent),
)


@dataclass(frozen=True)
class Figure:
    """A figure that may only fall. `must`: where it has to come, if it has to come anywhere."""

    name: str
    key: str
    measure: Callable[[Code], int]
    must: int | None = None


def lines(code: Code, *rooms: str) -> int:
    """Lines of all production, or of some rooms."""
    return sum(len(source.splitlines()) for path, source in code.items() if path.startswith(rooms or ("",)))


def simulator() -> dict[str, str]:
    """The modules of the simulator, which stands beside the tests."""
    homes = ("tests/simulator/",)
    return {str(path): text(path) or "" for path in python() if str(path).startswith(homes)}


def schema_subjects() -> int:
    """Subjects with a schema. Their versions are not counted: the lock file is append-only, as old records stay."""
    return len({path.name.split(".v")[0] for path in (ROOT / "schemas").glob("*.v*.avsc")})


def checked_less(option: str) -> int:
    """Modules for which `pyproject.toml` sets an option that has mypy find less, or nothing (`ignore_errors`)."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    return sum(len(each["module"]) for each in overrides if each.get(option))


def hidden_commands() -> int:
    """Commands that the help of their group does not list: the root has them under two words."""
    root: Any = typer.main.get_command(app)
    return sum(" " in name for name in root.commands)


def packed(code: Code) -> int:
    """Kilobytes of the package when each file is compressed, as a wheel does it."""
    files = [path for path in tracked() if path.parts[:2] == ("services", "refold") or path.parts[0] == "schemas"]
    return sum(len(zlib.compress((ROOT / path).read_bytes())) for path in files) // 1_000


def imported_by_the_menu(code: Code) -> int:
    """Modules that `import refold` loads into a fresh interpreter, Python's own and those of libraries too."""
    program = "import sys; before = len(sys.modules); import refold; print(len(sys.modules) - before)"
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)


RIDDLE = re.compile(r"(?:What|Whether|How)\b")


def docstrings(source: str) -> Iterator[str]:
    """The texts that stand by themselves in a module, a class or a function: their docstrings, and those of fields."""
    for node in nodes(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def riddles(code: Code) -> int:
    """Docstrings that begin with a clause where a noun or an imperative belongs, of a thousand."""
    found = [text for source in code.values() for text in docstrings(source)]
    return math.ceil(1_000 * sum(bool(RIDDLE.match(text)) for text in found) / max(len(found), 1))


COINED = {
    *("anew", "answering", "beat", "desk", "ear", "editing", "exposure", "glyph", "hindsight"),
    *("hosting", "keeper", "office", "offering", "pacing", "parking", "patience", "purse", "receipt"),
    *("recount", "rehearsing", "revival", "revived", "rival", "saying", "seat", "sharing", "shelf", "spoilt"),
    *("stranger", "survey", "tally", "tangle", "telling", "tiding", "trying", "unsent", "urging", "uttered"),
    *("vault", "vouching"),
}
"""Words of ours that the field has others for, see docs/concepts/vocabulary.md. They are counted in identifiers."""
COINED_NAMES = {
    *("ChildOver", "LastSaid", "ParentOver"),
}
"""Names made of plain words. Those words by themselves are not looked at: most, told, heard, kept, ended, over,
held, word, said, window, aside, reading, shared, shape, within, possible, building, changes, register, renewed (of a
lease). What topics hold has one name, in code too: anchor, marks, teller, KeptRun, EndedRuns, WindowSpent."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def coined(code: Code) -> int:
    """Identifiers, names of modules too, that hold a word which the field has another for."""
    found = 0
    for path, source in code.items():
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        names = [token.string for token in tokens if token.type == tokenize.NAME]
        for name in (path.rpartition("/")[2].removesuffix(".py"), *names):
            words = {word.lower() for word in _WORD.findall(name)}
            found += name in COINED_NAMES or any(word in COINED or word.removesuffix("s") in COINED for word in words)
    return found


FACES = ("client/", "cli/", "views/", "operations/")
FIGURES = (
    Figure("lines of production", "lines", lines, 48_500),
    Figure("lines of client, CLI, views and operations", "faces", lambda code: lines(code, *FACES), 8_000),
    Figure(
        "functions over 15 decisions, without planner and planning",
        "decisions of the product",
        lambda code: len(decisions(code)),
        8,
    ),
    Figure(
        "functions over 15 decisions, in the simulator",
        "decisions of the simulator",
        lambda _: len(decisions(simulator())),
        15,
    ),
    Figure("functions over 6 parameters", "wide functions", lambda code: len(parameters(code)), 15),
    Figure(
        "modules with one importer, of their own room", "lonely", lambda code: len(weight.lonely(imported(code))), 75
    ),
    Figure("subjects with a schema", "schema subjects", lambda _: schema_subjects(), 21),
    Figure("commands that the help of their group hides", "hidden commands", lambda _: hidden_commands(), 0),
    Figure(
        "modules of tests and benchmarks that mypy passes over", "untyped", lambda _: checked_less("ignore_errors"), 0
    ),
    Figure("modules of tests that mypy checks less strictly", "loose", lambda _: checked_less("disable_error_code"), 0),
    Figure("docstrings of a thousand that begin with What, Whether or How", "riddles", riddles, 80),
    Figure("identifiers with a word that the field has another for", "coined", coined, 0),
    Figure("package with schemas, compressed, kB", "packed", packed),
    Figure("modules that `import refold` loads", "menu", imported_by_the_menu),
)
"""In the order of the table. The limit of each is in `still.json`."""


@dataclass(frozen=True)
class Reading:
    """Where a figure stands, and the limit that it may not pass."""

    figure: Figure
    now: int
    limit: int

    @property
    def word(self) -> str:
        """The last column of the table."""
        if self.now > self.limit:
            return f"WORSE: {self.limit:,} is the limit"
        return "not yet" if self.figure.must is not None and self.now > self.figure.must else "holds"


@dataclass(frozen=True)
class Verdict:
    """How a rule stands: what there is of it in all, what breaks it, and which places on the list broke it before."""

    rule: Rule
    total: int
    broken: Found
    listed: Found

    @property
    def word(self) -> str:
        """The last column of the table."""
        if self.broken:
            return "BROKEN: " + "; ".join(f"{place}: {number:,}" for place, number in sorted(self.broken.items()))
        return f"not yet: {len(self.listed)} on the list" if self.listed else "holds"


def short(place: str) -> str:
    """A place without what says where it is, for the list: files move."""
    return place.partition(" (")[0]


def judge(rule: Rule, code: Code, still: Found) -> Verdict:
    """Holds a rule against code. `still`: what each place may have that broke the rule when it was made."""
    found = rule.find(code)
    total = sum(found.values())
    if total <= rule.most:
        return Verdict(rule, total, {}, {})
    broken = {place: number for place, number in found.items() if number > still.get(short(place), 0)}
    return Verdict(rule, total, broken, found)


@cache
def production() -> dict[str, str]:
    """The package as it is."""
    inside = [path for path in python() if path.parts[0] == "services"]
    return {str(path.relative_to("services/refold")): text(path) or "" for path in inside}


def verdicts() -> list[Verdict]:
    """How every rule stands now."""
    return [verdict(rule) for rule in RULES]


def still(key: str) -> dict[str, int]:
    """A list of `still.json`."""
    found: dict[str, int] = json.loads(STILL.read_text()).get(key, {})
    return found


def verdict(rule: Rule) -> Verdict:
    """How a rule stands now."""
    return judge(rule, production(), still(rule.key))


def reading(figure: Figure) -> Reading:
    """Where a figure stands now. Without a limit anything is worse."""
    return Reading(figure, figure.measure(production()), still("figures").get(figure.key, -1))


def granted(limit: int, records: Iterable[str]) -> bool:
    """True if one of these decision records allows so many lines of production, or more."""
    named = (number for record in records for number in re.findall(r"at most ([\d,]+) lines of production", record))
    return any(int(number.replace(",", "")) >= limit for number in named)


def tighten() -> None:
    """Lowers every list and limit to what is left. A rule or figure that is new gets what it finds."""
    code, lists = production(), json.loads(STILL.read_text())
    left: dict[str, Found] = {}
    for rule in RULES:
        places = lowered(rule.find(code), lists.get(rule.key))
        left[rule.key] = places if sum(places.values()) > rule.most else {}
    limits = lists.get("figures", {})
    left["figures"] = {each.key: min(each.measure(code), limits.get(each.key, 1 << 60)) for each in FIGURES}
    STILL.write_text(json.dumps(left, indent=1, sort_keys=True) + "\n")


def lowered(found: Found, before: Found | None) -> Found:
    """The list of a rule: no place that was not on it, and none with more than it had."""
    places: Found = {}
    for place, number in found.items():
        name = short(place)
        allowed = number if before is None else min(number, before.get(name, 0))
        if allowed:
            places[name] = max(allowed, places.get(name, 0))
    return places


def main() -> int:
    """Prints the tables."""
    if "--tighten" in sys.argv:
        tighten()
    readings = [reading(figure) for figure in FIGURES]
    rows = [("figure", "must", "now", "")]
    rows += [(r.figure.name, must(r), f"{r.now:,}", r.word) for r in readings]
    table(rows)
    rows = [("what must hold", "at most", "now", "")]
    rows += [(v.rule.name, f"{v.rule.most:,}", f"{v.total:,}", v.word) for v in verdicts()]
    sys.stdout.write("\n")
    table(rows)
    return int(
        any(verdict.broken for verdict in verdicts()) or any(reading.now > reading.limit for reading in readings)
    )


def must(reading: Reading) -> str:
    """The second column of a figure: where it has to come, or its limit."""
    return f"{reading.limit if reading.figure.must is None else reading.figure.must:,}"


def table(rows: Iterable[tuple[str, str, str, str]]) -> None:
    """Prints rows in four columns."""
    for name, most, now, word in rows:
        sys.stdout.write(f"{name:<60} {most:>8} {now:>8}  {word}\n")


if __name__ == "__main__":
    sys.exit(main())
