"""Parser of a policy's requirement for a decision: approvers, quorum, times."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from refold.core.errors import UsageError
from refold.core.events import Requirement

REQUIREMENT_FIELDS = (
    *("approvers", "quorum", "not_requester", "expires", "on_expiry", "escalate", "valid", "message"),
    "remember",
)
DOUBT_FIELDS = ("approvers", "quorum", "not_requester", "escalate", "message")
"""Fields of the requirement for doubts: it never expires, and each call is settled by itself."""

ON_EXPIRY = ("reject", "escalate", "fail")
MAX_MESSAGE = 2_000
MAX_APPROVERS = 100
MAX_USES = 1_000
MAX_MS = 3_650 * 86_400_000
"""Ten years. A run may wait for months; a longer time is a mistake."""

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)\Z", re.ASCII)


def read_requirement(
    content: Any, base: Requirement | None = None, *, fields: tuple[str, ...] = REQUIREMENT_FIELDS
) -> Requirement:
    """Requirement with the defaults of `base`; without it `approvers` is required. **Raises** UsageError (`field`)."""
    if not isinstance(content, dict):
        raise wrong("", "it is not an object", "require: {approvers: [role:lead]}")
    check_fields(content, fields)
    if not (base and base.approvers) and "approvers" not in content:
        raise wrong("approvers", "it is missing", "require: {approvers: [role:lead]}")
    changes: dict[str, Any] = {}
    for field, value in content.items():
        changes |= _changes(field, value)
    needed = replace(base or Requirement([]), **changes)
    _check(needed, content)
    return needed


def implies(one: Requirement, other: Requirement) -> bool:
    """True if a decision that meets one requirement meets the other."""
    people, others = {*one.approvers, *one.escalate_to}, {*other.approvers, *other.escalate_to}
    among = set(one.approvers) <= set(other.approvers) and people <= others
    requester = one.not_requester or not other.not_requester
    return ("*" in other.approvers or among) and one.quorum >= other.quorum and requester


def wrong(field: str, reason: str, hint: str = "") -> UsageError:
    return UsageError(f"{field}: {reason}" if field else reason, hint=hint, field=field)


@contextmanager
def within(place: str, **fields: Any) -> Iterator[None]:
    """Prefix the place to a UsageError raised inside."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{place}: {error.message}", hint=error.hint, **{**error.fields, **fields}) from None


def check_fields(content: Mapping[Any, Any], fields: tuple[str, ...], of: str = "") -> None:
    """Refuse unknown fields, which would be ignored silently. **Raises** UsageError."""
    for name in content:
        if name not in fields:
            raise wrong(f"{of}{name}", "there is no such field", f"the fields are {', '.join(fields)}")


def message(field: str, value: Any) -> str:
    """Validated text for people. **Raises** UsageError."""
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_MESSAGE:
        raise wrong(field, f"it is not a text of up to {MAX_MESSAGE} characters")
    return value


def duration_ms(field: str, value: Any) -> int:
    """Milliseconds of `90s`, `15m`, `2h`, `7d` or a number. **Raises** UsageError."""
    match = _DURATION.match(value) if isinstance(value, str) else None
    milliseconds = int(match[1]) * _UNITS[match[2]] if match else value
    if type(milliseconds) is not int or not 0 <= milliseconds <= MAX_MS:
        raise wrong(field, f"{value!r} is not a duration", "write 90s, 15m, 2h, 7d or milliseconds, up to 3650d")
    return milliseconds


def _approvers(field: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_APPROVERS or not all(map(_is_approver, value)):
        raise wrong(field, "it is not a list of people and roles", f"write {field}: [ada, role:lead], or ['*']")
    if len(set(value)) != len(value):
        raise wrong(field, "somebody is named twice")
    return list(value)


def _is_approver(name: Any) -> bool:
    return isinstance(name, str) and bool(name.removeprefix("role:")) and name == name.strip() and len(name) <= 200


def _escalation(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or "to" not in value:
        raise wrong(field, "it does not say to whom", "escalate: {after: 30m, to: [role:head]}")
    check_fields(value, ("after", "to"), "escalate.")
    after = duration_ms("escalate.after", value["after"]) if "after" in value else 0
    return {"escalate_to": _approvers("escalate.to", value["to"]), "escalate_ms": after}


def _remember(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value.keys() >= {"for", "uses"}:
        raise wrong(field, "it does not say for how long and how often", "remember: {for: 1h, uses: 3}")
    check_fields(value, ("for", "uses"), "remember.")
    valid_ms, uses = duration_ms("remember.for", value["for"]), value["uses"]
    if not valid_ms:
        raise wrong("remember.for", "what is remembered for no time is forgotten", "leave remember out")
    if type(uses) is not int or not 1 <= uses <= MAX_USES:
        raise wrong("remember.uses", f"it is not a number from 1 to {MAX_USES}")
    return {"remember_ms": valid_ms, "remember_uses": uses}


_PARSERS: dict[str, Callable[[str, Any], dict[str, Any]]] = {
    "approvers": lambda field, value: {field: _approvers(field, value)},
    "message": lambda field, value: {field: message(field, value)},
    **dict.fromkeys(("expires", "valid"), lambda field, value: {f"{field}_ms": duration_ms(field, value)}),
    "escalate": _escalation,
    "remember": _remember,
}


def _changes(field: str, value: Any) -> dict[str, Any]:
    """Changes of a requirement by one field of the text. **Raises** UsageError."""
    if parser := _PARSERS.get(field):
        return parser(field, value)
    if field == "quorum" and (type(value) is not int or not 1 <= value <= MAX_APPROVERS):
        raise wrong(field, f"it is not a number from 1 to {MAX_APPROVERS}")
    if field == "not_requester" and not isinstance(value, bool):
        raise wrong(field, "it is not true or false")
    if field == "on_expiry" and value not in ON_EXPIRY:
        raise wrong(field, f"it is none of {', '.join(ON_EXPIRY)}")
    return {field: value}


def _check(needed: Requirement, content: Mapping[str, Any]) -> None:
    """Refuse combinations of fields that no people can meet, or that have no effect. **Raises** UsageError."""
    people = {*needed.approvers, *needed.escalate_to}
    if needed.quorum > len(people) and not any(map(_may_be_many, people)):
        raise wrong("quorum", f"{needed.quorum} of {len(people)} people cannot agree", "name more people, or a role")
    if not needed.valid_ms:
        raise wrong("valid", "a decision that may never be used decides nothing", "write 15m, or leave it out")
    if "on_expiry" in content and not needed.expires_ms:
        raise wrong("on_expiry", "nothing expires", "write expires: 1h, or leave it out")
    _check_escalation(needed)


def _may_be_many(name: str) -> bool:
    return name == "*" or name.startswith("role:")


def _check_escalation(needed: Requirement) -> None:
    if needed.on_expiry == "escalate" and not needed.escalate_to:
        raise wrong("on_expiry", "it escalates to nobody", "escalate: {to: [role:head]}")
    if needed.escalate_to and not needed.escalate_ms and needed.on_expiry != "escalate":
        raise wrong("escalate.after", "it is missing", "escalate: {after: 30m, to: [role:head]}")
    if needed.expires_ms and needed.escalate_ms >= needed.expires_ms:
        raise wrong("escalate.after", "it has expired by then", "escalate earlier, or let it expire later")
