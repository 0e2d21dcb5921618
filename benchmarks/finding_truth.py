"""Whether findings name what was planted: drawn scripts are run, and judged by their truth.

    python benchmarks/finding_truth.py [--seed 1] [--only serial_loading] [--cases 3] [--markdown]

Each script of benchmarks/faults and benchmarks/controls says in its header what is true of it. Of
each fault, the first draw has the middle of its ranges; the others are drawn from the seed, like
all controls: size, style, kind of dataset. The same seed makes the same scripts. A fault is right
if the first finding is the planted one and names the planted line, a control if nothing is found.
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

from planted.script_file import Draw, PlantedScript, script_files
from planted.styles import MAIN
from support import simgpu

DEADLINE_S = 300.0
FAULTS, CONTROLS = script_files("faults"), script_files("controls")


@dataclass(frozen=True)
class Outcome:
    """What a script's run was found to have.

    Attributes:
        findings: As the summary has them, first the one that counts.
        verdict: The bottleneck that the headline names.
        is_at_fault: Whether the first finding is the planted one; of a control that there is none.
        is_at_place: Whether it names a line that it may name.
    """

    script: PlantedScript
    findings: list[dict[str, Any]]
    verdict: str
    is_at_fault: bool
    is_at_place: bool

    @property
    def is_right(self) -> bool:
        return self.is_at_fault and self.is_at_place


def drawn_scripts(seed: int, each: int, only: list[str] | None = None) -> Iterator[PlantedScript]:
    """Yields `each` draws of every fault, and one of every control, of those in `only` alone."""
    for name, fault in FAULTS.items():
        for number in range(each if not only or name in only else 0):
            yield fault(Draw(f"{seed}/{name}/{number}" if number else None))
    for name, control in CONTROLS.items():
        if not only or name in only:
            yield control(Draw(f"{seed}/{name}"))


def judged(script: PlantedScript, folder: Path, libraries: Path | None = None) -> Outcome:
    """Runs a script under trainprof in an empty folder, and judges what was found.

    Args:
        script: To be run.
        folder: To run it in.
        libraries: Where the simulated device is, or is built; the system's temporary folder.

    Raises:
        RuntimeError: If the script failed.
    """
    for name, text in script.files.items():
        (folder / name).write_text(text)
    environ = dict(os.environ)
    if "import simgpu" in script.files[MAIN]:
        library = simgpu.built(libraries or Path(tempfile.gettempdir()))
        environ |= {"TEST_SIMGPU": str(library), "PYTHONPATH": os.pathsep.join(_paths(environ))}
    neighbours = [subprocess.Popen([sys.executable, "-c", text]) for text in script.neighbours]
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
        raise RuntimeError(f"{script.name} in {folder} failed:\n{done.stderr}")
    summary = json.loads((folder / "run" / "summary.json").read_text())
    if summary["faults"]:
        raise RuntimeError(f"{script.name}: trainprof's own faults: {summary['faults']}")
    return outcome(script, summary)


def _paths(environ: Mapping[str, str]) -> list[str]:
    """Returns where modules are looked for: the simulated device's first, then ours, then all."""
    given = environ.get("PYTHONPATH")
    return [str(simgpu.HERE), str(Path(__file__).parents[1]), *([given] if given else [])]


def outcome(script: PlantedScript, summary: dict[str, Any]) -> Outcome:
    """Compares a run's summary with the truth of its script."""
    findings = summary["findings"]
    first = findings[0] if findings else None
    is_at_place = script.finding is None or script.no_line
    if first is not None and script.finding is not None:
        is_at_place = is_at_place or first["site"] in script.places()
    return Outcome(
        script,
        findings,
        summary["verdict"]["bottleneck"],
        is_at_fault=(first["id"] if first else None) == script.finding,
        is_at_place=is_at_place,
    )


def row(result: Outcome) -> list[str]:
    """Returns a script, what is true of it, and what was found; of gains the true one first."""
    script, first = result.script, result.findings[0] if result.findings else {}
    speedup = first.get("predicted_speedup")
    gain = "" if not speedup else f"{speedup[0]:.2f} to {speedup[1]:.2f}"
    if first.get("is_at_most") and speedup:
        gain = f"up to {speedup[1]:.2f}"
    places = sorted(script.places())
    where = places[0] if len(places) == 1 else f"{places[0]} ff." if places else "any"
    return [
        script.name,
        script.size,
        script.style,
        f"{script.finding} {where}" if script.finding else "nothing",
        f"{first['id']} {first['site'] or 'no line'}" if first else "nothing",
        ", ".join(finding["id"] for finding in result.findings[1:]),
        "" if script.gain is None else f"{script.gain:.2f}",
        gain,
        result.verdict,
        "right" if result.is_right else "line wrong" if result.is_at_fault else "WRONG",
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
        results = []
        scripts = drawn_scripts(arguments.seed, arguments.cases, arguments.only)
        for number, script in enumerate(scripts):
            folder = kept / f"{number:02d}_{script.name}"
            folder.mkdir(parents=True)
            results.append(judged(script, folder))
            print("  ".join(row(results[-1])), flush=True)
    print(f"\n{_tally(results)}")
    if arguments.markdown:
        print(f"\n{_table(results)}")


def _table(results: list[Outcome]) -> str:
    """Returns a row for each fault and control, with what was wrong in its draws."""
    lines = ["| planted | sizes | right | wrong |", "|---|---|---|---|"]
    for name in dict.fromkeys(result.script.name for result in results):
        draws = [result for result in results if result.script.name == name]
        expected = draws[0].script.finding
        title = name if expected in (None, name) else f"{name} ({expected})"
        sizes = "; ".join(result.script.size for result in draws)
        right = f"{sum(result.is_right for result in draws)} of {len(draws)}"
        wrong = "; ".join(_wrong(result) for result in draws if not result.is_right)
        lines.append(f"| {title} | {sizes} | {right} | {wrong} |")
    return "\n".join(lines)


def _wrong(result: Outcome) -> str:
    first = result.findings[0] if result.findings else None
    finding = "nothing" if first is None else f"{first['id']} at {first['site'] or 'no line'}"
    return f"{result.script.size}: {finding}"


def _tally(results: list[Outcome]) -> str:
    planted = [result for result in results if result.script.finding is not None]
    healthy = [result for result in results if result.script.finding is None]
    named = sum(result.is_at_fault for result in planted)
    placed = sum(result.is_right for result in planted)
    silent = sum(result.is_right for result in healthy)
    return (
        f"{named} of {len(planted)} planted faults found first, {placed} with the right line; "
        f"{silent} of {len(healthy)} controls without a finding"
    )


if __name__ == "__main__":
    main()
