"""Whether findings name what was planted: scripts made to order are run, and judged by their truth.

    python benchmarks/finding_truth.py [--seed 1] [--only serial_loading] [--cases 3] [--markdown]

Of each fault, the first case has the middle of its range; the others are drawn from the seed, like
all controls: size, style, kind of dataset. The same seed makes the same scripts. A case is right if
the first finding is the planted one and names the planted line, and a control if nothing is found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from planted.controls import CONTROLS
from planted.draw import Draw
from planted.faults import FAULTS
from planted.script import MAIN, Case
from support import simgpu

DEADLINE_S = 300.0


@dataclass(frozen=True)
class Outcome:
    """What a case's run was found to have.

    Attributes:
        findings: As the summary has them, first the one that counts.
        verdict: The bottleneck that the headline names.
        is_at_fault: Whether the first finding is the planted one; True too where none is to be and
            none is.
        is_at_place: Whether it names a line that it may name.
    """

    case: Case
    findings: list[dict[str, Any]]
    verdict: str
    is_at_fault: bool
    is_at_place: bool

    @property
    def is_right(self) -> bool:
        return self.is_at_fault and self.is_at_place


def cases(seed: int, each: int, only: list[str] | None = None) -> Iterator[Case]:
    """Yields `each` cases of every fault, and one of every control, of those in `only` alone."""
    for name, fault in FAULTS.items():
        for number in range(each if not only or name in only else 0):
            yield fault(Draw(f"{seed}/{name}/{number}" if number else None))
    for name, control in CONTROLS.items():
        if not only or name in only:
            yield control(Draw(f"{seed}/{name}"))


def judged(case: Case, folder: Path, libraries: Path | None = None) -> Outcome:
    """Runs a case's script under trainprof in an empty folder, and judges what was found.

    Args:
        case: To be run.
        folder: To run it in.
        libraries: Where the simulated device is, or is built; the system's temporary folder.

    Raises:
        RuntimeError: If the script failed.
    """
    for name, text in case.files.items():
        (folder / name).write_text(text)
    environ = dict(os.environ)
    if "import simgpu" in case.files[MAIN]:
        library = simgpu.built(libraries or Path(tempfile.gettempdir()))
        environ |= {"TEST_SIMGPU": str(library), "PYTHONPATH": os.pathsep.join(_paths(environ))}
    neighbours = [subprocess.Popen([sys.executable, "-c", text]) for text in case.beside]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "trainprof", "run", "-q", "-o", "run", MAIN],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    if done.returncode:
        raise RuntimeError(f"{case.name} in {folder} failed:\n{done.stderr}")
    summary = json.loads((folder / "run" / "summary.json").read_text())
    if summary["faults"]:
        raise RuntimeError(f"{case.name}: trainprof's own faults: {summary['faults']}")
    return outcome(case, summary)


def _paths(environ: Mapping[str, str]) -> list[str]:
    """Returns where modules are looked for: the simulated device's first, then ours, then all."""
    given = environ.get("PYTHONPATH")
    return [str(simgpu.HERE), str(Path(__file__).parents[1]), *([given] if given else [])]


def outcome(case: Case, summary: dict[str, Any]) -> Outcome:
    """Holds a run's summary against the truth of its case."""
    findings = summary["findings"]
    first = findings[0] if findings else None
    is_at_place = case.finding is None or case.no_line
    if first is not None and case.finding is not None:
        is_at_place = is_at_place or first["site"] in case.places()
    return Outcome(
        case,
        findings,
        summary["verdict"]["bottleneck"],
        is_at_fault=(first["id"] if first else None) == case.finding,
        is_at_place=is_at_place,
    )


def row(told: Outcome) -> list[str]:
    """Returns a case, what is true of it, and what was found; of gains the true one first."""
    case, first = told.case, told.findings[0] if told.findings else {}
    speedup = first.get("predicted_speedup")
    gain = "" if not speedup else f"{speedup[0]:.2f} to {speedup[1]:.2f}"
    if first.get("is_at_most") and speedup:
        gain = f"up to {speedup[1]:.2f}"
    places = sorted(case.places())
    where = places[0] if len(places) == 1 else f"{places[0]} ff." if places else "any"
    return [
        case.name,
        case.planted,
        case.style,
        f"{case.finding} {where}" if case.finding else "nothing",
        f"{first['id']} {first['site'] or 'no line'}" if first else "nothing",
        ", ".join(one["id"] for one in told.findings[1:]),
        "" if case.gain is None else f"{case.gain:.2f}",
        gain,
        told.verdict,
        "right" if told.is_right else "line wrong" if told.is_at_fault else "WRONG",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=[*FAULTS, *CONTROLS])
    parser.add_argument("--cases", type=int, default=3, help="of each fault; the first is fixed")
    parser.add_argument(
        "--markdown", action="store_true", help="end with a table, a row each fault"
    )
    parser.add_argument("--keep", type=Path, help="keep scripts and runs in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainprof-truth-") as scratch:
        kept = arguments.keep or Path(scratch)
        told = []
        for number, case in enumerate(cases(arguments.seed, arguments.cases, arguments.only)):
            folder = kept / f"{number:02d}_{case.name}"
            folder.mkdir(parents=True)
            told.append(judged(case, folder))
            print("  ".join(row(told[-1])), flush=True)
    print(f"\n{_tally(told)}")
    if arguments.markdown:
        print(f"\n{_table(told)}")


def _table(told: list[Outcome]) -> str:
    """Returns a row for each fault and control, with what was wrong in its cases."""
    lines = ["| planted | sizes | right | wrong |", "|---|---|---|---|"]
    for name in dict.fromkeys(one.case.name for one in told):
        those = [one for one in told if one.case.name == name]
        expected = those[0].case.finding
        title = name if expected in (None, name) else f"{name} ({expected})"
        sizes = "; ".join(one.case.planted for one in those)
        right = f"{sum(one.is_right for one in those)} of {len(those)}"
        wrong = "; ".join(_wrong(one) for one in those if not one.is_right)
        lines.append(f"| {title} | {sizes} | {right} | {wrong} |")
    return "\n".join(lines)


def _wrong(told: Outcome) -> str:
    first = told.findings[0] if told.findings else None
    found = "nothing" if first is None else f"{first['id']} at {first['site'] or 'no line'}"
    return f"{told.case.planted}: {found}"


def _tally(told: list[Outcome]) -> str:
    planted = [one for one in told if one.case.finding is not None]
    healthy = [one for one in told if one.case.finding is None]
    named = sum(one.is_at_fault for one in planted)
    placed = sum(one.is_right for one in planted)
    silent = sum(one.is_right for one in healthy)
    return (
        f"{named} of {len(planted)} planted faults found first, {placed} with the right line; "
        f"{silent} of {len(healthy)} controls without a finding"
    )


if __name__ == "__main__":
    main()
