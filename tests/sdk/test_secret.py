"""A secret is a name everywhere but in the tool that it is for."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from refold import App, Context, NotDone, Secret, TransientError, UsageError
from refold.core.ids import CallId, run_id
from refold.core.messages import ToolRequest
from refold.core.wire import canonical
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.ports.effects import StartTool, ToolEnded
from refold.sdk.secret import from_environment
from refold.testing import run

VALUE = "sk_live_hunter2/+"
KEY = '{"key":{"secret":"stripe_key"}}'


class Account(BaseModel):
    """Secrets deeper in the arguments."""

    user: str
    keys: list[Secret]


def shop(**more: Any) -> App:
    """An app whose tools are handed a secret."""
    app = App("shop", **({"secrets": {"stripe_key": VALUE}.__getitem__} | more))

    @app.tool(effect="keyed")
    def pay(key: Secret, *, idempotency_key: str) -> int:
        return len(key.reveal())

    @app.tool(effect="keyed")
    async def pay_async(key: Secret, *, idempotency_key: str) -> int:
        await asyncio.sleep(0)
        return len(key.reveal())

    @app.tool(effect="keyed")
    def deep(account: Account, *, idempotency_key: str) -> list[str]:
        return [str(len(key.reveal())) for key in account.keys]

    @app.tool(effect="once")
    def fails(key: Secret) -> None:
        raise RuntimeError(f"https://api/charge?key={key.reveal()} said no to {key!r}, https://u:pw123@proxy too")

    @app.tool(effect="once")
    def refuses(key: Secret) -> None:
        raise NotDone(f"no: {key.reveal()}")

    @app.tool(effect="keyed")
    def bound(key: Annotated[Secret, Secret.only("stripe_key")], *, idempotency_key: str) -> str:
        return key.name

    @app.agent
    async def buy(ctx: Context) -> int:
        found: int = await ctx.call(pay, key=Secret("stripe_key"))
        return found

    return app


def ended(app: App, tool: str, args: str = KEY) -> ToolEnded:
    """How an attempt ends at an executor."""
    told: SimpleQueue[ToolEnded] = SimpleQueue()
    box = Toolbox(app, told.put, threads=2, max_result=1_000)
    try:
        request = ToolRequest(CallId("r-1/3"), run_id("r-1"), 1, 1, 0, tool, args, "k", "pure", 1_000)
        box.start([StartTool(1, request, probe=False)])
        return told.get(timeout=60)
    finally:
        box.close()


def test_the_log_has_the_name_and_the_tool_the_value() -> None:
    done = run(shop(), "buy")

    assert done.value == len(VALUE)
    assert done.calls[0].args == {"key": {"secret": "stripe_key"}}
    assert VALUE not in repr(done.events)


@pytest.mark.parametrize("tool", ["pay", "pay_async"])
def test_an_executor_looks_it_up_before_the_tool_begins(tool: str) -> None:
    assert ended(shop(), tool).result == str(len(VALUE))


def test_secrets_deeper_in_the_arguments_have_their_values() -> None:
    args = '{"account":{"keys":[{"secret":"stripe_key"},{"secret":"stripe_key"}],"user":"ada"}}'

    assert ended(shop(), "deep", args).result == f'["{len(VALUE)}","{len(VALUE)}"]'


def test_a_value_is_in_no_text_of_a_secret() -> None:
    told: SimpleQueue[str] = SimpleQueue()
    app = shop()

    @app.tool(effect="once")
    def shows(key: Secret) -> None:
        key.reveal()
        copies: list[Any] = [copy.deepcopy(key), pickle.loads(pickle.dumps(key))]
        told.put(f"{key} {key!r} {key!s:>40} {vars(type(key))} {copies} {[key, {key: key}]}")
        for each in copies:
            with pytest.raises(UsageError):
                each.reveal()

    assert ended(app, "shows").status == "completed"
    text = told.get()
    assert "hunter2" not in text
    assert "Secret('stripe_key')" in text


@pytest.mark.parametrize("tool", ["fails", "refuses"])
def test_what_a_tool_raises_is_told_without_the_value(tool: str) -> None:
    message = ended(shop(), tool).message

    assert "hunter2" not in message
    assert "pw123" not in message
    assert "[redacted]" in message


def test_the_value_is_hidden_where_a_url_has_it() -> None:
    app = shop()

    @app.tool(effect="once")
    def fetch(key: Secret) -> None:
        assert key.reveal()
        raise RuntimeError("no: https://api/x/sk_live_hunter2%2F%2B/y")

    assert ended(app, "fetch").message == "no: https://api/x/[redacted]/y"


def test_a_secret_that_cannot_be_had_is_an_attempt_that_did_not_happen() -> None:
    found = ended(shop(), "fails", '{"key":{"secret":"other"}}')

    assert (found.status, found.code, found.retryable) == ("failed", "not_done", True)
    assert "no value for the secret other" in found.message


def test_a_provider_that_fails_tells_nothing_but_the_kind_of_its_error() -> None:
    def leaks(name: str) -> str:
        raise ConnectionError(f"https://archived_values/{name} with {VALUE} is down")

    found = ended(shop(secrets=leaks), "pay")

    assert "ConnectionError" in found.message
    assert VALUE not in found.message


def test_a_parameter_may_be_bound_to_names() -> None:
    app = shop()

    assert ended(app, "bound").result == '"stripe_key"'
    assert ended(app, "bound", '{"key":{"secret":"aws_root"}}').code == "usage"
    assert "stripe_key" in json.dumps(app.tools["bound"].schema())
    with pytest.raises(UsageError):
        app.tools["bound"].canonical_args(key=Secret("aws_root"))


@pytest.mark.parametrize("value", [VALUE, {"secret": VALUE, "more": 1}, {"secret": f"{VALUE} "}, {"secret": "a\n"}, 7])
def test_a_value_in_the_place_of_a_name_is_refused_and_not_told(value: Any) -> None:
    with pytest.raises(UsageError) as refused:
        shop().tools["pay"].canonical_args(key=value)

    assert "hunter2" not in str(refused.value)


def test_the_redaction_is_the_apps_own_and_nothing_is_told_when_it_fails() -> None:
    assert ended(shop(redact=lambda text: text.replace("said", "SAID")), "fails").message.count("SAID") == 1
    broken = ended(shop(redact=lambda text: str(1 // 0)), "fails").message

    assert broken == "RuntimeError (not told: redacting it raised ZeroDivisionError)"


def test_half_a_secret_is_not_told_at_the_end_of_a_long_message() -> None:
    app = shop()

    @app.tool(effect="once")
    def long(key: Secret) -> None:
        raise TransientError("x" * 1_995 + key.reveal())

    assert "sk_" not in ended(app, "long").message


def test_the_environment_has_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stripe_key").write_text("from a file\n")
    monkeypatch.setenv("REFOLD_SECRETS", str(tmp_path))
    assert from_environment("stripe_key") == "from a file"

    monkeypatch.setenv("REFOLD_SECRET_STRIPE_KEY", "from a variable")
    assert from_environment("stripe_key") == "from a variable"


@pytest.mark.parametrize("name", ["HOME", "home", "../stripe_key", "a/b", "Stripe_key", "stripe-key", "."])
def test_the_environment_gives_nothing_but_secrets(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "stripe_key").write_text(VALUE)
    monkeypatch.setenv("REFOLD_SECRETS", str(tmp_path / "secrets"))
    monkeypatch.setenv("REFOLD_SECRET_STRIPE_KEY", VALUE)

    with pytest.raises(UsageError):
        from_environment(name)


def test_a_test_of_an_agent_reaches_no_secret_that_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_SECRET_STRIPE_KEY", VALUE)
    app = shop(secrets=from_environment)

    assert run(app, "buy").value == len("the secret stripe_key")
    args = app.tools["pay"].canonical_args(key=Secret("stripe_key"))
    assert canonical.parse(args) == {"key": {"secret": "stripe_key"}}
