"""`refold topics`: the topics as `infra/topics.yaml` wants them, and as the broker has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.commands import acls
from refold.cli.errors import FAILED, fail
from refold.cli.platform import DataOption, JsonOption, KafkaOption, Platform, connect

if TYPE_CHECKING:
    from refold.adapters.kafka.topics import TopicDifference, Topics

app = typer.Typer(help="Create the topics, say who may use them, and compare both.", no_args_is_help=True)
app.command()(acls.acls)

AppOption = Annotated[
    str, typer.Option("--app", help="MODULE:APP or path/file.py[:APP], for the pools that its tools name.")
]


@app.command()
def apply(app_: AppOption = "", *, kafka: KafkaOption = "", data: DataOption = "", json_: JsonOption = False) -> None:
    """Create what is missing and correct what differs. Never changes a partition count."""
    _print(_topics(connect(kafka=kafka, data=data), app_).apply(), as_json=json_, done=True)


@app.command()
def diff(app_: AppOption = "", *, kafka: KafkaOption = "", data: DataOption = "", json_: JsonOption = False) -> None:
    """Show what `apply` would do; exit code 1 if there is anything."""
    found = _topics(connect(kafka=kafka, data=data), app_).diff()
    _print(found, as_json=json_, done=False)
    if found:
        fail(FAILED)


@app.command("list")
def list_(kafka: KafkaOption = "", data: DataOption = "", json_: JsonOption = False) -> None:
    """List the topics on the broker."""
    rows = _topics(connect(kafka=kafka, data=data), "").present()
    if json_:
        output.emit(rows)
    else:
        cells = [(output.escape(row.topic), str(row.partitions), str(row.replication)) for row in rows]
        output.table(("topic", "partitions", "replication"), cells)


def _topics(platform: Platform, app: str) -> Topics:
    from refold.adapters.kafka.topics import Topics

    platform.knock()
    settings = platform.settings
    return Topics(settings.kafka, pools(app), payload_bytes=settings.max_payload_bytes)


def pools(app: str) -> tuple[str, ...]:
    """The pools of an app; without one, `default`."""
    from refold.sdk.app import App

    return App.load(app).pools if app else ("default",)


def _print(differences: list[TopicDifference], *, as_json: bool, done: bool) -> None:
    if as_json:
        output.emit(differences)
    elif not differences:
        output.say("[green]all topics are as they should be[/]")
    else:
        word = "is now" if done else "should be"
        for found in differences:
            output.say(f"{found.topic}: {found.setting} was {found.found or 'unset'}, {word} {found.expected}")
