"""`trainprof run`: profiles one run of a script, reports on stderr, and exits as the script did."""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

from trainprof.cli.options import Order, recording
from trainprof.cli.output import Working, complain, is_terminal, page_of, write, write_line
from trainprof.launch import signals
from trainprof.launch.manifest import exit_reason
from trainprof.launch.options import LineOptions
from trainprof.launch.outcome import Outcome, mirror_exit
from trainprof.launch.run import FinishedRun
from trainprof.launch.run import run as launch
from trainprof.record.errors import TrainprofError
from trainprof.record.run_directory import RANKS, RunDirectory, write_json

if TYPE_CHECKING:
    from trainprof.analysis.summary.run_summary import RunSummary

# Renders what is written to stderr after the run.
Page = Callable[["RunSummary", FinishedRun], str]

_STARTED_S: Final = 3.0
_NICE: Final = 10
_REPORT_MODULES: Final = ("trainprof.findings.summarize", "trainprof.report.page.page")
_LINES: Final = "Time lines too, as trainprof lines does; this slows the script."


def run(
    order: Order, lines: Annotated[bool, recording("--lines", help=_LINES)] = False
) -> NoReturn:
    """Run SCRIPT and report where each step's time went, what to change, and the gain.

    Everything after SCRIPT, or after -m MODULE, is passed to the script. trainprof prints to stderr
    and exits with the script's status.
    """
    line_options = LineOptions() if lines else None
    run_to_end(order, lambda summary, _: _page(summary, order), lines=line_options)


def run_to_end(
    order: Order,
    page: Page,
    *,
    lines: LineOptions | None,
    then: Callable[[FinishedRun], None] | None = None,
) -> NoReturn:
    """Runs the script, saves the summary, writes a page to stderr and exits as the script did."""
    bar = Working(None if order.quiet else sys.stderr, "analysing the run")

    def at_start(directory: RunDirectory) -> None:
        _announce(directory, order, has_lines=lines is not None)
        threading.Thread(target=_import_report, name="trainprof-imports", daemon=True).start()

    finished = launch(
        replace(order.run, lines=lines),
        at_start=at_start,
        at_end=lambda directory, outcome: _give_up_report_at_signal(directory, outcome, bar),
        progress=lambda line: write_line(sys.stderr, line),
    )
    # One report per launch: the other ranks' stand in their directories.
    is_shown = not order.quiet and finished.rank in (None, 0)
    try:
        _report(finished, page if is_shown else None, bar)
        if then is not None:
            then(finished)
        _write_pictures(finished, order)
    except Exception as error:
        if order.debug:
            traceback.print_exc()
        complain(
            f"no report: {type(error).__name__}: {error}",
            hint=f"the recording is in {finished.directory.path}",
        )
    mirror_exit(finished.outcome)


def _import_report() -> None:
    """Imports what the report needs while the script runs, for it to follow the script at once.

    Not at its start, and with little of a core that the script uses too; if that is the only one,
    nothing is gained.
    """
    time.sleep(_STARTED_S)
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1:
        return
    with contextlib.suppress(Exception):  # the report itself imports it again, and says what fails
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        for module in _REPORT_MODULES:
            importlib.import_module(module)


def _write_pictures(finished: FinishedRun, order: Order) -> None:
    """Writes files into the run directory, and their paths to stderr."""
    if not order.pictures or finished.rank not in (None, 0) or not finished.directory.path.is_dir():
        return
    from trainprof.cli.pictures import Picture, write_picture
    from trainprof.cli.report import summary_of

    for name in order.pictures:
        stream = None if order.quiet else sys.stderr
        try:
            with Working(stream, "drawing the run"):
                summary = summary_of(finished.directory)
                path = write_picture(Picture(name), finished.directory, summary)
        except TrainprofError as error:
            again = ["trainprof", "report", str(finished.directory.path), f"--{name}"]
            complain(str(error), hint=f"{shlex.join(again)} --output FILE")
        else:
            write(stream, f"trainprof: wrote {os.path.relpath(path)}\n")


def _announce(directory: RunDirectory, order: Order, *, has_lines: bool) -> None:
    """Says on a terminal, in one line, what is recorded and where."""
    if order.quiet or not is_terminal(sys.stderr) or directory.path.parent.name == RANKS:
        return
    path = os.path.relpath(directory.path)
    place = min(path, str(directory.path), key=len)
    lines = "line times, " if has_lines else ""
    write(sys.stderr, f"trainprof: recording steps, data loading, {lines}CPU and GPU to {place}\n")


def _page(summary: RunSummary, order: Order) -> str:
    from trainprof.report.page import page as terminal

    return terminal.render_after_run(summary, page_of(sys.stderr, verbose=order.verbose))


def _give_up_report_at_signal(directory: RunDirectory, outcome: Outcome, bar: Working) -> None:
    def give_up() -> NoReturn:
        bar.clear()
        complain("report left out", hint=f"trainprof report {shlex.quote(str(directory.path))}")
        mirror_exit(outcome)

    signals.end_at_next(give_up)


def _as_seen(summary: RunSummary, finished: FinishedRun) -> RunSummary:
    """Adds what a full or read-only directory did not take: faults, and how the script ended."""
    faults = list(dict.fromkeys([*summary.faults, *finished.faults]))
    end, outcome = summary.run.exit, finished.outcome
    if end.status is None and end.signal is None:
        seen = exit_reason(outcome)
        # Its own log has an exception; without one it chose its status itself.
        is_known = end.reason in ("exception", "limit", "interrupted")
        reason = end.reason if is_known else seen.replace("exception", "completed")
        detail = end.detail if end.reason in ("exception", "limit") else None
        end = replace(
            end, status=outcome.status, signal=outcome.signal, reason=reason, detail=detail
        )
    return replace(summary, run=replace(summary.run, exit=end), faults=faults)


def _report(finished: FinishedRun, page: Page | None, bar: Working) -> None:

    if not finished.directory.path.is_dir():
        complain(
            "no report: the run directory was removed while the script ran",
            hint=f"it was {finished.directory.path}",
        )
        return
    with bar:
        from trainprof.analysis.summary.json_text import to_jsonable
        from trainprof.findings.summarize import summarize

        summary = _as_seen(summarize(finished.directory), finished)
    try:
        write_json(finished.directory.summary, to_jsonable(summary))
    except OSError as error:
        complain(
            f"summary.json cannot be written: {error.strerror or error}",
            hint=f"the recording is in {finished.directory.path}",
        )
    if page is not None:
        write(sys.stderr, page(summary, finished))
