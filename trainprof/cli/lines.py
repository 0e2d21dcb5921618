"""`trainprof lines`: per-line times, of a script that it runs or of a saved run."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TextIO

import typer

from trainprof.cli import options
from trainprof.cli.options import at_least
from trainprof.cli.output import complain, is_terminal, page_of, write
from trainprof.cli.report import RUNS, find_run
from trainprof.cli.run import run_to_end
from trainprof.launch.options import (
    DEFAULT_INTERVAL_S,
    DEFAULT_SLOW_SAMPLES,
    DEFAULT_WAIT_THRESHOLD_S,
    LineOptions,
    RunOptions,
)
from trainprof.launch.placement import LATEST
from trainprof.launch.run import FinishedRun
from trainprof.launch.target import MAIN_FILES
from trainprof.record.errors import TrainprofError
from trainprof.record.run_directory import RunDirectory

if TYPE_CHECKING:
    from trainprof.analysis.summary.code import LineProfile
    from trainprof.analysis.summary.run_summary import RunSummary

# The processes whose lines are timed.
_ONLY: Final = ("workers", "main")
_SHOWN_BY: Final = ("trainprof", "lines")
_UNITS_S: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class NoLineTimes(TrainprofError):
    slug: ClassVar[str] = "no-line-times"


def _only(text: str) -> str:
    if text not in _ONLY:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(_ONLY)}")
    return text


def _unit_s(text: str | float) -> float:
    try:
        unit_s = _UNITS_S[str(text)] if str(text) in _UNITS_S else float(text)
    except ValueError:
        unit_s = 0.0
    if not 0 < unit_s < math.inf:
        raise typer.BadParameter(f"{text!r} is no unit: write s, ms, us, ns or seconds like 1e-3")
    return unit_s


PerProcess = Annotated[
    bool, typer.Option("--per-process", help="Show each process, not their sum.")
]
Unit = Annotated[
    float | None,
    typer.Option(
        "-u",
        "--unit",
        parser=_unit_s,
        metavar="UNIT",
        help="Unit of the times: s, ms, us, ns, or in seconds.  [default: us off a terminal]",
    ),
]
SkipZero = Annotated[
    bool, typer.Option("-z", "--skip-zero", help="Leave out functions never called.")
]
Sort = Annotated[bool, typer.Option("-t", "--sort", help="In order of time, the longest last.")]
Top = Annotated[
    int | None, typer.Option(parser=at_least(1), metavar="N", help="Only the N that took longest.")
]
Lprof = Annotated[
    bool, typer.Option("--lprof", help="Write RUN/lines.lprof too, for python -m line_profiler.")
]


def lines(
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT|RUN", help="A Python file or a command to run; or a saved run to show."
        ),
    ] = None,
    arguments: options.Arguments = None,
    functions: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            metavar="MODULE:NAME",
            help="Time this function: module:qualname, with * and ?; may be repeated.",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            parser=_only, metavar="|".join(_ONLY), help="Time lines in these processes alone."
        ),
    ] = None,
    per_process: PerProcess = False,
    unit: Unit = None,
    skip_zero: SkipZero = False,
    sort: Sort = False,
    top: Top = None,
    lprof: Lprof = False,
    output: options.Output = None,
    module: options.Module = None,
    interval: options.Interval = DEFAULT_INTERVAL_S,
    max_steps: options.MaxSteps = None,
    max_time: options.MaxTime = None,
    wait_threshold: options.WaitThreshold = DEFAULT_WAIT_THRESHOLD_S,
    slow_samples: options.SlowSamples = DEFAULT_SLOW_SAMPLES,
    cuda_sync: options.CudaSync = False,
    find_syncs: options.FindSyncs = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    progress: options.Progress = False,
    debug: options.Debug = False,
) -> None:
    """Time the lines of SCRIPT's functions, in loader workers too; or show a saved run's.

    All that follows SCRIPT, or -m MODULE, belongs to the script. The exit status is the script's.
    """
    view = LineView(per_process, unit, skip_zero, sort, top, verbose)
    run_to_end(
        RunOptions(
            words=options.words(script, arguments),
            module=module,
            output=output,
            interval_s=interval,
            wait_threshold_s=wait_threshold,
            max_steps=max_steps,
            max_time_s=max_time,
            slow_samples=slow_samples,
            cuda_sync=cuda_sync,
            find_syncs=find_syncs,
            progress=progress,
            lines=LineOptions(tuple(functions or ()), only),
        ),
        lambda summary, finished: _after_the_run(summary, finished, view),
        then=_export if lprof else None,
        quiet=quiet,
        debug=debug,
    )


def saved_lines(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run directory, a run's name under trainprof-runs, or latest."
        ),
    ],
    per_process: PerProcess = False,
    unit: Unit = None,
    skip_zero: SkipZero = False,
    sort: Sort = False,
    top: Top = None,
    lprof: Lprof = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Show the line times of a saved run."""
    from trainprof.analysis.lines.recording import read_line_profile

    view = LineView(per_process, unit, skip_zero, sort, top, verbose)
    try:
        directory = find_run(run)
        profile = read_line_profile(directory)
    except OSError as error:
        raise NoLineTimes(
            f"{run} cannot be read: {error.strerror or error}", hint="check its path"
        ) from error
    if not profile.functions:
        why = f": {profile.damage[0]}" if profile.damage else ""
        raise NoLineTimes(
            f"{run} has no line times{why}", hint="record them with: trainprof lines SCRIPT"
        )
    write(sys.stdout, view.text(profile, sys.stdout, [*_SHOWN_BY, run]))
    write(sys.stderr, _remarks(view.notes(profile, sys.stdout)))
    if lprof:
        _write_lprof(profile, directory)


