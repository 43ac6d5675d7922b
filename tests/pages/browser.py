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

SCREENS = {
    "/": ("runs", "runs-none", "runs-empty", "filter", "hostile-runs"),
    "/start": ("start", "start-refused"),
    "/runs/{run}": (
        *("run", "question", "event", "events", "conversation", "panels", "family", "past", "confirm", "missing"),
        *("erased", "tokens", "held", "retry", "failed", "completed", "stalled", "behind", "hostile-run"),
    ),
    "/runs/{run}/fork": ("fork", "fork-stopped", "fork-other", "fork-refused", "fork-command", "hostile-fork"),
    "/runs/{run}/{word}": ("run-refused",),
    "/calls/{call:path}/settle": ("settle-refused",),
    "/inbox": (
        *("inbox", "inbox-mine", "inbox-all", "inbox-doubt", "inbox-decided", "inbox-chosen", "inbox-came"),
        *("inbox-empty", "hostile-inbox"),
    ),
    "/approvals/{approval:path}": ("approval", "approval-doubt", "approval-decided", "hostile-approval"),
    "/approvals/{approval:path}/vote": ("approval-edit", "approval-refused"),
    "/approvals/{approval:path}/outcome": ("outcome-refused",),
    "/sessions": ("sessions", "session", "sessions-empty"),
    "/tools": ("tools", "tool", "tools-empty"),
    "/schedules": ("schedules", "schedules-empty"),
    "/limits": ("limits", "limits-empty"),
    "/operators": ("operators", "operators-empty"),
    "/dead-letters": ("letters", "letters-empty"),
    "/dead-letters/{place:path}": ("letter", "replay", "replayed"),
    "/dead-letters/{place:path}/replay": (),  # it leads back to the letter
    "/versions": ("versions", "unavailable"),
    "/workers": ("health", "health-alone", "menu"),
    "/policies": ("policies", "draft", "problems"),
    "/login": ("login", "login-refused"),
    "/logout": (),  # it leads to /login
    "/acting": (),  # it leads back
}
"""Pictures of screens, by the route that answers with them: each is taken, and checked for everybody, by a test."""
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
