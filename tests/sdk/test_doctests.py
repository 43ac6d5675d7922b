"""The examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.tidy.house import name_of, production

SHOWN = [name_of(path) for path, source in production().items() if "    >>> " in source or "\n>>> " in source]


@pytest.mark.parametrize("module", SHOWN)
def test_the_examples_of_a_module_run(module: str) -> None:
    loaded = importlib.import_module(f"refold.{module}")

    failed, tried = doctest.testmod(loaded)

    assert (failed, tried > 0) == (0, True)
