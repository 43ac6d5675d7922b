"""Exactly one effect of a call in a SQL database: its idempotency key is committed with the effect.

**Consumes** a connection of psycopg, SQLAlchemy (also a session) or sqlite3 to Postgres or SQLite. **Produces** a row
of the table `refold_effects` in the transaction of the effect. **Guarantees**: of all attempts of a call, one commits;
the others return its result. **Fails** with UsageError for a connection that commits each statement.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from refold.core.errors import UsageError

TABLE = """
CREATE TABLE IF NOT EXISTS refold_effects (
    key TEXT PRIMARY KEY,
    result TEXT NOT NULL,
    at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
)
"""
"""Statement that creates the table, for a migration. A row is needed as long as its call may be tried again."""

# The key is inserted before the effect, so that two attempts meet at the primary key: the later one waits there.
_INSERT = "INSERT INTO refold_effects (key, result) VALUES (:key, '') ON CONFLICT (key) DO NOTHING"
_SELECT = "SELECT result FROM refold_effects WHERE key = :key"
_UPDATE = "UPDATE refold_effects SET result = :result WHERE key = :key"


class Committed:
    """State of a call in the database. `happened`: an earlier attempt has committed, with this `result`."""

    def __init__(self, *, happened: bool, result: Any) -> None:
        self.happened, self.result = happened, result


@contextmanager
def once(connection: Any, key: str) -> Iterator[Committed]:
    """Commit a transaction once for an idempotency key; a block that raises rolls it back.

    The block acts unless `done.happened`, and sets `done.result`, a value of JSON. The tool is `keyed`. It has no probe
    by this table: the transaction of a process that stands still may commit after the look.

    **Example**

        @app.tool(effect="keyed")
        def pay(amount: int, *, idempotency_key: str) -> int:
            with psycopg.connect(URL) as connection, once(connection, idempotency_key) as done:
                if not done.happened:
                    connection.execute("INSERT INTO payments (amount) VALUES (%s)", (amount,))
                    done.result = amount
            return done.result

    **Raises** UsageError if the connection is in autocommit mode.
    """
    if _commits_each_statement(connection):
        hint = "open it without autocommit: the key and the effect are one transaction"
        raise UsageError("refold.contrib.sql.once has a connection in autocommit mode", hint=hint)
    try:
        happened = not _execute(connection, _INSERT, key=key).rowcount
        text = _execute(connection, _SELECT, key=key).fetchone()[0] if happened else "null"
        done = Committed(happened=happened, result=json.loads(text))
        yield done
        if not done.happened:
            _execute(connection, _UPDATE, key=key, result=json.dumps(done.result))
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def _execute(connection: Any, statement: str, **values: str) -> Any:
    module = type(connection).__module__.partition(".")[0]
    if module == "sqlalchemy" or hasattr(connection, "get_bind"):
        sqlalchemy: Any = import_module("sqlalchemy")  # an extra
        return connection.execute(sqlalchemy.text(statement), values)
    if module == "psycopg":
        statement = statement.replace(":key", "%(key)s").replace(":result", "%(result)s")
    return connection.execute(statement, values)


def _commits_each_statement(connection: Any) -> bool:
    if hasattr(connection, "get_bind"):  # a session of SQLAlchemy
        connection = connection.connection()
    if hasattr(connection, "exec_driver_sql"):
        connection = connection.connection.driver_connection
    # `autocommit` of sqlite3 is a number that stands for `isolation_level`, and no attribute before Python 3.12.
    by_level = getattr(connection, "isolation_level", "") is None and hasattr(connection, "in_transaction")
    return getattr(connection, "autocommit", False) is True or (by_level and not connection.in_transaction)
