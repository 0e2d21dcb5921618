"""`trainprof tune`: what would really help, by measured reruns of the same script."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trainprof.cli import run_options
from trainprof.cli.duration import seconds_between
from trainprof.cli.formats import Format, FormatOption
from trainprof.cli.output import complain, write
from trainprof.cli.report import find_run, rendered
from trainprof.cli.whole_number import at_least

if TYPE_CHECKING:
    from trainprof.tune.session import TuneRun

INTERRUPTED: Final = 130  # as a shell shows Ctrl-C
_LEAST_STEPS: Final = 30


def tune(
    script: run_options.Script = None,
    arguments: run_options.Arguments = None,
    output: run_options.Output = None,
    module: run_options.Module = None,
    budget: Annotated[
        float | None,
        typer.Option(
            parser=seconds_between(10),
            metavar="DURATION",
            help="Time for all trials, 10s at least.  [default: 10m]",
            show_default=False,
        ),
    ] = None,
    trial_steps: Annotated[
        int | None,
        typer.Option(
            parser=at_least(_LEAST_STEPS),
            metavar="N",
            help="Stop each trial after N steps, 30 at least.  [default: as the budget suggests]",
            show_default=False,
        ),
    ] = None,
    allow_numerics: Annotated[
        bool,
        typer.Option("--allow-numerics", help="Try settings that change the numbers, too."),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with an earlier tune run, as it was begun."),
    ] = None,
    unsandboxed: Annotated[
        bool,
        typer.Option(
            "--unsandboxed",
            help="Run trials without a sandbox, where the kernel allows none: they can change your "
            "files.",
        ),
    ] = False,
    interval: run_options.IntervalIfGiven = None,
    format: FormatOption = Format.TERMINAL,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Say nothing while trials run.")
    ] = False,
    verbose: run_options.Verbose = False,
    debug: run_options.Debug = False,
) -> int:
    """Rerun SCRIPT with other settings, and say what makes it faster.

    The script is not edited: settings are changed from outside. Each trial runs in a sandbox: it
    sees your files, and what it writes is discarded. {trial} in its arguments becomes the trial's
    name.
    """
    from trainprof.analysis.summary.tune import INTERRUPTED as STOPPED
    from trainprof.cli.tune_progress import TuneProgress
    from trainprof.tune.runner import Script
    from trainprof.tune.session import StoppedTooEarly, TuneOptions, begin, resumed
    from trainprof.tune.session import tune as measure

    words = run_options.words(script, arguments)
    if not words and module is None:
        again = "" if resume is None else ": --resume needs the same command again"
        raise typer.BadParameter(f"missing: what to tune{again}", param_hint="'SCRIPT'")
    given = Script(words, module)
    options = TuneOptions(
        given, output, budget, trial_steps, allow_numerics, interval, not unsandboxed
    )
    run = begin(options) if resume is None else resumed(find_run(resume), options)
    if not quiet:
        write(sys.stderr, _opening(run))
    try:
        with TuneProgress(None if quiet else sys.stderr) as progress:
            summary = measure(run, tell=progress, announce=progress.announce)
    except StoppedTooEarly as stopped:  # the user's wish, no error
        complain(str(stopped), stopped.hint)
        return INTERRUPTED
    write(sys.stdout, rendered(summary, format, verbose=verbose))
    assert summary.tuning is not None
    return INTERRUPTED if summary.tuning.ended_by == STOPPED else 0


def _opening(run: TuneRun) -> str:
    """Returns what is said ahead of the first trial."""
    where = f"trainprof: trials are kept in {run.directory.path}\n"
    if run.sandbox is None:
        how = (
            "No sandbox: each trial runs in a scratch working directory and can change files "
            "elsewhere. The first one lists the files that its Python code opens for writing; "
            "other programs and native code escape that."
        )
    else:
        how = (
            "Trials run in a sandbox: they see your files, and what they write is discarded. Not "
            "contained: network, services, devices, /dev/shm. Experiment trackers are offline."
        )
        if run.sandbox.memory_bytes is not None:
            gib = run.sandbox.memory_bytes / (1 << 30)
            how += f" What they write is held in memory, up to {gib:.1f} GiB."
    return f"{where}{how}\n"
