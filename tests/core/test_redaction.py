"""What may be told of an address or an error, and what is a secret in it."""

from __future__ import annotations

import pytest

from refold.core.redaction import public_url, redacted


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


@pytest.mark.parametrize(
    "text",
    [
        "GET https://ada:hunter2@example.com/x failed",
        "connect postgresql+psycopg://ada:hunter2@db:5432/shop",
        "https://hunter2@example.com",
        "Authorization: Bearer hunter2hunter2.x-y_z",
        "header {'authorization': 'bearer hunter2hunter2'}",
        "Authorization: Basic aHVudGVyMg==hunter2",
        "https://example.com/?a=1&access_token=hunter2&b=2",
        "password=hunter2; host=db",
        'config {"password": "hunter2 with spaces", "host": "db"}',
        "invalid api_key: hunter2",
        "AWS_SECRET_ACCESS_KEY=hunter2",
        "X-Api-Key: hunter2",
        "Incorrect API key provided: sk-proj-hunter2hunter2_hunter2.",
        "no such key AIzahunter2hunter2hunter2hunter2hunter2x",
    ],
)
def test_an_error_is_told_without_credentials(text: str) -> None:
    assert "hunter2" not in redacted(text)
    assert "[redacted]" in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "no such file: settings.toml",
        "GET https://example.com/a@b?c=1 failed with 404",
        "the token is expired",
        "no tool sk-learn-pipeline",
        "bearer of bad news",
        "mail to ada@example.com",
        "",
    ],
)
def test_what_is_no_secret_is_told_as_it_is(text: str) -> None:
    assert redacted(text) == text
