"""Pages below a path of a host, behind a proxy that serves several programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi import Request
from fastapi.responses import RedirectResponse

from refold.console import pages
from refold.console.gateway.site import below_prefix
from tests.gateway.test_reading import Bench
from tests.pages.test_pages import Tags, bench

__all__ = ["bench"]

PAGES = ["/", "/inbox", "/runs/open-1", "/runs/over-2?seq=5", "/start", "/workers", "/tools", "/policies", "/runs/none"]
LINKS = ("href", "src", "action", "data-stream")


def links(page: Tags) -> list[str]:
    return [value for _, attrs in page.found for name, value in attrs.items() if name in LINKS and value]


@pytest.mark.parametrize("path", PAGES)
def test_links_of_a_page_stay_below_the_prefix_and_its_text_is_the_same(bench: Bench, path: str) -> None:
    plain = Tags(bench.http.get(path).text)
    answer = bench.http.get(path, headers={"X-Forwarded-Prefix": "/tools/refold/"})
    below = Tags(answer.text)

    assert [each for each in links(below) if each.startswith("/")]
    assert links(below) == [f"/tools/refold{each}" if each.startswith("/") else each for each in links(plain)]
    assert re.sub(r"\d", "", below.text) == re.sub(r"\d", "", plain.text)
    assert int(answer.headers["content-length"]) == len(answer.content) or "content-encoding" in answer.headers


@pytest.mark.parametrize("prefix", ["//evil.example", "https://evil.example", '/a"onclick="b', "/a b", "/", "refold"])
def test_what_is_no_path_is_no_prefix(bench: Bench, prefix: str) -> None:
    assert links(Tags(bench.http.get("/", headers={"X-Forwarded-Prefix": prefix}).text)) == links(
        Tags(bench.http.get("/").text)
    )


def test_a_redirect_stays_below_the_prefix() -> None:
    request = Request({"type": "http", "headers": [(b"x-forwarded-prefix", b"/refold")]})
    inside, outside = RedirectResponse("/runs/r-1", 303), RedirectResponse("https://issuer.example/", 303)

    below_prefix(request, inside)
    below_prefix(request, outside)

    assert inside.headers["location"] == "/refold/runs/r-1"
    assert outside.headers["location"] == "https://issuer.example/"


def test_the_script_asks_below_the_place_that_it_came_from() -> None:
    script = (Path(pages.__file__).parent / "static/refold.js").read_text()

    assert script.count("${root}/api/") == 2
    assert not re.search(r"""(fetch|EventSource|URL)\(["'`]/""", script)
