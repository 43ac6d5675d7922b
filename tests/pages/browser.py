"""A Chromium that is on this machine, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """The path of a browser; empty if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), "")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window. As root it runs without its own sandbox."""
    with sync_playwright() as playwright:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=chromium(), args=root)
        yield started
        started.close()
