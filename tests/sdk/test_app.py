"""Apps: registering, finding, loading, and what an agent takes and gives."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from pydantic import BaseModel

from refold import App, Context, UsageError
from refold.core.run.replay import Moment
from refold.testing import run


class Order(BaseModel):
    item: str
    count: int = 1


def a_context(app: App) -> Context:
    return Context("r-1", seed="seed", moment=Moment(), find=app.find, find_agent=app.find_agent)


def test_tools_and_agents_are_found_by_name_and_an_app_has_a_plan_only_if_it_says_so() -> None:
    app = App("shop")

    @app.tool(name="orders.place", pool="gpu")
    def place(item: str) -> None: ...

    @app.agent
    async def buy(ctx: Context) -> None: ...

    @app.agent(name="buy-again")
    async def other(ctx: Context) -> None: ...

    assert set(app.tools) == {"orders.place"}
    assert set(app.agents) == {"buy", "buy-again"}
    assert set(App("shop", plan=True).agents) == {"plan"}
    assert app.pools == ("default", "gpu")
    assert app.find(place) is app.find("orders.place")
    with pytest.raises(UsageError, match="app shop has no tool print: .*there is orders.place"):
        app.find(print)


def test_two_of_one_name_are_refused() -> None:
    app = App("shop", plan=True)

    def place() -> None: ...

    async def plan(ctx: Context) -> None: ...

    app.tool(place)

    with pytest.raises(UsageError, match="two tools place"):
        app.tool(effect="pure")(place)
    with pytest.raises(UsageError, match="two agents plan"):
        app.agent(plan)


def test_the_input_of_an_agent_goes_to_its_parameters_by_name() -> None:
    app = App("shop")

    @app.agent
    async def buy(ctx: Context, order: Order, express: bool = False) -> dict[str, object]:
        return {"item": order.item, "express": express}

    agent = app.agents["buy"]
    agent.validate_input('{"order":{"item":"tea"}}')
    assert run(app, "buy", order={"item": "tea"}, express=True).value == {"item": "tea", "express": True}
    assert agent.schema()["required"] == ["order"]
    for text, wrong in (
        ("null", "order: Field required"),
        ('{"order":{"item":"tea","count":"x"}}', "order.count: Input should be a valid integer"),
        ('{"order":{"item":"tea"},"colour":1}', "colour: Extra inputs are not permitted"),
        ("[]", "Input should be"),
        ('{"order":{"item":"tea","item":"milk"}}', "same key twice"),
        ("{", "not JSON"),
    ):
        with pytest.raises(UsageError, match=wrong) as error:
            agent.validate_input(text)
        assert "input of agent buy" in error.value.message


def test_a_single_model_takes_the_whole_input() -> None:
    app = App("shop")

    @app.agent
    async def buy(ctx: Context, order: Order) -> int:
        return order.count

    assert run(app, "buy", item="tea", count=3).value == 3
    with pytest.raises(UsageError, match="input of agent buy: item: Field required"):
        app.agents["buy"].validate_input('{"order":{"item":"tea"}}')


def test_no_input_is_an_empty_one() -> None:
    app = App("shop")

    @app.agent
    async def tick(ctx: Context, step: int = 2) -> int:
        return step

    app.agents["tick"].validate_input("null")

    agent = app.agents["tick"].open("null", a_context(app))
    agent.close()
    with pytest.raises(UsageError, match="step"):
        _ = app.agents["tick"].open('{"step":"x"}', a_context(app))


def test_the_result_of_an_agent_is_validated() -> None:
    app = App("shop")

    @app.agent
    async def buy(ctx: Context) -> Order:
        return Order(item="tea")

    assert app.agents["buy"].result_json(Order(item="tea")) == '{"count":1,"item":"tea"}'
    with pytest.raises(UsageError, match="result of agent buy"):
        app.agents["buy"].result_json(5)


def test_an_agent_is_an_async_function_with_a_context() -> None:
    app = App("shop")

    def sync(ctx: Context) -> None: ...

    async def alone() -> None: ...

    with pytest.raises(UsageError, match="not an async function"):
        app.agent(sync)
    with pytest.raises(UsageError, match="no parameter for its context"):
        app.agent(alone)


FILE = """
from __future__ import annotations
from typing import TYPE_CHECKING
from refold import App
if TYPE_CHECKING:
    from refold import Context
app = App("{name}")

@app.agent
async def count(ctx: Context, n: int = 1) -> int:
    return helper(n)

def helper(n: int) -> int:
    return n + {add}
