"""`refold run verify`: what the verifier found, as data or as words."""

from __future__ import annotations

from refold.cli import output
from refold.cli.clock import clock_ms
from refold.client.verify import Verified, verify_log
from refold.core.errors import NotFoundError
from refold.ports.log import LogReader


def report(reader: LogReader, run: str, *, settle_s: float, as_json: bool) -> bool:
    """Verifies and prints; true if nothing is wrong. **Raises** NotFoundError for a run that is not there."""
    found = verify_log(reader, now_ms=clock_ms(), settle_s=settle_s)
    if run:
        _only(found, run)
    if as_json:
        output.emit({"ok": not found.violations, **output.plain(found)})
    else:
        _print(found)
    return not found.violations


def _only(found: Verified, run: str) -> None:
    """Leaves what is about one run."""
    mine = [violation for violation in found.violations if violation.run_id == run]
    if run not in found.digests and run not in found.frozen and not mine:
        raise NotFoundError(f"there is no run {run}", hint="`refold run list` shows all")
    found.violations = mine
    found.digests = {run: found.digests[run]} if run in found.digests else {}
    found.frozen = {run: found.frozen[run]} if run in found.frozen else {}
    for names in (found.open, found.overdue, found.in_doubt):
        names[:] = [name for name in names if name == run]


def _print(found: Verified) -> None:
    void = ", ".join(f"{count} {reason}" for reason, count in sorted(found.void.items())) or "none"
    statuses = ", ".join(f"{count} {output.styled(status)}" for status, count in sorted(found.runs.items())) or "none"
    output.say(f"records   {found.records} read, {found.accepted} accepted with {found.events} events, void: {void}")
    output.say(f"runs      {statuses}")
    for name, runs in (("in doubt", found.in_doubt), ("overdue", found.overdue), ("frozen", list(found.frozen))):
        if runs:
            output.say(f"{name:<9} {output.escape(', '.join(runs[:10]))}" + (" ..." if len(runs) > 10 else ""))
    if len(found.digests) <= 10:
        for run, digest in found.digests.items():
            output.say(f"fold      {output.escape(run)} [dim]{digest}[/]")
    for violation in found.violations:
        output.say(f"[red]{violation.kind}[/] {output.escape(violation.run_id)}: {output.escape(violation.what)}")
    verdict = f"[red]{len(found.violations)} violations[/]" if found.violations else "[green]everything agrees[/]"
    output.say(f"verdict   {verdict}")
