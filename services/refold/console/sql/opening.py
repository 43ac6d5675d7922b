"""Opens a view database by URL."""

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from refold.console.sql.postgres import PostgresViews
from refold.console.sql.sqlite import SqliteViews
from refold.core.errors import UsageError
from refold.core.redaction import public_url
from refold.core.tables import ViewTable
from refold.engine.ports.tables import ViewDatabase, ViewStore


def open_views(url: str) -> ViewDatabase:
    """Open a database of views, SQLite or Postgres. **Raises** UsageError for another URL; UnreachableError."""
    try:
        parsed = make_url(url)
        if parsed.drivername == "sqlite" and not (parsed.database or ":").startswith((":", "file:")):
            return SqliteViews(parsed)
        if parsed.drivername == "postgresql":
            return PostgresViews(parsed)
    except ArgumentError:
        pass
    raise UsageError(
        f"{public_url(url)} is not the URL of a database for views",
        hint="write sqlite:///views.db, or postgresql://USER:PASSWORD@HOST/DATABASE",
    )


@contextmanager
def view_in_memory(tables: Collection[ViewTable]) -> Iterator[ViewStore]:
    """Lend empty tables in memory, for one thread at a time."""
    with closing(SqliteViews(make_url("sqlite://"))) as views:
        views.create("memory", 1, tables, {})
        yield views.store("memory", 1)
