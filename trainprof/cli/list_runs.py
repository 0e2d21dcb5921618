"""`trainprof list`: the runs under trainprof-runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final

from trainprof.cli.options import Debug, reporting
from trainprof.cli.output import page_of, write
from trainprof.cli.saved_runs import RUNS, SavedRun, place_of_latest, saved_runs
from trainprof.launch.placement import LATEST
from trainprof.record.files import read_run_json

_WIDE: Final = 1000


def list_runs(
    verbose: Annotated[bool, reporting("-v", "--verbose", help="Show full names.")] = False,
    debug: Debug = False,
) -> None:
    """List the saved runs: when, which script, how fast, its bottleneck and its size.

    The newest run is the last one.
    """
    write(sys.stdout, rows_of(saved_runs(), verbose=verbose))


def rows_of(runs: list[SavedRun], *, verbose: bool = False) -> str:
    """Returns a table of runs, and their number and size in one line."""
    from trainprof.report.text.layout import BLANK, Column
    from trainprof.report.text.units import byte_count, counted, three_digits

    if not runs:
        return f"No runs in {RUNS}. Record one: trainprof run SCRIPT\n"
    page = page_of(sys.stdout)
    page = replace(page, width=max(page.width, _WIDE)) if verbose else page
    everything = saved_runs()
    latest = place_of_latest(everything)
    places = {run.name: latest - place for place, run in enumerate(everything)}
    summaries = [read_run_json(run.directory.summary) for run in runs]
    sizes = [run.size_bytes() for run in runs]
    paces = [_steps_per_s(summary) for summary in summaries]
    started = [datetime.fromtimestamp(run.started_ns / 1e9) for run in runs]
    lines = page.table(
        [
            Column("Run", [_short_name(run, places) for run in runs], is_number=False),
            Column("Started", [f"{time:%Y-%m-%d %H:%M}" for time in started], is_number=False),
            Column("Script", [_script(run) for run in runs], is_number=False, gives_way=True),
            Column("steps/s", ["-" if x is None else three_digits(x) for x in paces]),
            Column("Bottleneck", [*map(_bottleneck, runs, summaries)], is_number=False),
            Column("Size", [byte_count(size) for size in sizes]),
            Column("Name", [run.name for run in runs], is_number=False, dropped=1, gives_way=True),
        ]
    )
    total = f"{counted(len(runs), 'run')}, {byte_count(sum(sizes))}."
    return page.written([*lines, *BLANK, page.text(total)])


def _short_name(run: SavedRun, places: dict[str, int]) -> str:
    place = places.get(run.name, -1)
    return "-" if place < 0 else LATEST if place == 0 else f"{LATEST}~{place}"


def _script(run: SavedRun) -> str:
    script = str(run.manifest.get("entry") or run.manifest.get("script") or "?")
    name = script.rpartition("/")[2]
    return f"{name} (tune)" if run.manifest.get("kind") == "tune" else name


def _bottleneck(run: SavedRun, summary: Any) -> str:
    if not run.manifest:
        return "(damaged)"
    if run.is_running:
        return "(running)"
    if run.has_failed:
        return "(failed)"
    verdict = summary.get("verdict") if isinstance(summary, dict) else None
    return str(verdict.get("bottleneck")) if isinstance(verdict, dict) else "(not analysed)"


def _steps_per_s(summary: Any) -> float | None:
    training = summary.get("training") if isinstance(summary, dict) else None
    step_s = training.get("step_s") if isinstance(training, dict) else None
    mean = step_s.get("mean") if isinstance(step_s, dict) else None
    return 1 / mean if isinstance(mean, (int, float)) and mean > 0 else None
