"""What may be told of an address or an error, and what is a secret in it."""

from __future__ import annotations

import pytest

from refold.core.redaction import public_url


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://default:hunter2@127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("rediss://:hunter2@host:1?password=hunter2", "rediss://host:1"),
        ("redis://u:hunter2@a:1,b:2/0", "redis://a:1,b:2/0"),
        ("unix://u:hunter2@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("u:hunter2@host:1", "host:1"),
        ("redis://:hun/ter2@host:1", "redis://[redacted]"),
        ("redis://:hun?ter2@host:1", "redis://[redacted]"),
        ("redis://:hun#ter2@host:1", "redis://[redacted]"),
        ("redis://:hun@ter2@host:1", "redis://host:1"),
        ("redis://host:1/0?password=hun@ter2", "redis://[redacted]"),
    ],
)
def test_an_address_is_told_without_its_password(url: str, told: str) -> None:
    assert public_url(url) == told
    assert not any(part in public_url(url) for part in ("hunter2", "ter2"))
