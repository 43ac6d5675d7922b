"""`refold topics`: the topics as `infra/topics.yaml` wants them, and as the broker has them."""

from __future__ import annotations

from typing import Annotated

from refold.adapters.kafka.topics import TopicDifference, Topics
from refold.cli import output
from refold.cli.apps import app_pools
from refold.cli.errors import FAILED, fail
from refold.cli.platform import Shell
from refold.client.platform import Platform

PoolsOption = Annotated[str, "MODULE:APP or path/file.py[:APP], for the pools that its tools name."]


def apply_topics(*, app_: PoolsOption = "", shell: Shell) -> None:
    """Create missing topics and correct their settings. Never changes a partition count."""
    changes = topics_of(shell.platform, app_).apply()
    shell.tell(changes, lambda: _print(changes, "is now"))


def diff_topics(*, app_: PoolsOption = "", shell: Shell) -> None:
    """Show what `apply` would change; exit code 1 if anything."""
    differences = topics_of(shell.platform, app_).diff()
    shell.tell(differences, lambda: _print(differences, "should be"))
    if differences:
        fail(FAILED)


def list_topics(*, shell: Shell) -> None:
    """List the topics on the broker."""
    rows = [output.plain(row) for row in topics_of(shell.platform, "").present()]
    shell.tell(rows, lambda: output.print_rows(rows, ("topic", "partitions", "replication"), "no topics"))


def topics_of(platform: Platform, app: str) -> Topics:
    """The topics that a platform needs to serve an app. **Raises** UnreachableError."""
    platform.knock()
    settings = platform.settings
    return Topics(settings.kafka, app_pools(app), payload_bytes=settings.max_payload_bytes)


def _print(differences: list[TopicDifference], word: str) -> None:
    if not differences:
        output.say("[green]all topics are as they should be[/]")
    for each in differences:
        output.say(f"{each.topic}: {each.setting} was {each.found or 'unset'}, {word} {each.expected}")
