"""Judgement of the calls of a fork: by a policy of the catalog, a draft in its place, or the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.approval.policy import Judgement, Policy
from refold.core.events import CallProposed, Requirement
from refold.core.run.state import RunState
from refold.sdk.app import App
from refold.sdk.sources import FactsTable

Recall = Callable[[RunState, CallProposed], Judgement | None]
"""Judgement on the same call in the recorded run; None if it has none."""


class ForkAuthority(Authority):
    """Judges the calls of a fork: by the `draft` if there is one, else by the run's policy, if it is known. Otherwise,
    as for an archived run without its catalog, a call is judged as in the log, and one that the log lacks is allowed:
    it ends unanswered. `doubt` has the settlers of doubts in the log."""

    def __init__(
        self,
        app: App,
        environment: str,
        policies: Iterable[Policy],
        draft: Policy | None,
        recall: Recall,
        doubt: tuple[str, Requirement] | None,
    ) -> None:
        catalog = Catalog()
        for policy in (*policies, *([draft] if draft else [])):
            catalog.policies[policy.digest] = policy
        super().__init__(FactsTable(app.tools), environment, catalog)
        self._draft, self._recall, self._doubt = draft, recall, doubt
        self._again: Mapping[int, Judgement] = {}
        self._asks_nobody = False

    def follow(self, again: Mapping[int, Judgement], *, asks_nobody: bool = False) -> None:
        """Note that the present input, in the record, judged calls again, by step, or left doubts to operators."""
        self._again = {} if self._draft else again
        self._asks_nobody = asks_nobody and not self._draft

    def changed(self, policy: str) -> bool:
        """True while the present input was judged by another policy in the record."""
        return any(judged.policy != policy for judged in self._again.values())

    def judge(
        self,
        state: RunState,
        call: CallProposed,
        policy: str,
        *,
        ahead: int = 0,
        unknown: frozenset[str] = frozenset(),
    ) -> Judgement:
        digest = self._draft.digest if self._draft else policy
        if (again := self._again.get(call.step)) is not None:
            return again
        if digest not in self.catalog.policies:
            if (recorded := self._recall(state, call)) is not None:
                return recorded
            if digest:
                return Judgement("allow", "", digest, "the policy of the run is not known here: --policy FILE")
        return super().judge(state, call, digest, ahead=ahead, unknown=unknown)

    def settlers(self, policy: str) -> tuple[str, Requirement] | None:
        """Settlers of a call in doubt, by the policy that judges it here."""
        if self._asks_nobody:
            return None
        digest = self._draft.digest if self._draft else policy
        return super().settlers(digest) if digest in self.catalog.policies else self._doubt
