"""Hunts planted bugs that their kept cases do not show, on all cores, and writes the cases that do to `kept.txt`."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.sim.bugs.bugs import BUGS
from tests.sim.bugs.hunt import KEPT, hunt, kept_or_hunted, read, write


def main() -> int:
    """Exit code 1 where a bug is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.bugs", description=__doc__)
    parser.add_argument("--anew", action="store_true", help="hunt all of them")
    options = parser.parse_args()
    before = read(KEPT.read_text()) if KEPT.exists() else {}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        look = hunt if options.anew else partial(kept_or_hunted, kept=before)
        hunted = dict(zip(BUGS, pool.map(look, BUGS), strict=True))
    found = {name: shown[0] for name, shown in hunted.items() if shown}
    KEPT.write_text(write(found))
    moved = sum(found[name] != before.get(name) for name in found)
    missed = sorted(hunted.keys() - found.keys())
    sys.stdout.write(f"{len(found)} planted bugs found, {moved} by another case than before; not found: {missed}\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
