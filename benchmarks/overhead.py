"""What trainprof costs: bare and profiled runs in turn, and their ratios pair by pair.

    python benchmarks/overhead.py [--pairs 7] [--steps 4000] [--only tiny_mlp]

Machines drift: only figures of a pair, taken one after the other, are compared; the median over
pairs is printed with the smallest and largest. docs/performance.md has the budgets.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
# Script, and the share of --steps that it runs.
CASES = {"tiny_mlp": 1.0, "ten_ms": 0.1, "worker_loaded": 0.15}


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, seen from inside and outside; ns and bytes."""

    steps: int
    median_step_ns: float
    mean_step_ns: float
    peak_rss_bytes: int
    before_first_line_ns: int
    after_last_line_ns: int
    log_bytes: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--only", choices=CASES, action="append")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, python {sys.version.split()[0]}, {arguments.pairs} pairs")
    for name in arguments.only or CASES:
        steps = max(40, int(arguments.steps * CASES[name]))
        pairs = [(run(name, steps, False), run(name, steps, True)) for _ in range(arguments.pairs)]
        report(name, steps, pairs)


def run(name: str, steps: int, is_profiled: bool) -> Figures:
    """Runs a script once, in a fresh directory."""
    directory = Path(tempfile.mkdtemp(prefix="trainprof-overhead-"))
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), str(steps)]
    if is_profiled:
        run_directory = str(directory / "run")
        command[1:1] = ["-m", "trainprof", "run", "-o", run_directory]
    try:
        started = time.perf_counter_ns()
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=directory)
        ended = time.perf_counter_ns()
        inside = json.loads(done.stdout.splitlines()[-1])
        summary = directory / "run" / "summary.json"
        log_bytes = None
        if is_profiled:
            log_bytes = json.loads(summary.read_text())["overhead"]["bytes"]
        return Figures(
            steps=inside["steps"],
            median_step_ns=inside["median_step_ns"],
            mean_step_ns=inside["mean_step_ns"],
            peak_rss_bytes=inside["peak_rss_bytes"],
            before_first_line_ns=inside["first_line_ns"] - started,
            after_last_line_ns=ended - inside["last_line_ns"],
            log_bytes=log_bytes,
        )
    finally:
        shutil.rmtree(directory)


def report(name: str, steps: int, pairs: Sequence[tuple[Figures, Figures]]) -> None:
    """Prints one case: each row is the median over pairs, smallest and largest."""
    bare_us = statistics.median(bare.median_step_ns for bare, _ in pairs) / 1e3
    print(f"\n{name}: {steps:,} steps of {bare_us:,.0f} us")
    row("median step, ratio", [ours.median_step_ns / bare.median_step_ns for bare, ours in pairs])
    row(
        "median step, added us",
        [(ours.median_step_ns - bare.median_step_ns) / 1e3 for bare, ours in pairs],
    )
    row(
        "mean step, added us",
        [(ours.mean_step_ns - bare.mean_step_ns) / 1e3 for bare, ours in pairs],
    )
    row(
        "added before the first line, s",
        [(ours.before_first_line_ns - bare.before_first_line_ns) / 1e9 for bare, ours in pairs],
    )
    row(
        "added after the last line, s",
        [(ours.after_last_line_ns - bare.after_last_line_ns) / 1e9 for bare, ours in pairs],
    )
    row("peak memory, ratio", [ours.peak_rss_bytes / bare.peak_rss_bytes for bare, ours in pairs])
    row("log, bytes a step", [(ours.log_bytes or 0) / ours.steps for _, ours in pairs])


def row(name: str, values: Sequence[float]) -> None:
    middle = statistics.median(values)
    print(f"  {name:<32}{middle:10.3f}   ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
