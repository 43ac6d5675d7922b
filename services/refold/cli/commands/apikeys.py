"""API keys of the gateway, by `refold keys ... --api`; a file has their digests."""

from refold.cli import output
from refold.cli.platform import Printer, until_ms
from refold.console.gateway.apikeys import ApiKey, ApiKeys, new_api_key
from refold.console.gateway.roles import ACCESS
from refold.core.approval.catalog import is_person, no_person
from refold.core.errors import NotFoundError, UsageError
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import load


def make_api_key(actor: str, roles: tuple[str, ...], expires: str, file: str, printer: Printer) -> None:
    if not is_person(actor):
        raise UsageError(no_person(actor), hint="name a person, or a program")
    if not set(roles) & set(ACCESS):
        raise UsageError("nobody could use it for anything", hint=f"--role is one of {', '.join(ACCESS)}")
    text, key = new_api_key(actor, roles, until_ms(expires, "--expires"))
    _keys(file).change(lambda keys: keys.update({key.prefix: key}))
    lines = [
        f"[bold]{output.escape(text)}[/]",
        f"It speaks for {output.escape(actor)}, and is shown this once. Send it as  Authorization: Bearer KEY",
    ]
    printer.print({"key": text, **_shown(key)}, "\n".join(lines))


def list_api_keys(file: str, printer: Printer) -> None:
    rows = [_shown(key) for key in _keys(file).load().values()]
    printer.print_rows(rows, "prefix actor roles state expires_ms", "no keys; `refold keys new --api` makes one")


def revoke_api_key(prefix: str, file: str, printer: Printer) -> None:
    def remove(keys: dict[str, ApiKey]) -> None:
        if keys.pop(prefix, None) is None:
            raise NotFoundError(f"there is no key {prefix}", hint="`refold keys list --api`")

    _keys(file).change(remove)
    printer.print({"prefix": prefix}, f"key [bold]{output.escape(prefix)}[/] is refused from now on")


def _keys(file: str) -> ApiKeys:
    return ApiKeys(file or load().gateway.api_keys)


def _shown(key: ApiKey) -> dict[str, object]:
    state = "expired" if 0 < key.expires_ms <= clock_ms() else "active"
    return {**key.model_dump(mode="json", exclude={"digest"}), "state": state}
