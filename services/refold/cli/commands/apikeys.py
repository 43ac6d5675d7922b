"""API keys of the gateway; a file has their digests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from refold.cli import output
from refold.cli.platform import Printer, until_ms
from refold.console.gateway.apikeys import ApiKey, ApiKeys, new_api_key
from refold.console.gateway.roles import ACCESS
from refold.core.approval.catalog import is_person, no_person
from refold.core.errors import NotFoundError, UsageError
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import load


@dataclass(frozen=True)
class KeyFile(Printer):
    file: Annotated[str, "FILE", "File of API keys.  \\[default: REFOLD_GATEWAY__API_KEYS]"] = ""

    @property
    def keys(self) -> ApiKeys:
        return ApiKeys(self.file or load().gateway.api_keys)


def make_api_key(
    actor: Annotated[str, "Name that requests with this key are recorded under."],
    *,
    role: Annotated[
        list[str] | None, "Role: viewer, operator, approver, admin, or a role that policies name. May be repeated."
    ] = None,
    expires: Annotated[str, "TIME", "Expiry: a time, or a duration from now such as 90d.  \\[default: never]"] = "",
    where: KeyFile,
) -> None:
    """Create an API key, and print it once. Gateways accept it at once."""
    roles = tuple(dict.fromkeys(role or ()))
    if not is_person(actor):
        raise UsageError(no_person(actor), hint="name a person, or a program")
    if not set(roles) & set(ACCESS):
        raise UsageError("nobody could use it for anything", hint=f"--role is one of {', '.join(ACCESS)}")
    text, key = new_api_key(actor, roles, until_ms(expires, "--expires"))
    where.keys.change(lambda keys: keys.update({key.prefix: key}))
    lines = [
        f"[bold]{output.escape(text)}[/]",
        f"It speaks for {output.escape(actor)}, and is shown this once. Send it as  Authorization: Bearer KEY",
    ]
    where.print({"key": text, **_shown(key)}, "\n".join(lines))


def list_api_keys(*, where: KeyFile) -> None:
    """List the API keys in a file. None of them can be shown again."""
    rows = [_shown(key) for key in where.keys.load().values()]
    where.print_rows(rows, "prefix actor roles state expires_ms", "no keys; `refold keys api new` makes one")


def revoke_api_key(
    prefix: Annotated[str, "PREFIX", "The key's prefix, as `refold keys api list` prints it."], *, where: KeyFile
) -> None:
    """Revoke an API key at once. Its sessions and streams end within seconds."""

    def remove(keys: dict[str, ApiKey]) -> None:
        if keys.pop(prefix, None) is None:
            raise NotFoundError(f"there is no key {prefix}", hint="`refold keys api list`")

    where.keys.change(remove)
    where.print({"prefix": prefix}, f"key [bold]{output.escape(prefix)}[/] is refused from now on")


def _shown(key: ApiKey) -> dict[str, object]:
    state = "expired" if 0 < key.expires_ms <= clock_ms() else "active"
    return {**key.model_dump(mode="json", exclude={"digest"}), "state": state}
