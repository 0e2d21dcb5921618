"""The charts' window in a browser: what it snaps to, and the figures of what happened in it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page
from support.browser import OpenPage
from support.summaries import healthy

from trainprof.analysis.summary.charts import Charts, Events, Stacks, StepBins
from trainprof.report.html import page as html
from trainprof.report.text import units

# 100 steps from 1 s on: 8 ms forward, and 2 ms of waiting, but 22 ms in steps 41 to 60.
STARTS_S = 1.0
WAIT_S = np.where((np.arange(100) >= 40) & (np.arange(100) < 60), 0.022, 0.002)
STEP_S = WAIT_S + 0.008
SLOW_S = (1.4, 2.0)
SAMPLE = "train.py:9 worker 1, sample <b>4711</b>"


def charts(per_bin: int) -> Charts:
    """Returns charts of a run of 3 s."""
    first = np.arange(0, 100, per_bin)
    ends = STARTS_S + np.add.accumulate(STEP_S)

    def each(of: Callable[..., np.ndarray]) -> np.ndarray:
        return of(STEP_S.reshape(-1, per_bin), axis=1)

    def total(seconds: np.ndarray) -> np.ndarray:
        return np.add.reduceat(seconds, first)

    steps = StepBins(
        per_bin=per_bin,
        first=first.astype("i4"),
        count=np.full(len(first), per_bin, "i4"),
        start_s=(ends - STEP_S)[first],
        end_s=ends[first + per_bin - 1],
        total_s=total(STEP_S),
        min_s=each(np.min).astype("f4"),
        p50_s=each(np.median).astype("f4"),
        p95_s=each(np.max).astype("f4"),
        max_s=each(np.max).astype("f4"),
        slowest=first.astype("i4"),
        outliers=total((np.arange(100) == 50).astype("i4")).astype("i4"),
        epoch=np.zeros(len(first), "i4"),
        parts_s={"data_wait": total(WAIT_S), "forward": total(np.full(100, 0.008))},
    )
    # 15 syncs in the slow steps and 5 after them, a slow fetch in them, and a checkpoint that
    # began before.
    start_s = np.r_[1.39, 1.45, 1.5 + np.arange(15) / 100, 2.1 + np.arange(5) / 100]
    events = Events(
        kinds=["checkpoint", "slow fetch", "sync"],
        kind=np.r_[0, 1, [2] * 20].astype("u1"),
        labels=["train.py:30", SAMPLE, "item at train.py:20"],
        label=np.r_[0, 1, [2] * 20].astype("i4"),
        start_s=start_s,
        seconds=np.r_[0.05, 0.1, [0.001] * 20].astype("f4"),
        step=np.r_[39, 41, [45] * 15, [70] * 5].astype("i4"),
        dropped={"sync": 7},
    )
    nothing = Stacks(frames=[], stacks=[])
    return Charts(
        wall_s=3.0,
        steps=steps,
        machine=None,
        spans=[],
        events=events,
        histograms=[],
        lane_edges_s=np.empty(0),
        lanes=[],
        stacks=nothing,
    )


@pytest.fixture
def opened(open_page: OpenPage, tmp_path: Path) -> Callable[[int], Page]:
    """Opens the page of a run whose bins are of a number of steps."""

    def opened(per_bin: int) -> Page:
        file = tmp_path / "report.html"
        file.write_text(html.render(healthy(), charts(per_bin)))
        return open_page(file)

    return opened


def drag(page: Page, from_s: float, to_s: float) -> None:
    """Drags over the step times while the charts show the whole run."""
    area = page.locator("[data-chart=step-time] .u-over")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    left, right = (box["x"] + box["width"] * time / 3 for time in (from_s, to_s))
    page.mouse.move(left, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(right, box["y"] + 50)
    page.mouse.up()


def shown(page: Page) -> tuple[float, float, int]:
    table = page.locator("#window-table")
    values = [table.get_attribute(f"data-{name}") or "" for name in ("from", "to", "steps")]
    return float(values[0]), float(values[1]), int(values[2])


def figures(page: Page) -> dict[str, str]:
    names = page.locator(".figures dt").all_inner_texts()
    return dict(zip(names, page.locator(".figures dd").all_inner_texts(), strict=True))


def rows(page: Page, table: int) -> list[list[str]]:
    tables = page.locator("#window-table table").nth(table)
    return [row.locator("th, td").all_inner_texts() for row in tables.locator("tbody tr").all()]


def test_a_window_snaps_to_steps_and_compares_them_with_the_whole_run(opened):
    page = opened(1)
    assert shown(page) == (0, 3, 100)
    drag(page, SLOW_S[0] + 0.005, SLOW_S[1] - 0.005)
    assert shown(page) == (pytest.approx(SLOW_S[0]), pytest.approx(SLOW_S[1]), 20)
    assert figures(page) == {
        "steps": "20 (41 to 60)",
        "mean step": "30.0 ms",
        "median": "30.0 ms",
        "p95": "30.0 ms",
        "longest": "30.0 ms",
        "outliers": "1",
    }
    assert rows(page, 0) == [
        ["waiting for data", "22.0 ms", "6.00 ms", "3.7x more"],
        ["forward", "8.00 ms", "8.00 ms", "the same"],
    ]
    assert page.locator("#window-table .differs").all_inner_texts()[0].startswith("waiting")
    counts = page.locator(".window-body > p").inner_text()
    for count in ("1 slow fetch (100 ms)", "1 checkpoint (50.0 ms)", "at least 15 syncs (15.0 ms)"):
        assert count in counts
    assert ["slow fetch", "1.4500 s", "100 ms", "42", SAMPLE] in rows(page, 1)


def test_of_bins_of_several_steps_totals_are_exact(opened):
    page = opened(10)
    # Between the ends of bins: from 1.3 s to 1.7 s it is the nearest ones.
    drag(page, 1.33, 1.66)
    assert shown(page) == (pytest.approx(1.3), pytest.approx(1.7), 20)
    assert figures(page)["mean step"] == "20.0 ms"
    assert figures(page)["median"].startswith("about ")
    assert rows(page, 0)[0] == ["waiting for data", "12.0 ms", "6.00 ms", "2.0x more"]


def test_keys_and_buttons_move_the_window(opened):
    page = opened(1)
    page.locator("#time-charts").focus()
    page.keyboard.press("+")
    first = shown(page)
    assert first == (0.75, pytest.approx(2.25, abs=0.006), pytest.approx(85, abs=1))
    page.keyboard.press("ArrowRight")
    assert shown(page)[0] > first[0]
    page.locator("[data-window=left]").click()
    page.keyboard.press("Escape")
    assert shown(page) == (0, 3, 100)
    # A stretch without steps has figures of its own: none.
    drag(page, 2.6, 2.8)
    assert shown(page)[2] == 0
    assert page.locator(".figures").count() == 0


def test_numbers_are_written_as_on_the_terminal_page(browser):
    page = browser.new_page()
    page.set_content("<title>numbers</title>")
    page.add_script_tag(
        content=files("trainprof.report.html").joinpath("static/base.js").read_text()
    )
    values = [0, 4e-7, 9.996e-4, 0.231, 58.44, 599.6, 1e3, 5_999, 123_456.0]
    sizes = [0, 17, 1_023, 1_048_000, 6.42e8, 5e15]
    shares = [0, 0.004, 0.5, 0.996, 1.7]
    assert page.evaluate("values => values.map(seconds)", values) == [*map(units.seconds, values)]
    assert page.evaluate("sizes => sizes.map(byteCount)", sizes) == [*map(units.byte_count, sizes)]
    assert page.evaluate("shares => shares.map(percent)", shares) == [*map(units.percent, shares)]


def test_steps_are_not_drawn_where_the_run_evaluates(browser):
    page = browser.new_page()
    page.set_content("<title>columns</title>")
    static = files("trainprof.report.html").joinpath("static")
    for name in ("base.js", "charts.js", "window.js", "window_table.js"):
        page.add_script_tag(content=static.joinpath(name).read_text())
    # Ten steps of 1 s in five bins; the seventh goes on for 10 s in which the run evaluates.
    drawn = """width => {
        const of = (...values) => Float64Array.from(values);
        const each = (value) => of(value, value, value, value, value);
        const [start_s, end_s] = [of(0, 2, 4, 6, 18), of(2, 4, 6, 18, 20)];
        const times = { min_s: each(1), p50_s: each(1), p95_s: each(1), max_s: each(1) };
        const sums = { count: each(2), total_s: each(2), parts_s: {} };
        const steps = { per_bin: 2, start_s, end_s, ...times, ...sums };
        const spans = [{ kind: "evaluation", start_s: 6.5, end_s: 16.5 }];
        const { time, at, mean } = columnsOf(steps, spans, { from: 0, to: 20 }, width);
        return time.map((second, i) => [second, mean[at[i]] ?? null]);
    }"""
    # Bins before it are one column, and neither that in which it lies nor the next one joins them.
    after = [[6, 1], [6.5, None], [16.5, 1], [18, 1], [20, 1]]
    assert page.evaluate(drawn, 2) == [[0, 1], *after]
    assert page.evaluate(drawn, 200) == [[0, 1], [2, 1], [4, 1], *after]
