"""`refold demo`"""

from __future__ import annotations

import typer


def demo(ctx: typer.Context) -> None:
    """Deploy in five steps, with processes killed on the way."""
