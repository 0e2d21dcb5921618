"""How right `tune` is: forecasts beside what came, and its ceiling beside data made free by hand.

    python benchmarks/tune_truth.py [--budget 150] [--turns 5] [--only NAME] [--markdown]

Tunes the sample scripts and scripts with planted costs, one after the other, and counts in how many
trials the forecast held the measured speed-up. Of the planted ones the same script with batches
that are there already (scripts/planted_loading.py free) tells what the ceiling has to be: baseline,
ceiling and the two by hand are run in turns, for machines drift, until two standard errors of how
far the ceiling is off are 5 %. Takes the budget for each script and up to five minutes; other
processes on the machine spoil it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from trainprof.record.run_directory import RunDirectory
from trainprof.tune.runner import Script, ScriptRunner
from trainprof.tune.sandbox.sandbox import make_sandbox
from trainprof.tune.trial import Limits, Measured, baseline, ceiling

ROOT = Path(__file__).parent.parent
PLANTED = Path(__file__).parent / "scripts" / "planted_loading.py"
SAMPLES = ROOT / "sample_scripts"
LIMITS = Limits(steps=None, killed_after_s=600)
# How often free data is timed at least, and from which standard error on not again.
FEWEST_TURNS = 3
KNOWN = 0.025


@dataclass(frozen=True, slots=True)
class Case:
    """A script to tune; `planted`: its arguments behind real or free, None: nothing is planted."""

    name: str
    words: tuple[str, ...]
    planted: tuple[str, ...] | None = None


def planted(name: str, *words: str) -> Case:
    return Case(name, (str(PLANTED), "real", *words), words)


CASES = (
    planted("all asleep, no workers", "0", "12", "0", "6ms"),
    planted("all asleep, 1 worker", "1", "20", "0", "6ms"),
    planted("asleep, no workers", "0", "12", "0", "12"),
    planted("asleep, 1 worker", "1", "20", "0", "12"),
    planted("busy, no workers", "0", "0", "8", "24"),
    planted("mixed, no workers", "0", "6", "4", "24"),
    planted("healthy", "2", "2", "1", "40"),
    Case("train.py", (str(SAMPLES / "train.py"), str(ROOT / "configs" / "example_config.py"))),
    Case("gan.py", (str(SAMPLES / "gan.py"),)),
    Case("healthy.py", (str(SAMPLES / "healthy.py"),)),
    Case("python_heavy.py", (str(SAMPLES / "python_heavy.py"),)),
    Case("slow_validation.py", (str(SAMPLES / "slow_validation.py"),)),
)


def tuned(target: Case, budget_s: float, directory: Path) -> dict[str, Any]:
    """Returns the summary of a `tune` run."""
    command = [sys.executable, "-m", "trainprof", "tune", "-q", "--format", "json"]
    command += [f"--budget={budget_s}s", "-o", str(directory / "tune"), *target.words]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{target.name}: {done.stderr}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def by_hand_s(target: Case, mode: str) -> float:
    """Returns the mean of a steady step that the script itself tells."""
    assert target.planted is not None
    command = [sys.executable, str(PLANTED), mode, *target.planted]
    stdout = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(stdout.split()[0]) / 1e3


@dataclass(frozen=True, slots=True)
class Ceilings:
    """How many times as fast free data is: the medians of some turns.

    Attributes:
        by_hand: Where the script itself has its batches.
        by_trial: In `tune`'s trials.
        off: By how much the trial tells more, as the mean of the turns.
        error: The standard error of that, of which the machine's own swings are part.
    """

    by_hand: float
    by_trial: float
    off: float
    error: float


def ceiling_by_hand(target: Case, directory: Path, turns: int) -> Ceilings:
    """Runs free data by hand and in `tune`'s trials, in turns, until it is known how far it is off.

    Args:
        case: With planted costs.
        directory: To run in.
        turns: At most.
    """
    runner = ScriptRunner(
        Script(target.words),
        RunDirectory(directory),
        interval_s=0.5,
        sandbox=make_sandbox(directory.absolute(), target.words),
    )
    by_hand: list[float] = []
    by_trial: list[float] = []
    for turn in range(1, turns + 1):
        real_s, free_s = by_hand_s(target, "real"), by_hand_s(target, "free")
        by_hand.append(real_s / free_s)
        base = runner.run(baseline(), turn, LIMITS)
        base_summary = json.loads((directory / base.directory / "summary.json").read_text())
        free = runner.run(ceiling((base_summary["loaders"][0]["site"],), None), turn, LIMITS)
        by_trial.append(_step_s(base) / _step_s(free))
        logs = [math.log(its / hands) for its, hands in zip(by_trial, by_hand, strict=True)]
        error = statistics.stdev(logs) / math.sqrt(turn) if turn > 1 else math.inf
        if turn >= FEWEST_TURNS and error < KNOWN:
            break
    off = math.expm1(statistics.mean(logs))
    return Ceilings(statistics.median(by_hand), statistics.median(by_trial), off, error)


def _step_s(run: Measured) -> float:
    if run.pace is None:
        sys.exit(f"{run.trial.name}: {run.outcome} {run.detail or ''}")
    return run.pace.mean_s


@dataclass(slots=True)
class Score:
    """All trials with a forecast: how many it held, how wide it was; ceilings beside the truth.

    Of those that did not, what was measured so roughly that it may lie in them is counted, too.
    """

    held: int = 0
    forecasts: int = 0
    too_noisy: int = 0
    widths: list[float] = field(default_factory=list)
    ceilings: list[Ceilings] = field(default_factory=list)


def judge(
    target: Case, summary: dict[str, Any], score: Score, directory: Path, turns: int
) -> list[list[str]]:
    """Returns a row for each trial, and counts it."""
    rows = []
    for trial in summary["trials"]:
        if trial["name"] == "baseline":
            continue
        speed, predicted = trial["speedup"], trial["predicted"]
        held = ""
        if speed is not None and predicted is not None:
            is_inside = predicted[0] <= speed["mid"] <= predicted[1]
            is_refuted = trial["held"] is False
            held = "yes" if is_inside else "NO" if is_refuted else "no, but too rough"
            score.forecasts += 1
            score.held += is_inside
            score.too_noisy += not (is_inside or is_refuted)
            width = (predicted[1] - predicted[0]) / speed["mid"]
            score.widths.append(width)
        by_hand = ""
        if (
            trial["name"] == "ceiling"
            and turns
            and target.planted is not None
            and speed is not None
        ):
            in_turns = ceiling_by_hand(target, directory / "in_turns", turns)
            score.ceilings.append(in_turns)
            by_hand = f"{in_turns.by_hand:.2f}x by hand, {in_turns.by_trial:.2f}x in turns with it"
        rows.append(
            [
                target.name,
                trial["name"],
                "-" if predicted is None else f"{predicted[0]:.2f}-{predicted[1]:.2f}x",
                trial["outcome"] if speed is None else _measured(speed),
                held,
                by_hand,
            ]
        )
    best = summary["recommended"]
    name = best["name"] if best is not None else "nothing"
    rows.append([target.name, f"recommended: {name}", "", "", "", ""])
    return rows


def _measured(speed: dict[str, float | None]) -> str:
    low, high = speed["low"], speed["high"]
    around = "" if low is None or high is None else f" ({low:.2f}-{high:.2f})"
    return f"{speed['mid']:.2f}x{around}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for each script")
    parser.add_argument("--turns", type=int, default=12, help="by hand, at most; 0: none")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "2")
    score, rows = Score(), []
    for target in CASES:
        if asked.only not in target.name:
            continue
        with tempfile.TemporaryDirectory() as directory:
            summary = tuned(target, asked.budget, Path(directory))
            judged = judge(target, summary, score, Path(directory), asked.turns)
        rows += judged
        for row in judged:
            line = f"| {' | '.join(row)} |" if asked.markdown else "  ".join(x for x in row if x)
            print(line, flush=True)
    if score.forecasts:
        print(
            f"\nforecasts that held: {score.held} of {score.forecasts}; of the others "
            f"{score.too_noisy} may have, by what was measured; "
            f"median width {statistics.median(score.widths):.0%} of the speed-up"
        )
    if score.ceilings:
        off = ", ".join(f"{known.off:+.0%} (+-{2 * known.error:.0%})" for known in score.ceilings)
        print(f"ceiling against data made free by hand: {off}")


if __name__ == "__main__":
    main()
