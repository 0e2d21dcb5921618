"""Pages in a headless Chromium of the system; one that complains, or asks for anything, fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
FILES = ("file:", "data:", "blob:")

OpenPage = Callable[..., Page]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts a browser; in CI it is an error if the machine has none."""
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "no chromium on this machine"
        pytest.skip("no chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@contextmanager
def opened_pages(browser: Browser) -> Iterator[OpenPage]:
    """Yields what opens a file: at its end no page may have complained or asked for another."""
    complaints: list[str] = []
    contexts = []

    def open_page(
        path: Path,
        *,
        width: int = 1200,
        height: int = 800,
        theme: str = "light",
        scripts: bool = True,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if theme == "dark" else "light",
            java_script_enabled=scripts,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: request.url.startswith(FILES) or complaints.append(request.url),
        )
        page.goto(path.as_uri())
        if scripts:
            page.wait_for_function("window.trainprofReady === true")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def assert_accessible(page: Page) -> None:
    """Asserts that axe-core finds no violation."""
    violations = Axe().run(page).response["violations"]
    found = [
        (violation["id"], node["target"], node.get("failureSummary"))
        for violation in violations
        for node in violation["nodes"][:3]
    ]
    assert found == []
