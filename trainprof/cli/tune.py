"""`trainprof tune`: measures which settings make the same script faster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trainprof.cli import options
from trainprof.cli.options import Format, FormatOption, at_least, seconds_between
from trainprof.cli.output import complain, page_of, write
from trainprof.cli.pictures import Picture, write_picture
from trainprof.cli.report import rendered
from trainprof.cli.saved_runs import find_run
from trainprof.record.run_directory import REPORT_HTML

if TYPE_CHECKING:
    from trainprof.report.progress import TimedProgress
    from trainprof.tune.measurements import Progress
    from trainprof.tune.session import TuneRun
    from trainprof.tune.trial import Measured

INTERRUPTED: Final = 130  # as a shell shows Ctrl-C
_LEAST_STEPS: Final = 30
_HTML: Final = f"Also write the result as an HTML page, {REPORT_HTML} in the run's directory."


def tune(
    script: options.Script = None,
    arguments: options.Arguments = None,
    output: options.Output = None,
    module: options.Module = None,
    budget: Annotated[
        float | None,
        typer.Option(
            parser=seconds_between(10),
            metavar="DURATION",
            help="Time for all trials, at least 10s.  [default: 10m]",
            show_default=False,
        ),
    ] = None,
    trial_steps: Annotated[
        int | None,
        typer.Option(
            parser=at_least(_LEAST_STEPS),
            metavar="N",
            help="End each trial after N steps, at least 30.  [default: fitted to the budget]",
            show_default=False,
        ),
    ] = None,
    allow_numerics: Annotated[
        bool,
        typer.Option(
            "--allow-numerics", help="Also try settings that change results, such as TF32."
        ),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Continue an earlier tune run, with the same command."),
    ] = None,
    unsandboxed: Annotated[
        bool,
        typer.Option(
            "--unsandboxed",
            help="Run trials without a sandbox, if the kernel refuses one: they can modify your "
            "files.",
        ),
    ] = False,
    interval: options.IntervalIfGiven = None,
    format: FormatOption = Format.TERMINAL,
    html: Annotated[bool, options.reporting("--html", help=_HTML)] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress.")] = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Rerun SCRIPT with other settings and measure which are faster.

    Your script is not edited: trainprof changes the settings while it runs. Trials see a
    copy-on-write view of your files; the originals are never modified. {trial} in ARGS is replaced
    by the name of the trial.
    """
    from trainprof.analysis.summary.tune import INTERRUPTED as STOPPED
    from trainprof.tune.runner import Script
    from trainprof.tune.session import StoppedTooEarly, TuneOptions, begin, resumed
    from trainprof.tune.session import tune as measure

    words = options.words(script, arguments)
    if not words and module is None:
        again = "" if resume is None else ": repeat the command of the tune run after --resume"
        raise typer.BadParameter(f"no script to tune{again}", param_hint="'SCRIPT'")
    given = Script(words, module)
    order = TuneOptions(
        given, output, budget, trial_steps, allow_numerics, interval, not unsandboxed
    )
    run = begin(order) if resume is None else resumed(find_run(resume), order)
    try:
        if quiet:
            summary = measure(run)
        else:
            write(sys.stderr, _opening(run))
            with _progress(run) as shown:
                summary = measure(run, on_progress=Shown(shown), announce=shown.say)
    except StoppedTooEarly as stopped:  # requested, not an error
        complain(str(stopped), stopped.hint)
        return INTERRUPTED
    write(sys.stdout, rendered(summary, format, verbose=verbose))
    if html:
        path = write_picture(Picture.HTML, run.directory, summary)
        write(sys.stderr, f"trainprof: wrote {path}\n")
    assert summary.tuning is not None
    return INTERRUPTED if summary.tuning.ended_by == STOPPED else 0


def _opening(run: TuneRun) -> str:
    """Returns what stderr shows before the first trial."""
    lines = []
    if run.journal.done:
        lines.append(f"Resuming: {len(run.journal.done)} earlier runs are kept.")
    if run.sandbox is None:
        lines.append(
            "No sandbox: trials run in a scratch copy of the working directory, and can modify "
            "files elsewhere. The page lists files that their Python code opened for writing."
        )
    else:
        lines.append(
            "Trials see a copy-on-write view of your files; the originals are never modified. "
            "Network, services, devices and /dev/shm are shared. Experiment trackers are offline."
        )
        if run.sandbox.memory_bytes is not None:
            gib = run.sandbox.memory_bytes / (1 << 30)
            lines.append(f"Files that trials write are kept in memory, at most {gib:.1f} GiB.")
    if run.plan is not None:
        lines.append(f"trainprof: {run.plan}")
    page = page_of(sys.stderr)
    text = page.written([line for sentence in lines for line in page.paragraph(sentence)])
    return f"trainprof: recording trials in {run.directory.path}\n{text}"


def _progress(run: TuneRun) -> TimedProgress:
    from trainprof.report.progress import TimedProgress
    from trainprof.tune.trial_limits import duration

    return TimedProgress(sys.stderr, page_of(sys.stderr), run.budget_s, duration)


class Shown:
    """Shows each trial that runs, and its result; earlier runs of a resumed search are silent."""

    def __init__(self, shown: TimedProgress) -> None:
        self._shown = shown

    def __call__(self, progress: Progress) -> None:
        if progress.is_kept:
            return
        number = progress.done + (progress.measured is None)
        label = f"trial {number}: {progress.trial.name}"
        if progress.measured is None:
            self._shown.begin(label, progress.left_s)
        else:
            self._shown.end(f"{label}: {_result(progress.measured)}")


def _result(run: Measured) -> str:
    """Returns the pace as in the table, epoch starts included, or how the trial failed."""
    from trainprof.analysis.summary.tune import TOO_FEW_STEPS
    from trainprof.report.text.units import three_digits
    from trainprof.tune.trial import WARM_UP

    if run.trial.name == WARM_UP and run.outcome == TOO_FEW_STEPS:
        return "done, not counted"
    pace = run.training_pace or run.pace
    if pace is None or pace.mean_s <= 0:
        return run.outcome if run.detail is None else f"{run.outcome}: {run.detail}"
    unit = "batches" if run.trial.data == "alone" else "steps"
    return f"{three_digits(1 / pace.mean_s)} {unit}/s"
