"""Contract suites for authors of tools: the promises of an effect class, checked against a world that counts effects.

With pytest, inherit a suite:

    class TestPay(KeyedContract):
        app, tool, args = app, "pay", {"amount": 20}

        def effects(self) -> int:
            return len(BANK.transfers)

Tools and probes run as in executors, under fresh keys. A suite checks more of one tool than `crash_matrix`, and works
with a real receiver: a database, a sandbox of a provider. A `once` tool has no suite: it may not be tried twice.
"""

from collections.abc import Mapping
from dataclasses import replace
from queue import SimpleQueue
from secrets import token_hex
from typing import Any, ClassVar

from refold.core.defaults import PAYLOAD_BYTES
from refold.core.ids import call_id, run_id
from refold.core.messages import ToolRequest
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.ports.effects import StartTool, ToolEnded
from refold.sdk.app import App


class ToolContract:
    """Base of the suites: the `tool` of this name in the `app`, and valid arguments."""

    effect: ClassVar[str]
    app: App
    tool: str
    args: Mapping[str, Any]

    def effects(self) -> int:
        """Number of effects so far: rows, files, requests that a receiver counted."""
        raise NotImplementedError(f"{type(self).__name__}.effects says how much has happened in the world")

    def attempt(self, *keys: str) -> list[ToolEnded]:
        """Outcome of attempts with these idempotency keys, all at once."""
        return self._run(keys, probe=False)

    def result(self, key: str) -> str:
        """Result of an attempt, which must have one, as JSON."""
        [ended] = self.attempt(key)
        assert ended.status == "completed", f"{self.tool} did not complete: {ended.code}, {ended.message}"
        return ended.result

    def growth(self, *keys: str) -> int:
        """Number of new effects after attempts with these keys."""
        before = self.effects()
        self.attempt(*keys)
        return self.effects() - before

    def test_the_tool_is_declared_as_its_suite_says(self) -> None:
        declared = self.app.find(self.tool).effect
        assert declared == self.effect, f"{self.tool} is declared {declared}, this suite is for {self.effect} tools"

    def _run(self, keys: tuple[str, ...], *, probe: bool) -> list[ToolEnded]:
        tool, run, ended = self.app.find(self.tool), run_id(f"contract-{token_hex(4)}"), SimpleQueue[ToolEnded]()
        order = ToolRequest(
            *(call_id(run, 1), run, 1, 1, 0, tool.name, tool.canonical_args(**self.args), ""),
            effect=tool.effect,
            timeout_ms=tool.timeout_ms,
        )
        toolbox = Toolbox(self.app, ended.put, threads=max(1, len(keys)), max_result=PAYLOAD_BYTES)
        try:
            toolbox.start([StartTool(number, replace(order, key=key), probe) for number, key in enumerate(keys)])
            results = [ended.get(timeout=tool.timeout_ms / 1000) for _ in keys]
        finally:
            toolbox.close()
        return sorted(results, key=lambda result: result.number)


class KeyedContract(ToolContract):
    """A `keyed` tool: its receiver recognises the idempotency key, so that repetitions do no harm."""

    effect = "keyed"

    def test_the_same_key_again_changes_nothing_and_gives_the_same_result(self) -> None:
        key = fresh_key()
        # A retry, or an executor that took over.
        first, before = self.result(key), self.effects()
        again = self.result(key)
        assert self.effects() == before, f"{self.tool} acted again with a key that it had acted with: is it handed on?"
        assert again == first, f"{self.tool} gave {again} for a key for which it had given {first}"

    def test_the_same_key_twice_at_once_acts_once(self) -> None:
        once, key = self.growth(fresh_key()), fresh_key()
        # An executor that was presumed dead, and its successor. One of the two may be refused.
        twice = self.growth(key, key)
        assert twice <= once, f"{self.tool} acted {twice} times where one attempt acts {once} times: two came at once"

    def test_another_key_acts_again(self) -> None:
        # Equal arguments in another call are another effect: a receiver that deduplicates by them drops it.
        first, second = self.growth(fresh_key()), self.growth(fresh_key())
        assert first > 0, f"{self.tool} did nothing that `effects` counts"
        if self.app.find(self.tool).keyed_by == "arguments":
            assert second == 0, f"{self.tool} acted again with equal arguments, and is declared keyed_by='arguments'"
            return
        assert second == first, f"{self.tool} acted {second} times with a fresh key, and {first} times with the first"


class ProbedContract(ToolContract):
    """A `probed` tool: its probe finds out if the effect of a key has happened."""

    effect = "probed"

    def test_the_probe_says_of_what_was_not_tried_that_it_did_not_happen(self) -> None:
        self._probe_says(fresh_key(), "did_not_happen")
        self.result(fresh_key())
        self._probe_says(fresh_key(), "did_not_happen")

    def test_the_probe_finds_what_has_happened_and_gives_its_result(self) -> None:
        key, before = fresh_key(), self.effects()
        result = self.result(key)
        assert self.effects() > before, f"{self.tool} did nothing that `effects` counts"
        probed = self._probe_says(key, "happened")
        assert probed == result, f"the probe of {self.tool} gives {probed} for a call that gave {result}"

    def _probe_says(self, key: str, status: str) -> str:
        before = self.effects()
        [ended] = self._run((key,), probe=True)
        assert self.effects() == before, f"the probe of {self.tool} acts: it is to look only"
        assert ended.status == status, f"the probe of {self.tool} says {ended.status} {ended.message}, not {status}"
        return ended.result


class PureContract(ToolContract):
    """A `pure` tool: any number of runs leaves no trace."""

    effect = "pure"

    def test_it_leaves_nothing_behind(self) -> None:
        before = self.effects()
        self.result(fresh_key())
        self.result(fresh_key())
        acted = self.effects() - before
        assert acted == 0, f"{self.tool} is declared pure and acted {acted} times: declare it keyed, probed or once"


def fresh_key() -> str:
    # The world may be a persistent one.
    return token_hex(32)
