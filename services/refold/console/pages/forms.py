"""Fields of a form, as browsers send them without JavaScript."""

from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl

from fastapi import Request

from refold.console.gateway.site import Gateway
from refold.core.errors import MalformedError

MOST_FIELDS = 50


def one_of(fields: Mapping[str, str], name: str, choices: Collection[str]) -> str:
    """Return the value of a form's button. **Raises** MalformedError for any other word."""
    choice = fields.get(name, "")
    if choice not in choices:
        raise MalformedError(f"{choice[:40]!r} is no {name}", hint="use a button of the page")
    return choice


async def form_of(request: Request, shared: Gateway) -> dict[str, str]:
    """Return the fields of a form. **Raises** MalformedError for a repeated field or too many; UnauthorisedError for a
    login by cookie without its token."""
    try:
        pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise MalformedError("the form cannot be read", hint="load the page again") from error
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise MalformedError("the form has a field twice", hint="load the page again")
    if shared.login is not None:
        shared.logins.check_csrf(shared.login, fields.get("csrf", ""))
    return fields
