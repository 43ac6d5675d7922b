"""What must hold of the code holds, and each rule sees the violation that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tidy import house
from tests.tidy.house import RULES, Code, Found, Rule, judge

LAYERS: list[dict[str, Any]] = [{"type": "layers", "containers": ["refold"], "layers": ["cli | sim", "sdk", "core"]}]
INNER: list[dict[str, Any]] = [{"type": "layers", "containers": ["refold.core"], "layers": ["run", "wire : ids"]}]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_nothing_breaks_a_rule_but_what_is_on_its_list(rule: Rule) -> None:
    assert house.verdict(rule).broken == {}, "mend it; `make tidy` shows all rules"


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
NESTED = "class A:\n    def f(self):\n        if x:\n            import os\n        def g():\n            import re\n"


@pytest.mark.parametrize(
    ("find", "code", "found"),
    [
        (house.lines, {"a.py": "x = 1\n" * 3, "b.py": "x = 1\n"}, {"services": 4}),
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
            {"a.py": "_x = 1\nT = 1\n", "b.py": "_x = 1\nT = 1\n", "simulator/c.py": "Y = 1\n", "d.py": "Y = 1\n"},
        ),
        (
            house.topics,
            {"core/topics.py": "LOG = 'run-log'\n", "a.py": '"""run-log"""\n', "b.py": "x = 'the run-log'\n"},
        ),
        (house.defaults, {"a.py": PARK, "b.py": "class B:\n    park_ms: int = 5_000\n"}),
        (house.defaults, {"a.py": PARK, "b.py": "class B:\n    park_ms: int = Field(A.park_ms, ge=1)\n"}),
        (house.late, {"a.py": "import os\nif x:\n    import re\n"}),
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
