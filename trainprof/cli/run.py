"""`trainprof run`: profiles one run of a script, reports on stderr, and ends as the script did."""

from __future__ import annotations

import shlex
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trainprof.cli.duration import seconds_between
from trainprof.cli.output import complain, style_of, write
from trainprof.cli.whole_number import at_least
from trainprof.launch import signals
from trainprof.launch.manifest import exit_reason
from trainprof.launch.options import (
    DEFAULT_INTERVAL_S,
    DEFAULT_WAIT_THRESHOLD_S,
    RunOptions,
)
from trainprof.launch.outcome import Outcome, mirror_exit
from trainprof.launch.run import FinishedRun
from trainprof.launch.run import run as launch
from trainprof.record.run_directory import RunDirectory, write_json

if TYPE_CHECKING:
    from trainprof.analysis.summary import RunSummary


def run(
    script: Annotated[
        str | None,
        typer.Argument(metavar="SCRIPT", help="A Python file, or a command such as torchrun."),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="All of it belongs to the script.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="The run directory.  [default: a new one under trainprof-runs]",
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("-m", metavar="MODULE", help="Run a module, as python -m does."),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            parser=seconds_between(0.1, 60),
            metavar="DURATION",
            help="Time between two samples of the system, 0.1 to 60 s.",
        ),
    ] = DEFAULT_INTERVAL_S,
    max_steps: Annotated[
        int | None,
        typer.Option(parser=at_least(1), metavar="N", help="End the run cleanly after N steps."),
    ] = None,
    max_time: Annotated[
        float | None,
        typer.Option(
            parser=seconds_between(0.001),
            metavar="DURATION",
            help="End the run cleanly after this time.",
        ),
    ] = None,
    wait_threshold: Annotated[
        float,
        typer.Option(
            parser=seconds_between(0),
            metavar="DURATION",
            help="A wait for a batch over this counts as slow.",
        ),
    ] = DEFAULT_WAIT_THRESHOLD_S,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Write no report to the terminal.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Report all there is.")] = False,
    progress: Annotated[bool, typer.Option("--progress", help="Live lines on stderr.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of ours.")] = False,
) -> NoReturn:
    """Profile a run of SCRIPT.

    All that follows SCRIPT, or -m MODULE, belongs to the script. The exit status is the script's.
    """
    finished = launch(
        RunOptions(
            words=(*(() if script is None else (script,)), *(arguments or ())),
            module=module,
            output=output,
            interval_s=interval,
            wait_threshold_s=wait_threshold,
            max_steps=max_steps,
            max_time_s=max_time,
            progress=progress,
        ),
        at_end=_give_up_report_at_signal,
        progress=lambda line: write(sys.stderr, f"{line}\n"),
    )
    # One report per launch: the other ranks' stand in their directories.
    is_shown = not quiet and finished.rank in (None, 0)
    try:
        _report(finished, is_shown=is_shown, verbose=verbose)
    except Exception as error:
        if debug:
            traceback.print_exc()
        complain(
            f"no report: {type(error).__name__}: {error}",
            hint=f"the recording is kept in {finished.directory.path}",
        )
    mirror_exit(finished.outcome)


def _give_up_report_at_signal(directory: RunDirectory, outcome: Outcome) -> None:
    def give_up() -> NoReturn:
        complain("report left out", hint=f"trainprof report {shlex.quote(str(directory.path))}")
        mirror_exit(outcome)

    signals.end_at_next(give_up)


def _as_seen(summary: RunSummary, finished: FinishedRun) -> RunSummary:
    """Completes a summary by what we saw and could not write: of a full or read-only directory."""
    faults = list(dict.fromkeys([*summary.faults, *finished.faults]))
    end, outcome = summary.run.exit, finished.outcome
    if end.status is None and end.signal is None:
        seen = exit_reason(outcome)
        # Its own log tells of an exception; without one it chose its status itself.
        is_told = end.reason in ("exception", "limit", "interrupted")
        reason = end.reason if is_told else seen.replace("exception", "completed")
        detail = end.detail if end.reason in ("exception", "limit") else None
        end = replace(
            end, status=outcome.status, signal=outcome.signal, reason=reason, detail=detail
        )
    return replace(summary, run=replace(summary.run, exit=end), faults=faults)


def _report(finished: FinishedRun, *, is_shown: bool, verbose: bool) -> None:
    from trainprof.analysis.summarize import summarize
    from trainprof.analysis.summary import to_jsonable

    if not finished.directory.path.is_dir():
        complain(
            "no report: the run directory was removed while the script ran",
            hint=f"it was {finished.directory.path}",
        )
        return
    summary = _as_seen(summarize(finished.directory), finished)
    try:
        write_json(finished.directory.summary, to_jsonable(summary))
    except OSError as error:
        complain(
            f"summary.json cannot be written: {error.strerror or error}",
            hint=f"what was recorded is in {finished.directory.path}",
        )
    if not is_shown:
        return
    from trainprof.report import terminal

    style = style_of(sys.stderr)
    text = terminal.render(
        summary, width=style.width, color=style.color, unicode=style.unicode, verbose=verbose
    )
    write(sys.stderr, text)
