"""A Chromium that is on this machine, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, sync_playwright

from tests.waiting import eventually

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """The path of a browser; empty if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), "")


@contextmanager
def site_of(api: FastAPI) -> Iterator[str]:
    """An application that is served by this process, as its address."""
    server = uvicorn.Server(uvicorn.Config(api, host="127.0.0.1", port=0, log_level="warning"))
    serving = threading.Thread(target=server.run, daemon=True)
    serving.start()
    eventually(lambda: server.started, within=30, what="the server")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    serving.join(10)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window. As root it runs without its own sandbox."""
    with sync_playwright() as playwright:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=chromium(), args=root)
        yield started
        started.close()
