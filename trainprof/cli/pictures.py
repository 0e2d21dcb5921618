"""Files made from a run: the HTML page, the trace, and the stack samples for speedscope."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Final

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
    try:
        with _replacing(path) as file:
            _fill(file, picture, directory, summary, epoch, steps)
    except OSError as error:
        elsewhere = "write elsewhere: --output FILE"
        raise NotWritten(
            f"{path} cannot be written: {error.strerror or error}",
            hint=elsewhere if output is None else "check its directory and permissions",
        ) from error
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

        trace.write(trace_of(directory, epoch=epoch, steps=steps), file)
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
    file.write(page.render(summary, charts, lines).encode())


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file that takes the path's place when it is complete.

    A link is replaced, not followed: a run directory may be somebody else's.
    """
    if path.exists() and not path.is_file():
        raise NotWritten(f"{path} is not a file", hint="choose another: --output FILE")
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
