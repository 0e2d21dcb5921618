"""The options of every verb that runs a script."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from trainprof.launch.options import DEFAULT_INTERVAL_S

# More fit neither a run nor an int64.
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


def at_least(low: int, *, at_most: int | None = None) -> Callable[[str | int], int]:
    """Returns a parser of whole numbers from `low` on, up to `at_most` if there is a limit."""
    wanted = f"of at least {low}" if at_most is None else f"from {low} to {at_most}"

    def parse(text: str | int) -> int:
        is_number = _DIGITS.fullmatch(str(text)) is not None
        if not is_number or int(text) < low or (at_most is not None and int(text) > at_most):
            raise typer.BadParameter(f"{text!r} is not a whole number {wanted}")
        return int(text)

    return parse


_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|s|m|h|)")


def seconds(text: str) -> float:
    """Returns the duration in seconds; typer.BadParameter if it is none."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 0.5, 500ms, 90s, 10m or 1h")
    return float(match[1]) * _UNIT_S[match[2]]


def seconds_between(low: float, high: float = math.inf) -> Callable[[str | float], float]:
    """Returns a parser of durations from `low` to `high` seconds."""

    def parse(text: str | float) -> float:
        value = seconds(str(text))
        if not low <= value <= high:
            upper = "" if math.isinf(high) else f" and at most {high:g} s"
            raise typer.BadParameter(f"{text} is not at least {low:g} s{upper}")
        return value

    return parse


# Each process records as many, and more while it finds them.
_MOST_SLOW_SAMPLES: Final = 1000

Script = Annotated[
    str | None,
    typer.Argument(metavar="SCRIPT", help="A Python file, or a command such as torchrun."),
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS", help="All of it belongs to the script.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="DIR",
        help="The run directory.  [default: a new one under trainprof-runs]",
    ),
]
Module = Annotated[
    str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as python -m does.")
]
_INTERVAL_HELP: Final = "Time between two samples of the system, 0.1 to 60 s."
Interval = Annotated[
    float, typer.Option(parser=seconds_between(0.1, 60), metavar="DURATION", help=_INTERVAL_HELP)
]
# Where it matters whether it was given.
IntervalIfGiven = Annotated[
    float | None,
    typer.Option(
        "--interval",
        parser=seconds_between(0.1, 60),
        metavar="DURATION",
        help=f"{_INTERVAL_HELP}  [default: {DEFAULT_INTERVAL_S:g}]",
        show_default=False,
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(parser=at_least(1), metavar="N", help="End the run cleanly after N steps."),
]
MaxTime = Annotated[
    float | None,
    typer.Option(
        parser=seconds_between(0.001),
        metavar="DURATION",
        help="End the run cleanly after this time.",
    ),
]
WaitThreshold = Annotated[
    float,
    typer.Option(
        parser=seconds_between(0),
        metavar="DURATION",
        help="A wait for a batch over this counts as slow.",
    ),
]
SlowSamples = Annotated[
    int,
    typer.Option(
        parser=at_least(0, at_most=_MOST_SLOW_SAMPLES),
        metavar="N",
        help="Find the N slowest samples of each loader; 0 times no sample.",
    ),
]
CudaSync = Annotated[
    bool,
    typer.Option(
        "--cuda-sync",
        "--sync",
        help="Wait for the device around each phase: exact phases, at a price.",
    ),
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="NAME=VALUE",
        help="A finding's threshold, such as serial_loading.wait_share=0.1; repeatable.",
    ),
]
FindSyncs = Annotated[
    bool,
    typer.Option(
        "--find-syncs",
        help="For some steps, find waits for the device inside torch's C++ code (CUDA).",
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Write no report to the terminal.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Report all there is.")]
Progress = Annotated[bool, typer.Option("--progress", help="Live lines on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of ours.")]


def words(script: str | None, arguments: Sequence[str] | None) -> tuple[str, ...]:
    """Returns SCRIPT ARGS, or behind -m MODULE its ARGS, as the command line held them."""
    return (*(() if script is None else (script,)), *(arguments or ()))


def thresholds(words: Sequence[str] | None) -> dict[str, float]:
    """Returns what --rule sets, by the threshold's name; typer.BadParameter if that is nothing."""
    if not words:
        return {}
    from trainprof.findings.catalogue import UnknownThreshold, parsed_settings

    try:
        return parsed_settings(words)
    except UnknownThreshold as error:
        raise typer.BadParameter(str(error), param_hint="'--rule'") from None


class Format(str, Enum):
    """How something is written."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"

    # Before 0.27 typer looks for the string of what a parser returned among the values.
    __str__ = str.__str__


FORMATS: Final = tuple(format.value for format in Format)


def parse_format(text: str) -> Format:
    if text not in FORMATS:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(FORMATS)}")
    return Format(text)


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        parser=parse_format,
        metavar="|".join(FORMATS),
        show_default=False,
        help=f"How to write it.  [default: {Format.TERMINAL.value}]",
    ),
]
