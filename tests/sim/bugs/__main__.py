"""Hunts every planted bug anew, on all cores, and writes the cases that show them to `kept.txt`."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.sim.bugs.bugs import BUGS
from tests.sim.bugs.hunt import KEPT, hunt, read, write


def main() -> int:
    """Exit code 1 where a bug is not found."""
    before = read(KEPT.read_text()) if KEPT.exists() else {}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        hunted = dict(zip(BUGS, pool.map(hunt, BUGS), strict=True))
    found = {name: shown[0] for name, shown in hunted.items() if shown}
    KEPT.write_text(write(found))
    moved = sum(found[name] != before.get(name) for name in found)
    missed = sorted(hunted.keys() - found.keys())
    sys.stdout.write(f"{len(found)} planted bugs found, {moved} by another case than before; not found: {missed}\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
