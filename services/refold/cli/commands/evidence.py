"""`refold why` and `refold verify`: causes of events, their proof, and checks of bundles and of the log."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from refold.cli import options, output
from refold.cli.errors import REDACTED, fail
from refold.cli.platform import Shell, source, writing
from refold.cli.recorded import FromLog, known_family
from refold.cli.views import runs as run_views
from refold.client.reading.history import Run
from refold.client.reading.why import WhyLink, why
from refold.client.reading.words import in_utc
from refold.client.verify import verify_log
from refold.core.approval.signature import trusted
from refold.core.errors import NotFoundError
from refold.core.ids import RunId, asked_about, is_below, parse_call_id
from refold.engine.runtime.addresses import addresses
from refold.engine.runtime.clock import clock_ms
from refold.lab.evidence.bundle import Bundle
from refold.lab.evidence.gathering import bundle_of, claims_of, linked_runs, open_bundle, run_of_key
from refold.lab.evidence.redaction import rules_of
from refold.lab.evidence.verify import VerifiedBundle, verify_bundle

_KEY = re.compile(r"[0-9a-f]{64}\Z")
SHOWN = 24
"""Most links printed; --json has all."""


@dataclass(frozen=True)
class WhyOptions(Shell):
    bundle: Annotated[
        str, "FILE", "Also write the records of every link, or those of RUN and its children, for `refold verify`."
    ] = ""
    redact: Annotated[str, "args,results", "Replace these values by their digests."] = ""
    from_log: FromLog = False


def _write(bundle: Bundle, file: str) -> str:
    with writing(file) as path, path.open("wb") as out:
        out.writelines(bundle.lines())
    return f"{output.counted(len(bundle.runs), 'run')} in {file}"


def why_event(
    name: Annotated[str, "ID", "RUN/SEQ, an approval, an idempotency key, or with --bundle a RUN."],
    *,
    shell: WhyOptions,
) -> None:
    """Show why something happened: from an effect back to the request, each link with its place in Kafka."""
    rules = rules_of(shell.redact)
    if shell.bundle and "/" not in name and not _KEY.match(name):
        _write_family(name, rules, shell)
        return
    runs = dict[str, Run]()
    find = partial(_find, runs, shell)
    run_name, seq = run_of_key(shell.runs.reader, name, find) if _KEY.match(name) else parse_call_id(asked_about(name))
    runs |= known_family(run_name, shell, from_log=shell.from_log)
    run = runs[run_name]
    chain = why(run, seq, find)
    if call := chain.chained:
        chain = why(run, seq, find, claims=claims_of(shell.runs.reader, [run], call))
    if shell.bundle:
        output.note(_write(bundle_of(name, linked_runs(chain, runs.get), shell.platform, rules), shell.bundle))
    shell.print(chain, lambda: _print(chain.links))


def _write_family(run: str, rules: Sequence[str], shell: WhyOptions) -> None:
    runs = known_family(run, shell, from_log=shell.from_log)
    family = {RunId(name): (relative, 0) for name, relative in runs.items() if is_below(name, run)}
    text = _write(bundle_of(run, family, shell.platform, rules), shell.bundle)
    shell.print({"file": shell.bundle, "runs": list(family)}, output.escape(text))


@dataclass(frozen=True)
class VerifyOptions(Shell):
    run_: Annotated[str, "Check only this run in the log."] = ""
    settle: Annotated[float, "Wait up to this long for other topics to agree with the log.", {"min": 0}] = 5.0
    root: Annotated[str, "KID:X|@FILE", "Root keys that you trust.  \\[default: REFOLD_TRUST]"] = ""
    head: Annotated[str, "HEX,...", "Heads that runs of the bundle must have, from another source."] = ""
    catalog: Annotated[options.Natural, "N", "Number of the catalog's last entry, from another source."] = 0


def verify(
    bundle: Annotated[str, "BUNDLE", "A file that `refold why --bundle` has written."] = "", *, shell: VerifyOptions
) -> None:
    """Check a bundle by its bytes alone, without Kafka; or, without BUNDLE, the log.

    Prints each hole of a bundle with its run, event and record. Exit code 0: the bundle holds, with the printed notes.
    1: it has a hole or an unproven part (no root key, a catalog older than a decision). 2: the file is not a bundle. 8:
    entries are redacted.

    The log is checked from its raw bytes: chains, folds, other topics. Exit code 1 if anything is violated.
    """
    if bundle:
        shell.refuse("run_ settle kafka", "is for the log, and not for BUNDLE")
        _verify_bundle(bundle, shell)
        return
    shell.refuse("root head catalog", "is for BUNDLE, the file of a bundle")
    verified = verify_log(shell.runs.reader, shell.platform.trust, now_ms=clock_ms(), settle_s=shell.settle)
    if shell.run_:
        verified = verified.only(shell.run_)
    row = {"ok": not verified.violations, **output.plain(verified)}
    shell.print(row, lambda: run_views.print_verified(verified), ok=not verified.violations)


def _verify_bundle(bundle: str, shell: VerifyOptions) -> None:
    trust = trusted(source(shell.root).partition("\n")[0]) if shell.root else addresses(data=shell.data).trust
    with open_bundle(Path(bundle)) as file:
        verified = verify_bundle(file, trust, heads=shell.head.lower().replace(",", " ").split(), catalog=shell.catalog)
    verdict = verified.verdict
    row = {"holds": verdict == "holds", "verdict": verdict, **output.plain(verified)}
    shell.print(row, lambda: _print_verified(verified), ok=verdict in ("holds", "redacted"))
    if verdict == "redacted":
        fail(REDACTED)


def _find(runs: dict[str, Run], shell: WhyOptions, run: str) -> Run | None:
    """Run by id, from `runs` or else read, and added there with its family; None if there is none."""
    with suppress(NotFoundError):
        runs |= {} if run in runs else known_family(run, shell, from_log=shell.from_log)
    return runs.get(run)


def _print(links: list[WhyLink]) -> None:
    head, tail = (links, []) if len(links) <= SHOWN else (links[: SHOWN - 4], links[-4:])
    for link in head:
        _print_link(link)
    if tail:
        output.say(f"[dim]  … {len(links) - SHOWN} links: --json has all of them[/]")
    for link in tail:
        _print_link(link)


def _print_link(link: WhyLink) -> None:
    by, cause = f" by {link.by}" if link.by else "", link.cause
    headline = output.escape(f"{link.run_id}/{link.seq} {', '.join(link.events)}{by}")
    caused = f" ← {cause.topic}/{cause.partition}/{cause.offset}" if cause else ""
    output.say(f"[bold]{link.kind:11}[/] {headline}  [dim]{output.escape(link.place + caused)}[/]")
    facts = [
        (name, fact if isinstance(fact, str) else json.dumps(output.plain(fact))) for name, fact in link.said.items()
    ]
    if facts:
        output.say(f"            {', '.join(f'{name} {output.escape(text, 80)}' for name, text in facts)}")


def _print_verified(verified: VerifiedBundle) -> None:
    def say(name: str, text: str) -> None:
        output.say(f"{name:9}{output.escape(text)}")

    say("about", verified.about)
    for run in verified.runs:
        details = f"{run.agent} for {run.requester or 'nobody'}, {run.status}"
        say("run", f"{run.run_id}  {details}: {run.entries} entries to event {run.seq}, head {run.head}")
    for decision in verified.decisions:
        line = f"{decision.call_id} {decision.tool}: {decision.verdict} by {', '.join(decision.actors)}"
        say("decision", f"{line} ({'checked' if decision.checked else 'not checked'})")
    if verified.root:
        by = f"of {verified.platform or 'a platform that it does not name'}, by root {', '.join(verified.root)}"
        say("catalog", f"{by}; it ends with number {verified.catalog[0]}, signed {in_utc(verified.catalog[1])}")
    for note in verified.notes:
        say("note", note)
    for hole in verified.holes:
        place = f"{hole.run_id}/{hole.seq}, " if hole.seq else ""
        say("hole", f"{place}record {hole.record} ({hole.kind}): {hole.what}")
    verdicts = {"holds": "everything agrees, as far as the notes say", "broken": "it does not hold"}
    say("verdict", verdicts.get(verified.verdict, f"not proven ({verified.verdict}), see the notes"))
