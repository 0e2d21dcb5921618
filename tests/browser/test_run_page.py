"""The HTML page of a run in a browser: it draws, follows a window, and everyone can use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page
from support.browser import OpenPage, assert_accessible
from support.long_run import OUTLIER_NS, outliers, sample_of, write_long_run

from trainprof.analysis.charts.charts import charts_of
from trainprof.cli.report import summary_of
from trainprof.record.run_directory import RunDirectory
from trainprof.report.html import page as html

STEPS, EPOCHS = 3_000, 10
MOST_BYTES = 3 << 20
# Whether something other than background was drawn on a canvas.
IS_DRAWN = """canvas => {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) {
        seen.add(data[i] + 256 * data[i + 1] + 65536 * data[i + 3]);
    }
    return seen.size > 1;
}"""


def write_page(directory: RunDirectory, path: Path) -> Path:
    path.write_text(html.render(summary_of(directory), charts_of(directory)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page")
    return write_page(write_long_run(path / "run", STEPS, epochs=EPOCHS), path / "report.html")


def window_of(page: Page) -> tuple[float, float]:
    table = page.locator("#window-table")
    ends = table.get_attribute("data-from"), table.get_attribute("data-to")
    return float(ends[0] or "nan"), float(ends[1] or "nan")


def drag(page: Page, chart: str, first: float, last: float) -> None:
    """Drags over a chart, between two shares of its width."""
    area = page.locator(f"[data-chart='{chart}'] .u-over")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + first * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + (first + last) / 2 * box["width"], y)
    page.mouse.move(box["x"] + last * box["width"], y)
    page.mouse.up()


def share_of(page: Page, step: int) -> float:
    """Returns where in the run a step begins, as a share of the whole page's time axis."""
    share = page.evaluate(
        """step => {
            const charts = JSON.parse(document.getElementById('charts').textContent);
            const bytes = Uint8Array.from(atob(charts.steps.start_s.f8), c => c.charCodeAt(0));
            return (new Float64Array(bytes.buffer)[step] - charts.start_s) / charts.wall_s;
        }""",
        step,
    )
    return float(share)


def test_every_chart_draws(open_page: OpenPage, file: Path) -> None:
    page = open_page(file)
    canvases = page.locator("canvas").all()
    assert len(canvases) >= 8
    assert all(canvas.evaluate(IS_DRAWN) for canvas in canvases)
    names = [chart.get_attribute("data-chart") for chart in page.locator("[data-chart]").all()]
    assert {"step-time", "parts"} <= set(names)
    assert len(names) == len(set(names))


def test_dragging_moves_all_charts_and_the_table(open_page: OpenPage, file: Path) -> None:
    page = open_page(file)
    whole = window_of(page)
    slow = int(outliers(STEPS, EPOCHS)[0])
    begins = share_of(page, slow - 100), share_of(page, slow + 100)
    drag(page, "step-time", *begins)
    first, last = window_of(page)
    assert first - whole[0] == pytest.approx(begins[0] * (whole[1] - whole[0]), abs=0.02)
    assert last - whole[0] == pytest.approx(begins[1] * (whole[1] - whole[0]), abs=0.02)
    text = page.locator("#window-table").inner_text()
    assert str(sample_of(slow)) in text.replace(",", "")
    assert f"{OUTLIER_NS // 10**6}.0 ms" in text
    drag(page, "parts", 0.2, 0.6)
    assert first < window_of(page)[0] < window_of(page)[1] < last
    page.keyboard.press("Escape")
    assert window_of(page) == whole


def test_the_window_shows_why_a_stretch_was_slow(open_page: OpenPage, file: Path) -> None:
    page = open_page(file)
    begins = share_of(page, STEPS // 2), share_of(page, STEPS // 2 + STEPS // 100)
    drag(page, "step-time", *begins)
    differing = page.locator("#window-table tr.differs").inner_text()
    # 2 ms more in each of these steps, beside less than 0.1 ms.
    assert "waiting for data" in differing
    assert "2.0" in differing


def test_keys_and_buttons_move_the_window(open_page: OpenPage, file: Path) -> None:
    page = open_page(file)
    whole = window_of(page)
    page.get_by_role("button", name="Zoom in").click()
    zoomed = window_of(page)
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    page.locator("#time-charts [tabindex='0'], #time-charts[tabindex='0']").first.focus()
    page.keyboard.press("ArrowRight")
    assert window_of(page)[0] > zoomed[0]
    page.keyboard.press("-")
    page.keyboard.press("-")
    assert window_of(page) == whole


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_is_accessible(open_page: OpenPage, file: Path, theme: str) -> None:
    page = open_page(file, theme=theme)
    for summary in page.locator("details:not([open]) > summary").all():
        if summary.is_visible():
            summary.click()
    assert_accessible(page)


def test_every_control_is_reached_by_tab(open_page: OpenPage, file: Path) -> None:
    page = open_page(file)
    controls = page.evaluate(
        """() => {
            const kinds = 'a[href], button, input, select, summary, [tabindex]';
            return [...document.querySelectorAll(kinds)]
               .filter(x => x.checkVisibility() && !x.disabled && x.tabIndex >= 0).length;
        }"""
    )
    reached = 0
    for _ in range(controls + 2):
        page.keyboard.press("Tab")
        is_new = page.evaluate(
            """() => {
                const element = document.activeElement;
                const isNew = element !== document.body && !element.dataset.reached;
                element.dataset.reached = 'yes';
                return isNew;
            }"""
        )
        reached += bool(is_new)
    assert reached == controls


def test_the_first_screen_answers_what_to_change(open_page: OpenPage, file: Path) -> None:
    page = open_page(file)
    for place in ("header h1, header h2", ".numbers", ".findings", ".measured svg"):
        box = page.locator(place).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 800, place


def test_a_narrow_page_does_not_scroll_sideways(open_page: OpenPage, file: Path) -> None:
    page = open_page(file, width=400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_theme_can_be_chosen(open_page: OpenPage, file: Path) -> None:
    page = open_page(file)

    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    seen = {background()}
    for _ in range(2):
        page.locator("#theme").click()
        seen.add(background())
    assert len(seen) == 2


def test_without_scripts_the_page_still_answers(open_page: OpenPage, file: Path) -> None:
    text = open_page(file, scripts=False).locator("body").inner_text()
    assert "One training step" in text
    assert "waiting for data" in text


def test_a_long_run_fits_its_page(open_page: OpenPage, tmp_path: Path) -> None:
    run = write_long_run(tmp_path / "run", 100_000, epochs=EPOCHS)
    file = write_page(run, tmp_path / "report.html")
    assert file.stat().st_size <= MOST_BYTES
    page = open_page(file)
    assert page.locator("[data-chart='step-time'] canvas").evaluate(IS_DRAWN)
