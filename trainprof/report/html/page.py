"""The run as one HTML file: nothing is loaded from elsewhere, and only its own script runs."""

from __future__ import annotations

import base64
import hashlib
import shlex
from functools import cache
from importlib.resources import files
from typing import Any, Final

import jinja2
from markupsafe import Markup

from trainprof.analysis.summary.charts import Charts
from trainprof.analysis.summary.code import LineProfile
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.html import first_screen, line_tables, sections
from trainprof.report.html.payload import payload
from trainprof.report.page.findings import AS_HTML, next_commands, run_name
from trainprof.report.page.notices import notices
from trainprof.report.text.ending import ending, standstill
from trainprof.report.text.safe_text import clip_end, with_safe_text

# In order: what a file defines at its top is known in the files after it.
SCRIPTS: Final = (
    "vendor/uPlot.iife.min.js",
    "base.js",
    "charts.js",
    "window.js",
    "window_table.js",
    "histograms.js",
    "heatmap.js",
    "lanes.js",
    "flame.js",
    "main.js",
)
STYLES: Final = ("vendor/uPlot.min.css", "style.css", "charts.css", "flame.css", "bars.css")
# Of a text on the page, in cells: longer ones are cut.
_LONGEST_TEXT: Final = 2_000


def render(summary: RunSummary, charts: Charts | None, lines: LineProfile | None = None) -> str:
    """Returns the run as a page.

    Args:
        charts: None where nothing was recorded; the page then has no pictures.
        lines: Line times of a run that timed lines.
    """
    summary = with_safe_text(summary)
    shown, more = first_screen.cards(summary)
    below = sections.sections_of(summary, charts)
    timed = line_tables.functions(lines) if lines is not None else []
    template = environment().get_template("run.html.j2")
    closing = sections.closing_sections(summary)
    directory = summary.run.directory
    lines_link = [("lines", "Lines")] if timed else []
    return template.render(
        title=f"{ending(summary)} · trainprof",
        run=summary.run,
        ending=first_screen.ending_words(summary),
        is_bad_end=first_screen.is_bad_end(summary),
        headline=first_screen.headline(summary),
        level=first_screen.level(summary),
        beneath=first_screen.beneath_headline(summary),
        notices=notices(summary),
        standstill=standstill(summary),
        figures=first_screen.figures(summary),
        bar=first_screen.step_bar(summary),
        hot_lines=first_screen.hottest(summary),
        cards=shown,
        more_cards=more,
        checked=first_screen.checked_causes(summary),
        after=first_screen.after_findings(summary),
        commands=[x for x in next_commands(summary) if not x[0].endswith(AS_HTML)],
        why=None if directory is None else f"trainprof report {shlex.quote(run_name(directory))}",
        sections=below,
        timed=timed,
        line_notes=line_tables.notes(lines) if timed and lines is not None else [],
        closing=closing,
        links=[
            *((section.id, section.short) for section in below),
            *lines_link,
            *((section.id, section.short) for section in closing),
        ],
        payload=None if charts is None else payload(summary, charts),
    )


@cache
def environment() -> jinja2.Environment:
    """Returns the templates' environment: `style` and `script` with their hashes are global."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainprof.report.html"),
        autoescape=True,
        finalize=_shortened,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    library, *own = SCRIPTS
    script = (
        f'{file_text(library)}\n(() => {{\n"use strict";\n{"".join(map(file_text, own))}}})();\n'
    )
    for name, text in (("style", "".join(map(file_text, STYLES))), ("script", script)):
        digest = hashlib.sha256(text.encode()).digest()
        environment.globals[name] = Markup(text)
        environment.globals[f"{name}_hash"] = base64.b64encode(digest).decode("ascii")
    return environment


def file_text(name: str) -> str:
    file = files("trainprof.report.html").joinpath("static", *name.split("/"))
    return file.read_text("utf-8") if file.is_file() else ""


def _shortened(value: Any) -> Any:
    """Returns what a template shows; a text that nobody would read to its end is cut."""
    return clip_end(value, _LONGEST_TEXT) if type(value) is str else value
