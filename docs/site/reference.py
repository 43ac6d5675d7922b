"""Reference pages that are made of the code at each build: commands, settings, events, topics, HTTP, errors, Python."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import griffe
import yaml
from mkdocs.structure.files import File
from pydantic import BaseModel

from refold.cli.commands import COMMANDS
from refold.cli.errors import exit_code
from refold.cli.groups import CommandGroup, Later
from refold.core import errors, events
from refold.engine.runtime.settings import PREFIX, Settings

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "services/refold"
MODULES = ("refold", "refold.client", "refold.testing", "refold.contrib.pydantic_ai", "refold.contrib.mcp")
TITLES = {
    "refold": "refold: agents and tools",
    "refold.client": "refold.client: start and follow runs",
    "refold.testing": "refold.testing: test agents",
    "refold.contrib.pydantic_ai": "refold.contrib.pydantic_ai",
    "refold.contrib.mcp": "refold.contrib.mcp",
}


def cell(text: object) -> str:
    """A text as a cell of a table has it."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(*head: str, rows: list[tuple[object, ...]]) -> str:
    """A table; nothing without rows."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines) + "\n" if rows else ""


def settings() -> str:
    """Every variable, by its room."""
    rooms: list[str] = []
    own: list[tuple[object, ...]] = []

    def add(model: type[BaseModel], prefix: str, rows: list[tuple[object, ...]]) -> None:
        docs = documented(model)
        for name, field in model.model_fields.items():
            variable = f"{prefix}{name}".upper()
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                inner: list[tuple[object, ...]] = []
                place = len(rooms)
                add(kind, f"{variable}__", inner)
                rooms.insert(place, f"## {variable}__\n\n{inspect.getdoc(kind) or ''}\n\n{heads(inner)}")
            else:
                rows.append((f"`{variable}`", shown(field.get_default(call_default_factory=True)), docs.get(name, "")))

    def heads(rows: list[tuple[object, ...]]) -> str:
        return table("variable", "default", "", rows=rows)

    add(Settings, PREFIX, own)
    return "\n".join([heads(own), *rooms])


def shown(value: object) -> str:
    """A default, if there is one."""
    return f"`{value}`" if value not in (None, "", (), {}) else ""


def documented(kind: type) -> dict[str, str]:
    """The text under each field of a class."""
    body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def commands() -> str:
    """Every command with its arguments and options, by group."""
    parts: list[str] = []

    def add(name: str, there: Any, *above: str) -> None:
        words = " ".join(["refold", *above, name])
        if isinstance(there, CommandGroup) and not there.itself:
            parts.append(f"## {words}\n\n{there.summary}\n")
        else:
            level = "##" if not above else "###"
            parts.append(
                f"{level} {words}\n\n{command(there if not isinstance(there, CommandGroup) else there.itself, words)}"
            )
        if isinstance(there, CommandGroup):
            for inner, verb in there.commands.items():
                add(inner, verb, *above, name)

    for title, names in COMMANDS.panels.items():
        listed = ", ".join(f"[{name}](#refold-{name})" for name in names.split())
        parts.append(f"- **{title}**: {listed}")
    parts.append("")
    for names in COMMANDS.panels.values():
        for name in names.split():
            add(name, COMMANDS.commands[name])
    return "\n".join(parts)


def command(verb: Any, words: str) -> str:
    """The help of a command: its text, its parameters, its example."""
    made = Later(words.rpartition(" ")[2], verb).load()
    text = (made.help or "").replace("\\[", "[").strip()
    rows: list[tuple[object, ...]] = []
    for each in made.params:
        names = ", ".join(f"`{name}`" for name in [*each.opts, *each.secondary_opts])
        if each.param_type_name == "argument":
            names = f"`{each.metavar or each.name.upper()}`"
        elif each.metavar:
            names += f" `{each.metavar}`"
        told = (each.help or "").replace("\\[", "[") + (" **Required.**" if each.required else "")
        rows.append((names, told))
    return f"{text}\n\n{table('parameter', '', rows=rows)}\n```console\n$ {words} {verb.example}\n```\n".replace(
        " \n```", "\n```"
    )


def event_page() -> str:
    """Every event with its fields."""
    parts = []
    for kind in get_args(events.Event):
        rows = [
            (f"`{each.name}`", f"`{each.type if isinstance(each.type, str) else short(each.type)}`")
            for each in fields(kind)
        ]
        parts.append(f"## {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n{table('field', 'type', rows=rows)}")
    return "\n".join(parts)


def short(kind: Any) -> str:
    """A type as its author wrote it."""
    name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return re.sub(r"\b[a-z_.]+\.(?=[A-Z])", "", name)


def topics() -> str:
    """Every topic: what is in it, who writes and reads it, and how it is cleaned."""
    found = yaml.safe_load((ROOT / "infra/topics.yaml").read_text())
    default = found["defaults"]["cleanup.policy"]
    body = ast.parse((PACKAGE / "core/topics.py").read_text()).body
    keys = {
        each.targets[0].id: text.value.value
        for each, text in pairwise(body)
        if isinstance(each, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
    parts = ["`.*` stands for the name of a pool. Names begin with `REFOLD_KAFKA__PREFIX`.\n"]
    for name, topic in found["topics"].items():
        written = re.search(r"\bKey: ([^.]+)\.", keys.get(name.removesuffix(".*").replace("-", "_").upper(), ""))
        facts = {
            "Key": written[1] if written else "",
            "Writers": ", ".join(topic["writers"]),
            "Readers": ", ".join(topic["readers"]),
            "Cleanup": topic.get("cleanup.policy", default),
        }
        lines = "\n".join(f"- **{fact}**: {value}" for fact, value in facts.items() if value)
        parts.append(f"## {name}\n\n{topic['doc']}\n\n{lines}\n")
    principals = [(f"`{name}`", text) for name, text in found["principals"].items()]
    return "\n".join([*parts, "## Principals\n", table("principal", "", rows=principals)])


def http() -> str:
    """Every route of the gateway."""
    document = json.loads((ROOT / "schemas/openapi.json").read_text())
    parts = []
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            rows: list[tuple[object, ...]] = []
            for each in route.get("parameters", []):
                rows.append((f"`{each['name']}`", each["in"], each.get("description", "")))
            body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            model = document["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], body)
            for name, each in model.get("properties", {}).items():
                rows.append((f"`{name}`", "body", each.get("description", "")))
            text = f"{route['summary']}. {route.get('description', '')}"
            parts.append(f"## {method.upper()} {path}\n\n{text}\n\n{table('parameter', 'in', '', rows=rows)}")
    return "\n".join(parts)


def error_page() -> str:
    """Every class of errors, and what is done about each error that names it."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.RefoldError)]
    rows = [
        (f"`{kind.__name__}`", f"`{kind.code}`", exit_code(kind("")), inspect.getdoc(kind))
        for kind in kinds
        if made(kind)
    ]
    parts = [table("class", "code", "exit code", "", rows=rows), "## By message\n"]
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id.endswith("Error")
                and node.args
            ):
                hint = next((word.value for word in node.keywords if word.arg == "hint"), None)
                if hint is not None and (message := literal(node.args[0])) and (way := literal(hint)):
                    found.setdefault(message, way)
    return "\n".join([*parts, table("message", "next", rows=sorted(found.items(), key=lambda each: each[0].lower()))])


