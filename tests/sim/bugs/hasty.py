"""Bugs of a process that is told to end: it leaves the bill, or what it was at, to somebody else."""

from __future__ import annotations

from refold.core.events import Failure
from refold.engine.executor.attempt import Attempt
from refold.engine.executor.chained import ChainedAttempt
from tests.sim.bugs.planting import Bug


class ChargesAnAttempt(Attempt):
    """Says of what it cuts off what it says of a timeout: the planner counts that, and tries once more."""

    def cut(self) -> None:
        """See `Attempt`."""
        if self.phase == "running":
            self._stop("handed_over")
            self._finish(self._result("unknown", Failure("drained", "its executor was told to end")))


class TakesBackWhatHasBegun(ChainedAttempt):
    """Says that nothing came of a claim under which its tool runs."""

    def cut(self) -> None:
        """See `Attempt`."""
        if self.phase == "running":
            self._take_back(handed_over=True)


class LeavesItsClaims(ChainedAttempt):
    """Hands a call over, and leaves a claim in its chain that stands for nothing."""

    def _depart(self, *, claimed: bool) -> None:
        self._hand_over()


class ForgetsWhatItClaimed(Attempt):
    """Lets go of a call of which nobody else knows: the planner asks again when it has waited for long enough."""

    def _hand_over(self, *, begun: bool = False) -> None:
        self._let_go()


HASTY: dict[str, Bug] = {
    "drain-charges-an-attempt": Bug(("keyed-slow",), (("executor.service.Attempt", ChargesAnAttempt),), ("drain",)),
    "drain-takes-back-what-has-begun": Bug(
        ("once-shared",), (("executor.service.ChainedAttempt", TakesBackWhatHasBegun),), ("drain",)
    ),
    "drain-leaves-its-claims": Bug(("once",), (("executor.service.ChainedAttempt", LeavesItsClaims),), ("drain",)),
    "drain-forgets-what-it-claimed": Bug(("keyed",), (("executor.service.Attempt", ForgetsWhatItClaimed),), ("drain",)),
}
