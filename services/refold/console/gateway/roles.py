"""The role that each route needs."""

from collections.abc import Iterable, Mapping
from typing import Final

_VIEWER, _OPERATOR, _APPROVER, _ADMIN = ACCESS = ("viewer", "operator", "approver", "admin")
"""Roles that open routes; all others only go into votes."""
PUBLIC: Final = ""
"""Role of a route that needs no login."""

GRANTS: Mapping[str, frozenset[str]] = {
    _VIEWER: frozenset({_VIEWER}),
    _OPERATOR: frozenset({_VIEWER, _OPERATOR}),
    _APPROVER: frozenset({_VIEWER, _APPROVER}),
    _ADMIN: frozenset(ACCESS),
}

ROUTE_ROLES: Mapping[str, str] = {
    **dict.fromkeys(("health", "ready", "openapi", "logout"), PUBLIC),
    **dict.fromkeys(("login_page", "login_form", "logout_form", "static_file"), PUBLIC),
    **dict.fromkeys(("log_in", "acting_form"), _VIEWER),
    **dict.fromkeys(("outcome_form", "resolve_doubt"), _VIEWER),  # and one of `DOUBT_ROLES`
    **dict.fromkeys(("vote", "vote_form", "inbox_form"), _APPROVER),
    **dict.fromkeys(("repair_run", "fail_run", "replay_letter", "replay_form"), _ADMIN),
}
"""Roles of routes that differ from their method's."""

DOUBT_ROLES: Mapping[bool, str] = {True: _APPROVER, False: _OPERATOR}
"""Role to settle a call in doubt: True if people are asked about it."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def role_of(route: str, methods: Iterable[str]) -> str:
    """Return the role that a route needs; by default `viewer` to read, `operator` to write."""
    return ROUTE_ROLES.get(route, _VIEWER if SAFE.issuperset(methods) else _OPERATOR)


def may(roles: Iterable[str], role: str) -> bool:
    return any(role in GRANTS.get(own_role, ()) for own_role in roles)
