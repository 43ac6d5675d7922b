"""The app whose agent thinks: nine pages, so ten requests to its model and 19 calls in all."""

from __future__ import annotations

from benchmarks.reader import reader

from refold import App
from refold.contrib.pydantic_ai import CallOptions, RefoldDurability, durable

PAGES = 9

ONE_POOL: RefoldDurability[None] = RefoldDurability(model=CallOptions(pool="default"))
"""One executor does all."""

app = App("thinkers")
durable(app, reader(PAGES), ONE_POOL)
