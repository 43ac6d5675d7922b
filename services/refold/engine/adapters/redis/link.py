"""Connection to one server: batches go out in one piece, replies return in order, nothing is retried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import hiredis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from refold.core.errors import UnreachableError, UsageError
from refold.core.redaction import public_url

RedisCommand = tuple[str | int | bytes, ...]


class Link:
    """Connection, opened on demand with its `scripts`, and dropped if the state of its stream is in doubt. For one
    thread at a time."""

    def __init__(self, url: str, *, timeout: timedelta, scripts: Sequence[str] = ()) -> None:
        self.url, self._named = public_url(url), url
        self._greeting: list[RedisCommand] = [("SCRIPT", "LOAD", source) for source in scripts]
        self._greeted = False
        seconds = timeout.total_seconds()
        try:
            pool = ConnectionPool.from_url(
                url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=Retry(NoBackoff(), 0)
            )
            # RESP2, whatever the URL asks for: replies are flat lists of bytes, cheapest to take apart.
            pool.connection_kwargs["protocol"] = 2
            self._connection: Any = pool.make_connection()
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{self.url} is not the URL of a Redis", hint="write redis://HOST:PORT/0, or rediss:// for TLS"
            ) from error

    def exchange(self, commands: Sequence[RedisCommand]) -> list[Any]:
        """One reply per command, in order; a refused one's is its ResponseError. **Raises** UnreachableError: the
        outcome of all is unknown."""
        try:
            if not self._greeted:
                self._connection.connect()
                self._roundtrip(self._greeting)
                self._greeted = True
            return self._roundtrip(commands)
        except BaseException as error:
            # Replies may still be under way; the next batch must never take them for its own.
            self.close()
            if isinstance(error, RedisError | OSError):
                raise unreachable(self.url, error) from error
            raise

    def ask(self, *command: str) -> Any:
        """Reply to one command. **Raises** UnreachableError, also if it is refused."""
        (reply,) = self.exchange([command])
        if isinstance(reply, ResponseError):
            raise refused(self.url, reply)
        return reply

    def masters(self) -> list[str]:
        return [self._named]

    def teach(self) -> None:
        """Load the scripts again, after a server has flushed them. **Raises** UnreachableError."""
        self.exchange(self._greeting)

    def close(self) -> None:
        self._greeted = False
        self._connection.disconnect()

    def _roundtrip(self, commands: Sequence[RedisCommand]) -> list[Any]:
        replies: list[Any] = []
        self._connection.send_packed_command([b"".join(map(_pack, commands))], check_health=False)
        read = self._connection.read_response
        for _ in commands:
            try:
                replies.append(read(disable_decoding=True))
            except ResponseError as error:
                replies.append(error)
        return replies


def _pack(command: RedisCommand) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub wants a tuple of one
    return packed


def refused(url: str, error: RedisError) -> UnreachableError:
    return UnreachableError(
        f"the Redis at {url} refuses: {error}", hint="see `refold doctor`, then send again", url=url
    )


def unreachable(url: str, error: BaseException) -> UnreachableError:
    hint = "start it, or correct the address in REFOLD_REDIS__URL"
    if isinstance(error, AuthenticationError):
        hint = "correct the user and password in REFOLD_REDIS__URL"
    reason = str(error) or type(error).__name__
    return UnreachableError(f"the Redis at {url} does not answer ({reason})", hint=hint, url=url)


def first_refusal(replies: Iterable[Any]) -> ResponseError | None:
    return next((reply for reply in replies if isinstance(reply, ResponseError)), None)
