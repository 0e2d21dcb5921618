"""How often `compare` is wrong: false alarms between equal runs, and planted slow-downs found.

    python benchmarks/compare_false_alarms.py [--pairs 200] [--real 10] [--real-steps 400]
        [--asleep-ms 0]

Simulated: step times that follow one another are alike (AR(1)), and each run as a whole is a
little fast or slow (run-level noise). Real: scripts/two_ms.py, --real-steps of about 2 ms in a new
process each, equal and slowed runs in turn; --real 0 leaves them out. With --asleep-ms most of a
step is a wait that takes as long however busy the machine is, as for a device. An alarm is a
verdict `faster` or `slower` of two equal sides; to be kept under 5 %.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainprof.analysis.statistics.speedup import FASTER, SLOWER, Pace, speed_up
from trainprof.compare.compared_run import ComparedRun, read_compared_run
from trainprof.compare.comparison import compare
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory

SCRIPT = Path(__file__).parent / "scripts" / "two_ms.py"
STEPS = 400
PLANTED = 0.05
REPEATS = (1, 3, 5)


@dataclass(frozen=True, slots=True)
class Noise:
    """Of simulated runs: all are shares of a step.

    Attributes:
        step: Standard deviation of single steps.
        alike: Autocorrelation of one step with the next.
        run: Standard deviation of whole runs.
        drift: Standard deviation of how much longer the last step is than the first.
    """

    step: float
    alike: float
    run: float
    drift: float = 0.0


CASES = {
    "quiet": Noise(0.03, 0.5, 0.005),
    "usual": Noise(0.05, 0.6, 0.01),
    "very alike": Noise(0.05, 0.9, 0.01),
    "rough": Noise(0.10, 0.8, 0.01),
    "drifting": Noise(0.05, 0.6, 0.01, 0.03),
    "unsteady runs": Noise(0.05, 0.6, 0.02),
}


def simulated(random: np.random.Generator, noise: Noise, level: float = 1.0) -> Pace:
    """Returns one run of STEPS steps."""
    shocks = random.normal(size=STEPS) * np.sqrt(1 - noise.alike**2)
    shocks[0] = random.normal()
    steps = np.empty(STEPS)
    state = 0.0
    for index, shock in enumerate(shocks.tolist()):
        state = noise.alike * state + shock if index else shock
        steps[index] = state
    whole = level * np.exp(noise.run * random.normal())
    drift = 1 + noise.drift * random.normal() * np.linspace(-0.5, 0.5, STEPS)
    steps_s = 0.002 * whole * drift * np.exp(noise.step * steps)
    return Pace(float(steps_s.mean()), steps_s)


def simulated_rates(noise: Noise, repeats: int, pairs: int, seed: int = 1) -> tuple[float, float]:
    """Returns the share of false alarms, and of slow-downs by PLANTED that were found."""
    random = np.random.default_rng(seed)

    def side(level: float) -> list[Pace]:
        return [simulated(random, noise, level) for _ in range(repeats)]

    alarms = sum(speed_up(side(1), side(1)).verdict in (FASTER, SLOWER) for _ in range(pairs))
    caught = sum(speed_up(side(1), side(1 + PLANTED)).verdict == SLOWER for _ in range(pairs))
    return alarms / pairs, caught / pairs


def recorded(
    parent: Path, number: int, percent: float, steps: int, asleep_ms: float
) -> ComparedRun:
    """Runs so many steps of the script once, each made `percent` longer."""
    directory = RunDirectory(parent / f"{number}-{percent:g}")
    recording = [sys.executable, "-m", "trainprof", "run", "-q", "-o", str(directory.path)]
    script = [str(SCRIPT), str(steps), f"{percent:g}", f"{asleep_ms:g}"]
    subprocess.run([*recording, *script], check=True, cwd=parent)
    return read_compared_run(directory, summarize(directory))


def real_rates(pairs: int, steps: int, asleep_ms: float) -> None:
    """Runs equal and slowed scripts in turn, and prints what `compare` says of them."""
    equal, slowed = [], []
    with tempfile.TemporaryDirectory() as parent:
        for number in range(2 * pairs):
            equal.append(recorded(Path(parent), number, 0, steps, asleep_ms))
            if number % 2 == 0:
                run = recorded(Path(parent), number, 100 * PLANTED, steps, asleep_ms)
                slowed.append(run)
    verdicts = [compare([a], [b]).speedup for a, b in zip(equal[::2], equal[1::2], strict=True)]
    alarms = sum(speed.verdict in (FASTER, SLOWER) for speed in verdicts)
    print(f"\nreal: {pairs} pairs of equal runs of {steps} steps, {alarms} false alarms")
    means = [run.mean_step_s() or 0.0 for run in equal]
    print(f"  mean steps {min(means) * 1e3:.2f} to {max(means) * 1e3:.2f} ms", end="")
    print(f", standard deviation of runs {np.std(np.log(means), ddof=1):.1%}")
    chances = [speed.chance.share for speed in verdicts if speed.chance is not None]
    print(f"  what can be chance: {min(chances):.1%} to {max(chances):.0%}")
    single = [compare([a], [b]).speedup for a, b in zip(equal[::2], slowed, strict=True)]
    caught = sum(speed.verdict == SLOWER for speed in single)
    print(f"  planted {PLANTED:.0%}, one run each: {caught} of {len(single)} found")
    neighbours = equal[::2]
    for size in (3, 5, pairs):
        starts = range(0, pairs - size + 1, size)
        groups = [(neighbours[i : i + size], slowed[i : i + size]) for i in starts]
        speedups = [compare(*group).speedup for group in groups]
        caught = sum(speed.verdict == SLOWER for speed in speedups)
        print(
            f"  planted {PLANTED:.0%}, {size} runs each: {caught} of {len(speedups)} found",
            end=": ",
        )
        print(", ".join(_interval([speed.mid, speed.low, speed.high]) for speed in speedups))


def _interval(bounds: Sequence[float | None]) -> str:
    middle, low, high = (f"{bound:.3f}" if bound is not None else "?" for bound in bounds)
    return f"{middle} ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--real", type=int, default=10)
    parser.add_argument("--real-steps", type=int, default=STEPS)
    parser.add_argument("--asleep-ms", type=float, default=0.0, help="of each real step")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, {arguments.pairs} simulated pairs of {STEPS} steps a run")
    if not arguments.pairs:
        real_rates(arguments.real, arguments.real_steps, arguments.asleep_ms)
        return
    print(f"{'':<16}{'runs a side':>12}{'false alarms':>14}{f'{PLANTED:.0%} found':>12}")
    for name, noise in CASES.items():
        for repeats in REPEATS:
            alarms, caught = simulated_rates(noise, repeats, arguments.pairs)
            print(f"{name:<16}{repeats:>12}{alarms:>14.1%}{caught:>12.1%}", flush=True)
    if arguments.real:
        real_rates(arguments.real, arguments.real_steps, arguments.asleep_ms)


if __name__ == "__main__":
    main()
