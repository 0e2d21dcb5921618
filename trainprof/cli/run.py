"""`trainprof run`: profiles one run of a script, reports on stderr, and ends as the script did."""

from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trainprof.cli import options
from trainprof.cli.output import complain, page_of, write
from trainprof.launch import signals
from trainprof.launch.manifest import exit_reason
from trainprof.launch.options import (
    DEFAULT_INTERVAL_S,
    DEFAULT_SLOW_SAMPLES,
    DEFAULT_WAIT_THRESHOLD_S,
    LineOptions,
    RunOptions,
)
from trainprof.launch.outcome import Outcome, mirror_exit
from trainprof.launch.run import FinishedRun
from trainprof.launch.run import run as launch
from trainprof.record.run_directory import RunDirectory, write_json

if TYPE_CHECKING:
    from trainprof.analysis.summary.run_summary import RunSummary

# Says what is written to the terminal of a run that has ended.
Page = Callable[["RunSummary", FinishedRun], str]


def run(
    script: options.Script = None,
    arguments: options.Arguments = None,
    output: options.Output = None,
    module: options.Module = None,
    interval: options.Interval = DEFAULT_INTERVAL_S,
    max_steps: options.MaxSteps = None,
    max_time: options.MaxTime = None,
    wait_threshold: options.WaitThreshold = DEFAULT_WAIT_THRESHOLD_S,
    slow_samples: options.SlowSamples = DEFAULT_SLOW_SAMPLES,
    lines: Annotated[
        bool,
        typer.Option("--lines", help="Time lines too, as trainprof lines does; slows the script."),
    ] = False,
    cuda_sync: options.CudaSync = False,
    rule: options.Rules = None,
    find_syncs: options.FindSyncs = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    progress: options.Progress = False,
    debug: options.Debug = False,
) -> NoReturn:
    """Profile a run of SCRIPT.

    All that follows SCRIPT, or -m MODULE, belongs to the script. The exit status is the script's.
    """
    run_to_end(
        RunOptions(
            words=options.words(script, arguments),
            module=module,
            output=output,
            interval_s=interval,
            wait_threshold_s=wait_threshold,
            max_steps=max_steps,
            max_time_s=max_time,
            progress=progress,
            lines=LineOptions() if lines else None,
            slow_samples=slow_samples,
            cuda_sync=cuda_sync,
            rules=options.thresholds(rule),
            find_syncs=find_syncs,
        ),
        lambda summary, _: _page(summary, verbose=verbose),
        quiet=quiet,
        debug=debug,
    )


def run_to_end(
    order: RunOptions,
    page: Page,
    *,
    then: Callable[[FinishedRun], None] | None = None,
    quiet: bool,
    debug: bool,
) -> NoReturn:
    """Runs the script, saves the summary, writes a page to stderr and ends as the script did."""
    finished = launch(
        order,
        at_end=_give_up_report_at_signal,
        progress=lambda line: write(sys.stderr, f"{line}\n"),
    )
    # One report per launch: the other ranks' stand in their directories.
    is_shown = not quiet and finished.rank in (None, 0)
    try:
        _report(finished, page if is_shown else None)
        if then is not None:
            then(finished)
    except Exception as error:
        if debug:
            traceback.print_exc()
        complain(
            f"no report: {type(error).__name__}: {error}",
            hint=f"the recording is kept in {finished.directory.path}",
        )
    mirror_exit(finished.outcome)


def _page(summary: RunSummary, *, verbose: bool) -> str:
    from trainprof.report.page import page as terminal

    return terminal.render(summary, page_of(sys.stderr, verbose=verbose))


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
        is_known = end.reason in ("exception", "limit", "interrupted")
        reason = end.reason if is_known else seen.replace("exception", "completed")
        detail = end.detail if end.reason in ("exception", "limit") else None
        end = replace(
            end, status=outcome.status, signal=outcome.signal, reason=reason, detail=detail
        )
    return replace(summary, run=replace(summary.run, exit=end), faults=faults)


def _report(finished: FinishedRun, page: Page | None) -> None:
    from trainprof.analysis.summary.json_text import to_jsonable
    from trainprof.findings.summarize import summarize

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
    if page is not None:
        write(sys.stderr, page(summary, finished))
