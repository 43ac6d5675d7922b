"""Turns of what is compared, each a process of its own, in groups that belong together; what was measured stays in a
file, so that a sitting can be ended and gone on with.

The machine drifts by more than most changes matter, so only figures of one group are compared: its turns follow each
other at once, and every second group has them in the reverse order (A B, B A).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.engine import ROOT
from benchmarks.peers.load import MISSING

Result = dict[str, Any]
"""`at`, when it began, and the `figures` of a turn; or the reason why there are none, as `failed` (something is wrong)
or `missing` (it cannot be measured here)."""

FOLDER = ROOT / "build" / "bench"
FRESH_S = 15.0
"""A shared turn that ends a group counts as the first of the next one too, if that begins so soon."""


@dataclass(frozen=True)
class Turn:
    """`python -m module JSON`, whose last line is JSON. `name` is for people."""

    name: str
    module: str
    wanted: Mapping[str, Any] = field(default_factory=dict, hash=False)
    python: str = sys.executable
    limit_s: float = 400.0
    shared: bool = False

    def take(self) -> Result:
        """Run it, and end all of its processes."""
        command = [self.python, "-m", self.module, json.dumps(self.wanted)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {self.limit_s:g} s"}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            reason = (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1][:300]
            return {"missing" if process.returncode == MISSING else "failed": reason}
        return {"figures": json.loads(out.strip().splitlines()[-1])}


class Sitting:
    """Groups of turns, read from the file of the sitting or measured, until its time is over."""

    def __init__(self, name: str, settings: Mapping[str, Any], *, minutes: float, new: bool) -> None:
        self.settings = {**settings, "machine": machine()}
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        self.file = FOLDER / f"{name}-{digest}.jsonl"
        if new:
            self.file.unlink(missing_ok=True)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self._stored = {each["group"]: each for each in map(json.loads, lines)}
        self._end = time.monotonic() + minutes * 60
        self._last: tuple[Turn, Result, float] | None = None

    def measure(self, groups: Mapping[str, Sequence[Turn]]) -> dict[str, dict[str, Result]]:
        """Return the results of each group by the names of its turns; without groups for which there was no time."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        left = [name for name in groups if name not in self._stored]
        for number, name in enumerate(left, 1):
            if time.monotonic() > self._end:
                print(f"time is over: {len(left) - number + 1} groups are left for the next call", file=sys.stderr)
                break
            begun = time.strftime("%Y-%m-%dT%H:%M:%S")
            results = {turn.name: self._take(turn, f"{number}/{len(left)}") for turn in groups[name]}
            self._stored[name] = {"group": name, "at": begun, "results": results}
            with self.file.open("a") as file:
                file.write(json.dumps(self._stored[name]) + "\n")
        return {name: self._stored[name]["results"] for name in groups if name in self._stored}

    @property
    def dates(self) -> str:
        """The days on which it was measured."""
        days = sorted({each["at"][:10] for each in self._stored.values()})
        return " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))

    def _take(self, turn: Turn, place: str) -> Result:
        if turn.shared and self._last and self._last[0] == turn and time.monotonic() - self._last[2] < FRESH_S:
            return self._last[1]
        begun = time.monotonic()
        result = {"at": time.time(), **turn.take()}
        self._last = turn, result, time.monotonic()
        trouble = "".join(f": {word}: {result[word]}" for word in ("failed", "missing") if word in result)
        print(f"{place} {turn.name}, {time.monotonic() - begun:.0f} s{trouble}", file=sys.stderr, flush=True)
        return result


def machine() -> dict[str, Any]:
    """The machine and its Python, as far as figures depend on them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    built = [word for word in ("--enable-optimizations", "--with-lto") if word in options]
    return {
        "cores": os.cpu_count(),
        "cpu": model[0] if model else platform.machine(),
        "memory_gib": round(memory),
        "python": f"{platform.python_version()} configured with {' '.join(built) or 'no optimizations'}",
    }


def described(about: Mapping[str, Any]) -> str:
    """The machine in words."""
    return "{cores} cores ({cpu}), {memory_gib} GiB, Python {python}".format(**about)


def others(results: Mapping[str, Mapping[str, Result]]) -> str:
    """The most that everything else on the machine used beside a figure, in words."""
    figures = [result.get("figures") for group in results.values() for result in group.values()]
    cores = [each["others_cores"] for some in figures if isinstance(some, list) for each in some if "runs" in each]
    return f"other work: up to {max(cores):.2f} cores" if cores else "other work unknown"


def commit(checkout: Path) -> str:
    """The commit of a checkout, and a digest of what is not committed."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True)
        return done.stdout

    changes = git("diff", "HEAD", "--", "services", "benchmarks")
    more = f"+{hashlib.sha256(changes.encode()).hexdigest()[:6]}" if changes else ""
    return git("rev-parse", "--short=8", "HEAD").strip() + more


def spread(values: Sequence[float], form: str = "{:,.2f}") -> str:
    """The median of some values, and their range if there are several: `0.68 (0.66-0.71)`."""
    if not values:
        return ""
    median, least, most = (form.format(each) for each in (statistics.median(values), min(values), max(values)))
    return median if len(values) == 1 else f"{median} ({least}-{most})"


def table(columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown, whose rows have names."""
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    return lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