def made(kind: type) -> bool:
    """True for a class that is made of a message alone."""
    try:
        kind("")
    except TypeError:
        return False
    return True


def literal(node: ast.expr) -> str:
    """A text of the code, with `…` for what is filled in; empty if it is not written there."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return escaped(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(escaped(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def escaped(text: str) -> str:
    """A text without the marks of Markdown and HTML, but for code."""
    return "".join(
        part if index % 2 else re.sub(r"([*_<\[\]])", r"\\\1", part)
        for index, part in enumerate(re.split(r"(`[^`]*`)", text))
    )


def python(module: str) -> Callable[[], str]:
    """The page of a module: its docstring, then each public name."""

    def page() -> str:
        names = import_module(module).__all__
        members = "\n\n".join(f"::: {module}.{name}" for name in names)
        text = (inspect.getdoc(import_module(module)) or "").partition("\n\n")[0]
        return f"{text}\n\n{members}\n"

    return page


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "cli": ("Commands", commands),
    "settings": ("Settings", settings),
    "topics": ("Topics", topics),
    "events": ("Events", event_page),
    "http": ("HTTP", http),
    "errors": ("Errors", error_page),
    **{module.replace(".", "-"): (TITLES[module], python(module)) for module in MODULES},
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, and a section for them."""
    for name, (title, make) in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=f"# {title}\n\n{make()}"))
    config.nav.append({"Reference": [f"reference/{name}.md" for name in PAGES]})
    return files


class Examples(griffe.Extension):
    """Makes blocks of code of examples in docstrings."""

    def on_object(self, *, obj: griffe.Object, **more: Any) -> None:
        """Fences the lines of a docstring that begin with >>>, with what they print."""
        if obj.docstring and ">>>" in obj.docstring.value:
            obj.docstring.value = "\n\n".join(fenced(obj.docstring.value))


def fenced(text: str) -> Iterator[str]:
    """The paragraphs of a docstring, with fences around examples."""
    for part in text.split("\n\n"):
        yield f"```pycon\n{part}\n```" if part.lstrip().startswith(">>>") else part
