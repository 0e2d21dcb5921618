"""Names that a run's files, functions and data brought along execute nothing in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page
from support.browser import OpenPage
from support.pictured_run import pictured_run
from support.summaries import with_every_string

from trainprof.analysis.summary.charts import Charts, Lane
from trainprof.report.html import page as html

PAYLOADS = {
    "markup": "<img src=x onerror=window.pwned=1></script><script>window.pwned=1</script>"
    "\"'><svg onload=window.pwned=1> javascript:window.pwned=1 <!--<script>",
    "property": "__proto__",
}


def named(charts: Charts, name: str) -> Charts:
    """Returns charts in which a run's own names are others."""
    machine, events, stacks = charts.machine, charts.events, charts.stacks
    assert machine is not None
    values = np.full(charts.steps.count.shape, 40, np.uint8)
    return replace(
        charts,
        part=name,
        machine=replace(
            machine,
            series=[replace(series, name=name) for series in machine.series],
            cores={name: machine.cores["core 0"]},
        ),
        spans=[replace(span, label=name) for span in charts.spans],
        events=replace(events, labels=[name] * len(events.labels)),
        histograms=[replace(histogram, name=name) for histogram in charts.histograms],
        lane_edges_s=np.linspace(0, charts.wall_s, len(values) + 1),
        lanes=[Lane(loader=0, name=name, running=values, blocked=values)],
        stacks=replace(
            stacks,
            frames=[(name, name)] * len(stacks.frames),
            stacks=[
                *stacks.stacks,
                *((name, name, *rest) for _, _, *rest in stacks.stacks),
            ],
        ),
    )


def use_everything(page: Page) -> None:
    """Opens, points at and chooses what shows names: tips, readouts, the flame graph, a search."""
    for summary in page.locator("details:not([open]) > summary").all():
        if summary.is_visible():
            summary.click()
    for picture in page.locator("canvas, svg[tabindex]").all():
        if picture.is_visible():
            picture.hover(force=True)
    for choice in page.locator("select").all():
        for value in choice.locator("option").evaluate_all("all => all.map(x => x.value)"):
            choice.select_option(value)
    page.locator("#flame canvas").first.click(position={"x": 30, "y": 30}, force=True)
    page.locator("#flame input").fill("pwned")
    page.keyboard.press("Enter")


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_name_executes_nothing(open_page: OpenPage, tmp_path: Path, payload: str) -> None:
    summary, charts = pictured_run()
    hostile = with_every_string(summary, lambda text: f"{text} {payload}")
    file = tmp_path / "report.html"
    file.write_text(html.render(hostile, named(charts, payload)), encoding="utf-8")
    page = open_page(file)
    use_everything(page)
    assert page.evaluate("window.pwned ?? null") is None
    assert page.locator("img, iframe, object, embed, [onerror], [onload]").count() == 0
    assert page.locator("script").count() == 2
    assert payload[:8] in page.locator("body").inner_text()
