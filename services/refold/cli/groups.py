"""Groups of commands, imported on their first call: `refold --help` imports none.

A command is a plain function: positional parameters are arguments, others options; a dataclass parameter stands for its
fields. `Annotated` has their help, after their names if those differ, and more arguments of Typer as a dictionary:
`step: Annotated[int, "--from STEP", "Repeat this step and all later ones.", {"min": 0}]`."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

_METAVARS = {str: "TEXT", int: "N", float: "SECONDS", list: "TEXT"}


@dataclass(frozen=True)
class Verb:
    """A command: its function as `module:function` below `cli.commands`, its summary and an example."""

    place: str
    summary: str = ""
    example: str = ""

    @property
    def function(self) -> Callable[..., None]:
        module, _, name = self.place.partition(":")
        command: Callable[..., None] = getattr(import_module(f"refold.cli.commands.{module}"), name)
        return command


@dataclass(frozen=True)
class CommandGroup:
    """Group of commands by name; `panels` are sections of its help, `itself` runs on the bare name of the group."""

    summary: str
    commands: "Mapping[str, Verb | CommandGroup]"
    panels: Mapping[str, str] = field(default_factory=dict)
    itself: Verb | None = None

    def walk(self, *above: str) -> Iterator[tuple[tuple[str, ...], Verb]]:
        if self.itself:
            yield above, self.itself
        for name, child in self.commands.items():
            if isinstance(child, Verb):
                yield (*above, name), child
            else:
                yield from child.walk(*above, name)

    def build(self) -> dict[str, Any]:
        panel = {name: title for title, names in self.panels.items() for name in names.split()}
        return {name: _build_command(name, child, panel.get(name)) for name, child in self.commands.items()}


def _build_command(name: str, command: Verb | CommandGroup, panel: str | None) -> TyperCommand | TyperGroup:
    if isinstance(command, Verb):
        return Later(name, command, panel)
    if command.itself:
        return Later(name, command.itself, panel, command.build())
    more: dict[str, Any] = {"no_args_is_help": True, "rich_help_panel": panel, "rich_markup_mode": "rich"}
    return PlainGroup(name=name, commands=command.build(), help=command.summary, **more)


class _Plain:
    """Help without Python types and ranges: `AGENT RUN` in place of `{AGENT} [RUN]`."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            vars(parameter).update(_plain(parameter))  # Typer makes its parameters itself, and has no other way in
        return parameters

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]


def _plain(parameter: Any) -> dict[str, Any]:
    # The type checks the range, and 0 means unset: help shows neither.
    shown: dict[str, Any] = {"min": None, "max": None}
    if parameter.default in (0, "0"):
        shown["show_default"] = False
    if parameter.param_type_name == "argument":
        return shown | {"display_type_rich": lambda ctx: None}
    kind = parameter.type_descriptor.annotation
    metavar = "" if parameter.is_flag else _METAVARS.get(getattr(kind, "__origin__", kind))
    return shown if parameter.metavar else shown | {"metavar": metavar}


class PlainCommand(_Plain, TyperCommand):
    """A command with plain help."""


class PlainGroup(_Plain, TyperGroup):
    """A group with plain help."""


class Later(TyperCommand):
    """A command, possibly with others below it, imported on its first call."""

    def __init__(
        self, name: str, row: Verb, panel: str | None = None, commands: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(name, help=row.summary, rich_help_panel=panel, rich_markup_mode="rich")
        self.row, self.commands = row, dict(commands or {})

    def load(self, path: str = "") -> Any:
        """Import the function and build its Typer command, a group if it has subcommands; `path` begins its example."""
        one = typer.Typer(add_completion=False, rich_markup_mode="rich")
        example = f"Example: {path} {self.row.example}".rstrip()
        # Typer keeps the line breaks of a docstring, which are those of 120 columns.
        help_text = "\n\n".join(" ".join(part.split()) for part in (self.row.function.__doc__ or "").split("\n\n"))
        one.command(self.name, cls=PlainCommand, help=help_text, epilog=example)(_spread_bundles(self.row.function))
        command: Any = typer.main.get_command(one)
        if not self.commands:
            return command
        more: dict[str, Any] = {"params": command.params, "callback": command.callback, "help": command.help}
        return PlainGroup(
            name=self.name,
            commands=self.commands,
            epilog=example,
            invoke_without_command=True,
            # Options may follow the argument, as with any command.
            context_settings={"allow_interspersed_args": True},
            rich_markup_mode="rich",
            **more,
        )

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command, or select one below it, and parse its arguments."""
        if args and args[0] in self.commands:
            return self.commands[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        path = f"{parent.command_path} {info_name}" if parent else str(info_name)
        return self.load(path).make_context(info_name, args, parent=parent, **extra)


def _spread_bundles(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter by its fields as options."""
    parameters = inspect.signature(command, eval_str=True).parameters
    bundles: dict[str, Any] = {name: row.annotation for name, row in parameters.items() if is_dataclass(row.annotation)}
    shown: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        shown += _bundle_options(bundles[name]) if name in bundles else [_typer_parameter(parameter)]

    @wraps(command)
    def spread_out(**values: Any) -> None:
        for name, bundle in bundles.items():
            values[name] = bundle(**{row.name: values.pop(row.name) for row in fields(bundle)})
        command(**values)

    spread_out.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    spread_out.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return spread_out


def _bundle_options(bundle: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    age = {name: age for age, kind in enumerate(bundle.__mro__) for name in inspect.get_annotations(kind)}
    # Fields are in order from the base class on; in help, a command's own options come first.
    for row in sorted(fields(bundle), key=lambda row: age[row.name]):
        default = inspect.Parameter.empty if row.default is MISSING else row.default
        option = inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=default)
        yield _typer_parameter(option.replace(annotation=hints[row.name]))


def _typer_parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, *meta = get_args(parameter.annotation) or (parameter.annotation,)
    texts = [part for part in meta if isinstance(part, str)]
    if not texts:
        return parameter
    name = parameter.name.strip("_").replace("_", "-")
    names, metavar = _names_and_metavar(texts[0] if texts[1:] else "")
    more: dict[str, Any] = {"help": texts[-1]}
    for settings in (part for part in meta if isinstance(part, dict)):
        more |= settings
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        declared = typer.Option(*(names or [f"--{name}"]), metavar=metavar or None, **more)
    else:
        declared = typer.Argument(metavar=metavar or name.upper(), **more)
    return parameter.replace(annotation=Annotated[kind, declared])


def _names_and_metavar(text: str) -> tuple[list[str], str]:
    names = [part for part in text.split() if part.startswith("-")]
    return [name.strip(",") for name in names], " ".join(part for part in text.split() if part not in names)
