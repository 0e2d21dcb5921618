"""What trainprof costs: bare and profiled runs in turn, and their ratios pair by pair.

    python benchmarks/overhead.py [--pairs 7] [--steps 4000] [--only tiny_mlp]
    python benchmarks/overhead.py --peers [--pairs 3] [--steps 20000]

With --peers the other profilers that are installed run the smallest step too, all on one core:
in each round every one of them once, between two bare runs.

Machines drift: only figures of a pair, taken one after the other, are compared; the median over
pairs is printed with the smallest and largest. docs/performance.md has the budgets.
"""

from __future__ import annotations

import argparse
import importlib.util
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
PEERS = (
    *("trainprof", "py-spy", "torch.profiler", "viztracer", "pyinstrument", "cProfile"),
    "kernprof",
)
# How stopwatch.py's line begins.
FIGURES = '{"first_line_ns"'


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
    parser.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, python {sys.version.split()[0]}, {arguments.pairs} pairs")
    if arguments.peers:
        compare_peers(arguments.pairs, arguments.steps)
        return
    for name in arguments.only or CASES:
        steps = max(40, int(arguments.steps * CASES[name]))
        pairs = [
            (run(name, steps, "bare"), run(name, steps, "trainprof"))
            for _ in range(arguments.pairs)
        ]
        report(name, steps, pairs)


def command_of(profiler: str, script: str, directory: Path) -> list[str]:
    """Returns the command line that runs a script under a profiler; it writes into `directory`."""
    python, out = sys.executable, str(directory / "out")
    beside = Path(python).parent
    return {
        "bare": [python],
        "trainprof": [python, "-m", "trainprof", "run", "-o", str(directory / "run")],
        "py-spy": [str(beside / "py-spy"), "record", "-o", out, "--", python],
        "torch.profiler": [python, str(SCRIPTS / "torch_profiler.py")],
        "viztracer": [python, "-m", "viztracer", "--quiet", "-o", f"{out}.json", "--"],
        "pyinstrument": [python, "-m", "pyinstrument", "-o", f"{out}.txt"],
        "cProfile": [python, "-m", "cProfile", "-o", out],
        "kernprof": [python, "-m", "kernprof", "-l", "-p", script, "-o", out],
    }[profiler]


def is_installed(profiler: str) -> bool:
    modules = {"py-spy": None, "torch.profiler": "torch"}
    module = modules.get(profiler, profiler)
    if module is None:
        return (Path(sys.executable).parent / profiler).exists()
    return importlib.util.find_spec(module) is not None


def compare_peers(pairs: int, steps: int) -> None:
    """Prints a table: ratios to the bare runs around each, medians over the rounds."""
    installed = [profiler for profiler in PEERS if is_installed(profiler)]
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    ratios: dict[str, list[tuple[float, ...]]] = {profiler: [] for profiler in installed}
    bare = [run("tiny_mlp", steps, "bare")]
    for _ in range(pairs):
        for profiler in installed:
            ours = run("tiny_mlp", steps, profiler)
            bare.append(run("tiny_mlp", steps, "bare"))
            ratios[profiler].append(_ratios(ours, bare[-2], bare[-1]))
    bare_us = statistics.median(figures.median_step_ns for figures in bare) / 1e3
    print(f"{steps:,} steps of {bare_us:.0f} us, on one core; smallest and largest in brackets")
    print(f"{'':<16}{'median step':<22}{'whole loop':<22}{'peak memory':<13}{'end':>7}")
    for profiler, rows in ratios.items():
        median, loop, memory, end_s = zip(*rows, strict=True)
        figures = "".join(f"{_spread(values):<22}" for values in (median, loop))
        ending = f"{statistics.median(memory):<13.3f}{statistics.median(end_s):6.2f} s"
        print(f"{profiler:<16}{figures}{ending}", flush=True)


def _ratios(ours: Figures, before: Figures, after: Figures) -> tuple[float, ...]:
    """Returns the ratios of the median step, the loop and the memory, and the end's seconds."""

    def ratio(figure: str) -> float:
        around: float = getattr(before, figure) + getattr(after, figure)
        return 2 * getattr(ours, figure) / around

    end_s = (
        2 * ours.after_last_line_ns - before.after_last_line_ns - after.after_last_line_ns
    ) / 2e9
    return ratio("median_step_ns"), ratio("mean_step_ns"), ratio("peak_rss_bytes"), end_s


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.2f} to {max(values):.2f})"


def run(name: str, steps: int, profiler: str) -> Figures:
    """Runs a script once, in a fresh directory."""
    directory = Path(tempfile.mkdtemp(prefix="trainprof-overhead-"))
    script = str(SCRIPTS / f"{name}.py")
    command = [*command_of(profiler, script, directory), script, str(steps)]
    try:
        started = time.perf_counter_ns()
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=directory)
        ended = time.perf_counter_ns()
        inside = next(
            json.loads(line) for line in done.stdout.splitlines() if line.startswith(FIGURES)
        )
        summary = directory / "run" / "summary.json"
        log_bytes = None
        if profiler == "trainprof":
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
