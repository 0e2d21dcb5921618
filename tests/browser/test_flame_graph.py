"""The flame graph in a browser: figures, search, zoom, keys, names that are no markup."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import Page
from support.browser import OpenPage, assert_accessible

from trainprof.analysis.summary.charts import MET_LATE, Stacks

MARKUP = "<img src=x onerror=document.title='run'>"
FRAMES = [
    ("main", "train.py:9"),
    ("score", "lib/score.py:3"),
    (MARKUP, "lib/score.py:7"),
    ("Image.open", "PIL.Image"),
    (MET_LATE, ""),
    ("main", "train.py:12"),
]
# Of 10 s in the loop: 4 in score(), 1 of them in a call of itself, 1 late; 3 in PIL, 3 in line 12.
STACKS = [
    ("training", "other", 30, [0, 1], 2.0),
    ("training", "other", 10, [0, 1, 2, 1], 1.0),
    ("training", "forward", 10, [0, 1, 4], 1.0),
    ("training", "forward", 30, [0, 3], 3.0),
    ("training", "other", 30, [5], 3.0),
    ("training", "startup", 30, [5], 3.0),
    ("workers", "fetch", 50, [3], 5.0),
]


@pytest.fixture
def page(open_page: OpenPage, tmp_path: Path) -> Page:
    static = files("trainprof.report.html").joinpath("static")
    scripts = "".join(static.joinpath(name).read_text() for name in ("base.js", "flame.js"))
    labels = {"other": "Python in the loop", "forward": "forward", "fetch": "preparing a batch"}
    payload = json.dumps({"stacks": asdict(Stacks(frames=FRAMES, stacks=STACKS)), "labels": labels})
    style = static.joinpath("flame.css").read_text()
    (tmp_path / "page.html").write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>page</title><style>{style}"
        "</style><main><h1>Run</h1><div id=flame></div></main>"
        f"<script type=application/json id=charts>{payload.replace('<', chr(92) + 'u003c')}"
        f'</script><script>(() => {{"use strict";{scripts} drawFlame(readPayload());'
        "window.trainprofReady = true; })()</script>"
    )
    return open_page(tmp_path / "page.html", width=1000)


def rows(page: Page) -> list[list[str]]:
    return [row.locator("td").all_inner_texts() for row in page.locator("tbody tr").all()]


def test_figures_search_and_zoom(page: Page) -> None:
    assert rows(page) == [
        ["main", "3.00 s (30 %)", "9.00 s (90 %)", "1.00 s (10 %)", "train.py:12"],
        ["score", "3.00 s (30 %)", "3.00 s (30 %)", "1.00 s (10 %)", "lib/score.py:3"],
        ["Image.open", "3.00 s (30 %)", "3.00 s (30 %)", "", "PIL.Image"],
        [MARKUP, "", "1.00 s (10 %)", "", "lib/score.py:7"],
    ]
    page.get_by_label("Search").fill("SCORE.py")
    assert page.get_by_role("status").inner_text() == "40 % of the samples match"
    page.get_by_role("button", name="Total time").click()
    assert page.locator("th[aria-sort=descending]").inner_text() == "Total time"
    # Rows are main's line 9 and 12, then score() and PIL.
    page.locator("canvas").click(position={"x": 100, "y": 50})
    assert page.locator(".flame-path").inner_text().split() == ["Reset", "main", "score"]
    assert page.get_by_role("status").inner_text() == "100 % of the samples match"
    details = page.locator(".flame-details")
    assert details.inner_text().split("\n")[:3] == ["score", "lib/score.py:3", "Copy"]
    assert "Total time 4.00 s (100 %)" in details.inner_text()
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Phase").select_option(label="all")
    assert rows(page)[0][2] == "12.0 s (92 %)"
    page.get_by_label("Phase").select_option(label="forward, 4.00 s")
    page.get_by_role("button", name="Self time").click()
    assert rows(page)[0][:3] == ["Image.open", "3.00 s (75 %)", "3.00 s (75 %)"]
    page.get_by_label("Thread").select_option(label="Loader workers")
    assert rows(page) == [["Image.open", "5.00 s (100 %)", "5.00 s (100 %)", "", "PIL.Image"]]
    assert page.title() == "page"


def test_keys_reach_every_frame(page: Page) -> None:
    item = page.get_by_role("treeitem")
    page.get_by_role("tree").focus()

    def after(*keys: str) -> str:
        for key in keys:
            page.keyboard.press(key)
        return item.inner_text()

    assert after("ArrowDown", "ArrowDown").startswith("score, lib/score.py:3, Total time 4.00 s")
    assert (item.get_attribute("aria-level"), item.get_attribute("aria-setsize")) == ("3", "2")
    assert after("ArrowRight").startswith("Image.open, PIL.Image")
    assert after("ArrowRight", "ArrowLeft", "ArrowDown").startswith(MARKUP)
    assert "(25 %)" in after("ArrowUp", "Enter", "ArrowDown")
    assert after("Escape").startswith("Training thread, Total time 10.0 s (100 %)")
    assert_accessible(page)
