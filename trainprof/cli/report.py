"""`trainprof report`: renders a saved run on stdout."""

from __future__ import annotations

import json
import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from trainprof.cli.output import style_of, write
from trainprof.record.errors import TrainprofError
from trainprof.record.run_directory import MANIFEST_SCHEMA_VERSION, RunDirectory

if TYPE_CHECKING:
    from trainprof.analysis.summary import RunSummary

RUNS: Final = Path("trainprof-runs")
# What we wrote ourselves stays far below; what is larger is not ours.
LARGEST_JSON_BYTES: Final = 1 << 28


class Format(str, Enum):
    """How a report is written."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"


class RunNotFound(TrainprofError):
    slug: ClassVar[str] = "run-not-found"
    exit_code: ClassVar[int] = 2


class RunDamaged(TrainprofError):
    slug: ClassVar[str] = "run-damaged"
    exit_code: ClassVar[int] = 2


def report(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run directory, a run's name under trainprof-runs, or latest."
        ),
    ],
    format: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.TERMINAL,
    epoch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only this epoch, counted from 1.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only steps A to B, counted from 1.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show all there is.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of ours.")] = False,
) -> None:
    """Render a saved run, complete or cut off."""
    chosen_steps = _step_range(steps)
    directory = find_run(run)
    summary = None
    if epoch is None and chosen_steps is None:
        summary = saved_summary(directory)
    if summary is None:
        index = None if epoch is None else epoch - 1
        summary = _rebuilt_summary(directory, index, chosen_steps)
    write(sys.stdout, _rendered(summary, format, verbose=verbose))


def find_run(name: str) -> RunDirectory:
    """Returns the run that `name` means: a directory, `latest`, or a name under trainprof-runs.

    Raises:
        RunNotFound: If there is none.
        RunDamaged: If it is no run directory, or one of a newer trainprof.
    """
    if not name:
        raise RunNotFound("no run named", hint=_known_runs())
    is_path = os.sep in name
    candidates = [Path(name)] if is_path else [Path(name), RUNS / name]
    directories = [path for path in candidates if path.is_dir()]
    if not directories:
        raise RunNotFound(f"no run at {name}", hint=_known_runs())
    for path in directories:
        directory = RunDirectory(path.resolve())
        if directory.manifest.exists() or directory.events.is_dir():
            _check_version(directory)
            return directory
    path = directories[0]
    ranks = path / "ranks"
    if ranks.is_dir():
        example = min(ranks.iterdir(), default=ranks / "0")
        raise RunDamaged(f"{path} holds several ranks", hint=f"report one: {example}")
    raise RunDamaged(f"{path} is not a run directory: no manifest.json", hint=_known_runs())


def saved_summary(directory: RunDirectory) -> RunSummary | None:
    """Returns the summary that the run left, None where it left none that we can read."""
    from trainprof.analysis.summary import SUMMARY_SCHEMA_VERSION, from_jsonable

    data = _read_json(directory.summary)
    if not isinstance(data, dict) or data.get("schema_version") != SUMMARY_SCHEMA_VERSION:
        return None
    try:
        return from_jsonable(data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _rebuilt_summary(
    directory: RunDirectory, epoch: int | None, steps: tuple[int, int] | None
) -> RunSummary:
    from trainprof.analysis.summarize import summarize

    try:
        return summarize(directory, epoch=epoch, steps=steps)
    except OSError as error:
        raise RunDamaged(
            f"{directory.path} cannot be read: {error.strerror or error}",
            hint="check its permissions",
        ) from error


def _rendered(summary: RunSummary, format: Format, *, verbose: bool) -> str:
    if format is Format.JSON:
        from trainprof.report import json_format

        return json_format.render(summary)
    if format is Format.MARKDOWN:
        from trainprof.report import markdown

        return markdown.render(summary)
    from trainprof.report import terminal

    style = style_of(sys.stdout)
    return terminal.render(
        summary, width=style.width, color=style.color, unicode=style.unicode, verbose=verbose
    )


def _step_range(text: str | None) -> tuple[int, int] | None:
    """Returns A:B, counted from 1 as reports do, as a 0-based range without its end."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise typer.BadParameter(f"{text!r} is not A:B with A <= B", param_hint="'--steps'")
    return int(first) - 1, int(last)


def _check_version(directory: RunDirectory) -> None:
    manifest = _read_json(directory.manifest)
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version > MANIFEST_SCHEMA_VERSION:
        raise RunDamaged(
            f"{directory.path} has format {version}; this trainprof reads up to "
            f"{MANIFEST_SCHEMA_VERSION}",
            hint="upgrade trainprof",
        )


def _read_json(path: Path) -> Any:
    """Returns the file's JSON value, None where it is missing, cut off or too large to be ours."""
    try:
        if path.stat().st_size > LARGEST_JSON_BYTES:
            return None
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _known_runs() -> str:
    try:
        paths = [path for path in RUNS.iterdir() if not path.is_symlink()]
        names = sorted(path.name for path in paths if (path / "manifest.json").exists())
    except OSError:
        names = []
    if not names:
        return f"there are no runs in {RUNS.absolute()}; make one with: trainprof run SCRIPT"
    return f"runs in {RUNS}: {', '.join(names[-5:])}"
