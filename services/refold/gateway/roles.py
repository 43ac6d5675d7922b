"""The role that each route needs: the one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

_VIEWER, _OPERATOR, _APPROVER, _ADMIN = ACCESS = ("viewer", "operator", "approver", "admin")
"""Roles that open routes. All others of a login only go into votes."""
PUBLIC: Final = ""
"""The role of a route that needs no login."""

GRANTS: Mapping[str, frozenset[str]] = {
    _VIEWER: frozenset({_VIEWER}),
    _OPERATOR: frozenset({_VIEWER, _OPERATOR}),
    _APPROVER: frozenset({_VIEWER, _APPROVER}),
    _ADMIN: frozenset(ACCESS),
}
"""Roles that each role includes."""

ROUTE_ROLES: Mapping[str, str] = {
    "health": PUBLIC,
    "ready": PUBLIC,
    "openapi": PUBLIC,
    "logout": PUBLIC,
    "log_in": _VIEWER,
    "login_page": PUBLIC,
    "login_form": PUBLIC,
    "logout_form": PUBLIC,
    "acting_form": _VIEWER,
    "static_file": PUBLIC,
    "vote_form": _APPROVER,
    "inbox_form": _APPROVER,
    "outcome_form": _VIEWER,  # and one of `DOUBT_ROLES`
    "vote": _APPROVER,
    "resolve_doubt": _VIEWER,  # and one of `DOUBT_ROLES`
    "repair_run": _ADMIN,
    "fail_run": _ADMIN,
    "replay_letter": _ADMIN,
    "replay_form": _ADMIN,
}
"""Roles of routes that differ from the role of their method."""

DOUBT_ROLES: Mapping[bool, str] = {True: _APPROVER, False: _OPERATOR}
"""Role for settling a call in doubt, by whether people are asked: then it is a vote."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def role_of(route: str, methods: Iterable[str]) -> str:
    """Return the role that a route needs: of one that only reads, `viewer`, of others `operator`."""
    return ROUTE_ROLES.get(route, _VIEWER if SAFE.issuperset(methods) else _OPERATOR)


def may(roles: Iterable[str], role: str) -> bool:
    return any(role in GRANTS.get(each, ()) for each in roles)
