"""What must hold of the code: `make tidy` shows it as a table, `make test` fails where it does not.

A rule that some places still break has a list of them in `still.json`, with how much each may. Nothing may be added to
it; `python -m tests.tidy.house --tighten` writes it anew from what is left.
"""

from __future__ import annotations

import ast
import json
import math
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import yaml

from tests.tidy.repository import ROOT, python, text

Code = Mapping[str, str]
"""The source of each module, by its path in the package: `planner/lane.py`."""
Found = dict[str, int]
"""What breaks a rule, by place, and how much: lines beyond the wall, names, arrows."""

STILL = ROOT / "tests/tidy/still.json"
MOST_LINES, MOST_LATE_IMPORTS = 66_000, 10
"""Ratchets. Production lines only go down from here; a file may be as long as its one reason to change needs."""
FLOORS = 5

SUBTLE = ("core/planning/decide.py", "planner/acceptance.py", "planner/answering.py", "executor/claim_chain.py")
SUBTLE += ("executor/attempt.py", "core/run/chain.py")
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


def lines(code: Code) -> Found:
    """All lines of production, the simulator's and the test kit's with them."""
    return {"services": sum(len(source.splitlines()) for source in code.values())}


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
        for node in ast.walk(tree(source)):
            if isinstance(node, ast.Import):
                found |= {alias.name.removeprefix("refold.") for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("refold"):
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
    """Names with two meanings. Not looked at: the simulator, which reads all a second time, and verbs of commands."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, source in code.items():
        if not path.startswith(("simulator/", "cli/commands/")):
            for name in set(tops(source)) - TWICE.keys():
                places[name].append(path)
    return {f"{name} ({', '.join(sorted(paths))})": len(paths) - 1 for name, paths in places.items() if len(paths) > 1}


def strings(source: str) -> Iterator[str]:
    """The texts of a module that are not docstrings."""
    prose = {id(node.value) for node in ast.walk(tree(source)) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree(source)):
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
        if not path.startswith("simulator/"):
            for name, value in numbers(source):
                places["_".join(name.lower().split("_")[-2:]), value].append(path)
    return {
        f"{name} = {value:,} ({', '.join(sorted(paths))})": len(paths) - 1
        for (name, value), paths in places.items()
        if len(paths) > 1 and value > 1
    }


def numbers(source: str) -> Iterator[tuple[str, int]]:
    """The numbers that stand as constants, as defaults of annotated fields, and as those of parameters."""
    for node in ast.walk(tree(source)):
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
        for node in ast.walk(tree(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[path] += sum(isinstance(inner, ast.Import | ast.ImportFrom) for inner in own(node))
    return {path: number for path, number in found.items() if number}


def own(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """What stands in a function, without the functions inside it."""
    ahead: list[ast.AST] = list(function.body)
    while ahead:
        node = ahead.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            ahead += ast.iter_child_nodes(node)


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
    Rule("lines of production", "lines", lines, MOST_LINES),
    Rule(f"floors of core, of {FLOORS}, that nothing holds", "floors", lambda code: floors(contracts())),
    Rule("circles of imports, types and functions too", "circles", circles),
    Rule("imports upwards", "upward", lambda code: upward(code, contracts())),
    Rule("names at the top of two modules", "twice", twice),
    Rule("topics written out", "topics", topics),
    Rule("defaults written twice", "defaults", defaults),
    Rule("imports inside functions", "late", late, MOST_LATE_IMPORTS),
    Rule(f"comments missing (of {COMMENTS:.0%}) where rules are subtle", "silent", silent),
)


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


def verdict(rule: Rule) -> Verdict:
    """How a rule stands now."""
    return judge(rule, production(), json.loads(STILL.read_text()).get(rule.key, {}))


def tighten() -> None:
    """Writes down what is still broken, for nothing more to be added."""
    code = production()
    left = {rule.key: {short(place): n for place, n in judge(rule, code, {}).listed.items()} for rule in RULES}
    STILL.write_text(json.dumps({key: found for key, found in left.items() if found}, indent=1, sort_keys=True) + "\n")


def main() -> int:
    """Prints the table."""
    if "--tighten" in sys.argv:
        tighten()
    rows = [("what must hold", "at most", "now", "")]
    rows += [(v.rule.name, f"{v.rule.most:,}", f"{v.total:,}", v.word) for v in verdicts()]
    for name, most, now, word in rows:
        sys.stdout.write(f"{name:<56} {most:>8} {now:>8}  {word}\n")
    return int(any(verdict.broken for verdict in verdicts()))


if __name__ == "__main__":
    sys.exit(main())
