"""What is said of training on a real GPU, beside what mending the script by hand gave.

    python benchmarks/gpu_truth.py [--only NAME ...] [--out DIRECTORY] [--markdown]

Each of scripts/gpu is run under trainprof as it is, and then without it both as it is and mended,
in one process. Takes some 20 to 40 s for each of them; two need transformers, the
others torchvision.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "scripts" / "gpu"
DEADLINE_S = 120.0
HERE = "# here"


@dataclass(frozen=True, slots=True)
class Case:
    """A script, the finding that it is to get (None: none), and whether it has a mended way."""

    name: str
    finding: str | None
    is_mended: bool = True


CASES = (
    Case("serial_loading", "serial_loading"),
    Case("small_layers", "launch_bound"),
    Case("sample_loop", "launch_bound"),
    Case("looped_optimizer", "slow_optimizer"),
    Case("pageable_copies", "blocking_copies"),
    Case("emptied_cache", "exposed_syncs"),
    Case("saving", "slow_checkpoints"),
    Case("values_each_step", "exposed_syncs"),
    Case("hidden_wait", None),
    Case("float32", "full_precision"),
    Case("healthy", None, is_mended=False),
    Case("scaler", None, is_mended=False),
    Case("graphs", "launch_bound", is_mended=False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=[sample.name for sample in CASES])
    parser.add_argument("--out", type=Path, help="keeps the runs there")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if arguments.markdown:
        print("| script | the device at work | by its driver | found | may give | by hand |")
        print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for sample in CASES:
            if not arguments.only or sample.name in arguments.only:
                row = of(sample, arguments.out or Path(directory))
                end = " |" if arguments.markdown else ""
                print(f"{'| ' if end else ''}{' | '.join(row)}{end}", flush=True)


def of(sample: Case, directory: Path) -> list[str]:
    """Returns a row of the table."""
    script, run = SCRIPTS / f"{sample.name}.py", directory / sample.name
    words = ("-m", "trainprof", "run", "-q", "-o", str(run), str(script), "slow")
    ended = _run(words)
    if ended.returncode:
        return [sample.name, f"failed: {ended.stderr.strip().splitlines()[-1:]}", "", "", "", ""]
    summary = json.loads((run / "summary.json").read_text())
    [device] = summary["devices"] or [{"busy_share": None, "kernel_share": None}]
    slugs = [f"{finding['id']} {finding['site'] or ''}".strip() for finding in summary["findings"]]
    is_right = _is_right(sample, summary["findings"], script)
    by_hand = ""
    if sample.is_mended:
        mended = _run((str(script), "both"))
        last_line = mended.stdout.strip().splitlines()[-1:]
        paces = json.loads(last_line[0]) if mended.returncode == 0 and last_line else None
        by_hand = f"{paces['slow'] / paces['fast']:.2f}x" if paces else "failed"
    first = summary["findings"][0]["predicted_speedup"] if slugs else None
    return [
        sample.name,
        "not known" if device["busy_share"] is None else _span(device["busy_share"], " %", 100),
        "" if device["kernel_share"] is None else f"{100 * device['kernel_share']:.0f} %",
        f"{', '.join(slugs) or 'nothing'}{'' if is_right else ' (WRONG)'}",
        "" if first is None else _span(first, "x", 1),
        by_hand,
        *([f"faults: {summary['faults']}"] if summary["faults"] else []),
    ]


def _is_right(sample: Case, findings: list[dict[str, Any]], script: Path) -> bool:
    """Whether the first finding is the planted one, at its line where one is marked."""
    if sample.finding is None or not findings:
        return sample.finding is None and not findings
    lines = script.read_text().splitlines()
    marked = [f"{script.name}:{number}" for number, line in enumerate(lines, 1) if HERE in line]
    first = findings[0]
    site = Path(first["site"] or "").name
    return first["id"] == sample.finding and (not marked or site in marked)


def _span(bounds: list[float], unit: str, times: int) -> str:
    digits = 0 if times == 100 else 2
    return f"{times * bounds[0]:.{digits}f} to {times * bounds[1]:.{digits}f}{unit}"


def _run(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


if __name__ == "__main__":
    main()
