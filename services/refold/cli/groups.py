"""Commands as groups list them, imported when they are called: `refold --help` imports none.

The catalogue in `commands` names each command once, in its group, with its summary. A command is a plain function; a
parameter that is a dataclass of options is spread into them, so that shared options are written once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from importlib import import_module
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

_METAVARS = {str: "TEXT", int: "N", float: "SECONDS", list: "TEXT"}


@dataclass(frozen=True)
class Verb:
    """A command: the place of its function (`module:function` below `cli.commands`), the first sentence of its help."""

    place: str
    summary: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., None]:
        """The function, imported."""
        module, _, name = self.place.partition(":")
        found: Callable[..., None] = getattr(import_module(f"refold.cli.commands.{module}"), name)
        return found


@dataclass(frozen=True)
class CommandGroup:
    """A group of commands, by panel of its help and by name. `itself` is the command that its bare name is, if any."""

    summary: str
    panels: Mapping[str, Mapping[str, Verb | CommandGroup]]
    itself: str = ""

    def walk(self, *above: str) -> Iterator[tuple[tuple[str, ...], Verb]]:
        """Every command below, with the words that call it."""
        for panel in self.panels.values():
            for name, there in panel.items():
                if isinstance(there, Verb):
                    yield (*above, name), there
                    continue
                if there.itself:
                    yield (*above, name), Verb(there.itself, there.summary)
                yield from there.walk(*above, name)

    def build(self) -> dict[str, Any]:
        """The commands of the group as Typer has them, to be imported when they are called."""
        found: dict[str, Any] = {}
        for panel, rows in self.panels.items():
            for name, there in rows.items():
                if isinstance(there, Verb):
                    found[name] = Later(name, there, panel)
                elif there.itself:
                    found[name] = _Both(name, Verb(there.itself, there.summary), panel, there.build())
                else:
                    found[name] = PlainGroup(
                        name=name,
                        commands=there.build(),
                        help=there.summary,
                        no_args_is_help=True,
                        rich_help_panel=panel,
                        rich_markup_mode="rich",
                    )
        return found


class _Plain:
    """Help in the words of the command: no Python types and ranges, and `AGENT RUN` for `{AGENT} [RUN]`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, each with what to write for it."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        each: Any
        for each in found:
            if getattr(each, "is_flag", False):
                each.metavar = ""
            elif each.param_type_name == "argument":
                each.display_type_rich = _nothing
            elif each.metavar is None:
                kind = each.type_descriptor.annotation
                each.metavar = _METAVARS[getattr(kind, "__origin__", kind)]
            each.min = each.max = None  # for the help alone: the type checks the range
            if each.default in (0, "0"):
                each.show_default = False  # "unset", wherever it is a default
        return found

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]


def _nothing(ctx: Any) -> None:
    """The type of an argument, for its help: its name is enough."""


class PlainCommand(_Plain, TyperCommand):
    """A command with such help."""


class PlainGroup(_Plain, TyperGroup):
    """A group with such help."""


class Later(TyperCommand):
    """A command that is imported when it is called, and listed by name and summary until then."""

    def __init__(self, name: str, row: Verb, panel: str) -> None:
        super().__init__(name, help=row.summary, rich_help_panel=panel, rich_markup_mode="rich")
        self.row = row

    def load(self) -> Any:
        """The command itself."""
        one = typer.Typer(add_completion=False, rich_markup_mode="rich")
        one.command(self.name, cls=PlainCommand, context_settings=dict(self.row.settings))(_spread(self.row.function))
        return typer.main.get_command(one)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parses the arguments of the command itself, which is run with what this returns."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


class _Both(Later):
    """A command that has others below it, as `refold dev` has `refold dev status`: its help lists them."""

    def __init__(self, name: str, row: Verb, panel: str, commands: dict[str, Any]) -> None:
        super().__init__(name, row, panel)
        self.commands = commands

    def load(self) -> Any:
        command = super().load()
        group = PlainGroup(
            name=self.name,
            commands=self.commands,
            params=command.params,
            callback=command.callback,
            help=command.help,
            invoke_without_command=True,
            rich_markup_mode="rich",
        )
        group.allow_interspersed_args = True  # options may follow the argument, as with any command
        return group

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args and args[0] in self.commands:
            return self.commands[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclass as options. A class's own come before those it inherits."""
    parameters = inspect.signature(command, eval_str=True).parameters
    bundles = [(name, each.annotation) for name, each in parameters.items() if is_dataclass(each.annotation)]
    if not bundles:
        return command
    bundle: Any
    [(name, bundle)] = bundles
    hints = get_type_hints(bundle, include_extras=True)
    age = {name: age for age, kind in enumerate(bundle.__mro__) for name in inspect.get_annotations(kind)}
    options = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in sorted(fields(bundle), key=lambda each: age[each.name])
    ]

    @wraps(command)
    def spread_out(**given: Any) -> None:
        taken = {option.name: given.pop(option.name) for option in options}
        command(**given, **{name: bundle(**taken)})

    all_of_them = [*(each for other, each in parameters.items() if other != name), *options]
    spread_out.__signature__ = inspect.Signature(all_of_them)  # type: ignore[attr-defined]
    spread_out.__annotations__ = {each.name: each.annotation for each in all_of_them}
    return spread_out
