"""Files made from a run: the HTML page, the trace, and the stack samples for speedscope."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Final

from trainprof.cli.output import write
from trainprof.record.errors import TrainprofError
from trainprof.record.run_directory import REPORT_HTML, SPEEDSCOPE, TRACE

if TYPE_CHECKING:
    from trainprof.analysis.summary.run_summary import RunSummary
    from trainprof.record.run_directory import RunDirectory


class Picture(str, Enum):
    """A file that `report` writes, by its --format."""

    HTML = "html"
    TRACE = "trace"
    SPEEDSCOPE = "speedscope"


PICTURES: Final = tuple(picture.value for picture in Picture)
_NAMES: Final = {
    Picture.HTML: REPORT_HTML,
    Picture.TRACE: TRACE,
    Picture.SPEEDSCOPE: SPEEDSCOPE,
}
_ELSEWHERE: Final = "write elsewhere: --output FILE"


class NotWritten(TrainprofError):
    slug: ClassVar[str] = "not-written"


class NothingRecorded(TrainprofError):
    slug: ClassVar[str] = "nothing-recorded"


def write_picture(
    picture: Picture,
    directory: RunDirectory,
    summary: RunSummary,
    *,
    output: Path | None = None,
    epoch: int | None = None,
    steps: tuple[int, int] | None = None,
) -> Path:
    """Writes a file, by default into the run directory, and returns its path.

    An older one is replaced at once, never half.

    Args:
        summary: Of the same part of the run.
        epoch, steps: As in `charts_of`.

    Raises:
        NotWritten: If the file cannot be written.
        NothingRecorded: If there are no stack samples to write.
    """
    path = directory.path / _NAMES[picture] if output is None else output
    with replacing(path, is_yours=output is not None) as file:
        _fill(file, picture, directory, summary, epoch, steps)
    return path


def _fill(
    file: BinaryIO,
    picture: Picture,
    directory: RunDirectory,
    summary: RunSummary,
    epoch: int | None,
    steps: tuple[int, int] | None,
) -> None:
    if picture is Picture.TRACE:
        from trainprof.analysis.trace.trace import trace_of
        from trainprof.report import trace

        recorded = trace_of(directory, epoch=epoch, steps=steps)
        trace.write(recorded, file)
        if recorded.note is not None:
            write(sys.stderr, f"trainprof: {recorded.note}\n")
        return
    if picture is Picture.HTML and summary.tuning is not None:
        from trainprof.report.html import tuned

        file.write(tuned.render(summary).encode())
        return
    from trainprof.analysis.charts.charts import charts_of

    charts = charts_of(directory, epoch=epoch, steps=steps)
    if picture is Picture.SPEEDSCOPE:
        from trainprof.report import speedscope

        if charts is None or not charts.stacks.stacks:
            raise NothingRecorded("the run has no stack samples", hint="record it again, longer")
        file.write(speedscope.render(charts.stacks, summary.run.name).encode())
        return
    from trainprof.report.html import page

    lines = None
    if summary.lines is not None:
        from trainprof.analysis.lines.recording import read_line_profile

        lines = read_line_profile(directory)
    file.write(page.render(summary, charts, lines).encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def replacing(path: Path, *, is_yours: bool) -> Iterator[BinaryIO]:
    """Opens a new file that takes the path's place when it is complete.

    A link in a run directory, which may be somebody else's, is replaced.

    Args:
        is_yours: The path was typed: a link is followed, and the file has the usual mode.

    Raises:
        NotWritten: If the file cannot be written.
    """
    place = Path(os.path.realpath(path)) if is_yours else path
    temporary = place.with_name(f"{place.name}.tmp")
    mode = 0o666 if is_yours else 0o600
    try:
        if place.exists() and not place.is_file():
            raise NotWritten(f"{path} is not a file", hint=_ELSEWHERE)
        temporary.unlink(missing_ok=True)
        try:
            with open(temporary, "xb", opener=lambda name, to: os.open(name, to, mode)) as file:
                yield file
            os.replace(temporary, place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        why = error.strerror or str(error)
        raise NotWritten(f"{path} cannot be written: {why}", hint=_ELSEWHERE) from error
