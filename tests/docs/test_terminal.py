"""The pictures of a terminal are those of the README's own blocks."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.terminal import lines, pictures


@pytest.mark.parametrize("path", pictures(), ids=lambda path: path.name)
def test_a_picture_shows_what_the_readme_shows(path: Path) -> None:
    assert path.read_text() == pictures()[path], "python -m tests.docs.terminal writes it"


@pytest.mark.parametrize("content", pictures().values())
def test_a_picture_has_every_line_and_loads_nothing(content: str) -> None:
    tree = ElementTree.fromstring(content)
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]

    assert texts == lines()
    assert any("killed planner" in line for line in lines())
    assert "http" not in content.replace('xmlns="http://www.w3.org/2000/svg"', "")
