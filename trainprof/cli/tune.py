"""`trainprof tune`: what would really help, by measured reruns of the same script."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from trainprof.cli import options
from trainprof.cli.options import Format, FormatOption, at_least, seconds_between
from trainprof.cli.output import complain, is_terminal, width_of, write
from trainprof.cli.report import rendered
from trainprof.cli.saved_runs import find_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainprof.tune.measurements import Progress
    from trainprof.tune.session import TuneRun

INTERRUPTED: Final = 130  # as a shell shows Ctrl-C
_LEAST_STEPS: Final = 30


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
        bool, typer.Option("--allow-numerics", help="Try settings that change the numbers, too.")
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
    interval: options.IntervalIfGiven = None,
    format: FormatOption = Format.TERMINAL,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Say nothing while trials run.")
    ] = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Rerun SCRIPT with other settings, and say what makes it faster.

    The script is not edited: settings are changed from outside. Each trial runs in a sandbox: it
    sees your files, and what it writes is discarded. {trial} in its arguments becomes the trial's
    name.
    """
    from trainprof.analysis.summary.tune import INTERRUPTED as STOPPED
    from trainprof.tune.runner import Script
    from trainprof.tune.session import StoppedTooEarly, TuneOptions, begin, resumed
    from trainprof.tune.session import tune as measure

    words = options.words(script, arguments)
    if not words and module is None:
        again = "" if resume is None else ": --resume needs the same command again"
        raise typer.BadParameter(f"missing: what to tune{again}", param_hint="'SCRIPT'")
    given = Script(words, module)
    order = TuneOptions(
        given, output, budget, trial_steps, allow_numerics, interval, not unsandboxed
    )
    run = begin(order) if resume is None else resumed(find_run(resume), order)
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


_EVERY_S: Final = 1.0


class TuneProgress:
    """Called before and after each run of a trial; on a terminal the trial's line counts down."""

    def __init__(
        self, stream: TextIO | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = stream, clock
        self._is_live = is_terminal(stream)
        self._width = width_of(stream)
        self._lock = threading.Lock()
        self._running: tuple[Progress, float] | None = None
        self._kept = 0  # and not told of yet
        self._has_run = False
        self._over = threading.Event()

    def __enter__(self) -> TuneProgress:
        if self._is_live:
            threading.Thread(target=self._tick, name="trainprof-progress", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        with self._lock:
            if self._running is not None and self._is_live:
                write(self._stream, self._cleared())
            self._running = None
            self._tell_kept(", and none run anew" if not self._has_run else "")

    def __call__(self, progress: Progress) -> None:
        if progress.is_kept:
            self._kept += progress.measured is not None
            return
        with self._lock:
            self._has_run = True
            self._tell_kept()
            if progress.measured is None:
                self._running = progress, self._clock()
            else:
                self._running = None
                clear = self._cleared() if self._is_live else ""
                left = "" if self._is_live else f" ({_left(progress.left_s)} left)"
                line = f"{_at(progress)}: {progress.trial.name}: {_result(progress)}{left}"
                write(self._stream, f"{clear}{line}\n")
        self.draw()

    def announce(self, sentence: str) -> None:
        """Writes a sentence between the lines of two trials."""
        with self._lock:
            clear = self._cleared() if self._is_live and self._running is not None else ""
            write(self._stream, f"{clear}trainprof: {sentence}\n")

    def _tell_kept(self, more: str = "") -> None:
        if self._kept:
            from trainprof.report.text.units import counted

            write(self._stream, f"{counted(self._kept, 'trial')} kept from before{more}\n")
        self._kept = 0

    def draw(self) -> None:
        """Writes the line of the trial that runs anew, with the time that is left by now."""
        with self._lock:
            if self._running is None or not self._is_live:
                return
            progress, began_s = self._running
            left_s = max(progress.left_s - (self._clock() - began_s), 0.0)
            line = f"{_at(progress)}: {progress.trial.name} ... {_left(left_s)} left"
            write(self._stream, f"{self._cleared()}{line[: self._width - 1]}")

    def _cleared(self) -> str:
        return f"\r{' ' * (self._width - 1)}\r"

    def _tick(self) -> None:
        try:
            while not self._over.wait(_EVERY_S):
                self.draw()
        except (OSError, ValueError):  # the terminal is gone
            return


def _at(progress: Progress) -> str:
    at = f"trial {progress.done + (progress.measured is None)}"
    return at if progress.expected is None else f"{at} of about {progress.expected}"


def _result(progress: Progress) -> str:
    """Returns the pace that the table will have: with starts of passes, where training has some."""
    from trainprof.analysis.summary.tune import TOO_FEW_STEPS
    from trainprof.report.text.units import three_digits
    from trainprof.tune.trial import WARM_UP

    run = progress.measured
    assert run is not None
    if run.trial.name == WARM_UP and run.outcome == TOO_FEW_STEPS:
        return "done, not counted"
    pace = run.training_pace or run.pace
    if pace is None or pace.mean_s <= 0:
        return run.outcome if run.detail is None else f"{run.outcome}: {run.detail}"
    unit = "batches" if run.trial.data == "alone" else "steps"
    return f"{three_digits(1 / pace.mean_s)} {unit}/s"


def _left(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
