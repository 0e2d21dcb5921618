"""The pictures in README and docs/, which --update-docs takes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page
from support.browser import OpenPage
from support.docs import DOCS
from support.pictured_run import SLOW, pictured_run

from trainprof.report.html import page as html

SIZE = 1200, 800
MOST_BYTES = 200_000
UPDATE = "run pytest tests/browser/test_pictures_in_docs.py --update-docs"


@pytest.fixture
def opened(open_page: OpenPage, tmp_path: Path) -> Page:
    file = tmp_path / "report.html"
    file.write_text(html.render(*pictured_run()), encoding="utf-8")
    width, height = SIZE
    return open_page(file, width=width, height=height)


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Callable[[str, Page], None]:
    """Writes a picture where asked to; how letters look differs from machine to machine."""

    def keep(name: str, page: Page) -> None:
        path = DOCS / "images" / name
        taken = page.screenshot()
        if request.config.getoption("--update-docs"):
            path.write_bytes(taken)
        assert len(taken) <= MOST_BYTES
        assert path.exists(), UPDATE
        written = path.read_bytes()
        assert len(written) <= MOST_BYTES
        assert struct.unpack(">II", written[16:24]) == SIZE

    return keep


def words(place: Locator) -> str:
    return f"{place.inner_text().strip()}\n"


def test_first_screen(opened: Page, golden, picture):
    # What the picture shows: where this has changed, the picture is to be taken again.
    golden("first_screen.txt", words(opened.locator(".verdict")) + words(opened.locator(".answer")))
    picture("first-screen.png", opened)


def test_a_window_of_slow_steps(opened: Page, golden, picture):
    _, charts = pictured_run()
    area = opened.locator("[data-chart='step-time'] .u-over")
    opened.locator("#over-time").evaluate("element => window.scrollTo(0, element.offsetTop - 50)")
    box = area.bounding_box()
    assert box is not None
    # With two steps on each side that are not slow.
    ends = charts.steps.start_s[SLOW.start - 2], charts.steps.end_s[SLOW.stop + 1]
    left, right = (box["x"] + box["width"] * time / charts.wall_s for time in ends)
    middle = box["y"] + box["height"] / 2
    opened.mouse.move(left, middle)
    opened.mouse.down()
    opened.mouse.move(right, middle)
    opened.mouse.up()
    golden(
        "window.txt",
        words(opened.locator("#over-time > p")) + words(opened.locator("#window-table")),
    )
    picture("window.png", opened)