def names_saved_run(word: str) -> bool:
    """Returns whether a SCRIPT or RUN is a saved run."""
    try:
        if os.path.isfile(word):
            return False
        paths = [Path(word)] if os.sep in word else [Path(word), RUNS / word]
        return word == LATEST or any(map(_is_run, paths))
    except OSError:
        return False


def _is_run(path: Path) -> bool:
    directory = RunDirectory(path)
    if directory.manifest.is_file():
        return True
    is_recording = directory.events.is_dir() or directory.ranks.is_dir()
    return is_recording and not any((path / name).exists() for name in MAIN_FILES)


def _after_the_run(summary: RunSummary, finished: FinishedRun, view: LineView) -> str:
    from trainprof.analysis.lines.recording import read_line_profile
    from trainprof.report.page.page import opening

    profile = read_line_profile(finished.directory)
    directory = summary.run.directory or str(finished.directory.path)
    head = opening(summary, page_of(sys.stderr))
    notes = view.notes(profile, sys.stderr)
    if not profile.functions:
        report = shlex.join(["trainprof", "report", directory])
        return head + _remarks([*notes, f"see what else was recorded: {report}"])
    again = [*_SHOWN_BY, directory]
    if notes:
        notes.append(f"see it again: {shlex.join(again)}")
    return head + "\n" + view.text(profile, sys.stderr, again) + _remarks(notes)


def _remarks(notes: Sequence[str]) -> str:
    return "".join(f"trainprof: {note}\n" for note in notes)


def _export(finished: FinishedRun) -> None:
    from trainprof.analysis.lines.recording import read_line_profile

    _write_lprof(read_line_profile(finished.directory), finished.directory)


def _write_lprof(profile: LineProfile, directory: RunDirectory) -> None:
    from line_profiler.line_profiler import LineStats

    from trainprof.analysis.summary.code import NS_S

    path = directory.path / "lines.lprof"
    temporary = path.with_name("lines.lprof.tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link there is not followed
        LineStats(profile.timings(), NS_S).to_file(temporary)
        temporary.replace(path)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        complain(why, hint="check its permissions")
    else:
        write(sys.stderr, f"trainprof: wrote {path}\n")


@dataclass(frozen=True, slots=True)
class LineView:
    """What was asked to be shown; `unit_s` None: the usual units; `by_time`: the longest last."""

    per_process: bool = False
    unit_s: float | None = None
    skip_zero: bool = False
    by_time: bool = False
    top: int | None = None
    verbose: bool = False

    def text(self, profile: LineProfile, stream: TextIO | None, shown_again: Sequence[str]) -> str:
        """Returns the times as they suit a stream; off a terminal the table and nothing else."""
        from trainprof.analysis.summary.code import arranged

        profile = arranged(profile, by_time=self.by_time, top=self.top)
        if not is_terminal(stream):
            return self._table(profile)
        from trainprof.report import line_page

        return line_page.render(
            profile,
            page_of(stream, verbose=self.verbose),
            unit_s=self.unit_s,
            skip_zero=self.skip_zero,
            per_process=self.per_process,
            closing=("see it again:", shlex.join(shown_again)),
        )

    def notes(self, profile: LineProfile, stream: TextIO | None) -> list[str]:
        """Returns the sentences that a page has, and a table or no page at all lacks."""
        if is_terminal(stream) and profile.functions:
            return []
        from trainprof.report.line_page import line_notes, unseen_notes
        from trainprof.report.text.safe_text import one_line

        unseen = [] if self.skip_zero else unseen_notes(profile)
        notes = [*line_notes(profile, is_merged=not self.per_process), *unseen]
        return [one_line(note) for note in notes]

    def _table(self, profile: LineProfile) -> str:
        from trainprof.analysis.summary.code import of_process
        from trainprof.report.line_page import kernprof_table

        if not self.per_process:
            return kernprof_table(profile, unit_s=self.unit_s, skip_zero=self.skip_zero)
        return "".join(
            f"Process: {process.label}\n\n"
            + kernprof_table(of_process(profile, process), unit_s=self.unit_s)
            for process in profile.processes()
        )
