"""Removal of passwords, tokens and keys from addresses and errors."""

import re

HIDDEN = "[redacted]"
"""Placeholder for a secret."""

_CREDENTIALS = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^\s/?#'\"<>]*@")
_AUTHORIZATION = re.compile(r"(?i)\b((?:bearer|basic)\s+)[a-z0-9._~+/=-]{8,}")
_NAMED = re.compile(
    r"(?i)((?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|signature|credential)s?['\"]?\s*[=:]\s*)"
    r"(?:\"[^\"]*\"|'[^']*'|[^\s&,;'\"}\])]+)"
)

_KEYS = re.compile(
    r"\b(?:(?:sk|rk|pk|gsk|xai|hf|ghp|gho|github_pat|glpat)[-_][A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,}|AKIA[A-Z0-9]{16})"
)
"""API keys of model providers and similar services; some providers repeat them in error texts."""


def public_url(url: str) -> str:
    """URL without user, password, query and fragment, for logs."""
    scheme, mark, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    credentials, at, place = rest.rpartition("@")
    if at and re.search("[/?#]", credentials):  # an unencoded password has no clear end
        return f"{scheme}{mark}{HIDDEN}"
    return f"{scheme}{mark}{re.split('[?#]', place)[0]}"


def redacted(text: str) -> str:
    """Text without credentials in URLs, bearer tokens, and texts named or shaped like a password or key."""
    text = _KEYS.sub(HIDDEN, text)
    text = _CREDENTIALS.sub(rf"\1{HIDDEN}@", text)
    text = _AUTHORIZATION.sub(rf"\1{HIDDEN}", text)
    return _NAMED.sub(rf"\1{HIDDEN}", text)
