"""`refold why`, `refold verify` and `refold run bundle`: causes of events and their proof."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from refold.cli import options, output
from refold.cli.errors import REDACTED, fail
from refold.cli.platform import Printer, Shell, source, writing
from refold.cli.recorded import FromLog, known_family
from refold.client.addresses import addresses
from refold.client.evidence import bundle_of, claims_of, linked_runs, reading, run_of_key
from refold.core.approval.signature import trusted
from refold.core.errors import NotFoundError
from refold.core.ids import RunId, asked_about, is_below, parse_call_id
from refold.evidence.bundle import Bundle
from refold.evidence.redaction import rules_of
from refold.evidence.verify import VerifiedBundle, verify_bundle
from refold.views.history import Run
from refold.views.why import WhyLink, why
from refold.views.words import in_utc

_KEY = re.compile(r"[0-9a-f]{64}\Z")
SHOWN = 24
"""Most links printed; --json has all."""

RedactOption = Annotated[str, "args,results", "Replace these values by their digests."]


@dataclass(frozen=True)
class WhyOptions(Shell):
    bundle: Annotated[str, "FILE", "Also write the records of every link into FILE, for `refold verify`."] = ""
    redact: RedactOption = ""
    from_log: FromLog = False


def _write(bundle: Bundle, file: str) -> str:
    with writing(file) as path, path.open("wb") as out:
        out.writelines(bundle.lines())
    return f"{output.counted(len(bundle.runs), 'run')} in {file}"


def why_event(
    name: Annotated[str, "ID", "RUN/SEQ, an approval, or an idempotency key."], *, asking: WhyOptions
) -> None:
    """Show why something happened: from an effect back to the request, each link with its place in Kafka."""
    rules = rules_of(asking.redact)
    known = dict[str, Run]()
    find = partial(_find, known, asking)
    by_key = _KEY.match(name)
    run_name, seq = run_of_key(asking.runs.reader, name, find) if by_key else parse_call_id(asked_about(name))
    known |= known_family(run_name, asking, from_log=asking.from_log)
    run = known[run_name]
    found = why(run, seq, find)
    if call := found.chained:
        found = why(run, seq, find, claims=claims_of(asking.runs.reader, [run], call))
    if asking.bundle:
        bundle = bundle_of(name, linked_runs(found, known.get), asking.platform, rules)
        output.note(_write(bundle, asking.bundle))
    asking.tell(found, lambda: _print(found.links))


def bundle_run(
    run: options.RunArgument,
    *,
    to: Annotated[str, "FILE", "The file to write.  \\[default: RUN.jsonl]"] = "",
    redact: RedactOption = "",
    from_log: FromLog = False,
    shell: Shell,
) -> None:
    """Write a run and the runs that it has started into a file, for `refold verify` and `--bundle`."""
    known, file = known_family(run, shell, from_log=from_log), to or f"{run}.jsonl"
    family = {RunId(name): (each, 0) for name, each in known.items() if is_below(name, run)}
    words = _write(bundle_of(run, family, shell.platform, rules_of(redact)), file)
    shell.tell({"file": file, "runs": list(family)}, output.escape(words))


def verify_file(
    bundle: Annotated[str, "BUNDLE", "A file that `refold why` or `refold run bundle` has written."],
    *,
    root: Annotated[str, "KID:X|@FILE", "Root keys that you trust.  \\[default: REFOLD_TRUST]"] = "",
    head: Annotated[str, "HEX,...", "Heads that runs of the bundle must have, from another source."] = "",
    catalog: Annotated[options.Natural, "N", "Number of the catalog's last entry, from another source."] = 0,
    data: options.DataOption = "",
    printer: Printer,
) -> None:
    """Check a bundle by its bytes alone, without Kafka. Prints each hole with its run, event and record.

    Exit code 0: the bundle holds, with the printed notes. 1: it has a hole or an unproven part (no root key, a catalog
    older than a decision). 2: the file is not a bundle. 8: entries are redacted.
    """
    trust = trusted(source(root).partition("\n")[0]) if root else addresses(data=data).trust
    with reading(Path(bundle)) as file:
        found = verify_bundle(file, trust, heads=head.lower().replace(",", " ").split(), catalog=catalog)
    verdict = {"holds": found.verdict == "holds", "verdict": found.verdict}
    printer.tell(
        verdict | output.plain(found), lambda: _print_verified(found), ok=found.verdict in ("holds", "redacted")
    )
    if found.verdict == "redacted":
        fail(REDACTED)


def _find(known: dict[str, Run], asking: WhyOptions, run: str) -> Run | None:
    """Read a run, and add its family to `known`."""
    with suppress(NotFoundError):
        known |= {} if run in known else known_family(run, asking, from_log=asking.from_log)
    return known.get(run)


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
    what = output.escape(f"{link.run_id}/{link.seq} {', '.join(link.events)}{by}")
    caused = f" ← {cause.topic}/{cause.partition}/{cause.offset}" if cause else ""
    output.say(f"[bold]{link.kind:11}[/] {what}  [dim]{output.escape(link.place + caused)}[/]")
    about = [
        (name, value if isinstance(value, str) else json.dumps(output.plain(value)))
        for name, value in link.said.items()
    ]
    if about:
        output.say(f"            {', '.join(f'{name} {output.escape(text, 80)}' for name, text in about)}")


def _print_verified(found: VerifiedBundle) -> None:
    def say(name: str, text: str) -> None:
        output.say(f"{name:9}{output.escape(text)}")

    say("about", found.about)
    for run in found.runs:
        asked = f"{run.agent} for {run.requester or 'nobody'}, {run.status}"
        say("run", f"{run.run_id}  {asked}: {run.entries} entries to event {run.seq}, head {run.head}")
    for each in found.decisions:
        words = f"{each.call_id} {each.tool}: {each.verdict} by {', '.join(each.actors)}"
        say("decision", f"{words} ({'checked' if each.checked else 'not checked'})")
    if found.root:
        by = f"of {found.platform or 'a platform that it does not name'}, by root {', '.join(found.root)}"
        say("catalog", f"{by}; it ends with number {found.catalog[0]}, signed {in_utc(found.catalog[1])}")
    for note in found.notes:
        say("note", note)
    for hole in found.holes:
        place = f"{hole.run_id}/{hole.seq}, " if hole.seq else ""
        say("hole", f"{place}record {hole.record} ({hole.kind}): {hole.what}")
    verdicts = {"holds": "everything agrees, as far as the notes say", "broken": "it does not hold"}
    say("verdict", verdicts.get(found.verdict, f"not proven ({found.verdict}), see the notes"))
