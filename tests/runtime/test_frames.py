"""Whose lines of a traceback are the user's."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from refold.core.errors import MalformedError
from refold.core.ids import run_id
from refold.sdk.frames import MOST_FRAMES, stack_of, user_line

PACKAGES = Path(sysconfig.get_path("purelib"))
CODE = """
import json
from refold.core.ids import run_id


def look_up():
    return {"a": 1}["b"]


def parse():
    return json.loads("{")


def name():
    return run_id("no id")
"""


def raised(file: Path, function: str) -> Exception:
    """The error of a function of a module that lies there."""
    module: dict[str, object] = {}
    exec(compile(CODE, str(file), "exec"), module)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        module[function]()  # type: ignore[operator]
    frame = caught.value.__traceback__
    assert frame is not None
    return caught.value.with_traceback(frame.tb_next)  # without that of this test


@pytest.mark.parametrize("folder", [Path("/srv/shop"), PACKAGES / "shop"], ids=["a checkout", "an installed package"])
@pytest.mark.parametrize(("function", "line"), [("look_up", 7), ("parse", 11), ("name", 15)])
def test_the_line_of_the_app_is_named_wherever_the_app_lies(folder: Path, function: str, line: int) -> None:
    error = raised(folder / "tools.py", function)

    assert user_line(error) == f"shop/tools.py:{line} in {function}"
    assert stack_of(error).count("File") == 1


def test_an_error_of_nobodys_code_names_the_line_of_what_it_reports() -> None:
    with pytest.raises(MalformedError) as caught:
        run_id("no id")
    frame = caught.value.__traceback__
    assert frame is not None
    error = caught.value.with_traceback(frame.tb_next)

    assert (user_line(error), stack_of(error)) == ("", "")
    assert user_line(error, inner="shop/tools.py:7 in look_up") == "shop/tools.py:7 in look_up"
    assert user_line(raised(PACKAGES / "framework" / "loop.py", "name"), inner="a.py:1 in b") == "a.py:1 in b"
    assert user_line(raised(Path("/srv/shop/tools.py"), "name"), inner="a.py:1 in b") == "shop/tools.py:15 in name"


def test_the_callers_of_the_line_follow_it_up_to_ten_of_a_recursion() -> None:
    body = ("def deep(n):", "    if n:", "        return deep(n - 1)", "    raise ValueError('no')")
    code = "\n".join((*body, "", "def order():", "    deep(N)"))
    module: dict[str, object] = {"N": 1}
    exec(compile(code, "/srv/shop/tools.py", "exec"), module)
    with pytest.raises(ValueError, match="no") as caught:
        module["order"]()  # type: ignore[operator]

    lines = user_line(caught.value.with_traceback(caught.value.__traceback__.tb_next)).split("\n")  # type: ignore[union-attr]
    assert lines == ["shop/tools.py:4 in deep", "shop/tools.py:3 in deep", "shop/tools.py:7 in order"]

    module["N"] = 50
    with pytest.raises(ValueError, match="no") as caught:
        module["order"]()  # type: ignore[operator]
    assert len(user_line(caught.value).split("\n")) == MOST_FRAMES
