"""`python -m tests.sdk.programs --programs 50000 --seed 7`.

Progress goes to stderr, JSON to stdout; the exit code is 1 if a program differs.

Each thousand is recorded in a process of its own, and checked in another with another hash seed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from refold.core.errors import NonDeterminismError
from tests.sdk.programs.grammar import program
from tests.sdk.programs.plants import PLANTS
from tests.sdk.programs.play import Checker, Difference, Turn, listen, record

CHUNK = 1_000
"""Programs of a process: it takes half a second to start, and a few to play them."""
MOST_TOLD = 10
"""Differences that are told in full."""


def main() -> int:
    """Runs what the arguments say."""
    options = _options()
    if options.part:
        return _part(options)
    seeds, begun = range(options.seed, options.seed + options.programs), time.monotonic()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    found: dict[str, Any] = {"programs": 0, "outcomes": 0, "cuts": 0, "cpu_s": 0.0, "wrong": []}
    with ThreadPoolExecutor(options.jobs or os.cpu_count()) as pool:
        for told in pool.map(lambda chunk: _both(options, chunk), chunks):
            for name, value in told.items():
                found[name] += value
            took = time.monotonic() - begun
            print(f"{found['programs']:,} programs, {len(found['wrong'])} wrong, {took:.0f} s", file=sys.stderr)
    found["cpu_s"] = round(found["cpu_s"], 1)
    for wrong in found["wrong"][:MOST_TOLD]:
        print(f"\n{wrong['what']}\n{wrong['command']}", file=sys.stderr)
    print(json.dumps({**found, "wrong": [wrong["command"] or wrong["what"] for wrong in found["wrong"]]}))
    return 1 if found["wrong"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sdk.programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cuts", type=int, default=3, help="prefixes of each to drive fresh code to; 0: every one")
    parser.add_argument("--jobs", type=int, default=0, help="processes at a time; 0: one per core")
    parser.add_argument("--plant", choices=PLANTS, help="break a rule of the loop: programs have to differ")
    parser.add_argument("--words", action="store_true", help="tell every turn in words, and the program")
    parser.add_argument("--part", choices=("record", "check"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _both(options: argparse.Namespace, seeds: range) -> dict[str, Any]:
    """Records some programs and checks them, each in a fresh process."""
    given = ["--seed", str(seeds.start), "--programs", str(len(seeds)), "--cuts", str(options.cuts)]
    given += ["--plant", options.plant] if options.plant else []
    given += ["--words"] if options.words else []
    command = [sys.executable, "-m", __spec__.name.rpartition(".")[0], *given]
    same = {**os.environ, "PYTHONHASHSEED": "1"}
    recorded = subprocess.run([*command, "--part", "record"], env=same, stdout=subprocess.PIPE, check=True).stdout
    other = {**os.environ, "PYTHONHASHSEED": str(2 + seeds.start % 4_000_000_000)}
    checked = subprocess.run(
        [*command, "--part", "check"], env=other, input=recorded, stdout=subprocess.PIPE, check=True
    ).stdout
    told: dict[str, Any] = json.loads(checked)
    return told


def _part(options: argparse.Namespace) -> int:
    """One of the two processes."""
    heard = listen()
    if options.plant:
        PLANTS[options.plant]()
    gc.freeze()
    if options.part == "record":
        for seed in range(options.seed, options.seed + options.programs):
            print(json.dumps([seed, record(seed, words=options.words)], separators=(",", ":")))
            if options.words:
                print(f"{seed}: {program(seed)}", file=sys.stderr)
        return 0
    checker = Checker(options.cuts, words=options.words)
    wrong = list(_check(checker, options))
    told = [*checker.leaks(), *(f"{count} times: {what}" for what, count in Counter(heard).items())]
    wrong += [{"what": what, "command": ""} for what in told]
    print(json.dumps({**vars(checker.checked), "wrong": wrong, "cpu_s": sum(os.times()[:2])}))
    return 0


def _check(checker: Checker, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    for line in sys.stdin:
        seed, turns = json.loads(line)
        try:
            checker.check(seed, [Turn(*turn) for turn in turns])
        except (Difference, NonDeterminismError, LookupError, AssertionError) as difference:
            command = f"python -m tests.sdk.programs --words --programs 1 --cuts 0 --seed {seed}"
            yield {"what": f"program {seed}: {difference!r}", "command": command}
            if options.plant:
                return  # one difference shows the rule that is broken


if __name__ == "__main__":
    sys.exit(main())
