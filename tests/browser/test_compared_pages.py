"""The pages of `compare` and `tune` in a browser: narrow and wide, light and dark, no fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.browser import OpenPage, assert_accessible
from support.compared_runs import repeated, single
from support.planted_trials import (
    FakeRunner,
    Planted,
    base_summary,
    plan_of,
    search_of,
    threads,
    workers,
)

from trainprof.analysis.statistics.speedup import NO_VISIBLE_DIFFERENCE, SLOWER
from trainprof.report.html import compared, tuned
from trainprof.tune.results import summary_of_tune


def tune_page() -> str:
    planted = Planted(lambda o: 0.005 if "num_workers" in o else 0.010)
    plan = plan_of(workers(2), threads(1))
    measured = search_of(FakeRunner(planted), lambda base, free_s: plan, budget_s=600.0).run()
    return tuned.render(
        summary_of_tune(base_summary(), measured, name="t", directory="runs/t", budget_s=600.0)
    )


def several_page() -> str:
    return compared.render([single(1.12, SLOWER), single(1.006, NO_VISIBLE_DIFFERENCE)])


PAGES: dict[str, Callable[[], str]] = {
    "one": lambda: compared.render([repeated()]),
    "several": several_page,
    "tune": tune_page,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_is_accessible(open_page: OpenPage, tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    for width, theme in ((1200, "light"), (400, "dark")):
        page = open_page(path, width=width, theme=theme)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        drawing, bar = (page.locator(f"svg[role=img]{part}").first for part in ("", " .bar"))
        share = float((bar.get_attribute("width") or "").rstrip("%")) / 100
        drawn, whole = bar.bounding_box(), drawing.bounding_box()
        assert drawn is not None
        assert whole is not None
        assert abs(drawn["width"] - share * whole["width"]) < 1
        assert_accessible(page)
