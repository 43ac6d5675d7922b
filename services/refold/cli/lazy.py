"""Groups whose commands are loaded by name when they are called: `--help` lists them all and imports none."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from importlib import import_module
from typing import Any, ClassVar, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

_F = TypeVar("_F", bound=Callable[..., None])


class Later(TyperCommand):
    """A command that is known by name and help, and that is somewhere: `module:typer_app`, below `cli.commands`."""

    def __init__(self, name: str, place: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self.place = place

    def load(self) -> Any:
        """The command itself. Its help is the summary if it has none of its own."""
        module, _, group = self.place.partition(":")
        command = typer.main.get_command(getattr(import_module(f"refold.cli.commands.{module}"), group))
        command.help = command.help or self.help
        return command


class Lazy(TyperGroup):
    """A group of such commands, by name. A name may have two words: `dev` and `dev status` are two commands."""

    later: ClassVar[dict[str, tuple[str, str]]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        places = {name: Later(name, *place) for name, place in self.later.items()}
        self.commands = {**places, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, with the arguments that are left for it."""
        for words in (2, 1):
            command = self.commands.get(name := " ".join(args[:words]))
            if isinstance(command, Later):
                return name, command.load(), args[words:]
        return super().resolve_command(ctx, args)


class Commands(typer.Typer):
    """A group of commands, or with one command and no summary that command.

    A parameter of a command that is a dataclass of options is spread into them, so that shared options are written
    once. The class's own options come before those that it inherits.
    """

    def __init__(self, summary: str = "", **options: Any) -> None:
        options |= {"help": summary, "no_args_is_help": True} if summary else {}
        super().__init__(add_completion=False, rich_markup_mode="rich", **options)

    def command(self, *names: Any, **options: Any) -> Callable[[_F], _F]:
        """Registers a command, with its options spread."""

        def register(command: _F) -> _F:
            super(Commands, self).command(*names, **options)(_spread(command))
            return command

        return register


def _spread(command: Callable[..., None]) -> Callable[..., None]:
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
