"""The pictures of a terminal in the README: its commands and their output as SVG, one for light and one for dark.

`python -m tests.docs.terminal` writes them.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from tests.docs.blocks import ROOT, outputs

IMAGES = ROOT / "docs" / "images"
THEMES = {
    "light": {"back": "#f6f8fa", "edge": "#d0d7de", "text": "#1f2328", "typed": "#0550ae", "good": "#116329"},
    "dark": {"back": "#0d1117", "edge": "#30363d", "text": "#e6edf3", "typed": "#79c0ff", "good": "#56d364"},
}
_COLUMNS, _CELL, _LINE, _EDGE = 118, 7.83, 20, 18
_EACH_S = 0.35
"""The pause before a line appears; readers who ask for less motion see all at once."""


def lines() -> list[str]:
    """What is typed, after `$ `, and what is printed: the pairs of blocks in the README."""
    found: list[str] = []
    for typed, printed in outputs(ROOT / "README.md"):
        found += [f"$ {line}" for line in typed.text.splitlines()]
        found += [line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 1]}…" for line in printed.text.splitlines()]
    return found


def picture(theme: dict[str, str]) -> str:
    """The SVG of these lines in one theme."""
    shown = lines()
    width, height = round(_COLUMNS * _CELL + 2 * _EDGE), len(shown) * _LINE + 2 * _EDGE
    rows = [
        f'<text class="{_kind(line)}" x="{_EDGE}" y="{_EDGE + 14 + number * _LINE}" xml:space="preserve"'
        f' style="animation-delay:{number * _EACH_S:.2f}s">{escape(line)}</text>'
        for number, line in enumerate(shown)
    ]
    box = f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"'
    rect = f'{box} fill="{theme["back"]}" stroke="{theme["edge"]}"/>'
    style = (
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"fill:{theme['text']};animation:in .2s both}}"
        f".typed{{fill:{theme['typed']};font-weight:600}}.good{{fill:{theme['good']}}}"
        "@keyframes in{from{opacity:0}}@media(prefers-reduced-motion){text{animation:none}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            "<title>A run whose planner is killed while it sleeps, shown step by step and verified</title>",
            f"<style>{style}</style>",
            rect,
            *rows,
            "</svg>\n",
        ]
    )


def pictures() -> dict[Path, str]:
    """Each file with its content."""
    return {IMAGES / f"terminal-{name}.svg": picture(theme) for name, theme in THEMES.items()}


def _kind(line: str) -> str:
    return "typed" if line.startswith("$ ") else "good" if "✔" in line or "everything agrees" in line else "printed"


if __name__ == "__main__":
    for path, content in pictures().items():
        path.write_text(content)
