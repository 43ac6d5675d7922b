"""The pytest plugin, in projects of its own: what tests get from it, and what it costs those that do not use it."""

from __future__ import annotations

import pytest

from refold import testing
from refold.testing import reruns

pytest_plugins = ["pytester"]
assert testing.Kit, "loaded here once: the runs below share it"  # type: ignore[truthy-function]

APP = """
import asyncio
from refold import App, Context

app = App("shop")
PAID = []

@app.tool(effect="keyed")
def pay(amount: int, *, idempotency_key: str) -> str:
    if idempotency_key not in PAID:
        PAID.append(idempotency_key)
    return "paid"

@app.tool(effect="keyed")
def forgets(amount: int, *, idempotency_key: str) -> str:
    PAID.append(amount)
    return "paid"

@app.agent
async def order(ctx: Context, amount: int, tool: str = "pay") -> str:
    await asyncio.sleep(365 * 86_400)
    return await ctx.call(tool, amount)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Give a project with an app, which pytest is told of in its settings."""
    # Bytecode is of a second and a size: another process would not see a change within a second.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    pytester.makepyfile(shop=APP)
    pytester.makeini("[pytest]\nrefold_app = shop.py:app\n")
    return pytester


def ran(project: pytest.Pytester, test: str, *options: str, **outcomes: int) -> str:
    """What pytest says of a test with this body, whose outcomes must be these."""
    project.makepyfile(test_it=test)
    reruns._seeded_process.cache_clear()  # each run is one of its own, and has its own processes
    result = project.runpytest_inprocess("-p", "no:xdist", "-p", "no:cloudcoil", "-p", "no:cacheprovider", *options)
    result.assert_outcomes(**outcomes)
    return result.stdout.str()


def test_a_test_has_the_kit_over_the_app_of_the_settings(project: pytest.Pytester) -> None:
    ran(
        project,
        """
        def test_paid(refold):
            assert refold.run("order", amount=3).value == "paid"

        def test_paid_by_a_script(refold):
            waits = refold.start("order", amount=3, tools={"pay": "p-1"})
            assert waits.status == "suspended"
            assert waits.finish().value == "p-1"
        """,
        passed=2,
    )


def test_an_option_or_a_fixture_says_otherwise_which_app(project: pytest.Pytester) -> None:
    project.makepyfile(other=APP.replace('"paid"', '"otherwise"'))
    told = """
        def test_app(refold):
            assert refold.run("order", amount=3).value == "otherwise"
        """
    own = """
        import pytest, other

        @pytest.fixture
        def refold_app():
            return other.app
        """

    ran(project, told, failed=1)
    ran(project, told, "--refold-app", "other:app", passed=1)
    ran(project, own + told, passed=1)


def test_a_test_that_names_no_app_is_told_how(pytester: pytest.Pytester) -> None:
    said = ran(pytester, "def test_app(refold): pass", errors=1)

    assert 'which app? Write refold_app = "shop.app:app" among the settings' in said


def test_a_test_that_fails_shows_what_its_runs_have_done(project: pytest.Pytester) -> None:
    said = ran(
        project,
        """
        from shop import app
        from refold.testing import run

        def test_fixture(refold):
            assert refold.run("order", amount=3).value == "much"

        def test_function():
            assert run(app, "order", amount=4).value == "much"

        def test_without():
            assert False

        def test_good(refold):
            refold.run("order", amount=5)
        """,
        failed=3,
        passed=1,
    )

    assert said.count("- refold run r-1 -") == 2
    assert "r-1 (order): completed, " in said
    assert "31,536,000.0 s    6  CallProposed  step=2, tool='pay', args='{\"amount\":3}'" in said
    assert '{"amount":4}' in said
    assert '{"amount":5}' not in said


def test_a_matrix_that_finds_something_says_which_boundary_and_which_effect_how_often(
    project: pytest.Pytester,
) -> None:
    said = ran(
        project,
        """
        import shop

        def test_good(refold):
            report = refold.crash_matrix("order", {"amount": 3}, effects=lambda: len(shop.PAID))
            assert report.effects == {"pay": 1}

        def test_bad(refold):
            refold.crash_matrix("order", {"amount": 3, "tool": "forgets"}, effects=lambda: len(shop.PAID))
        """,
        passed=1,
        failed=1,
    )

    assert "forgets (keyed) acted 2 times with the executor killed between the effect and the log hearing of it" in said
    assert "crashes.py" not in said
    assert "kit.py" not in said


GOLDEN = """
    def test_order(refold):
        refold.golden(refold.run("order", amount=3))
    """


def test_a_golden_history_is_written_when_it_is_asked_for_and_held_against_the_code_ever_after(
    project: pytest.Pytester,
) -> None:
    kept = project.path / "histories" / "test_it.test_order.json"

    assert "there is no golden history" in ran(project, GOLDEN, failed=1)
    assert not kept.exists()
    ran(project, GOLDEN, "--refold-update", passed=1)
    first = kept.read_bytes()
    ran(project, GOLDEN, passed=1)
    change(project, "ctx.call(tool, amount)", "ctx.call(tool, amount + 1)")
    differs = ran(project, GOLDEN, failed=1)

    assert '{"amount":3}) in history and call pay({"amount":4}) in the code' in differs
    assert kept.read_bytes() == first
    ran(project, GOLDEN, "--refold-update", passed=1)
    ran(project, GOLDEN, passed=1)
    assert kept.read_bytes() != first


def test_a_golden_history_that_agrees_stays_as_old_as_it_is(project: pytest.Pytester) -> None:
    ran(project, GOLDEN, "--refold-update", passed=1)
    [kept] = (project.path / "histories").iterdir()
    first = kept.read_bytes()

    change(project, 'App("shop")', 'App("store")')
    change(project, "    await asyncio.sleep", '    ctx.status("waits")\n    await asyncio.sleep')
    ran(project, GOLDEN, "--refold-update", passed=1)

    assert kept.read_bytes() == first


def change(project: pytest.Pytester, before: str, after: str) -> None:
    """New code, of the same name."""
    path = project.path / "shop.py"
    path.write_text(path.read_text().replace(before, after))


def test_who_does_not_use_the_kit_loads_nothing_of_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            loaded = [name for name in sys.modules if name.startswith("refold.") or name in ("pydantic", "redis")]
            print("loaded:", sorted(loaded))
        """
    )
    pytester.makepyfile(test_it="def test_nothing(): pass")

    result = pytester.runpytest_subprocess("-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin")

    result.assert_outcomes(passed=1)
    loaded = next(line for line in result.outlines if line.startswith("loaded:"))
    assert loaded == "loaded: ['refold.core', 'refold.core.errors', 'refold.testing', 'refold.testing.plugin']"
