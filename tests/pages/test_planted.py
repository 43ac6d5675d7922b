"""Bugs planted in the pages: each must be seen by the check that is there for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jinja2 import DictLoader

from refold.console.gateway import guard
from refold.console.gateway.routes import streams
from refold.console.pages import rendering
from tests.gateway.test_reading import Bench
from tests.pages.hostile import CORPUS, hostile
from tests.pages.test_pages import Tags, check_text_alone
from tests.pages.test_screens import rows_without_word

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    for key, value in hostile("open-0", CORPUS[0]):
        bench.log.write(key, value)
    bench.catch_up()
    with bench.http:
        yield bench


def text_alone(bench: Bench) -> None:
    for path in ("/", "/inbox?show=all", "/runs/open-0", "/runs/open-0?seq=1&seq=4&seq=9&show=conversation"):
        check_text_alone(Tags(bench.http.get(path).text), path)


def other_sites(bench: Bench) -> None:
    form = {"content-type": "application/x-www-form-urlencoded", "origin": "http://evil.example"}
    assert bench.http.post("/runs/open-0/cancel", content="reason=x", headers=form).status_code == 403


def status_words(bench: Bench) -> None:
    assert not rows_without_word(bench.http.get("/").text)


def goes_on(bench: Bench) -> None:
    for query, header in (("", {"last-event-id": "2"}), ("?after_seq=2", {})):
        told = bench.http.get(f"/api/runs/run-1/stream{query}", headers=header)  # the run is over: so is its stream
        numbers = [int(each) for each in re.findall(r"^id: (\d+)$", told.text, re.MULTILINE)]
        assert numbers == list(range(3, 3 + len(numbers)))
        assert numbers


def in_template(name: str, old: str, new: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        loader = rendering._TEMPLATES.loader
        assert loader is not None
        sources = {each: loader.get_source(rendering._TEMPLATES, each)[0] for each in loader.list_templates()}
        assert sources[name].count(old) == 1
        sources[name] = sources[name].replace(old, new)
        patch.setattr(rendering, "_TEMPLATES", rendering._TEMPLATES.overlay(loader=DictLoader(sources)))

    return plant


def no_origin_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard, "_refused_page", lambda headers, *, unsafe: None)


def from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    followed = streams._followed

    async def restarted(shared: Any, kind: Any, name: str, last: str, after: str, **more: Any) -> Any:
        return await followed(shared, kind, name, "", after, **more)

    patch.setattr(streams, "_followed", restarted)


PLANTED: dict[str, tuple[Plant, Callable[[Bench], None]]] = {
    "a requester that is not escaped": (
        in_template(
            "run.html", "Requested by <b>{{ info.requester | seen(60) }}", "Requested by <b>{{ info.requester | safe }}"
        ),
        text_alone,
    ),
    "what a model says that is not escaped": (
        in_template("panel.html", "{{ line.text | lines(1200) }}", "{{ line.text | safe }}"),
        text_alone,
    ),
    "a link as somebody has written it": (
        in_template("runs.html", 'href="/runs/{{ run.run_id }}"', 'href="{{ run.says }}"'),
        text_alone,
    ),
    "no look at the origin of a form": (no_origin_check, other_sites),
    "a row without a word for its status": (
        in_template("runs.html", "{{ status(state) }}", '<span class="pill"></span>{{ status("") }}'),
        status_words,
    ),
    "a stream that begins anew": (from_the_beginning, goes_on),
}
"""What is wrong, and the check that is to see it. A decision on another question is planted in test_people.py."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_seen(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, check = PLANTED[name]
    check(bench)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(bench)
