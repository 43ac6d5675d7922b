"""What the verifier found, of all runs or of one, in words."""

from __future__ import annotations

from refold.cli import output
from refold.client.verify import Verified
from refold.core.errors import NotFoundError


def only(found: Verified, run: str) -> None:
    """Leaves what is about one run. **Raises** NotFoundError if it is not there."""
    mine = [violation for violation in found.violations if violation.run_id == run]
    if run not in found.digests and run not in found.frozen and not mine:
        raise NotFoundError(f"there is no run {run}", hint="`refold run list` shows all")
    found.violations = mine
    found.digests = {run: found.digests[run]} if run in found.digests else {}
    found.frozen = {run: found.frozen[run]} if run in found.frozen else {}
    found.copied = {run: found.copied[run]} if run in found.copied else {}
    for names in (found.open, found.overdue, found.in_doubt):
        names[:] = [name for name in names if name == run]


def print_verified(found: Verified) -> None:
    """What `refold run verify` says."""
    void = ", ".join(f"{count} {reason}" for reason, count in sorted(found.void.items())) or "none"
    statuses = ", ".join(f"{count} {output.styled(status)}" for status, count in sorted(found.runs.items())) or "none"
    output.say(f"records   {found.records} read, {found.accepted} accepted with {found.events} events, void: {void}")
    output.say(f"runs      {statuses}")
    for name, runs in (
        ("in doubt", found.in_doubt),
        ("overdue", found.overdue),
        ("frozen", list(found.frozen)),
        ("copied", list(found.copied)),
    ):
        if runs:
            output.say(f"{name:<9} {output.escape(', '.join(runs[:10]))}" + (" ..." if len(runs) > 10 else ""))
    if len(found.digests) <= 10:
        for run, digest in found.digests.items():
            output.say(f"fold      {output.escape(run)} [dim]{digest}[/]")
    for violation in found.violations:
        output.say(f"[red]{violation.kind}[/] {output.escape(violation.run_id)}: {output.escape(violation.what)}")
    verdict = f"[red]{len(found.violations)} violations[/]" if found.violations else "[green]everything agrees[/]"
    output.say(f"verdict   {verdict}")