"""


def test_an_app_is_loaded_from_a_file_or_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my_shop.py"
    file.write_text(FILE.format(name="shop", add=1))
    monkeypatch.chdir(tmp_path)

    found = App.load(str(file))

    assert found.name == "shop"
    assert App.load(f"{file}:app") is found
    assert App.load("my_shop.py") is found
    assert App.load("my_shop:app").name == App.load("my_shop").name == "shop"


CIRCLES = {
    "flat": ("", "app", ""),
    "package": ("shop", "shop.app", "shop/__init__.py"),
    "relative": ("shop", ".app", "shop/__init__.py"),
    "flat in a package": ("shop", "app", "shop/__init__.py"),
    "namespace": ("shop", "shop.app", ""),
    "package in a package": ("a/b", "a.b.app", "a/__init__.py a/b/__init__.py"),
}


LOADS = """
import concurrent.futures, multiprocessing, sys
from refold import App
app = App.load(sys.argv[1])
print(sorted(app.agents), open("ran").read(), flush=True)
double = next(module for module in list(sys.modules.values()) if hasattr(module, "double")).double
with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
    print(list(pool.map(double, [2])))
"""


@pytest.mark.parametrize("by_file", [True, False])
@pytest.mark.parametrize(("folder", "circle", "packages"), CIRCLES.values(), ids=CIRCLES)
def test_the_file_of_an_app_runs_once_by_whatever_name_its_modules_and_processes_import_it(
    folder: str, circle: str, packages: str, by_file: bool, tmp_path: Path
) -> None:
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    for package in packages.split():
        (tmp_path / package).touch()
    agent = "@app.agent\nasync def hello(ctx: Context) -> None: ..."
    (place / "agents.py").write_text(f"from refold import Context\nfrom {circle} import app\n{agent}\n")
    inside = circle.rpartition("app")[0]
    agents = f"from {inside[:-1] or '.'} import agents" if inside else "import agents"
    lines = ("from refold import App", "app = App('shop')", "open('ran', 'a').write('.')", agents)
    (place / "app.py").write_text("\n".join([*lines, "def double(n): return 2 * n", ""]))
    module = ".".join([*Path(folder).parts, "app"]) if inside else "app"

    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(place / "app.py") if by_file else module],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{place}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.splitlines() == ["['hello'] .", "[4]"], done.stderr


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("nowhere.py", "there is no file nowhere.py"),
        ("no_such_module_here:app", "there is no module no_such_module_here"),
        ("json.no_such_part", "there is no module json.no_such_part"),
        ("json", "which App of json.*there is none"),
        ("two.py", "which App of two.py.*there is a, b"),
        ("two.py:c", "two.py has no App named c.*there is a, b"),
    ],
)
def test_an_app_that_is_not_there_is_told_in_one_line(
    target: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text("from refold import App\na = App('a')\nb = App('b')\n")

    with pytest.raises(UsageError, match=wrong):
        App.load(target)


def test_a_mistake_inside_the_users_module_stays_visible(tmp_path: Path) -> None:
    (tmp_path / "broken_app.py").write_text("import no_such_module_here\n")

    with pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
        App.load(str(tmp_path / "broken_app.py"))


def test_the_version_of_an_agent_covers_the_functions_that_it_uses(tmp_path: Path) -> None:
    versions = []
    for number, add in enumerate((1, 2, 1)):
        file = tmp_path / f"versions_{number}.py"
        file.write_text(FILE.format(name="shop", add=add))
        versions.append(App.load(str(file)).agents["count"].version)

    assert versions[0] == versions[2] != versions[1]


PYTHON = f"py{sys.version_info.major}.{sys.version_info.minor}"
ANYIO = "anyio" + ".".join(metadata.version("anyio").split(".")[:2])


@pytest.mark.parametrize(
    ("head", "body", "stands_on"),
    [
        ("", "pass", [PYTHON]),
        ("import anyio", "pass", [PYTHON, ANYIO]),
        ("from anyio import CancelScope", "pass", [PYTHON, ANYIO]),
        ("from anyio.streams.memory import MemoryObjectSendStream as Sends", "pass", [PYTHON, ANYIO]),
        ("", "import anyio.abc", [PYTHON, ANYIO]),
        ("import asyncio", "anyio = asyncio", [PYTHON]),
    ],
)
def test_the_version_of_an_agent_says_what_its_order_depends_on(
    head: str, body: str, stands_on: list[str], tmp_path: Path
) -> None:
    file = tmp_path / f"{tmp_path.name.replace('-', '_')}.py"
    file.write_text(
        f"from refold import App, Context\n{head}\napp = App('shop')\n"
        f"@app.agent(version='2')\nasync def count(ctx: Context) -> None:\n    {body}\n"
    )

    assert App.load(str(file)).agents["count"].version == "+".join(["2", *stands_on])


def test_a_run_goes_on_with_its_version_and_says_what_it_needs() -> None:
    app = App("shop")

    @app.agent(name="ship", version="1+b")
    async def first(ctx: Context) -> None:
        pass

    @app.agent(name="ship", version="2")
    async def second(ctx: Context) -> None:
        pass

    old, unknown = app.agent_of("ship", "1+b+py3.1+anyio3.9"), app.agent_of("ship", "0123456789abcdef+py3.1")

    assert old is not None
    assert (old.function.__name__, unknown) == ("first", None)
    assert old.needs("1+b+py3.1+anyio3.9") == f"Python 3.1 (here Python {PYTHON[2:]})"
    assert old.needs(old.version) == old.needs("1") == ""
