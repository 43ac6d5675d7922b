"""What the board and the rules ask Prometheus, read as PromQL is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from refold.core.wire.resources import resource

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)(?![\w.])|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<text>\"[^\"]*\")"
    r"|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|(?P<sign>==|!=|=~|!~|<=|>=|[-+*/(){}<>=,]))"
)
_AGGREGATES = {"sum", "max", "min", "avg", "count", "topk"}
_FUNCTIONS = {"absent", "rate", "increase", "deriv", "histogram_quantile"}


def board() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads(resource("infra", "grafana/refold.json").read_text())
    return found


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    groups = yaml.safe_load(resource("infra", "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    """All of them."""
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in board()["panels"] for target in panel.get("targets", ()))


def queried() -> set[str]:
    """The metrics that they ask for."""
    return {name for text in expressions() for name in metrics_of(text)}


def metrics_of(text: str) -> set[str]:
    """The metrics of an expression. **Raises** ValueError for what is none."""
    reader = _Reader(text)
    reader.expression()
    if reader.at < len(reader.tokens):
        raise ValueError(f"{text}: {reader.tokens[reader.at]} is too much")
    return reader.metrics


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens, self.at, self.metrics = list[tuple[str, str]](), 0, set[str]()
        place = 0
        while place < len(text.rstrip()):
            if (match := _TOKEN.match(text, place)) is None:
                raise ValueError(f"{text}: what is {text[place:]!r}")
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            place = match.end()

    def expression(self) -> None:
        self.operand()
        while self.peek()[1] in ("+", "-", "*", "/", "==", "!=", "<", ">", "<=", ">=", "and", "or", "unless"):
            self.at += 1
            self.operand()

    def operand(self) -> None:
        kind, text = self.take()
        if kind == "number":
            return
        if text == "(":
            self.expression()
            self.want(")")
        elif kind == "name" and text in _AGGREGATES:
            self.grouping()
            self.arguments()
            self.grouping()
        elif kind == "name" and text in _FUNCTIONS:
            self.arguments()
        elif kind == "name":
            self.metrics.add(text)
            self.selector()
        else:
            raise ValueError(f"{text!r} begins nothing")
        if self.peek()[0] == "range":
            self.at += 1

    def grouping(self) -> None:
        if self.peek()[1] == "by":
            self.at += 1
            self.want("(")
            while self.take()[1] != ")":
                pass

    def arguments(self) -> None:
        self.want("(")
        self.expression()
        while self.peek()[1] == ",":
            self.at += 1
            self.expression()
        self.want(")")

    def selector(self) -> None:
        if self.peek()[1] != "{":
            return
        self.at += 1
        while True:
            (name, _), (_, sign), (text, _) = self.take(), self.take(), self.take()
            if (name, text) != ("name", "text") or sign not in ("=", "!=", "=~", "!~"):
                raise ValueError("no matcher of a label")
            if self.take()[1] == "}":
                return

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("", "")

    def take(self) -> tuple[str, str]:
        found = self.peek()
        if not found[0]:
            raise ValueError("it ends too early")
        self.at += 1
        return found

    def want(self, text: str) -> None:
        if (found := self.take()[1]) != text:
            raise ValueError(f"{found!r} stands where {text!r} should")
