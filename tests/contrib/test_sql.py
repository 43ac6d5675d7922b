"""One row for each call, whatever is repeated, overlaps or is killed: with each driver, on the real database."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from refold import App, UsageError
from refold.contrib import sql
from refold.testing.contracts import KeyedContract
from tests.contract.table_benches import running_postgres
from tests.lent import lend

PAYMENTS = "CREATE TABLE payments (amount INTEGER)"


@pytest.fixture(scope="module")
def postgres(request: pytest.FixtureRequest) -> str:
    """Give the URL of a Postgres that tests share."""
    return lend(request, running_postgres)


class Bank:
    """A database with payments, and the way in which a tool connects to it."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self.engine = sa.create_engine(url)
        with self.engine.begin() as connection:
            for statement in (f"DROP TABLE IF EXISTS {name}" for name in ("payments", "refold_effects")):
                connection.execute(sa.text(statement))
            connection.execute(sa.text(sql.TABLE))
            connection.execute(sa.text(PAYMENTS))

    def connect(self) -> Any:
        if self.kind == "session":
            return Session(self.engine)
        if self.kind == "engine":
            return self.engine.connect()
        if self.kind == "psycopg":
            return psycopg.connect(self.url.replace("+psycopg", ""))
        return closing(sqlite3.connect(str(self.engine.url.database), timeout=10))

    def pay(self, amount: int, key: str, then: Callable[[], None] = lambda: None) -> Any:
        statement: Any = f"INSERT INTO payments VALUES ({amount})"
        with self.connect() as connection, sql.once(connection, key) as done:
            if not done.happened:
                connection.execute(sa.text(statement) if self.kind in ("session", "engine") else statement)
                done.result = {"paid": amount}
                then()
        return done.result

    def paid(self) -> list[int]:
        with self.engine.connect() as connection:
            return [amount for (amount,) in connection.execute(sa.text("SELECT amount FROM payments"))]


KINDS = ("sqlite3", "engine-sqlite", "psycopg", "engine", "session")


@pytest.fixture(params=KINDS)
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    kind, _, other = request.param.partition("-")
    if other or kind == "sqlite3":
        return Bank(kind, f"sqlite:///{tmp_path / 'bank.db'}")
    url: str = request.getfixturevalue("postgres")
    return Bank(kind, url.replace("postgresql:", "postgresql+psycopg:"))


def test_a_repeated_call_gets_the_result_of_the_first_and_changes_nothing(bank: Bank) -> None:
    assert [bank.pay(20, "a"), bank.pay(20, "a"), bank.pay(30, "b")] == [{"paid": 20}, {"paid": 20}, {"paid": 30}]
    assert bank.paid() == [20, 30]


def test_a_call_that_raises_leaves_neither_effect_nor_key(bank: Bank) -> None:
    def fail() -> None:
        raise RuntimeError("the receiver is gone")

    with pytest.raises(RuntimeError):
        bank.pay(20, "a", fail)

    assert bank.paid() == []
    assert bank.pay(25, "a") == {"paid": 25}
    assert bank.paid() == [25]


def test_the_suite_of_keyed_tools_passes(bank: Bank) -> None:
    app = App("bank")

    @app.tool(effect="keyed")
    def pay(amount: int, *, idempotency_key: str) -> dict[str, int]:
        paid: dict[str, int] = bank.pay(amount, idempotency_key)
        return paid

    suite = type("TestPay", (KeyedContract,), {"app": app, "tool": "pay", "args": {"amount": 20}})()
    suite.effects = lambda: len(bank.paid())
    for name in (name for name in dir(suite) if name.startswith("test_")):
        getattr(suite, name)()


def test_a_connection_that_commits_each_statement_is_refused(bank: Bank) -> None:
    if bank.kind == "sqlite3":
        connection: Any = sqlite3.connect(str(bank.engine.url.database), isolation_level=None)
    elif bank.kind == "psycopg":
        connection = psycopg.connect(bank.url.replace("+psycopg", ""), autocommit=True)
    else:
        engine = bank.engine.execution_options(isolation_level="AUTOCOMMIT")
        connection = Session(engine) if bank.kind == "session" else engine.connect()

    with closing(connection), pytest.raises(UsageError, match="autocommit"), sql.once(connection, "a"):
        raise AssertionError("it is not entered")

    assert bank.pay(20, "a") == {"paid": 20}


def test_a_process_killed_before_its_commit_has_paid_nothing_and_one_after_it_once(postgres: str) -> None:
    bank = Bank("psycopg", postgres.replace("postgresql:", "postgresql+psycopg:"))
    program = textwrap.dedent("""
        import sys, time, psycopg
        from refold.contrib import sql
        url, stops = sys.argv[1:]
        with psycopg.connect(url) as connection:
            with sql.once(connection, "k") as done:
                if not done.happened:
                    connection.execute("INSERT INTO payments VALUES (20)")
                    done.result = 20
                if stops == "before":
                    print("here", flush=True)
                    time.sleep(60)
        print("here", flush=True)
        time.sleep(60)
    """)
    for stops, paid in (("before", []), ("after", [20]), ("after", [20])):
        arguments = [sys.executable, "-c", program, bank.url.replace("+psycopg", ""), stops]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            process.send_signal(signal.SIGKILL)
        assert bank.paid() == paid
