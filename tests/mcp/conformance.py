"""The judges of the protocol's makers look at our client, in both eras: `make conformance`. They need Node."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile

JUDGES = ("node@22", "@modelcontextprotocol/conformance@0.2.0-alpha.12")
"""The judges, and the Node that they need, whichever is here."""

OLD, NEW = "2025-11-25", "2026-07-28"
SCENARIOS = {
    OLD: ("initialize", "tools_call", "sse-retry", "json-schema-2020-12-preservation"),
    NEW: (
        *("tools_call", "request-metadata", "sep-2322-client-request-state", "http-standard-headers"),
        *("http-custom-headers", "http-invalid-tool-headers", "json-schema-ref-no-deref"),
        "json-schema-2020-12-preservation",
    ),
}
"""All that are for clients but those of OAuth (`auth/*`), which we have not, and of questions while a call is open
(`elicitation-sep1034-client-defaults`), which we refuse."""

CLIENT = f"{sys.executable} -m tests.mcp.conforming"


def judged(npx: str, version: str, scenario: str) -> tuple[bool, str]:
    """Whether a scenario is passed, and what was said of it."""
    packages = [word for package in JUDGES for word in ("-p", package)]
    words = ["conformance", "client", "--command", CLIENT, "--scenario", scenario, "--spec-version", version]
    with tempfile.TemporaryDirectory() as folder:
        command = [npx, "--yes", *packages, *words, "--timeout", "120000", "-o", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    passed = re.search(r"Passed: (\d+)/(\d+)", said)
    good = done.returncode == 0 and passed is not None and passed[1] == passed[2] != "0"
    return good, passed[0] if good and passed else said


def main(npx: str | None = shutil.which("npx")) -> int:
    """Prints a line for each scenario. 0: all are passed, or nobody is here to judge."""
    if npx is None:
        sys.stdout.write("conformance: no npx here, so nobody judges: install Node to run this\n")
        return 0
    failed = 0
    for version, scenarios in SCENARIOS.items():
        for scenario in scenarios:
            good, said = judged(npx, version, scenario)
            failed += not good
            sys.stdout.write(f"{version}  {scenario:<34} {said}\n")
            sys.stdout.flush()
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
