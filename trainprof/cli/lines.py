"""`trainprof lines`: runs a script and times its lines, or shows the line times of a saved run."""

from __future__ import annotations

import difflib
import math
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TextIO

import typer

from trainprof.cli import options
from trainprof.cli.options import Order, at_least, choosing, one_of, recording, reporting
from trainprof.cli.output import complain, is_terminal, page_of, write
from trainprof.cli.run import run_to_end
from trainprof.cli.saved_runs import RUN_HELP, RUNS, find_run, is_saved_run
from trainprof.launch.manifest import script_of
from trainprof.launch.options import LineOptions, RunOptions
from trainprof.launch.placement import LATEST
from trainprof.launch.run import FinishedRun
from trainprof.launch.sources import function_names
from trainprof.launch.target import MAIN_FILES, SUFFIX, resolve
from trainprof.record.errors import TrainprofError
from trainprof.record.names import is_named
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


class NoSuchFunction(TrainprofError):
    slug: ClassVar[str] = "no-such-function"
    exit_code: ClassVar[int] = 125


def _unit_s(text: str | float) -> float:
    try:
        unit_s = _UNITS_S[str(text)] if str(text) in _UNITS_S else float(text)
    except ValueError:
        unit_s = 0.0
    if not 0 < unit_s < math.inf:
        raise typer.BadParameter(
            f"{text!r} is not a unit: write s, ms, us, ns or seconds like 1e-3"
        )
    return unit_s


ScriptOrRun = Annotated[
    str | None,
    typer.Argument(
        metavar="SCRIPT|RUN", help="A Python file or a command to run, or a saved run to show."
    ),
]
PerProcess = Annotated[bool, choosing("--per-process", help="Show each process, not their sum.")]
_UNIT: Final = "Unit of the times: s, ms, us, ns, or in seconds.  [default: us off a terminal]"
Unit = Annotated[float | None, choosing("-u", "--unit", parser=_unit_s, metavar="UNIT", help=_UNIT)]
SkipZero = Annotated[bool, choosing("-z", "--skip-zero", help="Leave out functions never called.")]
Sort = Annotated[bool, choosing("-t", "--sort", help="Sort by time, the slowest last.")]
_TOP: Final = "Show only the N slowest functions."
Top = Annotated[int | None, choosing(parser=at_least(1), metavar="N", help=_TOP)]
_LPROF: Final = "Also write RUN/lines.lprof, for python -m line_profiler."
Lprof = Annotated[bool, reporting("--lprof", help=_LPROF)]
_FUNCTIONS: Final = "Time this function or method, * and ? allowed; repeatable."
Functions = Annotated[list[str] | None, recording("-f", metavar="[MODULE:]NAME", help=_FUNCTIONS)]
Only = Annotated[
    str | None,
    recording(
        parser=one_of(*_ONLY),
        metavar="|".join(_ONLY),
        help="Time lines only in loader workers, or only in the main process.",
    ),
]


def lines(
    order: Order,
    functions: Functions = None,
    only: Only = None,
    per_process: PerProcess = False,
    unit: Unit = None,
    skip_zero: SkipZero = False,
    sort: Sort = False,
    top: Top = None,
    lprof: Lprof = False,
) -> None:
    """Time each line of the training loop and of what it calls, in loader workers too.

    With a saved RUN, show its line times. Everything after SCRIPT, or after -m MODULE, is passed to
    the script. trainprof exits with the script's status.
    """
    view = LineView(per_process, unit, skip_zero, sort, top, order.verbose)
    _check_functions(functions or (), order.run)
    run_to_end(
        order,
        lambda summary, finished: _after_the_run(summary, finished, view),
        lines=LineOptions(tuple(functions or ()), only),
        then=_export if lprof else None,
    )


def _check_functions(patterns: Sequence[str], order: RunOptions) -> None:
    """Refuses a name that no Python file of the script has; one with a module may be elsewhere."""
    plain = [pattern for pattern in patterns if ":" not in pattern]
    script = script_of(resolve(order.words, order.module)) if plain else None
    if script is None:
        return
    names = function_names(Path(script))
    for pattern in plain:
        if not names or any(is_named(name, pattern) for name in names):
            continue
        near = difflib.get_close_matches(pattern, [*names, *(x.rpartition(".")[2] for x in names)])
        did_you_mean = f"did you mean {near[0]}? " if near else ""
        raise NoSuchFunction(
            f"no function {pattern!r} in {script} or the Python files next to it",
            hint=f"{did_you_mean}-f '*:{pattern}' searches all modules that the script imports",
        )


def saved_lines(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help=RUN_HELP),
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
    """Returns whether `lines WORD` shows a saved run; else WORD is a script."""
    try:
        if any(map(os.path.isfile, (word, f"{word}{SUFFIX}"))) or _has_main(word):
            return False
    except OSError:
        return False
    if word == LATEST or word.startswith(f"{LATEST}~"):
        return True
    # The beginning of a run's name may be a command: runs of torchrun are called torchrun-...
    is_name = os.path.isdir(word) or os.path.isdir(RUNS / word)
    return (is_name or shutil.which(word) is None) and is_saved_run(word)


def _has_main(word: str) -> bool:
    """Returns whether a directory is a program, and not a run that has a manifest."""
    is_run = RunDirectory(Path(word)).manifest.is_file()
    return not is_run and any(os.path.isfile(os.path.join(word, name)) for name in MAIN_FILES)


def _after_the_run(summary: RunSummary, finished: FinishedRun, view: LineView) -> str:
    from trainprof.analysis.lines.recording import read_line_profile
    from trainprof.report.page.page import opening

    profile = read_line_profile(finished.directory)
    directory = summary.run.directory or str(finished.directory.path)
    head = opening(summary, page_of(sys.stderr))
    notes = view.notes(profile, sys.stderr)
    if not profile.functions:
        report = shlex.join(["trainprof", "report", directory])
        return head + _remarks([*notes, f"the rest of the report: {report}"])
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
    """Which times to show: `unit_s` None: a unit for each; `by_time`: the slowest last."""

    per_process: bool = False
    unit_s: float | None = None
    skip_zero: bool = False
    by_time: bool = False
    top: int | None = None
    verbose: bool = False

    def text(self, profile: LineProfile, stream: TextIO | None, shown_again: Sequence[str]) -> str:
        """Returns a page for a terminal, else only kernprof's table."""
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
        """Returns the notes that a page contains, for output without a page."""
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
