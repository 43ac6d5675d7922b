"""`refold keys`: who may sign decisions and votes. Private keys are files, public ones are in the catalog."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import output
from refold.cli.platform import DataOption, JsonOption, KafkaOption, Platform, connect, data_dir, login
from refold.core.errors import ConflictError, NotFoundError, UsageError

if TYPE_CHECKING:
    from refold.core.approval.signature import PublicKey, SigningKey

app = typer.Typer(help="Make, publish, retire and revoke the keys that sign.", no_args_is_help=True)

KidArgument = Annotated[str, typer.Argument(metavar="KID", help="The key's id, as `refold keys list` prints it.")]
OutOption = Annotated[
    str,
    typer.Option("--out", metavar="FILE", help="The private key; without it, keys/KID.json in --data."),
]


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; its id begins with it.")],
    *,
    use: Annotated[str, typer.Option("--use", help="What it signs: decision or vote.")],
    actor: Annotated[
        list[str] | None, typer.Option("--actor", help="It may vote for nobody else. May be repeated.")
    ] = None,
    strength: Annotated[str, typer.Option("--strength", help="How its holder makes sure who somebody is.")] = "",
    out: OutOption = "",
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Put the public key into the catalog.")
    ] = True,
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Make a key: the private half into a file, the public half into the catalog."""
    from refold.core.approval.signature import PublicKey
    from refold.runtime import keys

    key = keys.new(use, name)
    public = PublicKey.parse(key.public(actors=tuple(actor or ()), strength=strength).content())
    platform = connect(kafka=kafka, data=data)
    if publish:
        platform.knock()
    path = _save(key, out, data)
    if publish:
        _publish(platform, public)
    _tell_new(public, path, published=publish, as_json=json_)


@app.command("list")
def list_(kafka: KafkaOption = "", data: DataOption = "", json_: JsonOption = False) -> None:
    """List the keys in the catalog."""
    now_ms = _now_ms()
    rows = [{**key.content(), "state": _state(key, now_ms)} for key in _known(connect(kafka=kafka, data=data)).values()]
    if json_:
        output.emit(rows)
    elif not rows:
        output.say("no keys; `refold keys new` makes one")
    else:
        columns = ("kid", "use", "state", "actors", "strength", "reason")
        output.table(columns, [tuple(_cell(row[name]) for name in columns) for row in rows])


@app.command()
def rotate(
    kid: KidArgument,
    *,
    at: Annotated[
        str,
        typer.Option("--at", metavar="TIME", help="When the old key retires, as 2030-01-31T12:00Z; without it, now."),
    ] = "",
    out: OutOption = "",
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Make a key that succeeds another. The old one signs nothing more; what it signed before still holds.

    With --at in the future both sign until then: time to restart services with the new one. A key that somebody else
    may have is to be revoked instead.
    """
    from refold.runtime import keys

    retired_ms = _moment_ms(at) if at else _now_ms()
    if at and retired_ms < _now_ms():
        hint = "leave --at out for now; `refold keys revoke` takes back what a key has signed"
        raise UsageError(f"{at} is over: a key that retired then would never have signed what it did since", hint=hint)
    platform = connect(kafka=kafka, data=data)
    old = _find(platform, kid)
    if old.revoked or 0 < old.retired_ms <= _now_ms():
        raise ConflictError(f"the key {kid} signs nothing any more", hint="`refold keys new` makes a new one")
    key = keys.new(old.use, kid.rpartition("-")[0] or kid)
    path = _save(key, out, data)
    public = key.public(actors=old.actors, strength=old.strength)
    _publish(platform, public)
    _publish(platform, replace(old, retired_ms=retired_ms, reason=f"rotated to {key.kid}"))
    _tell_new(public, path, published=True, as_json=json_, rotated=kid, retired_ms=retired_ms)


@app.command()
def revoke(
    kid: KidArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; it stays in the catalog.")],
    kafka: KafkaOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Revoke a key: nothing that it ever signed holds any more. Revoked again, it only gets the reason."""
    if not reason.strip():
        raise UsageError("a key is revoked for a reason", hint="--reason TEXT stays in the catalog")
    platform = connect(kafka=kafka, data=data)
    public = replace(_find(platform, kid), revoked=True, reason=reason)
    _publish(platform, public)
    if json_:
        output.emit(public.content())
    else:
        output.say(f"key [bold]{output.escape(kid)}[/] is revoked: what it signed is refused from now on")


def _known(platform: Platform) -> dict[str, PublicKey]:
    """The keys of the catalog, from its first partition: every one has them all."""
    from refold.client import catalog

    return catalog.read_catalog(platform.runs.reader).keys


def _find(platform: Platform, kid: str) -> PublicKey:
    found = _known(platform).get(kid)
    if found is None:
        raise NotFoundError(f"the catalog has no key {kid}", hint="`refold keys list`")
    return found


def _publish(platform: Platform, public: PublicKey) -> None:
    from refold.client.catalog import publish
    from refold.core.messages import CatalogEntry
    from refold.core.wire import canonical

    entry = CatalogEntry(f"key/{public.kid}", "key", canonical.dumps(public.content()), login(), _now_ms())
    publish(platform.publisher, platform.runs.partitions, entry)


def _save(key: SigningKey, out: str, data: str) -> Path:
    from refold.runtime import keys

    path = Path(out) if out else data_dir(data) / "keys" / f"{key.kid}.json"
    keys.save(key, path)
    return path


def _tell_new(public: PublicKey, path: Path, *, published: bool, as_json: bool, **more: Any) -> None:
    if as_json:
        output.emit({**public.content(), "file": str(path), "published": published, **more})
        return
    output.say(f"key [bold]{output.escape(public.kid)}[/] signs {public.use}s")
    output.say(f"private: {output.escape(str(path))}")
    output.say(f"public:  {'in the catalog' if published else output.escape(public.x) + ', not published'}")
    if "rotated" in more:
        until = datetime.fromtimestamp(more["retired_ms"] / 1000, UTC)
        output.say(f"key [bold]{output.escape(more['rotated'])}[/] signs until {until:%Y-%m-%d %H:%M:%S} UTC")


def _state(public: PublicKey, now_ms: int) -> str:
    if public.revoked:
        return "revoked"
    if public.retired_ms:
        return "retired" if public.retired_ms <= now_ms else "retiring"
    return "early" if public.not_before_ms > now_ms else "active"


def _cell(value: Any) -> str:
    return output.escape(", ".join(value) if isinstance(value, list) else str(value))


def _moment_ms(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UsageError(f"{text!r} is not a time with a zone", hint="write 2030-01-31T12:00Z")
    return int(found.timestamp() * 1000)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
