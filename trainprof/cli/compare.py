"""`trainprof compare`: whether one run trains faster than another, and what else changed."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from trainprof.cli.options import Format, FormatOption
from trainprof.cli.output import complain, json_text, page_of, write
from trainprof.cli.report import summary_of
from trainprof.cli.saved_runs import RunDamaged, find_run, unreadable
from trainprof.record.errors import TrainprofError

if TYPE_CHECKING:
    from trainprof.compare.compared_run import ComparedRun
    from trainprof.compare.comparison import Comparison

# By the outcome of a gate that did not pass.
_STATUSES: Final = {"tripped": 1, "not_judged": 2}
_PERCENT: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) ?%?")


class NothingToCompare(TrainprofError):
    slug: ClassVar[str] = "nothing-to-compare"


class RunGivenTwice(TrainprofError):
    slug: ClassVar[str] = "run-given-twice"


def _percent(text: str | float) -> float:
    match = _PERCENT.fullmatch(str(text).strip())
    value = float(match[1]) if match else math.inf
    if not value < math.inf:
        raise typer.BadParameter(f"{text!r} is no percentage: write 5 or 2.5")
    return value


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BASE OTHER",
            help="Runs as `report` takes them; each OTHER is compared with BASE.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="A run of BASE; repeat it for repeated runs."),
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="A run of OTHER; repeat it for repeated runs."),
    ] = None,
    fail_if_slower: Annotated[
        float | None,
        typer.Option(
            parser=_percent,
            metavar="PCT",
            help="End with 1 when a step certainly takes over PCT percent longer, "
            "with 2 when that cannot be told.",
        ),
    ] = None,
    format: FormatOption = Format.TERMINAL,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show all there is.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of ours.")] = False,
) -> int:
    """Compare runs: what changed, with the noise of step times taken into account."""
    sides = _sides(runs or [], base or [], other or [])
    read: dict[str, ComparedRun] = {}
    comparisons = [_comparison(first, second, read, fail_if_slower) for first, second in sides]
    write(sys.stdout, _rendered(comparisons, format, verbose=verbose))
    statuses = {_judged(comparison, fail_if_slower) for comparison in comparisons}
    # One that is slower is worth knowing before those of which nothing is known.
    return 1 if 1 in statuses else max(statuses)


def _sides(
    runs: Sequence[str], base: Sequence[str], other: Sequence[str]
) -> list[tuple[list[str], list[str]]]:
    """Returns what is compared with what, as names of runs."""
    hint = "trainprof compare BASE OTHER, or --base A1 --base A2 --other B1 --other B2"
    if base or other:
        if runs or not (base and other):
            why = "each side takes a run of its own, by --base and --other, and no run besides"
            raise NothingToCompare(why, hint=hint)
        return [(list(base), list(other))]
    if len(runs) < 2:
        raise NothingToCompare("it takes two runs to compare", hint=hint)
    return [([runs[0]], [name]) for name in runs[1:]]


def _comparison(
    base: Sequence[str], other: Sequence[str], read: dict[str, ComparedRun], percent: float | None
) -> Comparison:
    from trainprof.compare import comparison
    from trainprof.compare.compared_run import named_apart

    runs = [_run(name, read) for name in (*base, *other)]
    for place, run in enumerate(runs):
        # Counted twice it would make noise look smaller.
        if run.directory in [earlier.directory for earlier in runs[:place]]:
            hint = "give each run once, on one side"
            raise RunGivenTwice(f"{run.name} is given twice", hint=hint)
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
                f"{name} has nothing to compare: {summary.not_observed['training']}",
                hint=f"see what there is: trainprof report {name}",
            )
        try:
            read[path] = read_compared_run(directory, summary)
        except OSError as error:
            raise unreadable(name, error) from error
    return read[path]


def _rendered(comparisons: Sequence[Comparison], format: Format, *, verbose: bool) -> str:
    from trainprof.report import comparison

    if format is Format.JSON:
        plain = [comparison.to_jsonable(each) for each in comparisons]
        return json_text(plain[0] if len(plain) == 1 else plain)
    if format is Format.MARKDOWN:
        return comparison.render_markdown(comparisons, verbose=verbose)
    return comparison.render_page(comparisons, page_of(sys.stdout, verbose=verbose))


def _judged(comparison: Comparison, percent: float | None) -> int:
    """Says on stderr what the gate says, unless it passed, and returns its exit status."""
    gate = comparison.gate
    if gate is None or gate.outcome not in _STATUSES:
        return 0
    names = ", ".join(run.name for run in comparison.other)
    if gate.outcome == "tripped":
        complain(f"{names}: {gate.why}, more than --fail-if-slower {percent:g}")
    else:
        complain(f"{names}: --fail-if-slower cannot be judged: {gate.why}", gate.hint)
    return _STATUSES[gate.outcome]
