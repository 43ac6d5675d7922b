"""The shopper of `examples/thinking.py`, offline."""

from __future__ import annotations

from pathlib import Path

from refold import App
from refold.testing import crash_matrix, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "thinking.py"
ORDER = "shopper__function_toolset__<agent>.call_tool:order"


def test_the_shopper_looks_things_up_at_once_and_orders_what_is_needed() -> None:
    ended = run(App.load(str(EXAMPLE)), "shopper", prompt="Eggs for a cake, please.")

    assert ended.value == "Six eggs are on their way."
    assert [call.tool.rpartition(":")[2] for call in ended.calls] == [
        *("shopper__model.request", "look_up", "look_up"),
        *("shopper__model.request", "order", "shopper__model.request"),
    ]


def test_wherever_it_is_killed_eggs_are_ordered_once() -> None:
    report = crash_matrix(App.load(str(EXAMPLE)), "shopper", {"prompt": "Eggs for a cake, please."})

    assert report.effects[ORDER] == 1
