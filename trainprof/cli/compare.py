"""`trainprof compare`: which of two runs trains faster, and what changed between them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from trainprof.cli import options
from trainprof.cli.options import Format, FormatOption
from trainprof.cli.output import complain, json_text, page_of, write
from trainprof.cli.report import summary_of
from trainprof.cli.saved_runs import RunDamaged, find_run, unreadable
from trainprof.record.errors import TrainprofError
from trainprof.record.run_directory import COMPARE_HTML

if TYPE_CHECKING:
    from trainprof.compare.compared_run import ComparedRun
    from trainprof.compare.comparison import Comparison

# By the outcome of a gate that did not pass.
_STATUSES: Final = {"tripped": 1, "not_judged": 2}
_HTML: Final = f"Write an HTML page to {COMPARE_HTML} in the last run's directory."
_PERCENT: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) ?%?")


class NothingToCompare(TrainprofError):
    slug: ClassVar[str] = "nothing-to-compare"


class RunGivenTwice(TrainprofError):
    slug: ClassVar[str] = "run-given-twice"


def _percent(text: str | float) -> float:
    match = _PERCENT.fullmatch(str(text).strip())
    value = float(match[1]) if match else math.inf
    if not value < math.inf:
        raise typer.BadParameter(f"{text!r} is not a percentage: write 5 or 2.5")
    return value


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BASE OTHER",
            help="Saved runs; each OTHER is compared with BASE.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="A run of the base side; repeatable."),
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="A run of the other side; repeatable."),
    ] = None,
    fail_if_slower: Annotated[
        float | None,
        typer.Option(
            parser=_percent,
            metavar="PCT",
            help="Exit with 1 if a step is more than PCT percent slower, with 2 if noise hides it.",
        ),
    ] = None,
    format: FormatOption = Format.TERMINAL,
    html: Annotated[bool, options.reporting("--html", help=_HTML)] = False,
    output: Annotated[
        Path | None,
        options.reporting("-o", "--output", metavar="FILE", help="Write the HTML page here."),
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show every figure.")] = False,
    debug: options.Debug = False,
) -> int:
    """Compare saved runs: which is faster, by how much, and whether noise explains it.

    One run a side is often too noisy. Record three, and name them with --base and --other.
    """
    if output is not None and not html:
        raise typer.BadParameter("only together with --html", param_hint="'--output'")
    sides = _sides(runs or [], base or [], other or [])
    read: dict[str, ComparedRun] = {}
    comparisons = [_comparison(first, second, read, fail_if_slower) for first, second in sides]
    if html:
        _write_html(comparisons, output)
    else:
        write(sys.stdout, _rendered(comparisons, format, verbose=verbose))
    statuses = {_judged(comparison, fail_if_slower) for comparison in comparisons}
    # A tripped gate goes before one that could not be judged.
    return 1 if 1 in statuses else max(statuses)


def _sides(
    runs: Sequence[str], base: Sequence[str], other: Sequence[str]
) -> list[tuple[list[str], list[str]]]:
    """Returns pairs of sides, as names of runs."""
    hint = "trainprof compare BASE OTHER, or --base A1 --base A2 --other B1 --other B2"
    if base or other:
        if runs or not (base and other):
            why = "--base and --other go together, without other runs"
            raise NothingToCompare(why, hint=hint)
        return [(list(base), list(other))]
    if len(runs) < 2:
        raise NothingToCompare("compare needs two runs", hint=hint)
    return [([runs[0]], [name]) for name in runs[1:]]


def _comparison(
    base: Sequence[str], other: Sequence[str], read: dict[str, ComparedRun], percent: float | None
) -> Comparison:
    from trainprof.compare import comparison
    from trainprof.compare.compared_run import named_apart

    runs = [_run(name, read) for name in (*base, *other)]
    for place, run in enumerate(runs):
        # Counted twice, it would make noise look smaller.
        if run.directory in [earlier.directory for earlier in runs[:place]]:
            hint = "name each run once, on one side"
            raise RunGivenTwice(f"{run.name} is named twice", hint=hint)
    runs = named_apart(runs)
    limit = None if percent is None else percent / 100
    return comparison.compare(runs[: len(base)], runs[len(base) :], limit=limit)


def _run(name: str, read: dict[str, ComparedRun]) -> ComparedRun:
    from trainprof.compare.compared_run import read_compared_run

    directory = find_run(name)
    path = str(directory.path)
    if path not in read:
        summary = summary_of(directory)
        if "training" in summary.not_observed and summary.training.steps == 0:
            raise RunDamaged(
                f"{name} has no training to compare: {summary.not_observed['training']}",
                hint=f"trainprof report {name} shows what was recorded",
            )
        try:
            read[path] = read_compared_run(directory, summary)
        except OSError as error:
            raise unreadable(name, error) from error
    return read[path]


def _write_html(comparisons: Sequence[Comparison], output: Path | None) -> None:
    """Writes the HTML page, and its path to stdout."""
    from trainprof.cli.pictures import replacing
    from trainprof.report.html import compared

    path = output or Path(comparisons[-1].other[-1].directory, COMPARE_HTML)
    with replacing(path, is_yours=output is not None) as file:
        file.write(compared.render(comparisons).encode())
    write(sys.stdout, f"{path}\n")


def _rendered(comparisons: Sequence[Comparison], format: Format, *, verbose: bool) -> str:
    from trainprof.report import comparison

    if format is Format.JSON:
        plain = [comparison.to_jsonable(each) for each in comparisons]
        return json_text(plain[0] if len(plain) == 1 else plain)
    if format is Format.MARKDOWN:
        return comparison.render_markdown(comparisons, verbose=verbose)
    return comparison.render_page(comparisons, page_of(sys.stdout, verbose=verbose))


def _judged(comparison: Comparison, percent: float | None) -> int:
    """Reports a gate that did not pass on stderr, and returns its exit status."""
    gate = comparison.gate
    if gate is None or gate.outcome not in _STATUSES:
        return 0
    names = ", ".join(run.name for run in comparison.other)
    if gate.outcome == "tripped":
        complain(f"{names}: {gate.why}, more than --fail-if-slower {percent:g}")
    else:
        complain(f"{names}: --fail-if-slower cannot be judged: {gate.why}", gate.hint)
    return _STATUSES[gate.outcome]
