"""`trainprof tune`: what would really help, by measured reruns of the same script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from trainprof.cli import run_options
from trainprof.cli.duration import seconds_between
from trainprof.cli.formats import Format, FormatOption
from trainprof.cli.output import complain, write
from trainprof.cli.report import find_run, rendered
from trainprof.cli.whole_number import at_least
from trainprof.launch.options import DEFAULT_INTERVAL_S
from trainprof.record.errors import TrainprofError

if TYPE_CHECKING:
    from trainprof.experiments.runner import Script

INTERRUPTED: Final = 130  # as a shell shows Ctrl-C
_LEAST_STEPS: Final = 30


class NotContained(TrainprofError):
    slug: ClassVar[str] = "not-contained"
    exit_code: ClassVar[int] = 2


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
    yes: Annotated[
        bool,
        typer.Option("-y", "--yes", help="Begin also where not all can be kept from your files."),
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

    The script is not edited: settings are changed from outside, each trial in a process of its own.
    What it writes stays in the trial's directory, but for temporary files and caches. {trial} in
    its arguments is replaced by the trial's name.
    """
    from trainprof.analysis.tuning import INTERRUPTED as STOPPED
    from trainprof.cli.tune_progress import TuneProgress
    from trainprof.experiments.runner import Script
    from trainprof.experiments.tune import (
        DEFAULT_BUDGET_S,
        AskedAgain,
        StoppedTooEarly,
        TuneOptions,
        begin,
        resumed,
    )
    from trainprof.experiments.tune import tune as measure

    words = run_options.words(script, arguments)
    given = Script(words, module) if words or module is not None else None
    if resume is None:
        if given is None:
            raise typer.BadParameter("missing: what to tune", param_hint="'SCRIPT'")
        agreed = _check_contained(given, is_agreed=yes)
        options = TuneOptions(
            script=given,
            output=output,
            budget_s=budget or DEFAULT_BUDGET_S,
            trial_steps=trial_steps,
            allow_numerics=allow_numerics,
            interval_s=interval or DEFAULT_INTERVAL_S,
            agreed=agreed,
        )
        run = begin(options)
    else:
        again = AskedAgain(given, output, budget, trial_steps, interval, allow_numerics)
        run = resumed(find_run(resume), again)
        before = run.journal.asked.agreed
        run.journal.agree(_check_contained(run.options.script, is_agreed=yes, before=before))
    if not quiet:
        write(sys.stderr, f"trainprof: trials are kept in {run.directory.path}\n")
    try:
        with TuneProgress(None if quiet else sys.stderr) as progress:
            summary = measure(run, tell=progress, announce=progress.announce)
    except StoppedTooEarly as stopped:  # the user's wish, no error
        complain(str(stopped), stopped.hint)
        return INTERRUPTED
    write(sys.stdout, rendered(summary, format, verbose=verbose))
    assert summary.tuning is not None
    return INTERRUPTED if summary.tuning.ended_by == STOPPED else 0


def _check_contained(
    script: Script, *, is_agreed: bool, before: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Says what trials would do besides training, and goes on only if that is agreed to.

    Args:
        script: What is to be run.
        is_agreed: Whatever it does.
        before: What was agreed to earlier.

    Returns:
        What is agreed to.

    Raises:
        NotContained: If something is not.
    """
    from trainprof.experiments.uncontained import NO_PYTHON, OUT_OF_REACH, find_uncontained
    from trainprof.launch.masking import masked_text
    from trainprof.launch.target import resolve

    found = find_uncontained(resolve(script.words, script.module), Path.cwd())
    told = tuple(masked_text(f"{one.site}: {one.name} {one.sentence}") for one in found)
    if set(told) <= set(before):
        return told
    write(sys.stderr, "trainprof: what trials do here cannot be kept apart:\n")
    for sentence in told:
        write(sys.stderr, f"  {sentence}\n")
    if is_agreed:
        return told
    instead = "switch it off by an argument of the script"
    if any(one.sentence == NO_PYTHON for one in found):
        instead = "name the Python script itself, or what starts it (python, torchrun)"
    if any(one.sentence == OUT_OF_REACH for one in found):
        instead = "start it by a Python from 3.10 on, with variables set before trainprof"
    raise NotContained(
        "nothing was run: each trial would do that again", hint=f"{instead}, or go on with --yes"
    )
