"""Checks that a live server keeps acknowledged writes."""

from contextlib import closing
from datetime import timedelta
from secrets import token_hex
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.exceptions import AuthenticationError, ResponseError

from refold.core.errors import UnreachableError
from refold.engine.adapters.redis.link import Link
from refold.engine.ports.ledger import Filled

_NEEDED = (
    ("appendonly", "yes", "a crash of the server loses the whole ledger"),
    ("appendfsync", "always", "a crash of the machine loses results that were acknowledged"),
    ("maxmemory-policy", "noeviction", "a full server drops entries silently"),
)


def server_problems(link: Link, *, cluster: bool) -> list[str]:
    """Problems of a server, each with its remedy; `cluster`: it may be a shard. **Raises** UnreachableError."""
    problems = []
    for (name, expected, why), reply in zip(
        _NEEDED, link.exchange([("CONFIG", "GET", name) for name, *_ in _NEEDED]), strict=True
    ):
        line = f"CONFIG SET {name} {expected}"
        if isinstance(reply, ResponseError) or len(reply) != 2:
            problems.append(f"The server does not tell its {name}: make sure that it is {expected}, or {why}.")
        elif (actual := reply[1].decode()) != expected:
            problems.append(f"{name} is {actual}, so {why}: run `{line}` and keep it with `CONFIG REWRITE`.")
    return problems + _condition(link, cluster=cluster)


def filled(url: str, *, timeout: timedelta) -> Filled:
    with closing(Link(url, timeout=timeout)) as link:
        memory = _info(link, "memory")
    return Filled(int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0)))


def open_to_all(url: str, *, timeout: timedelta) -> bool:
    """True if a server admits clients without a password, as any user or the URL's. **Raises** UnreachableError."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if "ssl_certfile" in options:  # the certificate is the login
        return False
    login, _, place = parts.netloc.rpartition("@")
    user = options.pop("username", login.partition(":")[0])
    options.pop("password", None)
    bare = parts._replace(netloc=place, query=urlencode(options))
    logins = [bare, bare._replace(netloc=f"{user}:{token_hex(16)}@{place}")] if user else [bare]
    return any(_lets_in(urlunsplit(each), timeout) for each in logins)


def _lets_in(url: str, timeout: timedelta) -> bool:
    with closing(Link(url, timeout=timeout)) as link:
        try:
            (reply,) = link.exchange([("PING",)])
        except UnreachableError as error:
            if isinstance(error.__cause__, AuthenticationError):
                return False
            raise
    return not isinstance(reply, ResponseError)


def _condition(link: Link, *, cluster: bool) -> list[str]:
    info = _info(link, "persistence") | _info(link, "replication") | _info(link, "cluster")
    wrong = []
    if info.get("loading") == "1":
        wrong.append("The server is still loading its data: wait until `INFO persistence` says loading:0.")
    if info.get("aof_last_write_status", "ok") != "ok":
        wrong.append("The last write to the append-only file failed: free disk space, then look at the server's log.")
    if info.get("role", "master") != "master":
        where = f"{info.get('master_host')}:{info.get('master_port')}"
        wrong.append(
            f"The server is a replica of {where} and takes no writes: connect there, or run `REPLICAOF NO ONE`."
        )
    if cluster or info.get("cluster_enabled") != "1":
        return wrong
    if _parse(link.ask("CLUSTER", "INFO")).get("cluster_size", "1") != "1":
        wrong.append("The server is one shard of a cluster: set REFOLD_REDIS__CLUSTER=true, and its shards are found.")
    return wrong


def _info(link: Link, section: str) -> dict[str, str]:
    return _parse(link.ask("INFO", section))


def _parse(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}
