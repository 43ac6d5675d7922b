"""The fenced blocks of README.md and docs/, with the place where each stands."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / "skills/refold/SKILL.md"
"""Instructions for coding agents: `test_skill` runs its blocks, which are files of one folder."""


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is where its fence opens."""

    path: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """Where it stands, for people."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page that tells users what to write or type."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path, language: str = "") -> list[Block]:
    """The blocks of a page in order, or those of one language."""
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.startswith("```"):
            lines.append(line)
        elif opened is None:
            opened, lines = (number, line[3:].strip()), []
        else:
            found.append(Block(path, *opened, "\n".join(lines) + "\n"))
            opened = None
    assert opened is None, f"{path} has a fence that is never closed"
    return [block for block in found if language in ("", block.language)]


def outputs(path: Path) -> list[tuple[Block, Block]]:
    """What is typed, with what the page says that it prints: a `text` block right after a `bash` one."""
    return [pair for pair in pairwise(blocks(path)) if [block.language for block in pair] == ["bash", "text"]]


def replace(block: Block, text: str) -> None:
    """Writes other text into a block of its page."""
    lines = block.path.read_text().splitlines(keepends=True)
    end = lines.index("```\n", block.line)
    lines[block.line : end] = [f"{line.rstrip()}\n" for line in text.splitlines()]
    block.path.write_text("".join(lines))


def everywhere(language: str = "") -> list[Block]:
    """The blocks of all pages."""
    return [block for path in pages() for block in blocks(path, language)]
