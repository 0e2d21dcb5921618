"""The pages of `compare` and `tune` in a browser: narrow and wide, light and dark, no fault."""

from __future__ import annotations

from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, sync_playwright
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


def check(browser: Browser, path: Path, width: int, scheme: str) -> None:
    view = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    faults: list[str] = []
    view.on("console", lambda message: faults.append(message.text))
    view.on("pageerror", lambda error: faults.append(str(error)))
    view.on("request", lambda request: faults.append(request.url))
    view.goto(path.as_uri())
    assert faults == [path.as_uri()]
    assert view.evaluate("document.documentElement.scrollWidth") == width
    # As long as the drawing's width and the bar's share of it.
    drawing, bar = view.locator("svg[role=img]").first, view.locator("svg[role=img] .bar").first
    share = float((bar.get_attribute("width") or "").rstrip("%")) / 100
    drawn, whole = bar.bounding_box(), drawing.bounding_box()
    assert drawn is not None
    assert whole is not None
    assert abs(drawn["width"] - share * whole["width"]) < 1
    view.get_by_role("button", name="Theme").click()
    assert view.evaluate("document.documentElement.dataset.theme") in ("light", "dark")
    view.close()


def test_pages_fit_and_have_no_fault(tmp_path: Path) -> None:
    pages = {
        "one": compared.render([repeated()]),
        "several": compared.render([single(1.12, SLOWER), single(1.006, NO_VISIBLE_DIFFERENCE)]),
        "tune": tune_page(),
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        for name, text in pages.items():
            path = tmp_path / f"{name}.html"
            path.write_text(text)
            check(browser, path, 1200, "light")
            check(browser, path, 400, "dark")
            view = browser.new_page(bypass_csp=True)
            view.goto(path.as_uri())
            assert Axe().run(view).response["violations"] == []
        browser.close()
