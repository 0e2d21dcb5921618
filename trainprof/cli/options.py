"""The options of the verbs: how their values are read, and those that several verbs share."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trainprof.launch.options import (
    DEFAULT_INTERVAL_S,
    DEFAULT_SLOW_SAMPLES,
    DEFAULT_WAIT_THRESHOLD_S,
    RunOptions,
)

# Longer numbers fit neither a run nor an int64.
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


_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "": 1.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|s|m|h|d|)")


def seconds(text: str) -> float:
    """Returns a duration in seconds; typer.BadParameter if the text is not a duration."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 500ms, 90s, 10m, 1h or 7d")
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


def one_of(*words: str) -> Callable[[str], str]:
    """Returns a parser of a few words, upper or lower case."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(words)}")
        return text.lower()

    return parse


# Each process keeps this many samples at most.
_MOST_SLOW_SAMPLES: Final = 1000
# Options by their heading in --help.
recording = partial(typer.Option, rich_help_panel="What to record")
limiting = partial(typer.Option, rich_help_panel="Limits")
reporting = partial(typer.Option, rich_help_panel="How to report")
choosing = partial(typer.Option, rich_help_panel="What to show")

Script = Annotated[
    str | None,
    typer.Argument(metavar="SCRIPT", help="A Python file, or a command such as torchrun."),
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS", help="The script's arguments.")
]
Module = Annotated[
    str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as python -m does.")
]
_OUTPUT: Final = "Save the run here.  [default: a new directory in trainprof-runs]"
Output = Annotated[Path | None, recording("-o", "--output", metavar="DIR", help=_OUTPUT)]
Force = Annotated[bool, recording("--force", help="Replace the run in -o DIR.")]
_INTERVAL: Final = "Sample CPU, memory and GPU this often, 0.1 to 60 s."
_interval = partial(recording, parser=seconds_between(0.1, 60), metavar="DURATION")
Interval = Annotated[float, _interval(help=_INTERVAL)]
# Where it matters whether it was set.
IntervalIfGiven = Annotated[
    float | None,
    _interval("--interval", help=f"{_INTERVAL}  [default: {DEFAULT_INTERVAL_S:g}]"),
]
MaxSteps = Annotated[
    int | None, limiting(parser=at_least(1), metavar="N", help="End after N steps.")
]
_MAX_TIME: Final = "End after this time, such as 90s or 10m."
MaxTime = Annotated[
    float | None, limiting(parser=seconds_between(0.001), metavar="DURATION", help=_MAX_TIME)
]
_THRESHOLD: Final = "Call a batch slow when the loop waits longer for it."
WaitThreshold = Annotated[
    float, recording(parser=seconds_between(0), metavar="DURATION", help=_THRESHOLD)
]
_SLOWEST: Final = "List the N slowest samples of each loader; 0 times no sample."
SlowSamples = Annotated[
    int, recording(parser=at_least(0, at_most=_MOST_SLOW_SAMPLES), metavar="N", help=_SLOWEST)
]
_SYNC: Final = "Synchronize the GPU around each phase: exact phases, slower steps."
CudaSync = Annotated[bool, recording("--cuda-sync", "--sync", help=_SYNC)]
_FIND_SYNCS: Final = "Find CUDA synchronizations inside torch's C++ code, for some steps."
FindSyncs = Annotated[bool, recording("--find-syncs", help=_FIND_SYNCS)]
_RULE: Final = "Change a finding's threshold, such as serial_loading.wait_share=0.1; repeatable."
Rules = Annotated[list[str] | None, reporting("--rule", metavar="NAME=VALUE", help=_RULE)]
Quiet = Annotated[bool, reporting("-q", "--quiet", help="Save the run and print nothing.")]
Verbose = Annotated[bool, reporting("-v", "--verbose", help="Print all sections.")]
_HTML: Final = "Write RUN/report.html too: charts, flame graph, all details."
Html = Annotated[bool, reporting("--html", help=_HTML)]
_TRACE: Final = "Write RUN/trace.json.gz too, for ui.perfetto.dev."
Trace = Annotated[bool, reporting("--trace", help=_TRACE)]
_PROGRESS: Final = "Print a line every 10 s while the script runs."
Progress = Annotated[bool, reporting("--progress", help=_PROGRESS)]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error in trainprof.")
]


@dataclass(frozen=True, slots=True)
class Order:
    """What the shared options of `run` and `lines` ask for; `pictures` are formats of `report`."""

    run: RunOptions
    pictures: tuple[str, ...]
    quiet: bool
    verbose: bool
    debug: bool


def _order(
    script: Script = None,
    arguments: Arguments = None,
    module: Module = None,
    output: Output = None,
    force: Force = False,
    interval: Interval = DEFAULT_INTERVAL_S,
    wait_threshold: WaitThreshold = DEFAULT_WAIT_THRESHOLD_S,
    slow_samples: SlowSamples = DEFAULT_SLOW_SAMPLES,
    cuda_sync: CudaSync = False,
    find_syncs: FindSyncs = False,
    max_steps: MaxSteps = None,
    max_time: MaxTime = None,
    rule: Rules = None,
    html: Html = False,
    trace: Trace = False,
    progress: Progress = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> Order:
    run = RunOptions(
        words=words(script, arguments),
        module=module,
        output=output,
        replaces_output=force,
        interval_s=interval,
        wait_threshold_s=wait_threshold,
        max_steps=max_steps,
        max_time_s=max_time,
        progress=progress,
        slow_samples=slow_samples,
        cuda_sync=cuda_sync,
        rules=thresholds(rule),
        find_syncs=find_syncs,
    )
    pictures = (*(["html"] if html else []), *(["trace"] if trace else []))
    return Order(run, pictures, quiet, verbose, debug)


def runs_a_script(verb: Callable[..., Any], script: object = Script) -> Callable[..., Any]:
    """Returns a command with the shared options and the verb's own; the verb gets an Order first.

    `script` is the annotation of SCRIPT.
    """
    shared = dict(inspect.signature(_order, eval_str=True).parameters)
    shared["script"] = shared["script"].replace(annotation=script)
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]

    def command(**values: Any) -> Any:
        order = _order(**{name: values.pop(name) for name in shared})
        return verb(order, **values)

    command.__doc__ = verb.__doc__
    command.__annotations__ = {}
    command.__signature__ = inspect.Signature([*shared.values(), *own])  # type: ignore[attr-defined]
    return command


def words(script: str | None, arguments: Sequence[str] | None) -> tuple[str, ...]:
    """Returns SCRIPT ARGS, or with -m MODULE its ARGS, as typed."""
    return (*(() if script is None else (script,)), *(arguments or ()))


def thresholds(words: Sequence[str] | None) -> dict[str, float]:
    """Returns what --rule sets, by the threshold's name; typer.BadParameter if it is unknown."""
    if not words:
        return {}
    from trainprof.findings.catalogue import UnknownThreshold, parsed_settings

    try:
        return parsed_settings(words)
    except UnknownThreshold as error:
        raise typer.BadParameter(str(error), param_hint="'--rule'") from None


class Format(str, Enum):
    """How a report is written."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"

    # Before 0.27 typer compares the string of a parsed value with the values.
    __str__ = str.__str__


FORMATS: Final = tuple(format.value for format in Format)
_SHORT_FORMATS: Final = {"md": Format.MARKDOWN.value, "text": Format.TERMINAL.value}


def parse_format(text: str, others: Sequence[str] = ()) -> Format:
    """Returns a format; typer.BadParameter names `others` that the verb has, too."""
    return Format(one_of(*FORMATS, *others)(_SHORT_FORMATS.get(text.lower(), text)))


_FORMAT: Final = f"Format of the output.  [default: {Format.TERMINAL.value}]"
FormatOption = Annotated[
    Format,
    reporting(
        "--format",
        parser=parse_format,
        metavar="|".join(FORMATS),
        show_default=False,
        help=_FORMAT,
    ),
]
