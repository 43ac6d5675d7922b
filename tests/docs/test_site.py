"""The site of the docs: it builds without a broken link and without the network, and its reference is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import refold
import refold.client
import refold.testing
from refold.cli.commands import COMMANDS
from refold.engine.runtime.settings import Settings
from tests.tidy.repository import ROOT

CONFIG = ROOT / "docs/site/mkdocs.yml"
NO_NETWORK = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": "127.0.0.1:9", "https_proxy": "127.0.0.1:9"}


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Builds a site as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(config), "-d", str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=NO_NETWORK)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(CONFIG, folder)
    assert done.returncode == 0, done.stderr
    return folder


def page(site: Path, name: str) -> str:
    """The text of a page."""
    return re.sub(r"<[^>]*>", "", (site / f"{name}.html").read_text())


def variables(model: Any, prefix: str = "REFOLD_") -> set[str]:
    """The names of all settings."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        variable = f"{prefix}{name}".upper()
        inner = getattr(field.annotation, "model_fields", None)
        found |= variables(field.annotation, f"{variable}__") if inner else {variable}
    return found


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"<(?:script|img|source|iframe)\b[^>]*?\bsrc(?:set)?=\"?https?:|<link\b[^>]*?href=\"?https?:[^>]*css"
    )

    assert [str(each) for each in site.rglob("*.html") if loaded.search(each.read_text())] == []


def test_every_command_and_setting_has_its_place_in_the_reference(site: Path) -> None:
    commands, settings = page(site, "reference/cli"), page(site, "reference/settings")

    assert [words for words, _ in COMMANDS.walk() if f"refold {' '.join(words)}" not in commands] == []
    assert [name for name in variables(Settings) if name not in settings] == []


@pytest.mark.parametrize("module", [refold, refold.client, refold.testing], ids=lambda module: module.__name__)
def test_every_public_name_has_its_place_in_the_reference(site: Path, module: Any) -> None:
    text = (site / f"reference/{module.__name__.replace('.', '-')}.html").read_text()

    assert [name for name in module.__all__ if f'id="{module.__name__}.{name}"' not in text] == []


def test_every_page_is_there_as_markdown_and_listed_for_programs(site: Path) -> None:
    listed = re.findall(r"\]\(([^)]+\.md)\)", (site / "llms.txt").read_text())
    schedules = (site / "guides/schedules.md").read_text()

    assert len(listed) > 70
    assert [page for page in listed if not (site / page).is_file()] == []
    assert [page.stem for page in (site / "guides").glob("*.html") if not page.with_suffix(".md").is_file()] == []
    assert schedules.startswith("# Schedules\n")
    assert (site / "skill.md").read_text().startswith("---\nname: refold\n")
    for target in re.findall(r"\]\(([^)#:]+)[^):]*\)", re.sub(r"```.*?```", "", schedules, flags=re.DOTALL)):
        assert (site / "guides" / target).is_file()


def test_the_search_finds_what_pages_say(site: Path) -> None:
    index = (site / "search/search_index.json").read_text()

    assert "REFOLD_KAFKA__BOOTSTRAP" in index


def test_each_broken_link_stops_the_build(tmp_path: Path) -> None:
    links = ["[x](nowhere.md)", "[x](index.md#no-such-heading)", "[x](../README.md)"]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Here\n")
    for number, link in enumerate(links):
        (tmp_path / f"docs/link-{number}.md").write_text(f"# There\n\n{link}\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {CONFIG}\ndocs_dir: docs\nhooks: []\nplugins: []\nextra_css: []\n")

    done = build(config, tmp_path / "site")

    printed = done.stderr + done.stdout
    assert (done.returncode, "strict mode" in printed) == (1, True)
    for number in range(len(links)):
        assert re.search(rf"WARNING.*link-{number}\.md", printed), printed
