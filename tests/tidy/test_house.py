"""What must hold of the code holds, and each rule sees the violation that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tidy import house, weight
from tests.tidy.house import FIGURES, RULES, Code, Figure, Found, Reading, Rule, judge
from tests.tidy.repository import ROOT

LAYERS: list[dict[str, Any]] = [{"type": "layers", "containers": ["refold"], "layers": ["cli | sim", "sdk", "core"]}]
INNER: list[dict[str, Any]] = [{"type": "layers", "containers": ["refold.core"], "layers": ["run", "wire : ids"]}]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_nothing_breaks_a_rule_but_what_is_on_its_list(rule: Rule) -> None:
    assert house.verdict(rule).broken == {}, "mend it; `make tidy` shows all rules"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
def test_no_figure_is_worse_than_it_was(figure: Figure) -> None:
    found = house.reading(figure)

    assert found.now <= found.limit, "mend it; `make tidy` shows all figures"


def test_a_decision_record_allows_the_lines_of_production() -> None:
    records = [path.read_text() for path in (ROOT / "docs/adr").glob("*.md")]

    assert house.granted(house.still("figures")["lines"], records), "more lines need an ADR that says what for"
    assert not house.granted(1_000_000, records)


def types_only(module: str) -> str:
    return f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {module} import X\n"


def in_function(module: str) -> str:
    return f"def f():\n    from {module} import X\n"


def up(code: Code) -> Found:
    return house.upward(code, LAYERS)


def up_in_core(code: Code) -> Found:
    return house.upward(code, INNER)


PARK = "class A:\n    park_ms: int = 60_000\n"
BYTES = "MAX_PAYLOAD_BYTES: int = 1 << 20\n"
BRANCHES = "class A:\n    def f(self):\n        if " + " and ".join("abcdefghijklmn") + ":\n            assert x\n"
WIDE = "class A:\n    def f(self, a, b, c, /, d, *more, e, f, g): ...\n    def g(self, a, b, c, d, e, f): ...\n"
SETS = (
    "class A:\n    def f(self, b):\n        self.x = y\n        b.x = self.y.z = 1\n        b.n += 1\n        del b.m\n"
)
NESTED = "class A:\n    def f(self):\n        if x:\n            import os\n        def g():\n            import re\n"


@pytest.mark.parametrize(
    ("find", "code", "found"),
    [
        (house.circles, {"a.py": types_only("refold.b"), "b.py": in_function("refold.a")}, {"a <-> b": 2}),
        (house.circles, {"a.py": "from refold import b\n", "b.py": "import refold.a\n"}, {"a <-> b": 2}),
        (house.circles, {"r/__init__.py": "import refold.r.a\n", "r/a.py": types_only("refold.r")}, {"r <-> r.a": 2}),
        (up, {"core/a.py": types_only("refold.sdk.b"), "sdk/b.py": ""}, {"core.a -> sdk.b": 1}),
        (up_in_core, {"core/ids.py": in_function("refold.core.run"), "core/run.py": ""}, {"core.ids -> core.run": 1}),
        (
            house.twice,
            {"a.py": "class X: ...\n", "b.py": "X: int = 1\n", "c.py": "X, Y = 1, 2\n"},
            {"X (a.py, b.py, c.py)": 2},
        ),
        (house.topics, {"a.py": "LOG = 'run-log'\n", "b.py": "f(f'tool-requested.{pool}')\n"}, {"a.py": 1, "b.py": 1}),
        (house.defaults, {"a.py": PARK, "b.py": PARK}, {"park_ms = 60,000 (a.py, b.py)": 1}),
        (
            house.defaults,
            {"a.py": PARK, "b.py": "park_ms: int = Field(60 * 1000, ge=1)\n"},
            {"park_ms = 60,000 (a.py, b.py)": 1},
        ),
        (
            house.defaults,
            {"a.py": BYTES, "b.py": "def f(*, payload_bytes=1_048_576): ...\n"},
            {"payload_bytes = 1,048,576 (a.py, b.py)": 1},
        ),
        (house.defaults, {"a.py": "PARK_MS = 60_000\n", "b.py": PARK}, {"park_ms = 60,000 (a.py, b.py)": 1}),
        (house.late, {"a.py": NESTED}, {"a.py": 2}),
        (house.decisions, {"a.py": BRANCHES}, {"A.f (a.py)": 16}),
        (house.parameters, {"a.py": WIDE}, {"A.f (a.py)": 7}),
        (house.foreign, {"a.py": SETS}, {"a.py": 4}),
        (
            house.events_abroad,
            {"lab/a.py": "from refold.core.events import SleepEnded as X\n", "cli/b.py": "events.SleepEnded\nfoo.X\n"},
            {"SleepEnded": 2},
        ),
        (house.silent, dict.fromkeys(house.SUBTLE, "x = 1\n" * 100 + "# why\n"), dict.fromkeys(house.SUBTLE, 2)),
    ],
)
def test_a_planted_violation_is_seen(find: Callable[[Code], Found], code: Code, found: Found) -> None:
    assert find(code) == found


@pytest.mark.parametrize(
    ("find", "code"),
    [
        (house.circles, {"a.py": "from refold.b import x\n", "b.py": "from refold.c import y\n", "c.py": ""}),
        (up, {"sdk/a.py": "from refold.core.b import x\n", "core/b.py": "", "elsewhere.py": "import refold.sdk.a\n"}),
        (up_in_core, {"core/run/a.py": "from refold.core import ids\n", "core/ids.py": ""}),
        (
            house.twice,
            {"a.py": "_x = 1\nT = 1\n", "b.py": "_x = 1\nT = 1\n", "cli/commands/c.py": "Y = 1\n", "d.py": "Y = 1\n"},
        ),
        (
            house.topics,
            {"core/topics.py": "LOG = 'run-log'\n", "a.py": '"""run-log"""\n', "b.py": "x = 'the run-log'\n"},
        ),
        (house.defaults, {"a.py": PARK, "b.py": "class B:\n    park_ms: int = 5_000\n"}),
        (house.defaults, {"a.py": PARK, "b.py": "class B:\n    park_ms: int = Field(A.park_ms, ge=1)\n"}),
        (house.late, {"a.py": "import os\nif x:\n    import re\n"}),
        (house.events_abroad, {"core/a.py": "events.SleepEnded\n", "lab/b.py": "from x import SleepEnded\n"}),
        (house.decisions, {"a.py": BRANCHES.replace(" and n", "")}),
        (
            house.foreign,
            {"a.py": "class A:\n    x = 1\n    def f(self):\n        self.x = cls.y = 1\n        z = self.x\n"},
        ),
    ],
)
def test_what_is_as_it_should_be_is_left_alone(find: Callable[[Code], Found], code: Code) -> None:
    assert find(code) == {}


def test_a_floor_of_core_that_nothing_holds_is_seen() -> None:
    def contract(**more: Any) -> list[dict[str, object]]:
        return [{"type": "layers", "containers": ["refold.core"], "layers": list("abcde"), "exhaustive": True, **more}]

    assert house.floors(contract()) == {}
    assert house.floors(contract(layers=list("abcd"))) == {"core": 1}
    assert house.floors(contract(exhaustive=False)) == house.floors([]) == {"core": 5}


def test_a_place_on_the_list_may_get_better_and_not_worse_and_others_may_not_join_it() -> None:
    def broken(**sizes: int) -> Found:
        places = {f"{name} (there)": size for name, size in sizes.items()}
        return judge(Rule("", "", lambda code: places), {}, {"a": 5}).broken

    assert broken(a=5) == broken(a=4) == broken() == {}
    assert broken(a=6) == {"a (there)": 6}
    assert broken(a=4, b=1) == {"b (there)": 1}


def test_below_what_may_be_there_in_all_no_place_breaks_the_rule() -> None:
    def find(code: Code) -> Found:
        return {"a": 6, "b": 4}

    assert judge(Rule("", "", find, most=10), {}, {}).broken == {}
    assert judge(Rule("", "", find, most=9), {}, {"a": 6}).broken == {"b": 4}


def test_a_list_is_lowered_to_what_is_left_and_takes_nothing_new() -> None:
    assert house.lowered({"a (there)": 3, "b (there)": 2, "c (there)": 1}, {"a": 5, "b": 1, "d": 4}) == {"a": 3, "b": 1}
    assert house.lowered({"a (there)": 3}, None) == {"a": 3}, "a rule that is new lists what breaks it"


def test_a_figure_that_is_above_its_limit_is_worse_and_one_without_a_limit_too() -> None:
    figure = Figure("", "no such figure", lambda code: 7, must=5)

    assert house.reading(figure).word.startswith("WORSE")
    assert [Reading(figure, now, 8).word for now in (9, 8, 5)] == ["WORSE: 8 is the limit", "not yet", "holds"]


def test_more_lines_than_a_decision_record_names_are_not_granted() -> None:
    records = ["It has at most 1,200 lines of production.", "at most 900 lines of production"]

    assert [house.granted(limit, records) for limit in (900, 1_200, 1_201)] == [True, True, False]
    assert not house.granted(1, [])


def test_a_module_is_lonely_that_one_module_of_its_room_alone_imports() -> None:
    assert weight.lonely({"r.a": {"r.b", "r.c"}, "r.b": {"r.c"}, "r.c": set(), "q.a": {"r.d"}, "r.d": set()}) == ["r.b"]


def test_a_docstring_that_begins_with_a_clause_is_counted_wherever_it_stands() -> None:
    source = (
        '"""What it is."""\nX = 1\n"""How many."""\ndef f():\n    """Return it."""\nclass A:\n    """Whatever."""\n'
    )

    assert house.riddles({"a.py": source}) == 500
    assert house.riddles({}) == 0


def test_a_word_that_the_field_has_another_for_is_counted_in_every_identifier() -> None:
    source = "class PurseKeeper:\n    seats_of = 1\n    said, pursed = 2, 3  # a purse\n\n\nx: ChildOver = 'a purse'\n"

    assert house.coined({"archive/vault.py": source}) == 4
    assert house.coined({"engine/archive/store.py": "said = told = 'purse'\n"}) == 0
