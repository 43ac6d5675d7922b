"""Judge of a fork's calls: by its draft policy, the run's policy, or the log."""

from collections.abc import Callable, Iterable, Mapping

from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.approval.policy import Judgement, Policy
from refold.core.events import CallProposed, Requirement
from refold.core.run.state import RunState
from refold.sdk.app import App
from refold.sdk.sources import FactsTable

# None: the recorded run has no judgement of this call.
Recall = Callable[[RunState, CallProposed], Judgement | None]


class ForkAuthority(Authority):
    """Judges the calls of a fork by the draft, else by the run's policy, else as in the log. `doubt`: policy and
    settlers of calls in doubt, from the log."""

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
        """Set the recorded re-judgements of the present input, by step, and whether it left a doubt to operators."""
        self._again = {} if self._draft else again
        self._asks_nobody = asks_nobody and not self._draft

    def changed(self, policy: str) -> bool:
        """True if another policy judged calls for the present input in the record."""
        return any(judged.policy != policy for judged in self._again.values())

    def judge(
        self, state: RunState, call: CallProposed, policy: str, *, ahead: int = 0, unknown: frozenset[str] = frozenset()
    ) -> Judgement:
        digest = self._draft.digest if self._draft else policy
        if (again := self._again.get(call.step)) is not None:
            return again
        if digest not in self.catalog.policies:
            if (recorded := self._recall(state, call)) is not None:
                return recorded
            # A call that the log lacks is allowed: it reaches no executor, and ends the fork as unanswered.
            if digest:
                return Judgement("allow", "", digest, "the policy of the run is not known here: --policy FILE")
        return super().judge(state, call, digest, ahead=ahead, unknown=unknown)

    def settlers(self, policy: str) -> tuple[str, Requirement] | None:
        if self._asks_nobody:
            return None
        digest = self._draft.digest if self._draft else policy
        return super().settlers(digest) if digest in self.catalog.policies else self._doubt
